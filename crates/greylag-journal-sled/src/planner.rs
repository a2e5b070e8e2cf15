//! The committer's half of the journal: checks every request against the head and turns it into
//! changes, one group at a time.
//!
//! ```text
//! group of requests ──▶ heads, events, chunks, tag rows, snapshots  +  one commit record ──▶ batch
//! ```
//! One thread plans everything, so comparing with the head and writing need no lock (J3, J4). Changes of a group
//! are published to readers only when the group is durable (J6).

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use greylag_persistence::{
    AdvanceError, AppendError, Appended, Claim, ClaimError, Corrupt, DeleteError, Head, PersistenceId, RejectReason,
    SeqNr, StoreFailure, Timestamp, Under, WriterEpoch, WriterUuid,
};
use greylag_store_sled::{Batch, MAX_VALUE_BYTES, OnceDurable, Planner, Reader, Room, StoreError, Watermark};

use crate::commit_record::{CommitRecord, CommittedAppend, CommittedRow};
use crate::heads::{Before, ChangedHead, ChangedHeads, HeadCache, Undurable};
use crate::keys::{self, PidNo, TagNo};
use crate::lookup::{self, LookupError};
use crate::merger::Merger;
use crate::planner::offsets::ChangedOffsets;
use crate::planner::states::ChangedState;
use crate::queued::{Freed, Queued};
use crate::records::{EncodedEvent, StoredHead};
use crate::recovery;
use crate::request::{Answer, EncodedAppend, Opening, Request, WriteState};
use crate::settings::{Clock, SledJournalSettings};
use crate::state_row::ChangeRow;
use crate::sweeper::Sweeper;

mod imports;
mod offsets;
mod snapshots;
mod states;

pub(crate) use states::remove_superseded;

/// Advice to the operator in the error of a damaged journal.
pub(crate) const REPAIR: &str = "copy the directory, then `greylag-journal-sled verify DIRECTORY` tells what is damaged, and \
                      `greylag-journal-sled salvage DIRECTORY NEW` saves what is not";

/// Plans the group commits of one journal.
pub(crate) struct JournalPlanner {
    pub(crate) name: String,
    pub(crate) verify_commits: u64,
    clock: Clock,
    heads: HeadCache,
    /// Heads that the group in hand changes.
    changed_heads: ChangedHeads,
    undurable: Arc<Undurable>,
    pub(crate) counters: Counters,
    pub(crate) tags: HashMap<String, TagNo>,
    pub(crate) sweeper: Sweeper,
    pub(crate) merger: Merger,
    sweep_keys: usize,
    watermark: Arc<Watermark>,
    /// Disk room as it was when the group in hand began.
    room: Room,
    opening: Opening,
    group: Group,
    /// State changes of the last group; the rows that they superseded are removed with the next group, when the changes
    /// are durable.
    superseded: Vec<ChangeRow>,
}

/// Counters of the numbers that are given out in order; read back when the journal opens.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Counters {
    pub(crate) next_pid: u64,
    pub(crate) next_tag: u64,
    pub(crate) next_commit: u64,
    pub(crate) next_ordinal: u64,
}

/// Changes of the group in hand so far.
#[derive(Default)]
struct Group {
    /// Offsets of slices, by their keys.
    offsets: HashMap<Vec<u8>, ChangedOffsets>,
    states: HashMap<PersistenceId, ChangedState>,
    /// Count of writes of states so far.
    turns: usize,
    record: CommitRecord,
    record_bytes: usize,
    /// Appends of this group; a repeat of one of them is answered from here (J10).
    appends: Vec<PlannedAppend>,
    changed: bool,
}

impl Group {
    /// The durable rows that readers find in place of those that this group overwrites.
    fn durable_rows(&self) -> HashMap<Vec<u8>, Option<Bytes>> {
        let offsets = self.offsets.iter().map(|(key, changed)| (key.clone(), changed.before.clone()));
        let states = self.states.iter().map(|(id, changed)| (keys::state(id), changed.before.clone()));
        offsets.chain(states).collect()
    }
}

