//! All stores in memory: the whole contract, but the data ends with the process.
//!
//! For tests, simulations and entities that need not outlive their process. Every call completes
//! at its first poll, so no future here ever waits. Source: persistence §4.2.

pub(crate) mod changes;
pub(crate) mod clock;
pub(crate) mod offsets;
pub(crate) mod queries;
pub(crate) mod states;

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};

use async_trait::async_trait;
use bytes::Bytes;

use self::clock::{Clock, NAME, closed, lock, system_clock};
use super::journal_store::{Journal, SnapshotStore};
use crate::contract::error::{
    AdvanceError, AppendError, ClaimError, CloseError, Corrupt, CorruptKind, DeleteError, ReadError, RejectReason,
    SnapshotError, StoreFailure,
};
use crate::contract::head::{Claim, Head, Under};
use crate::contract::journal::{Append, Appended, Caps, Health, Page, ReadRange};
use crate::contract::records::event::{SeqNr, StoredEvent, Timestamp, WriterEpoch, WriterUuid};
use crate::contract::records::persistence_id::PersistenceId;
use crate::contract::records::snapshot::{NewSnapshot, Snapshot, SnapshotCaps, SnapshotCriteria};
use crate::contract::scope::Scope;

/// A fault that the next try of an append meets; see [`InMemoryJournal::script_append`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AppendFault {
    /// The try is stored or not, and its answer is lost; the journal then tries again by itself (J10).
    LoseAnswer {
        /// Whether the try is stored.
        stored: bool,
    },
    /// The try meets a full disk.
    StorageLow,
    /// The try meets an open breaker.
    Unavailable,
    /// Before the try, the writer itself deletes all its events.
    DeleteAllBefore,
}

#[derive(Default)]
pub(crate) struct History {
    pub(crate) head: Head,
    pub(crate) events: BTreeMap<SeqNr, StoredEvent>,
    pub(crate) last_timestamp: Timestamp,
    faults: VecDeque<AppendFault>,
}

#[derive(Default)]
pub(crate) struct Histories {
    pub(crate) by_id: BTreeMap<PersistenceId, History>,
    /// Every event ever stored, in the order of commits; the first has the ordinal 1. Readers skip events
    /// deleted since.
    pub(crate) commits: Vec<(PersistenceId, SeqNr)>,
    closed: bool,
}

/// A journal in memory. Clones share their data.
#[derive(Clone)]
pub struct InMemoryJournal {
    histories: Arc<Mutex<Histories>>,
    caps: Caps,
    clock: Clock,
}

impl Default for InMemoryJournal {
    fn default() -> Self {
        Self::new(Scope::Process, system_clock)
    }
}

impl fmt::Debug for InMemoryJournal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "InMemoryJournal({} ids)", lock(&self.histories).by_id.len())
    }
}

impl InMemoryJournal {
    /// An empty journal. Several nodes of one process that share it may call it
    /// [`Scope::Shared`]; `clock` gives the timestamps.
    pub fn new(scope: Scope, clock: impl Fn() -> Timestamp + Send + Sync + 'static) -> Self {
        Self { histories: Arc::default(), caps: Caps::full(scope), clock: Arc::new(clock) }
    }

    /// Makes the next tries of appends to `id` meet these faults, one each.
    pub fn script_append(&self, id: &PersistenceId, faults: impl IntoIterator<Item = AppendFault>) {
        lock(&self.histories).by_id.entry(id.clone()).or_default().faults.extend(faults);
    }

    /// Flips bits in a stored record; returns whether the record exists.
    pub fn corrupt(&self, id: &PersistenceId, seq_nr: SeqNr) -> bool {
        let mut histories = lock(&self.histories);
        let record = histories.by_id.get_mut(id).and_then(|history| history.events.get_mut(&seq_nr));
        record.map(|record| record.crc32c ^= 0x8000_0001).is_some()
    }

    /// Removes all data of `id`, its claim included.
    pub fn forget(&self, id: &PersistenceId) {
        let mut histories = lock(&self.histories);
        histories.by_id.remove(id);
        histories.commits.retain(|(of, _)| of != id);
    }

    /// Removes all data, claims included.
    pub fn clear(&self) {
        let mut histories = lock(&self.histories);
        histories.by_id.clear();
        histories.commits.clear();
    }

    /// All live events of `id`, for assertions.
    pub fn events(&self, id: &PersistenceId) -> Vec<StoredEvent> {
        let histories = lock(&self.histories);
        histories.by_id.get(id).map(|history| history.events.values().cloned().collect()).unwrap_or_default()
    }

