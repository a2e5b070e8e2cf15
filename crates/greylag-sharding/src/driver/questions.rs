//! Questions about entities, shards and regions, to other nodes and to the coordinator.

pub(super) mod inquiries;
pub(super) mod inspect;
pub(super) mod requests;
pub(super) mod stopping;