struct PlannedAppend {
    pid: PidNo,
    first: SeqNr,
    last: SeqNr,
    writer_uuid: WriterUuid,
    crcs: Vec<u32>,
    timestamp: Timestamp,
}

impl JournalPlanner {
    pub(crate) fn new(
        name: String,
        settings: &SledJournalSettings,
        undurable: Arc<Undurable>,
        watermark: Arc<Watermark>,
    ) -> Self {
        Self {
            name,
            verify_commits: settings.verify_commits,
            clock: settings.clock.clone(),
            heads: HeadCache::new(settings.heads_cached),
            changed_heads: ChangedHeads::default(),
            undurable,
            counters: Counters::default(),
            tags: HashMap::new(),
            sweeper: Sweeper::new(settings.sweep_keys.max(1)),
            merger: Merger::default(),
            sweep_keys: settings.sweep_keys.max(1),
            watermark,
            room: Room::Enough,
            opening: Opening::default(),
            group: Group::default(),
            superseded: Vec::new(),
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
                Answer::WriteState(self.write_state(&write, content, reader)?)
            }
            Request::ClaimSlices { projection, slices } => {
                Answer::ClaimSlices(self.claim_slices(projection, slices, reader)?)
            }
            Request::ChangeOffsets { owned, change } => {
                Answer::ChangeOffsets(self.change_offsets(&owned, &change, reader)?)
            }
            Request::ImportEvents(part) => Answer::Import(self.import_events(*part, reader, batch)?),
            Request::ImportState(state) => Answer::Import(self.import_state(*state, reader)?),
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
        let stored = match local(self.head(id, reader))? {
            Ok(stored) => stored,
            Err(corrupt) => return Ok(Err(ClaimError::Corrupt(corrupt))),
        };
        let current = stored.map(|stored| stored.head).unwrap_or_default();
        if !current.admits(writer_uuid, under) {
            return Ok(Err(ClaimError::Fenced { current }));
        }
        let claimed = current.claimed(writer_uuid, under);
        if stored.is_none() || claimed != current {
            if let Some(why) = self.room.is_exhausted() {
                return Ok(Err(ClaimError::Unavailable(self.low(why))));
            }
            let now = StoredHead { head: claimed, ..stored.unwrap_or_else(|| self.new_id(id, batch)) };
            self.set_head(id.clone(), stored, now);
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
        let stored = match local(self.head(&append.id, reader))? {
            Ok(stored) => stored,
            Err(corrupt) => return Ok(Err(AppendError::NotStored(self.failure(corrupt)))),
        };
        let Some(stored) = stored.filter(|stored| stored.head.epoch != WriterEpoch::NONE) else {
            return Ok(Err(AppendError::Fenced { current: stored.map(|stored| stored.head).unwrap_or_default() }));
        };
        let current = stored.head;
        if append.epoch == current.epoch && current.highest.next() == Some(append.first) {
            // No earlier try of this append is stored or queued, since there is one queue: refusing it is final.
            if let Some(why) = self.room.is_low() {
                return Ok(Err(AppendError::Rejected(RejectReason::StorageLow(why.to_owned()))));
            }
            if let Err(corrupt) = local(self.check_pages(&append, stored.pid, reader))? {
                return Ok(Err(AppendError::NotStored(self.failure(corrupt))));
            }
            return Ok(Ok(Appended { timestamp: self.store_events(append, stored, batch) }));
        }
        Ok(match local(self.stored_before(&append, stored, reader))? {
            Ok(Some(timestamp)) => Ok(Appended { timestamp }),
            Ok(None) if append.epoch != current.epoch => Err(AppendError::Fenced { current }),
            Ok(None) => Err(AppendError::Conflict { highest: current.highest }),
            // Damage hides whether this append is stored already, so the answer is neither yes nor no.
            Err(corrupt) => Err(AppendError::Unknown(self.failure(corrupt))),
        })
    }

    /// Whether the pages that these events are written to can be changed.
    fn check_pages(&self, append: &EncodedAppend, pid: PidNo, reader: &Reader) -> Result<(), LookupError> {
        let EncodedAppend { id, first, last, events, .. } = append;
        let rest = (first != last).then(|| keys::event(pid, *last));
        let chunks = (first.as_u64()..).zip(events).filter(|(_, event)| event.has_chunks());
        let chunks = chunks.map(|(number, _)| keys::event_chunk(pid, SeqNr::saturating(number), 0));
        // A new tag gets the next number, which sorts behind all others.
        let number = |tag| self.tags.get(tag).copied().unwrap_or(TagNo(self.counters.next_tag));
        let tags = events.iter().flat_map(|event| &event.tags);
        let tags = tags.map(|tag| keys::tag_row(number(tag), self.counters.next_ordinal));
        let pages = [keys::event(pid, *first)].into_iter().chain(rest).chain(chunks).chain(tags);
        lookup::check_pages(reader, id, *first, pages)
    }

    fn store_events(&mut self, append: EncodedAppend, stored: StoredHead, batch: &mut Batch) -> Timestamp {
        let timestamp = self.clock.now().rising(stored.timestamp);
        let EncodedAppend { id, writer_uuid, first, last, events, .. } = append;
        let tags = self.tag_numbers(&events.iter().flat_map(|event| &event.tags).collect::<Vec<_>>(), batch);
        let committed = CommittedAppend { pid: stored.pid, first, count: events.len() as u64, tags };
        self.make_room(committed.max_bytes(), batch);
        self.group.record_bytes += committed.max_bytes();
        self.group.record.appends.push(committed);
        let mut crcs = Vec::with_capacity(events.len());
        for (number, event) in (first.as_u64()..).zip(events) {
            crcs.push(event.crc32c);
            self.store_event(stored.pid, SeqNr::saturating(number), event, timestamp, batch);
        }
        let head = Head { highest: last, ..stored.head };
        self.set_head(id, Some(stored), StoredHead { head, timestamp, ..stored });
        self.group.appends.push(PlannedAppend { pid: stored.pid, first, last, writer_uuid, crcs, timestamp });
        timestamp
    }

    /// Stores one event of the record in hand. Its tags must have numbers already.
    fn store_event(&mut self, pid: PidNo, seq_nr: SeqNr, event: EncodedEvent, timestamp: Timestamp, batch: &mut Batch) {
        let ordinal = self.counters.next_ordinal;
        self.counters.next_ordinal += 1;
        self.group.record.add_digest(event.crc32c);
        for tag in &event.tags {
            let row = [pid.0.to_be_bytes(), seq_nr.as_u64().to_be_bytes()].concat();
            batch.put(&keys::tag_row(self.tags[tag], ordinal), &row);
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
        let planned = self.group.appends.iter().find(|planned| {
            (planned.pid, planned.first, planned.last) == (pid, append.first, append.last)
                && planned.writer_uuid == append.writer_uuid
                && planned.crcs.iter().eq(append.events.iter().map(|event| &event.crc32c))
        });
        if let Some(planned) = planned {
            return Ok(Some(planned.timestamp));
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
        let stored = match local(self.head(id, reader))? {
            Ok(stored) => stored,
            Err(corrupt) => return Ok(Err(AdvanceError::Unavailable(self.failure(corrupt)))),
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
        if let Some(why) = self.room.is_exhausted() {
            return Ok(Err(AdvanceError::Unavailable(self.low(why))));
        }
        // The skipped numbers count as deleted, so that a reader does not miss them.
        let head = Head { highest: to, deleted_to: to, ..current };
        self.set_head(id.clone(), Some(stored), StoredHead { head, ..stored });
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
        let stored = match local(self.head(id, reader))? {
            Ok(stored) => stored,
            Err(corrupt) => return Ok(Err(DeleteError::Unavailable(self.failure(corrupt)))),
        };
        let current = stored.map(|stored| stored.head).unwrap_or_default();
        let Some(stored) = stored.filter(|_| current.epoch == epoch && epoch != WriterEpoch::NONE) else {
            return Ok(Err(DeleteError::Fenced { current }));
        };
        let deleted_to = to.min(current.highest).max(current.deleted_to);
        if deleted_to > current.deleted_to {
            let head = Head { deleted_to, ..current };
            self.set_head(id.clone(), Some(stored), StoredHead { head, ..stored });
            self.sweeper.add(stored.pid, current.deleted_to, deleted_to, batch);
        }
        Ok(Ok(deleted_to))
    }

    /// Gives `id` its number; the caller sets the head.
    fn new_id(&mut self, id: &PersistenceId, batch: &mut Batch) -> StoredHead {
        let pid = PidNo(self.counters.next_pid);
        self.counters.next_pid += 1;
        batch.put(&keys::id(pid), id.as_str().as_bytes());
        StoredHead { pid, head: Head::default(), timestamp: Timestamp::default(), slice: id.slice() }
    }

    fn head(&mut self, id: &PersistenceId, reader: &Reader) -> Result<Option<StoredHead>, LookupError> {
        if let Some(head) = self.heads.get(id) {
            return Ok(Some(head));
        }
        let found = lookup::head(reader, id)?;
        if let Some(head) = found {
            self.heads.put(id, head);
        }
        Ok(found)
    }

    /// Changes the head of `id`, which [`JournalPlanner::head`] just found as `before`.
    fn set_head(&mut self, id: PersistenceId, before: Option<StoredHead>, now: StoredHead) {
        self.group.changed = true;
        // The cached head is not durable yet, but a request planned on it fails together with it.
        self.heads.put(&id, now);
        self.changed_heads.change(id, before, now);
    }

    /// Writes the changed heads; answers each head as it was before.
    fn write_heads(&mut self, batch: &mut Batch) -> Vec<(PidNo, Option<StoredHead>)> {
        let changed = self.changed_heads.take();
        for ChangedHead { id, now, .. } in &changed {
            let head = now.encode(id.entity_type());
            self.make_room(CommitRecord::HEAD_BYTES, batch);
            self.group.record_bytes += CommitRecord::HEAD_BYTES;
            self.group.record.heads.push((now.pid, crc32c::crc32c(&head)));
            batch.put(&keys::head(id), &head);
        }
        changed.into_iter().map(|changed| (changed.now.pid, changed.before)).collect()
    }

    /// Notes in the commit record that a row is overwritten, or removed (`value` is `None`), so that an opening can
    /// check it.
    fn note_row(&mut self, key: &[u8], value: Option<&[u8]>, batch: &mut Batch) {
        let bytes = CommittedRow::bytes_of(key);
        self.make_room(bytes, batch);
        self.group.record_bytes += bytes;
        let row = CommittedRow { key: Bytes::copy_from_slice(key), crc32c: value.map(crc32c::crc32c) };
        self.group.record.rows.push(row);
        self.group.changed = true;
    }

    /// The numbers of these tags, ascending, each with its count among `tags`. A new tag gets a new number.
    fn tag_numbers(&mut self, tags: &[&String], batch: &mut Batch) -> Vec<(TagNo, u64)> {
        let mut numbers: Vec<_> = tags.iter().map(|tag| self.tag_number(tag, batch)).collect();
        numbers.sort_unstable();
        numbers.chunk_by(|left, right| left == right).map(|same| (same[0], same.len() as u64)).collect()
    }

    fn tag_number(&mut self, tag: &str, batch: &mut Batch) -> TagNo {
        if let Some(number) = self.tags.get(tag) {
            return *number;
        }
        let number = TagNo(self.counters.next_tag);
        self.counters.next_tag += 1;
        batch.put(&keys::tag(tag), &number.0.to_be_bytes());
        self.tags.insert(tag.to_owned(), number);
        number
    }

    /// Ends the commit record in hand if `bytes` more would not fit into one value.
    fn make_room(&mut self, bytes: usize, batch: &mut Batch) {
        const HEADER_BYTES: usize = 32;
        if self.group.record_bytes + bytes + HEADER_BYTES > MAX_VALUE_BYTES {
            self.finish_record(batch);
        }
    }

    fn finish_record(&mut self, batch: &mut Batch) {
        let record = std::mem::take(&mut self.group.record);
        self.group.record.first_ordinal = self.counters.next_ordinal;
        self.group.record_bytes = 0;
        batch.put(&keys::commit(self.counters.next_commit), &record.encode());
        self.counters.next_commit += 1;
    }

    fn failure(&self, corrupt: Corrupt) -> StoreFailure {
        StoreFailure::refusal(&self.name, corrupt)
    }

    fn low(&self, why: &str) -> StoreFailure {
        StoreFailure::refusal(&self.name, format_args!("storage is low: {why}"))
    }
}

/// Splits errors: damage to one id is the answer to its caller; any other error fails the whole store.
fn local<T>(found: Result<T, LookupError>) -> Result<Result<T, Corrupt>, StoreError> {
    match found {
        Ok(found) => Ok(Ok(found)),
        Err(LookupError::Corrupt(corrupt)) => Ok(Err(corrupt)),
        Err(LookupError::Store(error)) => Err(error),
    }
}

impl Planner for JournalPlanner {
    type Request = Queued;
    type Answer = Answer;

    fn recover(&mut self, reader: &Reader, batch: &mut Batch) -> Result<(), StoreError> {
        self.heads.clear();
        self.changed_heads.clear();
        self.group = Group::default();
        self.superseded.clear();
        recovery::recover(self, reader, batch)?;
        self.opening.0 += 1;
        self.undurable.clear();
        self.undurable.raise_to(self.counters.next_ordinal);
        Ok(())
    }

    fn plan(&mut self, requests: Vec<Queued>, reader: &Reader, batch: &mut Batch) -> Result<Vec<Answer>, StoreError> {
        self.group = Group::default();
        self.group.record.first_ordinal = self.counters.next_ordinal;
        self.room = self.watermark.room();
        // The sweep comes first, so that it removes only events whose deletion an earlier group made durable.
        let swept = self.sweeper.sweep(&self.tags, reader, batch)?;
        self.merger.note_swept(swept);
        self.merger.step(self.sweep_keys, reader, batch)?;
        self.sweep_superseded(reader, batch)?;
        self.heads.trim();
        let (mut answers, mut freed) = (Vec::with_capacity(requests.len()), Freed::default());
        for request in requests {
            answers.push(self.answer(request.planned(&mut freed), reader, batch)?);
        }
        drop(freed);
        let heads = self.write_heads(batch);
        if self.group.changed {
            self.write_offsets(batch);
            self.write_states(batch);
            self.finish_record(batch);
        }
        let group = std::mem::take(&mut self.group);
        self.undurable.publish(Before { rows: group.durable_rows(), heads });
        Ok(answers)
    }

    fn once_durable(&mut self) -> OnceDurable {
        let (undurable, next_ordinal) = (self.undurable.clone(), self.counters.next_ordinal);
        Box::new(move || undurable.settle(next_ordinal))
    }

    fn needs_durable(&self) -> bool {
        self.has_background_work() || !self.superseded.is_empty()
    }

    fn has_background_work(&self) -> bool {
        self.sweeper.has_work() || self.merger.has_work()
    }

    fn tail(&self) -> Option<u64> {
        Some(self.counters.next_commit.saturating_sub(1))
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
