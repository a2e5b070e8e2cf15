//! The committer's half of the journal: checks every request against the head and turns it into
//! changes, one group at a time.
//!
//! ```text
//! group of requests ──▶ heads, events, chunks, tag rows, snapshots  +  one commit record ──▶ batch
//! ```
//! One thread plans everything, so comparing with the head and writing need no lock (J3, J4). Changes of a group
//! are published to readers only when the group is durable (J6).

use std::sync::Arc;

use greylag_persistence::{
    AdvanceError, AppendError, Appended, Claim, ClaimError, DeleteError, Head, PersistenceId, RejectReason, SeqNr,
    Timestamp, Under, WriterEpoch, WriterUuid,
};
use greylag_store_sled::{Batch, OnceDurable, Planner, Reader, StoreError, Watermark};

use super::appends::PlannedAppends;
use super::commit_writer::CommitWriter;
use super::heads::PlannedHeads;
use super::offsets::OffsetChanges;
use super::recovery;
use super::states::StateChanges;
use super::storage::Storage;
use crate::heads::{Before, Undurable};
use crate::lookup::{self, LookupError, local};
use crate::queued::{Freed, Queued};
use crate::reclaiming::{Merger, Sweeper};
use crate::request::{Answer, EncodedAppend, Opening, Request, WriteState};
use crate::rows::commit_record::CommittedAppend;
use crate::rows::keys::{self, PidNo};
use crate::rows::records::{EncodedEvent, StoredHead};
use crate::settings::{Clock, SledJournalSettings};

/// Advice to the operator in the error of a damaged journal.
pub(crate) const REPAIR: &str = "copy the directory, then `greylag-journal-sled verify DIRECTORY` tells what is damaged, and \
                      `greylag-journal-sled salvage DIRECTORY NEW` saves what is not";

/// Plans the group commits of one journal.
pub(crate) struct JournalPlanner {
    pub(super) storage: Storage,
    verify_commits: u64,
    pub(super) clock: Clock,
    pub(super) heads: PlannedHeads,
    undurable: Arc<Undurable>,
    pub(super) commits: CommitWriter,
    appends: PlannedAppends,
    offsets: OffsetChanges,
    states: StateChanges,
    pub(super) sweeper: Sweeper,
    merger: Merger,
    sweep_keys: usize,
    pub(super) opening: Opening,
}

impl JournalPlanner {
    pub(crate) fn new(
        name: String,
        settings: &SledJournalSettings,
        undurable: Arc<Undurable>,
        watermark: Arc<Watermark>,
    ) -> Self {
        Self {
            storage: Storage::new(name, watermark),
            verify_commits: settings.verify_commits,
            clock: settings.clock.clone(),
            heads: PlannedHeads::new(settings.heads_cached),
            undurable,
            commits: CommitWriter::default(),
            appends: PlannedAppends::default(),
            offsets: OffsetChanges::default(),
            states: StateChanges::default(),
            sweeper: Sweeper::new(settings.sweep_keys.max(1)),
            merger: Merger::default(),
            sweep_keys: settings.sweep_keys.max(1),
            opening: Opening::default(),
        }
    }

