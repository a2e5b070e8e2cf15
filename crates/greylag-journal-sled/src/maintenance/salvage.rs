//! Salvage: copies what is sound of a damaged journal into a new one.
//!
//! The damaged directory is only read. If a copy of it opens and is sound, the copy is what is salvaged; otherwise the
//! log is read without the engine, and every whole record in it is put into a new store, which is then salvaged. A
//! history never continues over a hole: behind damage it continues only if a sound snapshot covers the damage, and
//! otherwise ends before the damage; events that are left over are written to a file of their own, as lines of JSON.
//! Everything else is copied as it is, byte by byte, and the sequence of commits is written anew. Ordinals stay, so
//! that offsets of projections keep their meaning.

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File};
use std::io::{BufWriter, Write as _};
use std::path::{Path, PathBuf};

use greylag_persistence::{
    Head, PersistenceId, SeqNr, SnapshotCriteria, StoredEvent, Timestamp, WriterEpoch, WriterUuid,
};
use greylag_store_sled::{Reader, Store, StoreSettings};

use super::copy::open_copy;
use super::export::line;
use super::failure::Failure;
use super::findings::{Counts, Missing};
use super::look::{Looked, guarded, look};
use super::rows::{Rows, Write, close};
use super::survey::Found;
use super::verify::verify;
use crate::heads::Undurable;
use crate::lookup;
use crate::reading::Reads;
use crate::rows::commit_record::{CommitRecord, CommittedAppend};
use crate::rows::keys::{self, PidNo, TagNo};
use crate::rows::records::{self, Row, StoredHead, Verified};
use crate::rows::state_row::ChangeRow;
use crate::{SledJournal, SledJournalSettings};

const BATCH_BYTES: usize = 1 << 20;
const EVENTS_PER_COMMIT: usize = 200;

/// Result of salvaging a damaged journal.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize)]
pub struct Salvaged {
    /// Counts of what the new journal holds.
    pub counts: Counts,
    /// Histories that could not be kept whole.
    pub cuts: Vec<Cut>,
    /// Damage of the old journal and what it lacks, one sentence each. Empty only if nothing is missing.
    pub damage: Vec<String>,
    /// Events that are missing, as far as heads, neighbours and commit records tell.
    pub missing: Vec<Missing>,
    /// Count of missing commits, as far as the tail guard and gaps in commit numbers tell.
    pub missing_commits: u64,
    /// Count of whole records that belong to no history that can continue; they are in [`LEFT_OVER_FILE`].
    pub left_over: u64,
}

/// The file beside a salvaged journal with records that could be read but belong to no history that can continue:
/// lines of JSON, as [`export`](super::export()) writes them.
pub const LEFT_OVER_FILE: &str = "greylag.left-over.jsonl";

/// A history that could not be kept whole.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Cut {
    /// The id of the history.
    pub id: String,
    /// Events up to here count as deleted; a snapshot covers them, unless they were deleted before.
    pub deleted_to: u64,
    /// The last event that is left; the entity continues after it.
    pub highest: u64,
    /// The last sequence number that the old journal knew of.
    pub highest_before: u64,
}

/// Copies everything sound of the journal in `from` into a new one in `to`, which must not exist yet or be empty.
///
/// # Errors
/// [`Failure`]; `from` was not changed, and `to` must be removed.
pub fn salvage(from: &Path, to: &Path) -> Result<Salvaged, Failure> {
    let file = |path: &Path| {
        let path = path.to_owned();
        move |source| Failure::File { path, source }
    };
    if fs::read_dir(to).is_ok_and(|mut entries| entries.next().is_some()) {
        return Err(Failure::NotEmpty(to.to_owned()));
    }
    fs::create_dir_all(to).map_err(file(to))?;
    let copy = to.join("salvaging");
    let guard = guarded(from)?;
    let (damaged, _) = open_copy(from, &copy, guard)?;
    let salvaged = save(&damaged, guard, &copy, to);
    close(damaged, &copy)?;
    let salvaged = salvaged?;
    fs::remove_dir_all(&copy).map_err(file(&copy))?;
    // Proves the new journal: it opens, and every commit and every event is there.
    let settings = SledJournalSettings { ballast_bytes: 0, ..SledJournalSettings::default() };
    drop(SledJournal::open_blocking(to, &settings)?);
    let found = verify(to)?;
    if !found.is_sound() {
        return Err(Failure::Unsound(found.damage));
    }
    Ok(Salvaged { counts: found.counts, ..salvaged })
}

