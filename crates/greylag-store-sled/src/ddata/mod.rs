//! The store of durable replicated entries, on the engine: ddata U2.
//!
//! Appends go to the committer, which groups them and answers when they are flushed and synced, so `flush` has nothing
//! left to do. Opening blocks, and may wait for a dying process to release the lock; it runs on a thread of its own, as
//! does all reading. One append runs at a time, and a long record is written piece by piece, so little of it waits in
//! memory.
//!
//! Commits are numbered, and the tail guard remembers the last one: a store that lost its end is not opened. Before the
//! disk is full, changes that only add are refused; see [`DdataStoreSettings::min_free_bytes`].

mod loading;
mod planner;
mod record;
mod settings;
mod shared;
mod store;

#[cfg(feature = "fuzzing")]
pub(crate) use record::read_anything;
pub use settings::DdataStoreSettings;
pub use store::DdataStore;