    fn answer(&mut self, request: Request, reader: &Reader, batch: &mut Batch) -> Result<Answer, StoreError> {
        Ok(match request {
            Request::Append(append) => Answer::Append(self.append(append, reader, batch)?),
            Request::Claim { id, writer_uuid, under } => {
                Answer::Claim(self.claim(&id, writer_uuid, under, reader, batch)?)
            }
            Request::Advance { id, epoch, to } => Answer::Advance(self.advance(&id, epoch, to, reader)?),
            Request::DeleteTo { id, epoch, to } => Answer::DeleteTo(self.delete_to(&id, epoch, to, reader, batch)?),
            Request::SnapshotChunks(part) => self.snapshot_chunks(part, reader, batch)?,
            Request::SaveSnapshot { snapshot, chunks_written_in, taken_at } => {
                Answer::SaveSnapshot(self.save_snapshot(snapshot, chunks_written_in, taken_at, reader, batch)?)
            }
            Request::DeleteSnapshot { id, seq_nr } => {
                Answer::DeleteSnapshots(self.delete_snapshots(&id, |found, _| found == seq_nr, reader, batch)?)
            }
            Request::DeleteSnapshots { id, criteria } => Answer::DeleteSnapshots(self.delete_snapshots(
                &id,
                |seq_nr, timestamp| criteria.matches(seq_nr, timestamp),
                reader,
                batch,
            )?),
            Request::WriteState(asked) => {
                let WriteState { write, content } = *asked;
                Answer::WriteState(self.states.write(
                    &write,
                    content,
                    &self.clock,
                    &self.storage,
                    &mut self.commits,
                    reader,
                )?)
            }
            Request::ClaimSlices { projection, slices } => {
                Answer::ClaimSlices(self.offsets.claim(projection, slices, &self.storage, &mut self.commits, reader)?)
            }
            Request::ChangeOffsets { owned, change } => {
                Answer::ChangeOffsets(self.offsets.change(&owned, &change, &self.storage, &mut self.commits, reader)?)
            }
            Request::ImportEvents(part) => Answer::Import(self.import_events(*part, reader, batch)?),
            Request::ImportState(state) => {
                Answer::Import(self.states.import(*state, &self.storage, &mut self.commits, reader)?)
            }
        })
    }

    /// J4: raises the epoch, unless the head does not admit this claim.
    fn claim(
        &mut self,
        id: &PersistenceId,
        writer_uuid: WriterUuid,
        under: Under,
        reader: &Reader,
        batch: &mut Batch,
    ) -> Result<Result<Claim, ClaimError>, StoreError> {
        let stored = match local(self.heads.find(id, reader))? {
            Ok(stored) => stored,
            Err(corrupt) => return Ok(Err(ClaimError::Corrupt(corrupt))),
        };
        let current = stored.map(|stored| stored.head).unwrap_or_default();
        if !current.admits(writer_uuid, under) {
            return Ok(Err(ClaimError::Fenced { current }));
        }
        let claimed = current.claimed(writer_uuid, under);
        if stored.is_none() || claimed != current {
            if let Some(failure) = self.storage.exhausted() {
                return Ok(Err(ClaimError::Unavailable(failure)));
            }
            let now = StoredHead { head: claimed, ..stored.unwrap_or_else(|| self.commits.new_id(id, batch)) };
            self.heads.set(id.clone(), stored, now, &mut self.commits);
        }
        Ok(Ok(claimed.as_claim()))
    }

    /// J3 and J10: stores an append that continues the history under the current epoch; answers a repeat with what the
    /// earlier try stored; refuses everything else.
    fn append(
        &mut self,
        append: EncodedAppend,
        reader: &Reader,
        batch: &mut Batch,
    ) -> Result<Result<Appended, AppendError>, StoreError> {
        let stored = match local(self.heads.find(&append.id, reader))? {
            Ok(stored) => stored,
            Err(corrupt) => return Ok(Err(AppendError::NotStored(self.storage.damaged(corrupt)))),
        };
        let Some(stored) = stored.filter(|stored| stored.head.epoch != WriterEpoch::NONE) else {
            return Ok(Err(AppendError::Fenced { current: stored.map(|stored| stored.head).unwrap_or_default() }));
        };
        let current = stored.head;
        if append.epoch == current.epoch && current.highest.next() == Some(append.first) {
            // No earlier try of this append is stored or queued, since there is one queue: refusing it is final.
            if let Some(why) = self.storage.is_low() {
                return Ok(Err(AppendError::Rejected(RejectReason::StorageLow(why.to_owned()))));
            }
            if let Err(corrupt) = local(self.check_pages(&append, stored.pid, reader))? {
                return Ok(Err(AppendError::NotStored(self.storage.damaged(corrupt))));
            }
            return Ok(Ok(Appended { timestamp: self.store_events(append, stored, batch) }));
        }
        Ok(match local(self.stored_before(&append, stored, reader))? {
            Ok(Some(timestamp)) => Ok(Appended { timestamp }),
            Ok(None) if append.epoch != current.epoch => Err(AppendError::Fenced { current }),
            Ok(None) => Err(AppendError::Conflict { highest: current.highest }),
            // Damage hides whether this append is stored already, so the answer is neither yes nor no.
            Err(corrupt) => Err(AppendError::Unknown(self.storage.damaged(corrupt))),
        })
    }

