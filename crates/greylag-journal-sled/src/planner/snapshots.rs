//! Snapshots: chunks are stored in earlier groups and the row that names them last, so that a snapshot is stored whole
//! or not at all.

use greylag_persistence::{Corrupt, PersistenceId, SeqNr, SnapshotError, StoreFailure, Timestamp};
use greylag_store_sled::{Batch, Reader, StoreError};

use super::journal_planner::JournalPlanner;
use crate::lookup::{self, LookupError, local};
use crate::request::{Answer, Opening, SnapshotChunks};
use crate::rows::keys::{self, PidNo};
use crate::rows::records::{EncodedSnapshot, Row, StoredHead, snapshot_timestamp};

impl JournalPlanner {
    pub(super) fn snapshot_chunks(
        &mut self,
        part: SnapshotChunks,
        reader: &Reader,
        batch: &mut Batch,
    ) -> Result<Answer, StoreError> {
        if let Some(failure) = self.storage.low() {
            return Ok(Answer::SnapshotChunks(Err(SnapshotError::Unavailable(failure))));
        }
        // A damaged head is reported when the row follows; until then its chunks are not stored.
        if let Ok(pid) = self.pid_for_snapshot(&part.id, reader, batch)? {
            let first = keys::snapshot_chunk(pid, part.seq_nr, part.save, part.first_chunk);
            if let Err(corrupt) = local(lookup::check_pages(reader, &part.id, part.seq_nr, [first]))? {
                return Ok(Answer::SnapshotChunks(Err(SnapshotError::Corrupt(corrupt))));
            }
            for (at, chunk) in (part.first_chunk..).zip(part.chunks) {
                batch.put_owned(&keys::snapshot_chunk(pid, part.seq_nr, part.save, at), chunk);
            }
            self.commits.on_change();
        }
        Ok(Answer::SnapshotChunks(Ok(self.opening)))
    }

    pub(super) fn save_snapshot(
        &mut self,
        snapshot: EncodedSnapshot,
        chunks_written_in: Option<Opening>,
        taken_at: Option<Timestamp>,
        reader: &Reader,
        batch: &mut Batch,
    ) -> Result<Result<Timestamp, SnapshotError>, StoreError> {
        if let Some(failure) = self.storage.low() {
            return Ok(Err(SnapshotError::Unavailable(failure)));
        }
        let pid = match self.pid_for_snapshot(&snapshot.id, reader, batch)? {
            Ok(pid) => pid,
            Err(corrupt) => return Ok(Err(SnapshotError::Corrupt(corrupt))),
        };
        if chunks_written_in.is_some_and(|opening| opening != self.opening) {
            let cause = "the store was opened again while the snapshot was being written";
            return Ok(Err(SnapshotError::Unavailable(StoreFailure::new(self.storage.name(), cause))));
        }
        let (seq_nr, timestamp) = (snapshot.seq_nr, taken_at.unwrap_or_else(|| self.clock.now()));
        if let Err(corrupt) = local(lookup::check_pages(reader, &snapshot.id, seq_nr, [keys::snapshot(pid, seq_nr)]))? {
            return Ok(Err(SnapshotError::Corrupt(corrupt)));
        }
        remove_chunks_of(pid, seq_nr, reader, batch)?;
        let (key, row) = (keys::snapshot(pid, seq_nr), snapshot.into_row(timestamp));
        self.commits.note_row(&key, Some(&row), batch);
        batch.put_owned(&key, row);
        Ok(Ok(timestamp))
    }

    pub(super) fn delete_snapshots(
        &mut self,
        id: &PersistenceId,
        matches: impl Fn(SeqNr, Timestamp) -> bool,
        reader: &Reader,
        batch: &mut Batch,
    ) -> Result<Result<(), SnapshotError>, StoreError> {
        let pid = match local(self.heads.find(id, reader))? {
            Ok(Some(StoredHead { pid, .. })) => pid,
            Ok(None) => return Ok(Ok(())),
            Err(corrupt) => return Ok(Err(SnapshotError::Corrupt(corrupt))),
        };
        let (first, last) = (keys::snapshot(pid, SeqNr::ZERO), keys::snapshot(PidNo(pid.0 + 1), SeqNr::ZERO));
        let mut stays = None;
        for record in reader.range(&first, &last) {
            let (key, row) = match record {
                Ok((key, value)) => (key, Row::decode(value)),
                // Damage hides the timestamp of a snapshot, so it matches by its number alone: it must be possible to
                // delete it.
                Err(StoreError::Checksum { key }) => (key.into(), None),
                // A damaged page hides which snapshots there are.
                Err(error) => {
                    let damaged = local(Err::<(), _>(LookupError::of(id, SeqNr::ZERO, error)))?;
                    return Ok(damaged.map_err(SnapshotError::Corrupt));
                }
            };
            let Some(seq_nr) = keys::number(&key, 1).and_then(SeqNr::new) else { continue };
            let timestamp = row.as_ref().and_then(snapshot_timestamp);
            if timestamp.map_or_else(|| matches(seq_nr, Timestamp::default()), |timestamp| matches(seq_nr, timestamp)) {
                let removable = reader.check_removal(&key).map_err(|error| LookupError::of(id, seq_nr, error));
                if let Err(corrupt) = local(removable)? {
                    stays = Some(corrupt);
                    continue;
                }
                self.commits.note_row(&key, None, batch);
                batch.remove(&key);
                remove_chunks_of(pid, seq_nr, reader, batch)?;
            }
        }
        Ok(stays.map_or(Ok(()), |corrupt| Err(SnapshotError::Corrupt(corrupt))))
    }

    /// The number of an id. An id that was never claimed gets one now: a snapshot may come from another store.
    fn pid_for_snapshot(
        &mut self,
        id: &PersistenceId,
        reader: &Reader,
        batch: &mut Batch,
    ) -> Result<Result<PidNo, Corrupt>, StoreError> {
        Ok(match local(self.heads.find(id, reader))? {
            Ok(Some(stored)) => Ok(stored.pid),
            Ok(None) => {
                let stored = self.commits.new_id(id, batch);
                self.heads.set(id.clone(), None, stored, &mut self.commits);
                Ok(stored.pid)
            }
            Err(corrupt) => Err(corrupt),
        })
    }
}

/// Removes the chunks that the stored row of this number names, if it has any.
fn remove_chunks_of(pid: PidNo, seq_nr: SeqNr, reader: &Reader, batch: &mut Batch) -> Result<(), StoreError> {
    let row = match reader.get(&keys::snapshot(pid, seq_nr)) {
        Ok(row) => row.and_then(Row::decode),
        // A damaged row does not tell its chunks; the next opening removes them, since no row names them.
        Err(StoreError::Checksum { .. }) => None,
        Err(error) => return Err(error),
    };
    let Some(row) = row else { return Ok(()) };
    let mut chunks = (0..row.chunks).map(|at| keys::snapshot_chunk(pid, seq_nr, row.save, at));
    chunks.try_for_each(|chunk| lookup::remove_unneeded(&chunk, reader, batch).map(drop))
}
