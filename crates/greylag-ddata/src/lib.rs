//! Distributed data: a replicator for CRDTs that works with or without the cluster crate.