/// Facts about one id.
struct History {
    id: PersistenceId,
    head: Option<StoredHead>,
    events: Vec<(SeqNr, u64)>,
    damaged: Vec<SeqNr>,
    snapshots: Vec<SeqNr>,
    /// Writer and timestamp of the last sound event, for rebuilding a lost head.
    last: Option<(WriterEpoch, WriterUuid, Timestamp)>,
}

/// Surveys the damaged journal, and writes the new one.
fn save(damaged: &Store<Rows>, guard: Option<u64>, copy: &Path, to: &Path) -> Result<Salvaged, Failure> {
    let reader = damaged.reader().map_err(|source| Failure::Store { path: copy.to_owned(), source })?;
    let mut left_over = LeftOver::new(to);
    let mut histories: BTreeMap<PidNo, History> = BTreeMap::new();
    let mut others = Vec::new();
    let mut next_ordinal = 0;
    let looked = look(reader.clone(), guard, &mut |thing| match thing {
        Found::Id { id, pid, head } => {
            let (events, damaged, snapshots) = (Vec::new(), Vec::new(), Vec::new());
            let history = History { id: (*id).clone(), head: *head, events, damaged, snapshots, last: None };
            histories.insert(*pid, history);
        }
        Found::Event { pid, row } => {
            next_ordinal = next_ordinal.max(row.ordinal + 1);
            histories.get_mut(pid).into_iter().for_each(|history| history.note(&row.event, row.ordinal));
        }
        Found::Snapshot(pid, snapshot) => {
            histories.get_mut(pid).into_iter().for_each(|history| history.snapshots.push(snapshot.seq_nr));
        }
        Found::State(row) => {
            next_ordinal = next_ordinal.max(row.ordinal + 1);
            others.push(keys::state(&row.state.id));
        }
        Found::Offsets { projection, slice, row } => {
            let newest = row.places().map(|place| place.ordinal + 1).max();
            next_ordinal = next_ordinal.max(newest.unwrap_or_default());
            others.push(keys::offsets(projection, *slice));
        }
        Found::Lost { pid, seq_nr, .. } => {
            histories.get_mut(pid).into_iter().for_each(|history| history.damaged.push(*seq_nr));
        }
        Found::Nameless { .. } => left_over.add(thing),
        Found::Damage { .. } => {}
    });
    // The last commits may have held only events that are deleted now, so the ordinals they name count, too.
    next_ordinal = next_ordinal.max(looked.next_ordinal);
    let new = Store::open(to, StoreSettings::default(), Rows)?;
    let mut writer = NewJournal::new(reader, new, to);
    let mut cuts = Vec::new();
    let mut events = Vec::new();
    for (pid, history) in histories {
        cuts.extend(writer.history(pid, history, &mut events, &mut left_over)?);
    }
    for key in others {
        writer.other(&key)?;
    }
    events.sort_unstable();
    writer.commits(events, next_ordinal)?;
    let left_over = left_over.finish()?;
    let Looked { found, .. } = looked;
    let (damage, missing, missing_commits) = (found.damage, found.missing, found.missing_commits);
    Ok(Salvaged { counts: Counts::default(), cuts, damage, missing, missing_commits, left_over })
}

/// Writes readable records that belong to no history that can continue. Without such a record no file is written.
struct LeftOver {
    path: PathBuf,
    file: Option<BufWriter<File>>,
    count: u64,
    failed: Option<std::io::Error>,
}

impl LeftOver {
    fn new(to: &Path) -> Self {
        Self { path: to.join(LEFT_OVER_FILE), file: None, count: 0, failed: None }
    }