    /// Whether the pages that these events are written to can be changed.
    fn check_pages(&self, append: &EncodedAppend, pid: PidNo, reader: &Reader) -> Result<(), LookupError> {
        let EncodedAppend { id, first, last, events, .. } = append;
        let rest = (first != last).then(|| keys::event(pid, *last));
        let chunks = (first.as_u64()..).zip(events).filter(|(_, event)| event.has_chunks());
        let chunks = chunks.map(|(number, _)| keys::event_chunk(pid, SeqNr::saturating(number), 0));
        let tags = events.iter().flat_map(|event| &event.tags);
        let tags = tags.map(|tag| keys::tag_row(self.commits.tag(tag), self.commits.next_ordinal()));
        let pages = [keys::event(pid, *first)].into_iter().chain(rest).chain(chunks).chain(tags);
        lookup::check_pages(reader, id, *first, pages)
    }

    fn store_events(&mut self, append: EncodedAppend, stored: StoredHead, batch: &mut Batch) -> Timestamp {
        let timestamp = self.clock.now().rising(stored.timestamp);
        self.appends.note(&append, stored.pid, timestamp);
        let EncodedAppend { id, first, last, events, .. } = append;
        let tags = events.iter().flat_map(|event| &event.tags).collect::<Vec<_>>();
        let tags = self.commits.tag_numbers(&tags, batch);
        self.commits.note_events(CommittedAppend { pid: stored.pid, first, count: events.len() as u64, tags }, batch);
        for (number, event) in (first.as_u64()..).zip(events) {
            self.store_event(stored.pid, SeqNr::saturating(number), event, timestamp, batch);
        }
        let head = Head { highest: last, ..stored.head };
        self.heads.set(id, Some(stored), StoredHead { head, timestamp, ..stored }, &mut self.commits);
        timestamp
    }

    /// Stores one event of the record in hand. Its tags must have numbers already.
    pub(super) fn store_event(
        &mut self,
        pid: PidNo,
        seq_nr: SeqNr,
        event: EncodedEvent,
        timestamp: Timestamp,
        batch: &mut Batch,
    ) {
        let ordinal = self.commits.next_event(event.crc32c);
        for tag in &event.tags {
            let row = [pid.0.to_be_bytes(), seq_nr.as_u64().to_be_bytes()].concat();
            batch.put(&keys::tag_row(self.commits.tags()[tag], ordinal), &row);
        }
        let (row, chunks) = event.into_rows(timestamp, ordinal);
        for (at, chunk) in (0..).zip(chunks) {
            batch.put_owned(&keys::event_chunk(pid, seq_nr, at), chunk);
        }
        batch.put_owned(&keys::event(pid, seq_nr), row);
    }

    /// The timestamp of an earlier try that stored this very append, if there was one. Looks in the group in hand, then
    /// among the stored events that are not deleted.
    fn stored_before(
        &self,
        append: &EncodedAppend,
        stored: StoredHead,
        reader: &Reader,
    ) -> Result<Option<Timestamp>, LookupError> {
        let StoredHead { pid, head, .. } = stored;
        if append.last > head.highest || append.first <= head.deleted_to {
            return Ok(None);
        }
        if let Some(timestamp) = self.appends.find(append, pid) {
            return Ok(Some(timestamp));
        }
        let mut timestamp = None;
        for (number, event) in (append.first.as_u64()..).zip(&append.events) {
            let found = lookup::event(reader, &append.id, pid, SeqNr::saturating(number))?;
            let Some(found) = found.map(|row| row.event) else { return Ok(None) };
            let same = found.crc32c == event.crc32c && found.writer_uuid == append.writer_uuid;
            if !same || timestamp.is_some_and(|timestamp| timestamp != found.timestamp) {
                return Ok(None);
            }
            timestamp = Some(found.timestamp);
        }
        // All events of one append share a timestamp, and no two appends of an id do. A neighbour with the same
        // timestamp therefore means that the stored append was longer.
        for neighbour in [Some(append.first.previous()), append.last.next()].into_iter().flatten() {
            let neighbour = lookup::event(reader, &append.id, pid, neighbour)?;
            if neighbour.is_some_and(|row| Some(row.event.timestamp) == timestamp) {
                return Ok(None);
            }
        }
        Ok(timestamp)
    }

