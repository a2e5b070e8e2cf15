//! A state store in memory, with change queries by ordinals.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};

use async_trait::async_trait;

use super::clock::{Clock, closed, lock, system_clock};
use crate::contract::driver::state_store::StateStore;
use crate::contract::error::{CloseError, Corrupt, CorruptKind, QueryError, ReadError, StateWriteError, StoreFailure};
use crate::contract::journal::Health;
use crate::contract::offset::{Offset, OffsetKind};
use crate::contract::records::codec::EncodedValue;
use crate::contract::records::event::{SeqNr, Timestamp};
use crate::contract::records::persistence_id::PersistenceId;
use crate::contract::records::state::{ChangesOf, StateCaps, StateChange, StateWrite, StoredState, Verdict};
use crate::contract::scope::Scope;

#[derive(Default)]
pub(crate) struct Rows {
    /// Each row with the ordinal of its last change.
    pub(crate) by_id: BTreeMap<PersistenceId, (u64, StoredState)>,
    pub(crate) last_ordinal: u64,
    closed: bool,
}

/// A state store in memory. Clones share their data.
#[derive(Clone)]
pub struct InMemoryStates {
    rows: Arc<Mutex<Rows>>,
    caps: StateCaps,
    clock: Clock,
}

impl Default for InMemoryStates {
    fn default() -> Self {
        Self::new(Scope::Process, system_clock)
    }
}

impl fmt::Debug for InMemoryStates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "InMemoryStates({} ids)", lock(&self.rows).by_id.len())
    }
}

impl InMemoryStates {
    /// An empty store. Several nodes of one process that share it may call it [`Scope::Shared`];
    /// `clock` gives the timestamps.
    pub fn new(scope: Scope, clock: impl Fn() -> Timestamp + Send + Sync + 'static) -> Self {
        let caps = StateCaps::full(scope, OffsetKind::Ordinal);
        Self { rows: Arc::default(), caps, clock: Arc::new(clock) }
    }

    /// Damages a stored row, so that reading it is an error; returns whether the row exists.
    pub fn corrupt(&self, id: &PersistenceId) -> bool {
        let mut rows = lock(&self.rows);
        let row = rows.by_id.get_mut(id).map(|(_, row)| row);
        row.map(|row| row.crc32c = Some(row.crc32c.unwrap_or_default() ^ 0x8000_0001)).is_some()
    }

    /// The row of `id` as it is stored, for assertions.
    pub fn row(&self, id: &PersistenceId) -> Option<StoredState> {
        lock(&self.rows).by_id.get(id).map(|(_, row)| row.clone())
    }

    /// Removes all rows, tombstones included.
    pub fn clear(&self) {
        lock(&self.rows).by_id.clear();
    }

    pub(super) fn scope(&self) -> Scope {
        self.caps.scope
    }

    pub(crate) fn open<E>(&self, refuse: impl FnOnce(StoreFailure) -> E) -> Result<MutexGuard<'_, Rows>, E> {
        let rows = lock(&self.rows);
        if rows.closed { Err(refuse(closed())) } else { Ok(rows) }
    }

    fn write(
        &self,
        write: &StateWrite,
        content: Option<(EncodedValue, Option<String>)>,
    ) -> Result<(), StateWriteError> {
        let (value, tag) = content.as_ref().map_or((None, None), |(value, tag)| (Some(value), tag.as_deref()));
        write.check(value, tag, &self.caps).map_err(StateWriteError::Rejected)?;
        let mut rows = self.open(StateWriteError::NotStored)?;
        let before = rows.by_id.get(&write.id).map(|(_, row)| row.clone());
        let before = before.unwrap_or_else(|| StoredState::absent(write.id.clone()));
        let timestamp = (self.clock)().rising(before.timestamp);
        let row = write.row(&before, content, timestamp);
        match before.head().judge(write, row.crc32c) {
            Verdict::Repeat => Ok(()),
            Verdict::Mismatch => Err(StateWriteError::RevisionMismatch { current: before.head() }),
            Verdict::Store => {
                rows.last_ordinal += 1;
                let ordinal = rows.last_ordinal;
                rows.by_id.insert(write.id.clone(), (ordinal, row));
                Ok(())
            }
        }
    }
}

pub(super) fn checked(row: &StoredState) -> Result<StoredState, ReadError> {
    if row.is_intact() {
        return Ok(row.clone());
    }
    let seq_nr = SeqNr::saturating(row.revision.as_u64());
    Err(ReadError::Corrupt(Corrupt { id: row.id.clone(), seq_nr, kind: CorruptKind::Checksum }))
}

#[async_trait]
impl StateStore for InMemoryStates {
    fn caps(&self) -> StateCaps {
        self.caps
    }

    async fn get(&self, id: &PersistenceId) -> Result<StoredState, ReadError> {
        let rows = self.open(ReadError::Unavailable)?;
        rows.by_id.get(id).map_or_else(|| Ok(StoredState::absent(id.clone())), |(_, row)| checked(row))
    }

    async fn upsert(&self, write: StateWrite, value: EncodedValue, tag: Option<String>) -> Result<(), StateWriteError> {
        self.write(&write, Some((value, tag)))
    }

    async fn delete(&self, write: StateWrite) -> Result<(), StateWriteError> {
        self.write(&write, None)
    }

    async fn ids(&self, after: Option<&PersistenceId>, limit: usize) -> Result<Vec<PersistenceId>, ReadError> {
        let rows = self.open(ReadError::Unavailable)?;
        let later = rows.by_id.keys().filter(|id| after.is_none_or(|after| *id > after));
        Ok(later.take(limit).cloned().collect())
    }

    async fn changes(&self, of: &ChangesOf, offset: &Offset, limit: usize) -> Result<Vec<StateChange>, QueryError> {
        let after = match offset {
            Offset::None => 0,
            Offset::Ordinal(ordinal) => *ordinal,
            Offset::Timestamp { .. } => {
                let (expected, found) = (OffsetKind::Ordinal, OffsetKind::Timestamp);
                return Err(QueryError::ForeignOffset { expected, found });
            }
        };
        let rows = self.open(|failure| QueryError::Read(ReadError::Unavailable(failure)))?;
        let mut meant: Vec<_> = rows.by_id.values().filter(|(at, row)| *at > after && of.matches(row)).collect();
        meant.sort_by_key(|(ordinal, _)| *ordinal);
        let change = |(ordinal, row): &(u64, StoredState)| {
            checked(row).map(|state| StateChange { offset: Offset::Ordinal(*ordinal), state }).map_err(QueryError::Read)
        };
        meant.into_iter().take(limit).map(change).collect()
    }

    fn health(&self) -> Health {
        if lock(&self.rows).closed { Health::Down("closed".to_owned()) } else { Health::Up }
    }

    async fn close(&self) -> Result<(), CloseError> {
        lock(&self.rows).closed = true;
        Ok(())
    }
}