    /// Ids with at least one event ever, ascending. A claim alone does not count.
    pub fn persistence_ids(&self) -> Vec<PersistenceId> {
        let histories = lock(&self.histories);
        let written = histories.by_id.iter().filter(|(_, history)| !history.head.highest.is_zero());
        written.map(|(id, _)| id.clone()).collect()
    }

    pub(crate) fn open<E>(&self, refuse: impl FnOnce(StoreFailure) -> E) -> Result<MutexGuard<'_, Histories>, E> {
        let histories = lock(&self.histories);
        if histories.closed { Err(refuse(closed())) } else { Ok(histories) }
    }

    /// One try; `None` means that its answer was lost.
    fn try_append(&self, append: &Append, unanswered: bool) -> Option<Result<Appended, AppendError>> {
        let mut histories = match self.open(AppendError::NotStored) {
            Ok(histories) => histories,
            Err(error) => return Some(Err(uncertain(append, error, unanswered))),
        };
        let Histories { by_id, commits, .. } = &mut *histories;
        let history = by_id.entry(append.id.clone()).or_default();
        let highest = history.head.highest;
        let answer = match history.faults.pop_front() {
            Some(AppendFault::LoseAnswer { stored }) => {
                if stored {
                    // Ignore the answer: the fault loses it.
                    let _ = history.append(append, &self.caps, &self.clock);
                    commits.extend(history.stored_since(highest, &append.id));
                }
                return None;
            }
            Some(AppendFault::StorageLow) => {
                Err(AppendError::Rejected(RejectReason::StorageLow("0 bytes are free".to_owned())))
            }
            Some(AppendFault::Unavailable) => Err(AppendError::NotStored(StoreFailure::new(NAME, "breaker is open"))),
            Some(AppendFault::DeleteAllBefore) => {
                history.delete_to(SeqNr::MAX);
                history.append(append, &self.caps, &self.clock)
            }
            None => history.append(append, &self.caps, &self.clock),
        };
        commits.extend(history.stored_since(highest, &append.id));
        Some(answer.map_err(|error| uncertain(append, error, unanswered)))
    }
}

/// The error after an unanswered try, which may be stored: Unknown, or Fenced if the head would still show its events.
fn uncertain(append: &Append, error: AppendError, unanswered: bool) -> AppendError {
    match error {
        error if !unanswered => error,
        AppendError::Fenced { current } if append.last().is_some_and(|last| current.retains(last)) => error,
        AppendError::Unknown(_) => error,
        other => {
            let text = format!("an earlier try was not answered, this one was refused: {other}");
            AppendError::Unknown(StoreFailure::new(NAME, other).with_text(text))
        }
    }
}

impl History {
    fn append(&mut self, append: &Append, caps: &Caps, clock: &Clock) -> Result<Appended, AppendError> {
        append.check(caps).map_err(AppendError::Rejected)?;
        let last = append.last().ok_or(AppendError::Rejected(RejectReason::SeqNrOverflow))?;
        // Check before the fence: events that an earlier try stored are stored, even if another writer claimed since.
        if let Some(stored) = self.events.get(&last).filter(|stored| append.was_stored_as(stored)) {
            return Ok(Appended { timestamp: stored.timestamp });
        }
        if append.epoch != self.head.epoch || append.writer_uuid != self.head.writer_uuid {
            return Err(AppendError::Fenced { current: self.head });
        }
        if self.head.highest.next() != Some(append.first) {
            return Err(AppendError::Conflict { highest: self.head.highest });
        }
        let timestamp = clock().rising(self.last_timestamp);
        for record in append.records(timestamp) {
            self.events.insert(record.seq_nr, record);
        }
        self.last_timestamp = timestamp;
        self.head.highest = last;
        Ok(Appended { timestamp })
    }

    /// The events that an append to `id` has stored, if `highest` was the highest number before.
    fn stored_since(&self, highest: SeqNr, id: &PersistenceId) -> impl Iterator<Item = (PersistenceId, SeqNr)> {
        let numbers = highest.as_u64() + 1..=self.head.highest.as_u64();
        numbers.map(move |number| (id.clone(), SeqNr::saturating(number)))
    }

    pub(crate) fn delete_to(&mut self, to: SeqNr) -> SeqNr {
        self.head.deleted_to = self.head.deleted_to.max(to.min(self.head.highest));
        let live = self.head.deleted_to.next();
        self.events = live.map(|live| self.events.split_off(&live)).unwrap_or_default();
        self.head.deleted_to
    }

