//! Cluster membership: gossip, failure detection, downing, proof of death, singleton.
