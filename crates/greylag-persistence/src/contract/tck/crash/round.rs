//! What a round of the crash cases is played with: the stores of a client, and the state that its writers share.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use futures::channel::oneshot;

use crate::contract::driver::journal_store::{Journal, SnapshotStore};
use crate::contract::driver::offset_store::OffsetStore;
use crate::contract::driver::state_store::StateStore;

/// The stores that one client of a killed store holds.
#[derive(Clone)]
pub struct CrashStores {
    /// The journal.
    pub journal: Arc<dyn Journal>,
    /// Its snapshots.
    pub snapshots: Arc<dyn SnapshotStore>,
    /// Durable states, if the backend has them.
    pub states: Option<Arc<dyn StateStore>>,
    /// Offsets of projections, if the backend has them.
    pub offsets: Option<Arc<dyn OffsetStore>>,
}

/// The kind of writes of a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Load {
    Appends,
    Everything,
}

/// The state of a round, shared by its writers and the killing task.
pub(super) struct Round {
    pub(super) load: Load,
    pub(super) acknowledged: AtomicU64,
    /// Number of acknowledgements after which the round ends.
    pub(super) enough: u64,
    pub(super) over: AtomicBool,
    pub(super) end: Mutex<Option<oneshot::Sender<()>>>,
}

impl Round {
    pub(super) fn acknowledge(&self) {
        if self.acknowledged.fetch_add(1, Ordering::Relaxed) + 1 >= self.enough {
            self.end();
        }
    }

    pub(super) fn end(&self) {
        if let Some(end) = self.end.lock().unwrap_or_else(PoisonError::into_inner).take() {
            // The send fails only if the killing task has ended, and that task waits for nothing else.
            let _ = end.send(());
        }
    }

    pub(super) fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }
}