    fn read(&self, range: ReadRange) -> Result<Page, Corrupt> {
        let mut page = Page::default();
        let to = range.to.min(self.head.highest);
        let from = range.from.max(self.head.deleted_to.next().unwrap_or(SeqNr::MAX));
        if range.max_events == 0 || range.from > range.to || from > to {
            return Ok(page);
        }
        let mut bytes = 0;
        let mut expected = from;
        for (seq_nr, record) in self.events.range(from..=to) {
            bytes += record.size_bytes();
            let full = page.records.len() == range.max_events || bytes > range.max_bytes;
            if full && !page.records.is_empty() {
                page.next = Some(*seq_nr);
                break;
            }
            if *seq_nr != expected || !record.is_intact() {
                let kind = if *seq_nr == expected { CorruptKind::Checksum } else { CorruptKind::Missing };
                return Err(Corrupt { id: record.id.clone(), seq_nr: expected, kind });
            }
            page.records.push(record.clone());
            expected = seq_nr.next().unwrap_or(SeqNr::MAX);
        }
        Ok(page)
    }
}

#[async_trait]
impl Journal for InMemoryJournal {
    fn caps(&self) -> Caps {
        self.caps
    }

    async fn claim(&self, id: &PersistenceId, writer_uuid: WriterUuid, under: Under) -> Result<Claim, ClaimError> {
        let mut histories = self.open(ClaimError::Unavailable)?;
        let head = &mut histories.by_id.entry(id.clone()).or_default().head;
        if !head.admits(writer_uuid, under) {
            return Err(ClaimError::Fenced { current: *head });
        }
        *head = head.claimed(writer_uuid, under);
        Ok(head.as_claim())
    }

    async fn advance(&self, id: &PersistenceId, epoch: WriterEpoch, to: SeqNr) -> Result<(), AdvanceError> {
        let mut histories = self.open(AdvanceError::Unavailable)?;
        let head = &mut histories.by_id.entry(id.clone()).or_default().head;
        if epoch != head.epoch {
            return Err(AdvanceError::Fenced { current: *head });
        }
        let repeated = to == head.highest && to == head.deleted_to && !to.is_zero();
        if repeated {
            return Ok(());
        }
        if !head.highest.is_zero() || to.is_zero() {
            return Err(AdvanceError::NotEmpty { highest: head.highest });
        }
        // Treat the skipped numbers as deleted, so that no reader waits for them.
        (head.highest, head.deleted_to) = (to, to);
        Ok(())
    }

    async fn append(&self, append: Append) -> Result<Appended, AppendError> {
        let mut unanswered = false;
        loop {
            match self.try_append(&append, unanswered) {
                Some(answer) => return answer,
                None => unanswered = true,
            }
        }
    }

    async fn read(&self, id: &PersistenceId, range: ReadRange) -> Result<Page, ReadError> {
        let histories = self.open(ReadError::Unavailable)?;
        let page = histories.by_id.get(id).map(|history| history.read(range));
        page.transpose().map(Option::unwrap_or_default).map_err(ReadError::Corrupt)
    }

    async fn head(&self, id: &PersistenceId) -> Result<Head, ReadError> {
        let histories = self.open(ReadError::Unavailable)?;
        Ok(histories.by_id.get(id).map(|history| history.head).unwrap_or_default())
    }

    async fn delete_to(&self, id: &PersistenceId, epoch: WriterEpoch, to: SeqNr) -> Result<SeqNr, DeleteError> {
        let mut histories = self.open(DeleteError::Unavailable)?;
        let history = histories.by_id.entry(id.clone()).or_default();
        if epoch != history.head.epoch {
            return Err(DeleteError::Fenced { current: history.head });
        }
        Ok(history.delete_to(to))
    }

    fn health(&self) -> Health {
        if lock(&self.histories).closed { Health::Down("closed".to_owned()) } else { Health::Up }
    }

    async fn close(&self) -> Result<(), CloseError> {
        lock(&self.histories).closed = true;
        Ok(())
    }
}

#[derive(Default)]
pub(crate) struct Saved {
    pub(crate) by_id: BTreeMap<PersistenceId, BTreeMap<SeqNr, Snapshot>>,
    closed: bool,
}

