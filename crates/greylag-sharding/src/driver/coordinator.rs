//! The coordination of entity types on this node: coordinators, their strategies, and the stores of their state.

pub(super) mod coordinated;
pub(super) mod desired;
pub(super) mod external;
pub(super) mod external_shards;
pub(super) mod host;
pub(super) mod local_coordinator;
pub(super) mod mailbox;
pub(super) mod store;
pub(super) mod strategy;
