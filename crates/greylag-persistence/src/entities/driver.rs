//! The host of single entities, the stores of a node, and the permits to recover.

pub(crate) mod ask;
pub(crate) mod host;
pub(crate) mod in_memory;
pub(crate) mod perform;
pub(crate) mod permits;
pub(crate) mod store_probe;
pub(crate) mod stores;