    fn advance(
        &mut self,
        id: &PersistenceId,
        epoch: WriterEpoch,
        to: SeqNr,
        reader: &Reader,
    ) -> Result<Result<(), AdvanceError>, StoreError> {
        let stored = match local(self.heads.find(id, reader))? {
            Ok(stored) => stored,
            Err(corrupt) => return Ok(Err(AdvanceError::Unavailable(self.storage.damaged(corrupt)))),
        };
        let current = stored.map(|stored| stored.head).unwrap_or_default();
        let Some(stored) = stored.filter(|_| current.epoch == epoch && epoch != WriterEpoch::NONE) else {
            return Ok(Err(AdvanceError::Fenced { current }));
        };
        let advanced = current.highest == current.deleted_to;
        if advanced && current.highest == to {
            return Ok(Ok(()));
        }
        if !current.highest.is_zero() || to.is_zero() {
            return Ok(Err(AdvanceError::NotEmpty { highest: current.highest }));
        }
        if let Some(failure) = self.storage.exhausted() {
            return Ok(Err(AdvanceError::Unavailable(failure)));
        }
        // The skipped numbers count as deleted, so that a reader does not miss them.
        let head = Head { highest: to, deleted_to: to, ..current };
        self.heads.set(id.clone(), Some(stored), StoredHead { head, ..stored }, &mut self.commits);
        Ok(Ok(()))
    }

    /// J9: raises `deleted_to` at once; the sweeper removes the records later.
    fn delete_to(
        &mut self,
        id: &PersistenceId,
        epoch: WriterEpoch,
        to: SeqNr,
        reader: &Reader,
        batch: &mut Batch,
    ) -> Result<Result<SeqNr, DeleteError>, StoreError> {
        let stored = match local(self.heads.find(id, reader))? {
            Ok(stored) => stored,
            Err(corrupt) => return Ok(Err(DeleteError::Unavailable(self.storage.damaged(corrupt)))),
        };
        let current = stored.map(|stored| stored.head).unwrap_or_default();
        let Some(stored) = stored.filter(|_| current.epoch == epoch && epoch != WriterEpoch::NONE) else {
            return Ok(Err(DeleteError::Fenced { current }));
        };
        let deleted_to = to.min(current.highest).max(current.deleted_to);
        if deleted_to > current.deleted_to {
            let head = Head { deleted_to, ..current };
            self.heads.set(id.clone(), Some(stored), StoredHead { head, ..stored }, &mut self.commits);
            self.sweeper.add(stored.pid, current.deleted_to, deleted_to, batch);
        }
        Ok(Ok(deleted_to))
    }
}

impl Planner for JournalPlanner {
    type Request = Queued;
    type Answer = Answer;

    fn recover(&mut self, reader: &Reader, batch: &mut Batch) -> Result<(), StoreError> {
        self.heads.clear();
        self.appends.begin_group();
        self.offsets.begin_group();
        self.states.clear();
        let recovered = recovery::recover(self.verify_commits, &mut self.sweeper, reader, batch)?;
        self.commits = CommitWriter::recovered(recovered.counters, recovered.tags);
        self.merger = Merger::new(recovered.verified);
        self.opening.0 += 1;
        self.undurable.clear();
        self.undurable.raise_to(self.commits.next_ordinal());
        Ok(())
    }

