//! Saves what is sound of a damaged journal into a new one.
//!
//! The damaged directory is only copied; what the engine does to a torn log it does to the copy. If the engine
//! cannot open that, its index (`snap.*`) and configuration are left out, so that the log is read whole. A
//! history is never put together over a hole: behind damage it goes on only if a sound snapshot covers the
//! damage, and otherwise ends before it. Everything else is copied as it is, byte by byte, and the sequence of
//! commits is written anew. Ordinals stay, so that offsets of projections keep their meaning.

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};

use greylag_persistence::{Head, PersistenceId, SeqNr, StoredEvent, Timestamp, WriterEpoch, WriterUuid};
use greylag_store_sled::{OpenError, Reader, Store, StoreSettings};

use super::{Counts, Failure, Found, Rows, Survey, Verification, Write, close, open};
use crate::commit_record::{CommitRecord, CommittedAppend};
use crate::keys::{self, PidNo, TagNo};
use crate::lookup;
use crate::records::{self, Row, StoredHead, Verified};
use crate::state_row::ChangeRow;
use crate::verification;
use crate::{SledJournal, SledJournalSettings};

const BATCH_BYTES: usize = 1 << 20;
const EVENTS_PER_COMMIT: usize = 200;

/// What became of a damaged journal.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize)]
pub struct Salvaged {
    /// What the new journal holds.
    pub counts: Counts,
    /// Histories that could not be kept whole.
    pub cuts: Vec<Cut>,
    /// What was damaged in the old one, one sentence each.
    pub damage: Vec<String>,
}

/// A history that could not be kept whole.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Cut {
    /// Whose.
    pub id: String,
    /// Events up to here count as deleted; a snapshot covers them, unless they were deleted before.
    pub deleted_to: u64,
    /// The last event that is left. The entity goes on from here.
    pub highest: u64,
    /// The last number that the old journal knew of.
    pub highest_before: u64,
}

/// Copies everything sound of the journal in `from` into a new one in `to`, which must not exist yet or be empty.
///
/// # Errors
/// [`Failure`]; `from` was not changed, and what is in `to` is to be removed.
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
    let damaged = open_copy(from, &copy)?;
    let salvaged = save(&damaged, &copy, to);
    close(damaged, &copy)?;
    let salvaged = salvaged?;
    fs::remove_dir_all(&copy).map_err(file(&copy))?;
    // The proof: it opens, every commit is there, and so is every event.
    let settings = SledJournalSettings { ballast_bytes: 0, ..SledJournalSettings::default() };
    drop(SledJournal::open_blocking(to, &settings)?);
    let found = super::verify(to)?;
    if !found.is_sound() {
        return Err(Failure::Unsound(found.damage));
    }
    Ok(Salvaged { counts: found.counts, ..salvaged })
}

/// Copies the files of the engine, without those that it cannot make sense of, and opens the copy.
fn open_copy(from: &Path, copy: &Path) -> Result<Store<Rows>, Failure> {
    let data = from.join("db");
    let failed = |source| Failure::File { path: data.clone(), source };
    let lock = File::open(&data).map_err(failed)?;
    match lock.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Err(OpenError::Locked { path: from.to_owned() }.into()),
        Err(TryLockError::Error(source)) => return Err(Failure::File { path: data, source }),
    }
    copy_files(from, copy, |_| true)?;
    match open(copy) {
        Err(Failure::Open(OpenError::Corrupt { source, .. } | OpenError::Failed { source, .. })) => {
            tracing::warn!(error = %source, "the index of the log cannot be used; reading the log whole");
            copy_files(from, copy, |name| name == "db")?;
            open(copy)
        }
        opened => opened,
    }
}

fn copy_files(from: &Path, to: &Path, is_wanted: impl Fn(&str) -> bool) -> Result<(), Failure> {
    let file = |path: PathBuf| move |source| Failure::File { path, source };
    if to.exists() {
        fs::remove_dir_all(to).map_err(file(to.to_owned()))?;
    }
    fs::create_dir_all(to.join("blobs")).map_err(file(to.to_owned()))?;
    for entry in fs::read_dir(from).map_err(file(from.to_owned()))? {
        let entry = entry.map_err(file(from.to_owned()))?;
        let name = entry.file_name();
        let is_ours = name.to_string_lossy().starts_with("greylag.");
        if entry.path().is_file() && !is_ours && is_wanted(&name.to_string_lossy()) {
            fs::copy(entry.path(), to.join(&name)).map_err(file(entry.path()))?;
        }
    }
    Ok(())
}

/// What is known of one id.
struct History {
    id: PersistenceId,
    head: Option<StoredHead>,
    events: Vec<(SeqNr, u64)>,
    damaged: Vec<SeqNr>,
    snapshots: Vec<SeqNr>,
    /// The last sound event, for a head that has to be guessed.
    last: Option<(WriterEpoch, WriterUuid, Timestamp)>,
}

