//! The replicas, and how they are found from a fixed list of addresses.

pub(crate) mod replicas;
pub(crate) mod static_membership;
