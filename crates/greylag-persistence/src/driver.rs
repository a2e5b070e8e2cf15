//! The asynchronous half: store traits, the in-memory stores, and a host for single entities.

pub use crate::contract::driver::faulty::{
    FaultyJournal, FaultyOffsets, FaultySnapshots, FaultyStates, JournalOp, OffsetOp, SnapshotOp, StateOp, StoreFault,
};
pub use crate::contract::driver::guarded::Guarded;
pub use crate::contract::driver::memory::changes::InMemoryChanges;
pub use crate::contract::driver::memory::offsets::InMemoryOffsets;
pub use crate::contract::driver::memory::queries::InMemoryQueries;
pub use crate::contract::driver::memory::states::InMemoryStates;
pub use crate::contract::driver::memory::{AppendFault, InMemoryJournal, InMemorySnapshots};
pub use crate::contract::driver::opening::open_store;
pub use crate::contract::driver::seed::random_seed;
pub use crate::entities::driver::host::{Ended, EntityHandle, Spawn, Spawned, next_start, spawn, spawn_state};
pub use crate::entities::driver::permits::{RecoveryPermit, RecoveryPermits};
pub use crate::entities::driver::store_probe::StoreProbe;
pub use crate::transfer::driver::copy;
pub use crate::transfer::driver::memory::InMemoryArchive;