/// Looks through the damaged journal, and writes the new one.
fn save(damaged: &Store<Rows>, copy: &Path, to: &Path) -> Result<Salvaged, Failure> {
    let reader = damaged.reader().map_err(|source| Failure::Store { path: copy.to_owned(), source })?;
    let mut found = Verification::default();
    let mut histories: BTreeMap<PidNo, History> = BTreeMap::new();
    let mut others = Vec::new();
    let mut next_ordinal = 0;
    Survey::new(reader.clone()).walk(&mut |thing| {
        found.note(&thing);
        match thing {
            Found::Id { id, pid, head } => {
                let (events, damaged, snapshots) = (Vec::new(), Vec::new(), Vec::new());
                histories.insert(pid, History { id: id.clone(), head, events, damaged, snapshots, last: None });
            }
            Found::Event { pid, row } => {
                next_ordinal = next_ordinal.max(row.ordinal + 1);
                histories.get_mut(&pid).into_iter().for_each(|history| history.note(&row.event, row.ordinal));
            }
            Found::Snapshot(pid, snapshot) => {
                histories.get_mut(&pid).into_iter().for_each(|history| history.snapshots.push(snapshot.seq_nr));
            }
            Found::State(row) => {
                next_ordinal = next_ordinal.max(row.ordinal + 1);
                others.push(keys::state(&row.state.id));
            }
            Found::Offsets { projection, slice, row } => {
                let newest = row.places().map(|place| place.ordinal + 1).max();
                next_ordinal = next_ordinal.max(newest.unwrap_or_default());
                others.push(keys::offsets(projection, slice));
            }
            Found::Damage { event: Some((pid, seq_nr)), .. } => {
                histories.get_mut(&pid).into_iter().for_each(|history| history.damaged.push(seq_nr));
            }
            Found::Damage { event: None, .. } => {}
        }
    });
    // The last commit may have been one of deleted events.
    for record in verification::records(1, &reader).map_while(Result::ok) {
        next_ordinal = next_ordinal.max(record.1.next_ordinal().unwrap_or_default());
    }
    let new = Store::open(to, StoreSettings::default(), Rows)?;
    let mut writer = NewJournal::new(reader, new, to);
    let mut salvaged = Salvaged { damage: found.damage, ..Salvaged::default() };
    let mut events = Vec::new();
    for (pid, history) in histories {
        salvaged.cuts.extend(writer.history(pid, history, &mut events)?);
    }
    for key in others {
        writer.other(&key)?;
    }
    events.sort_unstable();
    writer.commits(events, next_ordinal)?;
    Ok(salvaged)
}

impl History {
    fn note(&mut self, event: &StoredEvent, ordinal: u64) {
        self.events.push((event.seq_nr, ordinal));
        self.last = Some((event.writer_epoch, event.writer_uuid, event.timestamp));
    }

    /// The head as it was, or as the last event tells. Who owned the id last may not be known any more.
    fn head(&self, pid: PidNo) -> StoredHead {
        self.head.unwrap_or_else(|| {
            let (epoch, writer_uuid, timestamp) = self.last.unwrap_or_default();
            let first = self.events.first().map_or(SeqNr::ZERO, |(seq_nr, _)| seq_nr.previous());
            let newest = self.snapshots.last().copied().unwrap_or_default();
            let highest = self.events.last().map_or(newest, |(seq_nr, _)| *seq_nr).max(newest);
            let deleted_to = if self.events.is_empty() { highest } else { first };
            let head = Head { epoch, writer_uuid, generation: None, highest, deleted_to };
            StoredHead { pid, head, timestamp, slice: self.id.slice() }
        })
    }

    /// What may be kept: where it begins and ends.
    fn bounds(&self, head: &Head) -> (SeqNr, SeqNr) {
        let mut missing = self.damaged.clone();
        // Behind a guessed head there may be gaps that nobody counted.
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
    ) -> Result<Option<Cut>, Failure> {
        let before = history.head(pid);
        let (deleted_to, highest) = history.bounds(&before.head);
        let head = StoredHead { head: Head { deleted_to, highest, ..before.head }, ..before };
        for (seq_nr, ordinal) in history.events.iter().filter(|(at, _)| (*at > deleted_to) && (*at <= highest)) {
            self.copy(keys::event(pid, *seq_nr), |_, at| keys::event_chunk(pid, *seq_nr, at))?;
            events.push((*ordinal, pid, *seq_nr));
        }
        for seq_nr in history.snapshots.iter().filter(|at| **at <= highest) {
            self.copy(keys::snapshot(pid, *seq_nr), |row, at| keys::snapshot_chunk(pid, *seq_nr, row.save, at))?;
        }
        let id = history.id;
        self.put(keys::id(pid), id.as_str().as_bytes().to_vec())?;
        self.put(keys::head(&id), head.encode(id.entity_type()))?;
        let is_cut = history.head.is_none_or(|stored| stored.head != head.head);
        let cut = is_cut.then(|| Cut {
            id: id.as_str().to_owned(),
            deleted_to: deleted_to.as_u64(),
            highest: highest.as_u64(),
            highest_before: before.head.highest.as_u64(),
        });
        self.names.insert(pid, id);
        Ok(cut)
    }

    /// A state with its change, or offsets.
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

    /// The sequence of commits, with the rows of tags: events in the order of their ordinals.
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
