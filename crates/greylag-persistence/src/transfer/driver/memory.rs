//! Stores in memory as either end of a copy.

use std::collections::BTreeSet;
use std::sync::Arc;

use async_trait::async_trait;

use super::records::{Export, Import};
use crate::contract::driver::memory::clock::lock;
use crate::contract::driver::memory::states::InMemoryStates;
use crate::contract::driver::memory::{InMemoryJournal, InMemorySnapshots};
use crate::contract::error::{Corrupt, CorruptKind, ReadError, StoreFailure};
use crate::contract::history_part::{HistoryPart, ImportError};
use crate::contract::records::event::Timestamp;
use crate::contract::records::persistence_id::PersistenceId;
use crate::contract::records::snapshot::Snapshot;
use crate::contract::records::state::StoredState;
use crate::entities::driver::stores::Stores;

/// A journal, snapshots and states in memory as one store, to be copied from or to. The archive cannot tell
/// whether other handles use its stores, so the caller must prevent that.
#[derive(Debug, Clone, Default)]
pub struct InMemoryArchive {
    /// The events.
    pub journal: InMemoryJournal,
    /// The snapshots.
    pub snapshots: InMemorySnapshots,
    /// The durable states.
    pub states: InMemoryStates,
}

#[async_trait]
impl Export for InMemoryArchive {
    fn stores(&self) -> Stores {
        Stores::new(Arc::new(self.journal.clone()), Arc::new(self.snapshots.clone()))
            .with_states(Arc::new(self.states.clone()))
    }

    async fn ids(&self, after: Option<&PersistenceId>, limit: usize) -> Result<Vec<PersistenceId>, ReadError> {
        let mut ids: BTreeSet<PersistenceId> =
            self.journal.open(ReadError::Unavailable)?.by_id.keys().cloned().collect();
        ids.extend(lock(&self.snapshots.saved).by_id.keys().cloned());
        ids.extend(self.states.open(ReadError::Unavailable)?.by_id.keys().cloned());
        let later = ids.into_iter().filter(|id| after.is_none_or(|after| id > after));
        Ok(later.take(limit).collect())
    }

    async fn last_append(&self, id: &PersistenceId) -> Result<Timestamp, ReadError> {
        let histories = self.journal.open(ReadError::Unavailable)?;
        Ok(histories.by_id.get(id).map(|history| history.last_timestamp).unwrap_or_default())
    }

    async fn reserved(&self) -> Result<(), StoreFailure> {
        self.journal.open(|failure| failure).map(drop)
    }
}

#[async_trait]
impl Import for InMemoryArchive {
    async fn import_events(&self, part: HistoryPart) -> Result<(), ImportError> {
        let mut histories = self.journal.open(ImportError::Unavailable)?;
        let stored = histories.by_id.get(&part.id).map(|history| history.head).unwrap_or_default();
        part.check(&stored)?;
        histories.commits.extend(part.events.iter().map(|event| (part.id.clone(), event.seq_nr)));
        let history = histories.by_id.entry(part.id).or_default();
        history.head = part.head;
        history.last_timestamp = part.last_append;
        history.events.extend(part.events.into_iter().map(|event| (event.seq_nr, event)));
        history.delete_to(part.head.deleted_to);
        Ok(())
    }

    async fn import_snapshot(&self, snapshot: Snapshot) -> Result<(), ImportError> {
        if !snapshot.is_intact() {
            let (id, seq_nr) = (snapshot.id, snapshot.seq_nr);
            return Err(ImportError::Corrupt(Corrupt { id, seq_nr, kind: CorruptKind::Checksum }));
        }
        let mut saved = lock(&self.snapshots.saved);
        saved.by_id.entry(snapshot.id.clone()).or_default().insert(snapshot.seq_nr, snapshot);
        Ok(())
    }

    async fn import_state(&self, state: StoredState) -> Result<(), ImportError> {
        let mut rows = self.states.open(ImportError::Unavailable)?;
        let stored = rows.by_id.get(&state.id).map(|(_, row)| row.head()).unwrap_or_default();
        if state.replaces(&stored)? {
            rows.last_ordinal += 1;
            let ordinal = rows.last_ordinal;
            rows.by_id.insert(state.id.clone(), (ordinal, state));
        }
        Ok(())
    }
}