    fn add(&mut self, thing: &Found<'_>) {
        if self.failed.is_none() {
            self.count += 1;
            self.failed = self.write(thing).err();
        }
    }

    fn write(&mut self, thing: &Found<'_>) -> std::io::Result<()> {
        let file = match &mut self.file {
            Some(file) => file,
            None => self.file.insert(BufWriter::new(File::create_new(&self.path)?)),
        };
        writeln!(file, "{}", line(thing))
    }

    /// Finishes the file; answers how many records were written.
    fn finish(mut self) -> Result<u64, Failure> {
        let flushed = self.file.as_mut().map_or(Ok(()), |file| file.flush().and_then(|()| file.get_ref().sync_all()));
        match self.failed.map_or(flushed, Err) {
            Ok(()) => Ok(self.count),
            Err(source) => Err(Failure::File { path: self.path, source }),
        }
    }
}

impl History {
    fn note(&mut self, event: &StoredEvent, ordinal: u64) {
        self.events.push((event.seq_nr, ordinal));
        self.last = Some((event.writer_epoch, event.writer_uuid, event.timestamp));
    }

    /// The stored head; or, if the head is lost or older than the last event, a head rebuilt from that event. The last
    /// owner of the id may then be unknown.
    fn head(&self, pid: PidNo) -> StoredHead {
        let (epoch, writer_uuid, timestamp) = self.last.unwrap_or_default();
        if let (Some(stored), Some((last, _))) = (self.head, self.events.last())
            && stored.head.highest < *last
        {
            let (epoch, writer_uuid) = (epoch, writer_uuid).max((stored.head.epoch, stored.head.writer_uuid));
            let head = Head { epoch, writer_uuid, highest: *last, ..stored.head };
            return StoredHead { head, timestamp: timestamp.max(stored.timestamp), ..stored };
        }
        self.head.unwrap_or_else(|| {
            let first = self.events.first().map_or(SeqNr::ZERO, |(seq_nr, _)| seq_nr.previous());
            let newest = self.snapshots.last().copied().unwrap_or_default();
            let highest = self.events.last().map_or(newest, |(seq_nr, _)| *seq_nr).max(newest);
            let deleted_to = if self.events.is_empty() { highest } else { first };
            let head = Head { epoch, writer_uuid, generation: None, highest, deleted_to };
            StoredHead { pid, head, timestamp, slice: self.id.slice() }
        })
    }

    /// The bounds of the events that are kept: deleted up to the first, kept up to the second.
    fn bounds(&self, head: &Head) -> (SeqNr, SeqNr) {
        let mut missing = self.damaged.clone();
        // A rebuilt head may hide gaps that were not counted as damage.
        let sound: Vec<_> = self.events.iter().map(|(seq_nr, _)| *seq_nr).collect();
        let gaps = sound.windows(2).filter(|pair| pair[0].next() != Some(pair[1]));
        missing.extend(gaps.map(|pair| pair[1].previous()));
        if sound.last().is_some_and(|last| *last < head.highest) || (sound.is_empty() && head.highest > head.deleted_to)
        {
            missing.push(head.highest);
        }
        let (Some(first), Some(last)) = (missing.iter().min(), missing.iter().max()) else {
            return (head.deleted_to, head.highest);
        };
        match self.snapshots.iter().any(|snapshot| snapshot >= last) {
            true => (*last, head.highest),
            false => (head.deleted_to, first.previous()),
        }
    }
}

/// The new journal, written row by row.
struct NewJournal<'a> {
    reader: Reader,
    store: Store<Rows>,
    path: &'a Path,
    rows: Vec<(Vec<u8>, Vec<u8>)>,
    bytes: usize,
    tags: HashMap<String, TagNo>,
    names: HashMap<PidNo, PersistenceId>,
}

impl<'a> NewJournal<'a> {
    fn new(reader: Reader, store: Store<Rows>, path: &'a Path) -> Self {
        let (tags, names) = (HashMap::new(), HashMap::new());
        Self { reader, store, path, rows: Vec::new(), bytes: 0, tags, names }
    }

