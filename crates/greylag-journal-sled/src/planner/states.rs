//! Durable states: judged against the stored row, written once for each group, and given their place
//! in the order of changes when the group ends.
//!
//! What a write leaves behind (the place of the change before, chunks of the state before) goes with the
//! *next* group. Until the new state is durable readers are shown the old one; and if the group never
//! becomes durable, the old change must still stand where followers of the feed look for it.

use bytes::Bytes;
use greylag_persistence::{
    Corrupt, EncodedValue, ImportError, PersistenceId, SeqNr, StateRejectReason, StateWrite, StateWriteError,
    StoredState, Verdict,
};
use greylag_store_sled::{Batch, MAX_VALUE_BYTES, Reader, StoreError};

use super::{JournalPlanner, local};
use crate::commit_record::CommittedRow;
use crate::keys;
use crate::lookup;
use crate::state_row::{ChangeRow, StateRow, Superseded};

/// The row of a state before the group, which is the durable one, and as the group leaves it so far.
#[derive(Debug, Clone)]
pub(super) struct ChangedState {
    pub(super) before: Option<Bytes>,
    superseded: Option<Superseded>,
    /// The state as the group leaves it so far. As read from the store its payload may be cut: no rule looks at it.
    now: StoredState,
    /// Which write of the group made it.
    turn: usize,
}

impl JournalPlanner {
    /// Stores the value, or a tombstone, if the stored row admits it.
    pub(super) fn write_state(
        &mut self,
        write: &StateWrite,
        content: Option<(EncodedValue, Option<String>)>,
        reader: &Reader,
    ) -> Result<Result<(), StateWriteError>, StoreError> {
        let found = match self.state(&write.id, reader)? {
            Ok(found) => found,
            // Whether an earlier try of this write is stored cannot be seen.
            Err(corrupt) => return Ok(Err(StateWriteError::Unknown(self.failure(corrupt)))),
        };
        let current = found.now.head();
        let now = write.row(&found.now, content, self.clock.now().rising(found.now.timestamp));
        Ok(match current.judge(write, now.crc32c) {
            Verdict::Store if now.value.is_some() && self.room.is_low().is_some() => {
                let why = self.room.is_low().unwrap_or_default().to_owned();
                Err(StateWriteError::Rejected(StateRejectReason::StorageLow(why)))
            }
            Verdict::Repeat => Ok(()),
            Verdict::Mismatch => Err(StateWriteError::RevisionMismatch { current }),
            Verdict::Store => {
                if let Err(corrupt) = self.check_state(&now, reader)? {
                    return Ok(Err(StateWriteError::NotStored(self.failure(corrupt))));
                }
                self.group.changed = true;
                self.group.turns += 1;
                let changed = ChangedState { now, turn: self.group.turns, ..found };
                self.group.states.insert(write.id.clone(), changed);
                Ok(())
            }
        })
    }

    /// Stores a state of another store as it is, if it is a later one.
    pub(super) fn import_state(
        &mut self,
        state: StoredState,
        reader: &Reader,
    ) -> Result<Result<(), ImportError>, StoreError> {
        let found = match self.state(&state.id, reader)? {
            Ok(found) => found,
            Err(corrupt) => return Ok(Err(ImportError::Corrupt(corrupt))),
        };
        Ok(match state.replaces(&found.now.head()) {
            Ok(true) if self.room.is_low().is_some() => {
                Err(ImportError::Refused(format!("storage is low: {}", self.room.is_low().unwrap_or_default())))
            }
            Ok(true) => {
                if let Err(corrupt) = self.check_state(&state, reader)? {
                    return Ok(Err(ImportError::Corrupt(corrupt)));
                }
                self.group.changed = true;
                self.group.turns += 1;
                let id = state.id.clone();
                self.group.states.insert(id, ChangedState { now: state, turn: self.group.turns, ..found });
                Ok(())
            }
            Ok(false) => Ok(()),
            Err(error) => Err(error),
        })
    }

    /// Writes the rows of the group, each with its place in the order of changes. Comes last, so that the
    /// changes follow the events of the commit record in hand.
    pub(super) fn write_states(&mut self, batch: &mut Batch) {
        let mut states: Vec<_> = self.group.states.iter().map(|(id, changed)| (id.clone(), changed.clone())).collect();
        states.sort_unstable_by_key(|(_, changed)| changed.turn);
        for (id, ChangedState { superseded, now, .. }) in states {
            let (id, key) = (&id, keys::state(&id));
            // The record in hand may end here, and the next one begins with this ordinal.
            self.make_room(CommittedRow::bytes_of(&key), batch);
            let ordinal = self.counters.next_ordinal;
            self.counters.next_ordinal += 1;
            self.group.record.changes += 1;
            let (row, chunks) = StateRow { ordinal, state: now.clone() }.encode();
            self.note_row(&key, Some(&row), batch);
            batch.put(&key, &row);
            for (at, chunk) in (0..).zip(chunks) {
                batch.put(&keys::state_chunk(id, now.revision, at), &chunk);
            }
            let change = ChangeRow { id: id.clone(), superseded: superseded.clone() };
            batch.put(&keys::change(ordinal), &change.encode());
            self.superseded.push(change);
        }
    }

    /// Removes what the last group that became durable wrote over.
    pub(super) fn sweep_superseded(&mut self, reader: &Reader, batch: &mut Batch) -> Result<(), StoreError> {
        self.superseded.drain(..).try_for_each(|change| remove_superseded(&change, reader, batch))
    }

    /// Whether the pages to which this state goes can be changed; that of its row was read before.
    fn check_state(&self, state: &StoredState, reader: &Reader) -> Result<Result<(), Corrupt>, StoreError> {
        // What a row holds besides is far less than the other half.
        let may_be_cut = state.value.as_ref().is_some_and(|value| value.payload.len() > MAX_VALUE_BYTES / 2);
        let chunk = may_be_cut.then(|| keys::state_chunk(&state.id, state.revision, 0));
        let pages = [keys::change(self.counters.next_ordinal)].into_iter().chain(chunk);
        local(lookup::check_pages(reader, &state.id, SeqNr::saturating(state.revision.as_u64()), pages))
    }

    fn state(&self, id: &PersistenceId, reader: &Reader) -> Result<Result<ChangedState, Corrupt>, StoreError> {
        if let Some(changed) = self.group.states.get(id) {
            return Ok(Ok(changed.clone()));
        }
        let absent = || ChangedState { before: None, superseded: None, now: StoredState::absent(id.clone()), turn: 0 };
        let found = local(lookup::state_row(reader, id))?;
        Ok(found.map(|found| {
            found.map_or_else(absent, |(before, row, stored)| {
                let superseded = Some(Superseded::of(&row, &stored));
                ChangedState { before: Some(before), superseded, now: stored.state, turn: 0 }
            })
        }))
    }
}

/// Removes the place of the change before, and the chunks of its state.
pub(crate) fn remove_superseded(change: &ChangeRow, reader: &Reader, batch: &mut Batch) -> Result<(), StoreError> {
    let Some(Superseded { ordinal, revision, chunks }) = &change.superseded else { return Ok(()) };
    lookup::remove_unneeded(&keys::change(*ordinal), reader, batch)?;
    let mut chunks = (0..*chunks).map(|at| keys::state_chunk(&change.id, *revision, at));
    chunks.try_for_each(|chunk| lookup::remove_unneeded(&chunk, reader, batch).map(drop))
}