/// A snapshot store in memory. Clones share their data.
#[derive(Clone)]
pub struct InMemorySnapshots {
    pub(crate) saved: Arc<Mutex<Saved>>,
    caps: SnapshotCaps,
    clock: Clock,
}

impl Default for InMemorySnapshots {
    fn default() -> Self {
        Self::new(SnapshotCaps::full(Scope::Process), system_clock)
    }
}

impl fmt::Debug for InMemorySnapshots {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "InMemorySnapshots({} ids)", lock(&self.saved).by_id.len())
    }
}

impl InMemorySnapshots {
    /// An empty store; `clock` gives the timestamps.
    pub fn new(caps: SnapshotCaps, clock: impl Fn() -> Timestamp + Send + Sync + 'static) -> Self {
        Self { saved: Arc::default(), caps, clock: Arc::new(clock) }
    }

    /// Replaces the payload of a stored snapshot, checksum and all if `consistent`; returns
    /// whether the snapshot exists.
    pub fn damage(&self, id: &PersistenceId, seq_nr: SeqNr, consistent: bool) -> bool {
        let mut saved = lock(&self.saved);
        let Some(snapshot) = saved.by_id.get_mut(id).and_then(|saved| saved.get_mut(&seq_nr)) else { return false };
        snapshot.payload = Bytes::from_static(b"\xff damaged");
        if consistent {
            snapshot.crc32c = snapshot.compute_crc32c();
        }
        true
    }

    /// Removes all snapshots.
    pub fn clear(&self) {
        lock(&self.saved).by_id.clear();
    }

    /// All snapshots of `id`, oldest first, for assertions.
    pub fn snapshots(&self, id: &PersistenceId) -> Vec<Snapshot> {
        lock(&self.saved).by_id.get(id).map(|saved| saved.values().cloned().collect()).unwrap_or_default()
    }

    fn open(&self) -> Result<MutexGuard<'_, Saved>, SnapshotError> {
        let saved = lock(&self.saved);
        if saved.closed { Err(SnapshotError::Unavailable(closed())) } else { Ok(saved) }
    }
}

#[async_trait]
impl SnapshotStore for InMemorySnapshots {
    fn caps(&self) -> SnapshotCaps {
        self.caps
    }

    async fn load(&self, id: &PersistenceId, criteria: SnapshotCriteria) -> Result<Option<Snapshot>, SnapshotError> {
        let saved = self.open()?;
        let newest_first = saved.by_id.get(id).into_iter().flat_map(|saved| saved.values().rev());
        let newest = newest_first.into_iter().find(|found| criteria.matches(found.seq_nr, found.timestamp));
        match newest {
            Some(found) if !found.is_intact() => {
                let (id, seq_nr) = (id.clone(), found.seq_nr);
                Err(SnapshotError::Corrupt(Corrupt { id, seq_nr, kind: CorruptKind::Checksum }))
            }
            found => Ok(found.cloned()),
        }
    }

    async fn save(&self, snapshot: NewSnapshot) -> Result<Timestamp, SnapshotError> {
        let (bytes, max) = (snapshot.payload.len(), self.caps.max_bytes);
        if bytes > max {
            return Err(SnapshotError::TooLarge { bytes, max });
        }
        let mut saved = self.open()?;
        let timestamp = (self.clock)();
        let of_id = saved.by_id.entry(snapshot.id.clone()).or_default();
        if self.caps.latest_only {
            of_id.retain(|seq_nr, _| *seq_nr > snapshot.seq_nr);
            if !of_id.is_empty() {
                return Ok(timestamp);
            }
        }
        of_id.insert(snapshot.seq_nr, snapshot.stored(timestamp));
        Ok(timestamp)
    }

    async fn delete(&self, id: &PersistenceId, seq_nr: SeqNr) -> Result<(), SnapshotError> {
        if let Some(saved) = self.open()?.by_id.get_mut(id) {
            saved.remove(&seq_nr);
        }
        Ok(())
    }

    async fn delete_matching(&self, id: &PersistenceId, criteria: SnapshotCriteria) -> Result<(), SnapshotError> {
        if let Some(saved) = self.open()?.by_id.get_mut(id) {
            saved.retain(|seq_nr, snapshot| !criteria.matches(*seq_nr, snapshot.timestamp));
        }
        Ok(())
    }

    fn health(&self) -> Health {
        if lock(&self.saved).closed { Health::Down("closed".to_owned()) } else { Health::Up }
    }

    async fn close(&self) -> Result<(), CloseError> {
        lock(&self.saved).closed = true;
        Ok(())
    }
}
