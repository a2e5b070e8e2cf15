//! The stores that an entity uses, as one handle.

use std::fmt;
use std::sync::Arc;

use crate::journal::{Journal, Scope};
use crate::snapshot::SnapshotStore;

/// A journal and the snapshot store that goes with it. Cheap to clone.
#[derive(Clone)]
pub struct Stores {
    /// Keeps events.
    pub journal: Arc<dyn Journal>,
    /// Keeps snapshots.
    pub snapshots: Arc<dyn SnapshotStore>,
}

impl Stores {
    /// Both of them.
    pub fn new(journal: Arc<dyn Journal>, snapshots: Arc<dyn SnapshotStore>) -> Self {
        Self { journal, snapshots }
    }

    /// Whether every node reaches this journal. Whoever moves entities between nodes must refuse
    /// another one, because a moved entity would come up empty and look healthy. Source: persistence §1.
    pub fn is_shared(&self) -> bool {
        self.journal.caps().scope == Scope::Shared
    }
}

impl fmt::Debug for Stores {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stores")
            .field("journal", &self.journal.caps())
            .field("snapshots", &self.snapshots.caps())
            .finish()
    }
}
