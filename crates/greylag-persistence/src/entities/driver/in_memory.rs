//! The stores of a node in memory, as one handle.

use std::sync::Arc;

use super::stores::Stores;
use crate::contract::driver::memory::clock::system_clock;
use crate::contract::driver::memory::states::InMemoryStates;
use crate::contract::driver::memory::{InMemoryJournal, InMemorySnapshots};
use crate::contract::records::snapshot::SnapshotCaps;
use crate::contract::scope::Scope;

impl Stores {
    /// Empty stores in memory; their data ends with the process.
    pub fn in_memory() -> Self {
        Self::new(Arc::new(InMemoryJournal::default()), Arc::new(InMemorySnapshots::default()))
            .with_states(Arc::new(InMemoryStates::default()))
            .kept_open()
    }

    /// Empty stores in memory that several nodes of this process share.
    pub fn in_memory_shared() -> Self {
        let journal = InMemoryJournal::new(Scope::Shared, system_clock);
        let snapshots = InMemorySnapshots::new(SnapshotCaps::full(Scope::Shared), system_clock);
        let states = InMemoryStates::new(Scope::Shared, system_clock);
        Self::new(Arc::new(journal), Arc::new(snapshots)).with_states(Arc::new(states)).kept_open()
    }
}
