//! The traits of the stores, the stores in memory, and what goes around any store.

pub(crate) mod faulty;
pub(crate) mod guarded;
pub(crate) mod journal_store;
pub(crate) mod memory;
pub(crate) mod offset_store;
pub(crate) mod opening;
pub(crate) mod query_store;
pub(crate) mod seed;
pub(crate) mod state_store;
pub(crate) mod store_returns;