    fn plan(&mut self, requests: Vec<Queued>, reader: &Reader, batch: &mut Batch) -> Result<Vec<Answer>, StoreError> {
        self.commits.begin_group();
        self.appends.begin_group();
        self.offsets.begin_group();
        self.states.begin_group();
        self.storage.begin_group();
        // The sweep comes first, so that it removes only events whose deletion an earlier group made durable.
        let swept = self.sweeper.sweep(self.commits.tags(), reader, batch)?;
        self.merger.note_swept(swept);
        self.merger.step(self.sweep_keys, reader, batch)?;
        self.states.sweep_superseded(reader, batch)?;
        self.heads.trim();
        let (mut answers, mut freed) = (Vec::with_capacity(requests.len()), Freed::default());
        for request in requests {
            answers.push(self.answer(request.planned(&mut freed), reader, batch)?);
        }
        drop(freed);
        let heads = self.heads.write(&mut self.commits, batch);
        if self.commits.is_changed() {
            self.offsets.write(&mut self.commits, batch);
            self.states.write_rows(&mut self.commits, batch);
            self.commits.finish_record(batch);
        }
        let rows = self.offsets.end_group().chain(self.states.end_group()).collect();
        self.undurable.publish(Before { rows, heads });
        Ok(answers)
    }

    fn once_durable(&mut self) -> OnceDurable {
        let (undurable, next_ordinal) = (self.undurable.clone(), self.commits.next_ordinal());
        Box::new(move || undurable.settle(next_ordinal))
    }

    fn needs_durable(&self) -> bool {
        self.has_background_work() || self.states.has_superseded()
    }

    fn has_background_work(&self) -> bool {
        self.sweeper.has_work() || self.merger.has_work()
    }

    fn tail(&self) -> Option<u64> {
        Some(self.commits.last_commit())
    }

    fn repair(&self) -> &'static str {
        REPAIR
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use greylag_store_sled::Store;

    use super::*;

    /// A planner that notes after each plan whether the next one must wait.
    struct Noted(JournalPlanner, Arc<Mutex<Vec<bool>>>);

    impl Planner for Noted {
        type Request = Queued;
        type Answer = Answer;

        fn recover(&mut self, reader: &Reader, batch: &mut Batch) -> Result<(), StoreError> {
            self.0.recover(reader, batch)
        }

        fn plan(&mut self, asked: Vec<Queued>, reader: &Reader, out: &mut Batch) -> Result<Vec<Answer>, StoreError> {
            let answers = self.0.plan(asked, reader, out)?;
            self.1.lock().unwrap().push(self.0.needs_durable());
            Ok(answers)
        }

        fn once_durable(&mut self) -> OnceDurable {
            self.0.once_durable()
        }
    }

    /// J6: readers of the durable head still see deleted events until the deletion is durable; the sweeper waits for
    /// that.
    #[test]
    fn what_was_deleted_is_swept_only_when_the_deletion_is_durable() {
        let directory = tempfile::tempdir().unwrap();
        let (settings, noted) = (SledJournalSettings::test(), Arc::default());
        let watermark = Arc::new(Watermark::new(directory.path(), settings.disk.clone(), 0));
        let planner = JournalPlanner::new("test".into(), &settings, Arc::default(), watermark);
        let store = Store::open(directory.path(), settings.store, Noted(planner, Arc::clone(&noted))).unwrap();
        let (id, writer_uuid) = (PersistenceId::unique("Counter|1").unwrap(), WriterUuid::from_u128(1));
        let ask = |request: Request| store.submit(request.into()).unwrap().wait().unwrap();
        let claim = ask(Request::Claim { id: id.clone(), writer_uuid, under: Under::Seen(WriterEpoch::NONE) });
        let Answer::Claim(Ok(Claim { epoch, .. })) = claim else { panic!("{claim:?}") };
        ask(Request::Advance { id: id.clone(), epoch, to: SeqNr::FIRST });
        let events = Vec::new();
        let (first, last) = (SeqNr::from(2), SeqNr::from(2));
        ask(Request::Append(EncodedAppend { id: id.clone(), epoch, writer_uuid, first, last, events }));
        ask(Request::DeleteTo { id, epoch, to: last });
        assert_eq!(noted.lock().unwrap()[..4], [false, false, false, true]);
    }
}
