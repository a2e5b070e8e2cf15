//! The store of durable entries: what it must do, one in memory, and which changes are not on disk yet.

pub(crate) mod memory_store;
pub(crate) mod store;
pub(crate) mod storing;
