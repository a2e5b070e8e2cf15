//! The asynchronous half: store traits, the in-memory stores, and a host for single entities.

mod ask;
pub mod copy;
mod faulty;
mod guarded;
pub(crate) mod hints;
mod host;
mod memory;
pub(crate) mod offset_store;
mod opening;
mod perform;
mod permits;
pub(crate) mod projection;
pub(crate) mod query_store;
pub(crate) mod read_journal;
mod sharing;
pub(crate) mod state_store;
mod store_probe;
pub(crate) mod store_returns;
pub(crate) mod stores;
pub(crate) mod transfer;

pub use faulty::{
    FaultyJournal, FaultyOffsets, FaultySnapshots, FaultyStates, JournalOp, OffsetOp, SnapshotOp, StateOp, StoreFault,
};
pub use guarded::Guarded;
pub use host::{Ended, EntityHandle, Spawn, Spawned, next_start, random_seed, spawn, spawn_state};
pub use memory::{
    AppendFault, InMemoryArchive, InMemoryChanges, InMemoryJournal, InMemoryOffsets, InMemoryQueries,
    InMemorySnapshots, InMemoryStates,
};
pub use opening::open_store;
pub use permits::{RecoveryPermit, RecoveryPermits};
pub use store_probe::StoreProbe;