    fn put(&mut self, key: Vec<u8>, value: Vec<u8>) -> Result<(), Failure> {
        self.bytes += key.len() + value.len();
        self.rows.push((key, value));
        if self.bytes >= BATCH_BYTES { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<(), Failure> {
        self.bytes = 0;
        let rows = std::mem::take(&mut self.rows);
        let failed = |what: String| {
            let source = greylag_store_sled::StoreError::Down(what.into());
            Failure::Store { path: self.path.to_owned(), source }
        };
        let pending = self.store.submit(Write(rows)).map_err(|refused| failed(refused.to_string()))?;
        pending.wait().map_err(|unanswered| failed(unanswered.to_string()))
    }

    /// Copies a row that was read before, and the chunks that belong to it.
    fn copy(&mut self, key: Vec<u8>, chunk: impl Fn(&Row, u16) -> Vec<u8>) -> Result<(), Failure> {
        let lost = |source| Failure::Store { path: self.path.to_owned(), source };
        let Some(value) = self.reader.get(&key).map_err(lost)? else { return Ok(()) };
        let row = Row::decode(value.clone());
        let chunks = row.iter().flat_map(|row| (0..row.chunks).map(|at| chunk(row, at))).collect::<Vec<_>>();
        for key in chunks {
            let lost = |source| Failure::Store { path: self.path.to_owned(), source };
            if let Some(value) = self.reader.get(&key).map_err(lost)? {
                self.put(key, value.to_vec())?;
            }
        }
        self.put(key, value.to_vec())
    }

    fn history(
        &mut self,
        pid: PidNo,
        history: History,
        events: &mut Vec<(u64, PidNo, SeqNr)>,
        left_over: &mut LeftOver,
    ) -> Result<Option<Cut>, Failure> {
        let before = history.head(pid);
        let (deleted_to, highest) = history.bounds(&before.head);
        let head = StoredHead { head: Head { deleted_to, highest, ..before.head }, ..before };
        let is_kept = |at: SeqNr| at > deleted_to && at <= highest;
        self.leave_over(pid, &history, is_kept, highest, left_over);
        for (seq_nr, ordinal) in history.events.iter().filter(|(at, _)| is_kept(*at)) {
            self.copy(keys::event(pid, *seq_nr), |_, at| keys::event_chunk(pid, *seq_nr, at))?;
            events.push((*ordinal, pid, *seq_nr));
        }
        for seq_nr in history.snapshots.iter().filter(|at| **at <= highest) {
            self.copy(keys::snapshot(pid, *seq_nr), |row, at| keys::snapshot_chunk(pid, *seq_nr, row.save, at))?;
        }
        let id = history.id;
        self.put(keys::id(pid), id.as_str().as_bytes().to_vec())?;
        self.put(keys::head(&id), head.encode(id.entity_type()))?;
        let highest_before = history.damaged.last().copied().unwrap_or_default().max(before.head.highest);
        let is_cut = history.head.is_none() || highest < highest_before || deleted_to > before.head.deleted_to;
        let cut = is_cut.then(|| Cut {
            id: id.as_str().to_owned(),
            deleted_to: deleted_to.as_u64(),
            highest: highest.as_u64(),
            highest_before: highest_before.as_u64(),
        });
        self.names.insert(pid, id);
        Ok(cut)
    }

    /// Leaves over events that are not kept, and snapshots after the last kept event.
    fn leave_over(
        &self,
        pid: PidNo,
        history: &History,
        is_kept: impl Fn(SeqNr) -> bool,
        highest: SeqNr,
        left_over: &mut LeftOver,
    ) {
        let undurable = Undurable::default();
        let reads = Reads::new("the journal", self.reader.clone(), &undurable);
        for (seq_nr, _) in history.events.iter().filter(|(at, _)| !is_kept(*at)) {
            if let Ok(Some(row)) = lookup::event(&self.reader, &history.id, pid, *seq_nr) {
                left_over.add(&Found::Event { pid, row: &row });
            }
        }
        for seq_nr in history.snapshots.iter().filter(|at| **at > highest) {
            if let Ok(Some(snapshot)) = reads.snapshot(&history.id, pid, *seq_nr, SnapshotCriteria::LATEST) {
                left_over.add(&Found::Snapshot(pid, &snapshot));
            }
        }
    }

    /// Copies a state with its change, or offsets.
    fn other(&mut self, key: &[u8]) -> Result<(), Failure> {
        let Some(id) = keys::state_id(key) else { return self.copy(key.to_vec(), |_, _| Vec::new()) };
        if let Ok(Some((_, _, stored))) = lookup::state_row(&self.reader, &id) {
            let change = ChangeRow { id: id.clone(), superseded: None };
            self.put(keys::change(stored.ordinal), change.encode())?;
            let revision = stored.state.revision;
            self.copy(key.to_vec(), |_, at| keys::state_chunk(&id, revision, at))?;
        }
        Ok(())
    }

    /// Writes the sequence of commits and the rows of tags: events in the order of their ordinals.
    fn commits(mut self, events: Vec<(u64, PidNo, SeqNr)>, next_ordinal: u64) -> Result<(), Failure> {
        let mut verified = Verified::default();
        let mut record = CommitRecord::default();
        let mut count = 0;
        for (ordinal, pid, seq_nr) in events {
            let reached = record.next_ordinal().unwrap_or_default();
            if ordinal != reached || count >= EVENTS_PER_COMMIT {
                record.gone = ordinal - reached;
                self.commit(&mut verified, &mut record)?;
                count = 0;
            }
            count += 1;
            self.event_in_commit(&mut record, ordinal, pid, seq_nr)?;
        }
        record.gone = next_ordinal.saturating_sub(record.next_ordinal().unwrap_or_default());
        self.commit(&mut verified, &mut record)?;
        let tags: Vec<_> = self.tags.iter().map(|(tag, number)| (keys::tag(tag), *number)).collect();
        for (key, number) in tags {
            self.put(key, number.0.to_be_bytes().to_vec())?;
        }
        self.put(keys::VERIFIED.to_vec(), verified.encode())?;
        self.put(keys::FORMAT.to_vec(), records::encode_format(uuid::Uuid::new_v4().as_u128()))?;
        self.flush()?;
        close(self.store, self.path)?;
        greylag_store_sled::renew_guard(self.path, verified.commit_no)
            .map_err(|source| Failure::File { path: self.path.join(greylag_store_sled::GUARD_FILE), source })
    }

    fn commit(&mut self, verified: &mut Verified, record: &mut CommitRecord) -> Result<(), Failure> {
        let next_ordinal = record.next_ordinal().unwrap_or_default();
        *verified = Verified { commit_no: verified.commit_no + 1, next_ordinal };
        self.put(keys::commit(verified.commit_no), record.encode())?;
        *record = CommitRecord { first_ordinal: next_ordinal, ..CommitRecord::default() };
        Ok(())
    }

    fn event_in_commit(
        &mut self,
        record: &mut CommitRecord,
        ordinal: u64,
        pid: PidNo,
        seq_nr: SeqNr,
    ) -> Result<(), Failure> {
        let Some(Ok(Some(row))) = self.names.get(&pid).map(|id| lookup::event(&self.reader, id, pid, seq_nr)) else {
            let source = greylag_store_sled::StoreError::corrupt("an event was read once, and not again");
            return Err(Failure::Store { path: self.path.to_owned(), source });
        };
        let mut tags = Vec::new();
        for tag in &row.event.tags {
            let next = TagNo(self.tags.len() as u64 + 1);
            let number = *self.tags.entry(tag.clone()).or_insert(next);
            tags.push((number, 1));
            let place = [pid.0.to_be_bytes(), seq_nr.as_u64().to_be_bytes()].concat();
            self.put(keys::tag_row(number, ordinal), place)?;
        }
        tags.sort_unstable();
        record.add_digest(row.event.crc32c);
        record.appends.push(CommittedAppend { pid, first: seq_nr, count: 1, tags });
        Ok(())
    }
}
