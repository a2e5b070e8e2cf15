//! A snapshot store with scripted faults.

use std::sync::Arc;

use async_trait::async_trait;

use super::{Opaque, Plans, StoreFault};
use crate::contract::driver::journal_store::SnapshotStore;
use crate::contract::error::{CloseError, Corrupt, CorruptKind, SnapshotError};
use crate::contract::journal::Health;
use crate::contract::records::event::{SeqNr, Timestamp};
use crate::contract::records::persistence_id::PersistenceId;
use crate::contract::records::snapshot::{NewSnapshot, Snapshot, SnapshotCaps, SnapshotCriteria};

/// The operation of a snapshot store that a fault is planned for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SnapshotOp {
    /// [`SnapshotStore::load`].
    Load,
    /// [`SnapshotStore::save`].
    Save,
    /// [`SnapshotStore::delete`] and [`SnapshotStore::delete_matching`].
    Delete,
}

/// A snapshot store with scripted faults around another.
#[derive(Debug)]
pub struct FaultySnapshots {
    inner: Opaque<Arc<dyn SnapshotStore>>,
    plans: Plans<SnapshotOp>,
}

impl FaultySnapshots {
    /// A wrapper of `inner`, without faults until one is planned.
    pub fn new(inner: Arc<dyn SnapshotStore>) -> Self {
        Self { inner: Opaque(inner), plans: Plans::new("faulty snapshot store") }
    }

    /// Plans `fault` for one call of `op` on `id` (on any id, if none), after `passing` calls
    /// that pass. The number of a damaged record is the greatest that the call asked for.
    pub fn plan(&self, id: Option<PersistenceId>, op: SnapshotOp, passing: u32, fault: StoreFault) {
        self.plans.add(id.map(|id| id.to_string()), op, passing, fault);
    }

    /// Starts or ends an outage: every call meets [`StoreFault::Unavailable`] while `is_away`. Planned faults wait.
    pub fn set_away(&self, is_away: bool) {
        self.plans.set_away(is_away);
    }
}

#[async_trait]
impl SnapshotStore for FaultySnapshots {
    fn caps(&self) -> SnapshotCaps {
        self.inner.caps()
    }

    async fn load(&self, id: &PersistenceId, criteria: SnapshotCriteria) -> Result<Option<Snapshot>, SnapshotError> {
        let refuse = |fault, failure| match fault {
            StoreFault::Corrupt => {
                let (id, seq_nr) = (id.clone(), criteria.max_seq_nr);
                SnapshotError::Corrupt(Corrupt { id, seq_nr, kind: CorruptKind::Checksum })
            }
            _ => SnapshotError::Unavailable(failure),
        };
        self.plans.meet(id.as_str(), SnapshotOp::Load, self.inner.load(id, criteria), refuse).await
    }

    async fn save(&self, snapshot: NewSnapshot) -> Result<Timestamp, SnapshotError> {
        let id = snapshot.id.clone();
        let call = self.inner.save(snapshot);
        self.plans.meet(id.as_str(), SnapshotOp::Save, call, |_, failure| SnapshotError::Unavailable(failure)).await
    }

    async fn delete(&self, id: &PersistenceId, seq_nr: SeqNr) -> Result<(), SnapshotError> {
        let call = self.inner.delete(id, seq_nr);
        self.plans.meet(id.as_str(), SnapshotOp::Delete, call, |_, failure| SnapshotError::Unavailable(failure)).await
    }

    async fn delete_matching(&self, id: &PersistenceId, criteria: SnapshotCriteria) -> Result<(), SnapshotError> {
        let call = self.inner.delete_matching(id, criteria);
        self.plans.meet(id.as_str(), SnapshotOp::Delete, call, |_, failure| SnapshotError::Unavailable(failure)).await
    }

    fn health(&self) -> Health {
        self.inner.health()
    }

    async fn close(&self) -> Result<(), CloseError> {
        self.inner.close().await
    }
}
