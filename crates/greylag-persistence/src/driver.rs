//! The half that waits: store traits, the in-memory stores, and a host for single entities.

mod faulty;
mod host;
mod memory;
pub(crate) mod offset_store;
mod perform;
mod permits;
pub(crate) mod state_store;
pub(crate) mod stores;

pub use faulty::{
    FaultyJournal, FaultyOffsets, FaultySnapshots, FaultyStates, JournalOp, OffsetOp, SnapshotOp, StateOp, StoreFault,
};
pub use host::{Ended, EntityHandle, next_start, random_seed, spawn, spawn_state};
pub use memory::{AppendFault, InMemoryJournal, InMemoryOffsets, InMemorySnapshots, InMemoryStates};
pub use permits::{RecoveryPermit, RecoveryPermits};
