//! How this node and others come into the cluster: the search for a member, the identity of a joiner, and the processes
//! and clusters that stand in the way.

pub(super) mod address_claims;
pub(super) mod foreign_clusters;
pub(super) mod identity;
pub(super) mod join;
mod seeds;
