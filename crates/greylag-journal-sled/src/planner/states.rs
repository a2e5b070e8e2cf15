//! Durable states: checked against the stored row, written once per group, and given their ordinals when the group
//! ends.
//!
//! The change and the chunks that a write supersedes are removed with the *next* group. Until the new state is durable
//! readers are shown the old one; and if the group never becomes durable, the old change must still stand where
//! followers of the feed look for it.

use std::collections::HashMap;

use bytes::Bytes;
use greylag_persistence::{
    Corrupt, EncodedValue, ImportError, PersistenceId, SeqNr, StateRejectReason, StateWrite, StateWriteError,
    StoredState, Verdict,
};
use greylag_store_sled::{Batch, MAX_VALUE_BYTES, Reader, StoreError};

use super::commit_writer::CommitWriter;
use super::storage::Storage;
use crate::lookup::{self, local};
use crate::rows::keys;
use crate::rows::state_row::{ChangeRow, StateRow, Superseded};
use crate::settings::Clock;

/// The row of a state before the group (the durable row), and the state as the group has changed it so far.
#[derive(Debug, Clone)]
struct ChangedState {
    before: Option<Bytes>,
    superseded: Option<Superseded>,
    /// The state as the group leaves it so far. Read from the store, its payload may be cut, which no rule depends on.
    now: StoredState,
    /// Number of the write within the group that made the state.
    turn: usize,
}

/// The states that the group in hand changes.
#[derive(Default)]
pub(super) struct StateChanges {
    states: HashMap<PersistenceId, ChangedState>,
    /// Count of writes of the group so far.
    turns: usize,
    /// State changes of the last group; the rows that they superseded are removed with the next group, when the changes
    /// are durable.
    superseded: Vec<ChangeRow>,
}

impl StateChanges {
    /// Forgets everything: the store was opened anew.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Begins a group, which has changed nothing yet.
    pub(super) fn begin_group(&mut self) {
        self.states.clear();
        self.turns = 0;
    }

    /// Ends the group; answers the durable rows that readers find in place of those that the group overwrites.
    pub(super) fn end_group(&mut self) -> impl Iterator<Item = (Vec<u8>, Option<Bytes>)> + use<> {
        std::mem::take(&mut self.states).into_iter().map(|(id, changed)| (keys::state(&id), changed.before))
    }

    /// Whether the next group removes anything that the last one superseded.
    pub(super) fn has_superseded(&self) -> bool {
        !self.superseded.is_empty()
    }

    /// Stores the value, or a tombstone, if the stored row admits it.
    pub(super) fn write(
        &mut self,
        write: &StateWrite,
        content: Option<(EncodedValue, Option<String>)>,
        clock: &Clock,
        storage: &Storage,
        commits: &mut CommitWriter,
        reader: &Reader,
    ) -> Result<Result<(), StateWriteError>, StoreError> {
        let found = match self.state(&write.id, reader)? {
            Ok(found) => found,
            // Damage hides whether an earlier try of this write is stored.
            Err(corrupt) => return Ok(Err(StateWriteError::Unknown(storage.damaged(corrupt)))),
        };
        let current = found.now.head();
        let now = write.row(&found.now, content, clock.now().rising(found.now.timestamp));
        Ok(match current.judge(write, now.crc32c) {
            Verdict::Store if now.value.is_some() && storage.is_low().is_some() => {
                let why = storage.is_low().unwrap_or_default().to_owned();
                Err(StateWriteError::Rejected(StateRejectReason::StorageLow(why)))
            }
            Verdict::Repeat => Ok(()),
            Verdict::Mismatch => Err(StateWriteError::RevisionMismatch { current }),
            Verdict::Store => {
                if let Err(corrupt) = check_pages(&now, commits, reader)? {
                    return Ok(Err(StateWriteError::NotStored(storage.damaged(corrupt))));
                }
                commits.on_change();
                self.turns += 1;
                self.states.insert(write.id.clone(), ChangedState { now, turn: self.turns, ..found });
                Ok(())
            }
        })
    }

