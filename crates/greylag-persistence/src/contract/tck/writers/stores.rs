//! The stores that the writers write to.

use std::sync::Arc;

use crate::contract::driver::journal_store::{Journal, SnapshotStore};

/// The stores that the writers write to.
pub(super) struct Stores {
    pub(super) journal: Arc<dyn Journal>,
    pub(super) snapshots: Arc<dyn SnapshotStore>,
}