    /// Stores a state of another store as it is, if it is later than the stored one.
    pub(super) fn import(
        &mut self,
        state: StoredState,
        storage: &Storage,
        commits: &mut CommitWriter,
        reader: &Reader,
    ) -> Result<Result<(), ImportError>, StoreError> {
        let found = match self.state(&state.id, reader)? {
            Ok(found) => found,
            Err(corrupt) => return Ok(Err(ImportError::Corrupt(corrupt))),
        };
        Ok(match state.replaces(&found.now.head()) {
            Ok(true) if storage.is_low().is_some() => {
                Err(ImportError::Refused(format!("storage is low: {}", storage.is_low().unwrap_or_default())))
            }
            Ok(true) => {
                if let Err(corrupt) = check_pages(&state, commits, reader)? {
                    return Ok(Err(ImportError::Corrupt(corrupt)));
                }
                commits.on_change();
                self.turns += 1;
                self.states.insert(state.id.clone(), ChangedState { now: state, turn: self.turns, ..found });
                Ok(())
            }
            Ok(false) => Ok(()),
            Err(error) => Err(error),
        })
    }

    /// Writes the state rows of the group, each with its ordinal. Called last, so that ordinals of changes follow those
    /// of the events of the commit record in hand.
    pub(super) fn write_rows(&mut self, commits: &mut CommitWriter, batch: &mut Batch) {
        let mut states: Vec<_> = self.states.iter().map(|(id, changed)| (id.clone(), changed.clone())).collect();
        states.sort_unstable_by_key(|(_, changed)| changed.turn);
        for (id, ChangedState { superseded, now, .. }) in states {
            let (id, key) = (&id, keys::state(&id));
            let ordinal = commits.next_change(&key, batch);
            let (row, chunks) = StateRow { ordinal, state: now.clone() }.encode();
            commits.note_row(&key, Some(&row), batch);
            batch.put(&key, &row);
            for (at, chunk) in (0..).zip(chunks) {
                batch.put(&keys::state_chunk(id, now.revision, at), &chunk);
            }
            let change = ChangeRow { id: id.clone(), superseded: superseded.clone() };
            batch.put(&keys::change(ordinal), &change.encode());
            self.superseded.push(change);
        }
    }

    /// Removes what the last durable group superseded.
    pub(super) fn sweep_superseded(&mut self, reader: &Reader, batch: &mut Batch) -> Result<(), StoreError> {
        self.superseded.drain(..).try_for_each(|change| remove_superseded(&change, reader, batch))
    }

    fn state(&self, id: &PersistenceId, reader: &Reader) -> Result<Result<ChangedState, Corrupt>, StoreError> {
        if let Some(changed) = self.states.get(id) {
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

/// Whether the pages that this state is written to can be changed; that of its row was read before.
fn check_pages(
    state: &StoredState,
    commits: &CommitWriter,
    reader: &Reader,
) -> Result<Result<(), Corrupt>, StoreError> {
    // The other fields of a row take far less than half a value.
    let may_be_cut = state.value.as_ref().is_some_and(|value| value.payload.len() > MAX_VALUE_BYTES / 2);
    let chunk = may_be_cut.then(|| keys::state_chunk(&state.id, state.revision, 0));
    let pages = [keys::change(commits.next_ordinal())].into_iter().chain(chunk);
    local(lookup::check_pages(reader, &state.id, SeqNr::saturating(state.revision.as_u64()), pages))
}

/// Removes the superseded change, and the chunks of the superseded state.
pub(super) fn remove_superseded(change: &ChangeRow, reader: &Reader, batch: &mut Batch) -> Result<(), StoreError> {
    let Some(Superseded { ordinal, revision, chunks }) = &change.superseded else { return Ok(()) };
    lookup::remove_unneeded(&keys::change(*ordinal), reader, batch)?;
    let mut chunks = (0..*chunks).map(|at| keys::state_chunk(&change.id, *revision, at));
    chunks.try_for_each(|chunk| lookup::remove_unneeded(&chunk, reader, batch).map(drop))
}
