//! The conformance kit on disk: with a journal that stays open, and with one that is closed and opened again all the
//! time.

use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use greylag_journal_sled::{Clock, SledJournal, SledJournalSettings, StoreError, StoreSettings};
use greylag_persistence::tck::{
    self, ChangeFactory, Flags, JournalFactory, OffsetFactory, QueryFactory, SnapshotFactory, StateFactory,
};
use greylag_persistence::{
    AdvanceError, Append, AppendError, Appended, Caps, ChangesOf, Claim, ClaimError, CloseError, DeleteError,
    EncodedValue, EventPage, EventQueries, Head, Health, Journal, NewSnapshot, Offset, OffsetCaps, OffsetError,
    OffsetStore, OwnedSlices, Page, PageQuery, PersistenceId, Position, Processed, QueryCaps, QueryError, ReadError,
    ReadRange, SeqNr, Snapshot, SnapshotCaps, SnapshotCriteria, SnapshotError, SnapshotStore, StateCaps, StateChange,
    StateStore, StateWrite, StateWriteError, StoredState, Timestamp, Under, WriterEpoch, WriterUuid,
};
use greylag_store_sled::{Batch, Planner, Reader, Request, Store};
use tokio::sync::{RwLock, RwLockWriteGuard};
use tokio::task::coop::unconstrained;

/// A journal that is closed and opened again behind the kit's handle.
struct Reopened {
    path: PathBuf,
    clock: Arc<AtomicU64>,
    open: RwLock<SledJournal>,
    caps: (Caps, SnapshotCaps),
    /// The journal is opened again before every this many reads; never if 0.
    every: u64,
    reads: AtomicU64,
    /// The same journal without the async lock, since the kit asks for the health without waiting.
    latest: Mutex<SledJournal>,
}

impl Reopened {
    async fn new(path: &Path, clock: Arc<AtomicU64>, every: u64) -> Self {
        let journal = open(path, clock.clone()).await;
        let caps = (Journal::caps(&journal), SnapshotStore::caps(&journal.snapshots()));
        let (open, latest) = (RwLock::new(journal.clone()), Mutex::new(journal));
        Self { path: path.to_owned(), clock, open, caps, every, reads: AtomicU64::new(1), latest }
    }

    /// Closes the journal, applies `something` to the directory, and opens the journal again.
    async fn while_closed(&self, something: impl FnOnce(&Path)) {
        self.reopen(self.open.write().await, something).await;
    }

    async fn reopen(&self, mut journal: RwLockWriteGuard<'_, SledJournal>, something: impl FnOnce(&Path)) {
        journal.close().await.unwrap();
        something(&self.path);
        *journal = open(&self.path, self.clock.clone()).await;
        *self.latest.lock().unwrap() = journal.clone();
    }

    async fn before_read(&self) {
        let reads = self.reads.fetch_add(1, Ordering::Relaxed);
        if self.every > 0 && reads.is_multiple_of(self.every) && self.health() == Health::Up {
            // Skipped while another call is under way: the kit stops polling a save and reads, and the lock would never
            // be free.
            if let Ok(journal) = self.open.try_write() {
                self.reopen(journal, |_| {}).await;
            }
        }
    }

    fn health(&self) -> Health {
        self.latest.lock().unwrap().health()
    }
}

async fn open(path: &Path, clock: Arc<AtomicU64>) -> SledJournal {
    let clock = Clock::new(move || Timestamp::from_micros(clock.fetch_add(1, Ordering::Relaxed)));
    SledJournal::open(path, SledJournalSettings { clock, ..SledJournalSettings::test() }).await.unwrap()
}

#[async_trait]
impl Journal for Reopened {
    fn caps(&self) -> Caps {
        self.caps.0
    }

    async fn claim(&self, id: &PersistenceId, uuid: WriterUuid, under: Under) -> Result<Claim, ClaimError> {
        self.open.read().await.claim(id, uuid, under).await
    }

    async fn advance(&self, id: &PersistenceId, epoch: WriterEpoch, to: SeqNr) -> Result<(), AdvanceError> {
        self.open.read().await.advance(id, epoch, to).await
    }

    async fn append(&self, append: Append) -> Result<Appended, AppendError> {
        // Unconstrained by tokio's task budget: the kit expects that the first poll of an append sends it.
        unconstrained(self.open.read()).await.append(append).await
    }

    async fn read(&self, id: &PersistenceId, range: ReadRange) -> Result<Page, ReadError> {
        self.before_read().await;
        self.open.read().await.read(id, range).await
    }

    async fn head(&self, id: &PersistenceId) -> Result<Head, ReadError> {
        self.before_read().await;
        self.open.read().await.head(id).await
    }

    async fn delete_to(&self, id: &PersistenceId, epoch: WriterEpoch, to: SeqNr) -> Result<SeqNr, DeleteError> {
        self.open.read().await.delete_to(id, epoch, to).await
    }

    fn health(&self) -> Health {
        self.health()
    }

    async fn close(&self) -> Result<(), CloseError> {
        self.open.read().await.close().await
    }
}

#[async_trait]
impl SnapshotStore for Reopened {
    fn caps(&self) -> SnapshotCaps {
        self.caps.1
    }

    async fn load(&self, id: &PersistenceId, criteria: SnapshotCriteria) -> Result<Option<Snapshot>, SnapshotError> {
        self.before_read().await;
        self.open.read().await.snapshots().load(id, criteria).await
    }

    async fn save(&self, snapshot: NewSnapshot) -> Result<Timestamp, SnapshotError> {
        self.open.read().await.snapshots().save(snapshot).await
    }

    async fn delete(&self, id: &PersistenceId, seq_nr: SeqNr) -> Result<(), SnapshotError> {
        self.open.read().await.snapshots().delete(id, seq_nr).await
    }

    async fn delete_matching(&self, id: &PersistenceId, criteria: SnapshotCriteria) -> Result<(), SnapshotError> {
        self.open.read().await.snapshots().delete_matching(id, criteria).await
    }

    fn health(&self) -> Health {
        self.health()
    }

    async fn close(&self) -> Result<(), CloseError> {
        Journal::close(self).await
    }
}

#[async_trait]
impl StateStore for Reopened {
    fn caps(&self) -> StateCaps {
        self.latest.lock().unwrap().states().caps()
    }

    async fn get(&self, id: &PersistenceId) -> Result<StoredState, ReadError> {
        self.before_read().await;
        self.open.read().await.states().get(id).await
    }

    async fn upsert(&self, write: StateWrite, value: EncodedValue, tag: Option<String>) -> Result<(), StateWriteError> {
        self.open.read().await.states().upsert(write, value, tag).await
    }

    async fn delete(&self, write: StateWrite) -> Result<(), StateWriteError> {
        self.open.read().await.states().delete(write).await
    }

    async fn ids(&self, after: Option<&PersistenceId>, limit: usize) -> Result<Vec<PersistenceId>, ReadError> {
        self.before_read().await;
        self.open.read().await.states().ids(after, limit).await
    }

    async fn changes(&self, of: &ChangesOf, offset: &Offset, limit: usize) -> Result<Vec<StateChange>, QueryError> {
        self.before_read().await;
        self.open.read().await.states().changes(of, offset, limit).await
    }

    fn health(&self) -> Health {
        self.health()
    }

    async fn close(&self) -> Result<(), CloseError> {
        Journal::close(self).await
    }
}

#[async_trait]
impl OffsetStore for Reopened {
    fn caps(&self) -> OffsetCaps {
        self.latest.lock().unwrap().offsets().caps()
    }

    async fn claim(&self, projection: &str, slices: RangeInclusive<u16>) -> Result<OwnedSlices, OffsetError> {
        self.open.read().await.offsets().claim(projection, slices).await
    }

    async fn load(&self, projection: &str, slices: RangeInclusive<u16>) -> Result<Vec<Processed>, OffsetError> {
        self.before_read().await;
        self.open.read().await.offsets().load(projection, slices).await
    }

    async fn save(&self, owned: &OwnedSlices, processed: &[Processed]) -> Result<(), OffsetError> {
        self.open.read().await.offsets().save(owned, processed).await
    }

    async fn forget_before(&self, owned: &OwnedSlices, position: Position) -> Result<(), OffsetError> {
        self.open.read().await.offsets().forget_before(owned, position).await
    }

    async fn reset(&self, owned: &OwnedSlices) -> Result<(), OffsetError> {
        self.open.read().await.offsets().reset(owned).await
    }

    fn health(&self) -> Health {
        self.health()
    }

    async fn close(&self) -> Result<(), CloseError> {
        Journal::close(self).await
    }
}

/// Flips a bit of the payload of a record behind the engine's checksum, so that only the record's own checksum can
/// tell.
struct Flip {
    /// The first byte of the key: events 02, snapshots 10, states 20.
    space: u8,
    /// Sequence number in the record's key; unused for states.
    seq_nr: u64,
    id: PersistenceId,
}

struct Once;

impl Request for Once {
    fn bytes(&self) -> usize {
        0
    }
}

impl Planner for Flip {
    type Request = Once;
    type Answer = bool;

    fn recover(&mut self, _: &Reader, _: &mut Batch) -> Result<(), StoreError> {
        Ok(())
    }

    fn plan(&mut self, asked: Vec<Once>, reader: &Reader, batch: &mut Batch) -> Result<Vec<bool>, StoreError> {
        let by_id = |space: u8| [&[space], self.id.as_str().as_bytes()].concat();
        let key = if self.space == 0x20 {
            by_id(self.space)
        } else {
            let head = reader.get(&by_id(1))?.expect("the id has a head");
            // A head has the id's number after its version byte; keys have the same number.
            [&[self.space], &head[1..9], &self.seq_nr.to_be_bytes()[..]].concat()
        };
        let mut row = reader.get(&key)?.expect("the record is there").to_vec();
        *row.last_mut().expect("a record is not empty") ^= 1;
        batch.put(&key, &row);
        Ok(vec![true; asked.len()])
    }
}

fn flip(path: &Path, space: u8, id: &PersistenceId, seq_nr: SeqNr) {
    let planner = Flip { space, seq_nr: seq_nr.as_u64(), id: id.clone() };
    let store = Store::open(path, StoreSettings::test(), planner).unwrap();
    assert!(store.submit(Once).unwrap().wait().unwrap());
    store.close().unwrap();
}

/// Factory of stores for the kit, with what the kit's hooks need.
struct Disk {
    every: u64,
    clock: Arc<AtomicU64>,
    opened: Mutex<Vec<(Arc<Reopened>, tempfile::TempDir)>>,
}

impl Disk {
    fn new(every: u64) -> Self {
        Self { every, clock: Arc::new(AtomicU64::new(1 << 50)), opened: Mutex::default() }
    }

    async fn store(&self) -> Arc<Reopened> {
        let directory = tempfile::tempdir().unwrap();
        let store = Arc::new(Reopened::new(directory.path(), self.clock.clone(), self.every).await);
        self.opened.lock().unwrap().push((store.clone(), directory));
        store
    }

    /// Flips a bit of a record in the store that the kit opened first.
    async fn flip(&self, space: u8, id: &PersistenceId, seq_nr: SeqNr) -> bool {
        let store = self.opened.lock().unwrap()[0].0.clone();
        // Opened once more before the damage, so that the record counts as verified and the next opening does not miss
        // it.
        store.while_closed(|_| {}).await;
        store.while_closed(|path| flip(path, space, id, seq_nr)).await;
        true
    }
}

#[async_trait]
impl JournalFactory for Disk {
    async fn open(&self) -> Arc<dyn Journal> {
        self.store().await
    }

    async fn corrupt(&self, _: &Arc<dyn Journal>, id: &PersistenceId, seq_nr: SeqNr) -> bool {
        self.flip(0x02, id, seq_nr).await
    }

    async fn turn_clock_back(&self, _: &Arc<dyn Journal>, by: Duration) -> bool {
        self.clock.fetch_sub(u64::try_from(by.as_micros()).unwrap(), Ordering::Relaxed);
        true
    }
}

#[async_trait]
impl SnapshotFactory for Disk {
    async fn open(&self) -> Arc<dyn SnapshotStore> {
        self.store().await
    }

    async fn corrupt(&self, _: &Arc<dyn SnapshotStore>, id: &PersistenceId, seq_nr: SeqNr) -> bool {
        self.flip(0x10, id, seq_nr).await
    }
}

#[async_trait]
impl StateFactory for Disk {
    async fn open(&self) -> Arc<dyn StateStore> {
        self.store().await
    }

    async fn corrupt(&self, _: &Arc<dyn StateStore>, id: &PersistenceId) -> bool {
        self.flip(0x20, id, SeqNr::ZERO).await
    }
}

#[async_trait]
impl OffsetFactory for Disk {
    async fn open(&self) -> Arc<dyn OffsetStore> {
        self.store().await
    }
}

/// The query side of the journal that is open at the time of a call.
struct ReopenedQueries(Arc<Reopened>, fn(&SledJournal) -> Arc<dyn EventQueries>);

fn of_events(journal: &SledJournal) -> Arc<dyn EventQueries> {
    Arc::new(journal.queries())
}

fn of_states(journal: &SledJournal) -> Arc<dyn EventQueries> {
    Arc::new(journal.states().queries())
}

#[async_trait]
impl EventQueries for ReopenedQueries {
    fn caps(&self) -> QueryCaps {
        (self.1)(&self.0.latest.lock().unwrap()).caps()
    }

    async fn persistence_ids(
        &self,
        entity_type: Option<&str>,
        after: Option<&PersistenceId>,
        limit: usize,
    ) -> Result<Vec<PersistenceId>, ReadError> {
        self.0.before_read().await;
        (self.1)(&*self.0.open.read().await).persistence_ids(entity_type, after, limit).await
    }

    async fn newest(&self) -> Result<Option<Position>, ReadError> {
        (self.1)(&*self.0.open.read().await).newest().await
    }

    async fn events(&self, query: &PageQuery) -> Result<EventPage, QueryError> {
        self.0.before_read().await;
        (self.1)(&*self.0.open.read().await).events(query).await
    }

    async fn read(&self, id: &PersistenceId, range: ReadRange) -> Result<Page, ReadError> {
        (self.1)(&*self.0.open.read().await).read(id, range).await
    }
}

#[async_trait]
impl QueryFactory for Disk {
    async fn open(&self) -> (Arc<dyn Journal>, Arc<dyn EventQueries>) {
        let store = self.store().await;
        (store.clone(), Arc::new(ReopenedQueries(store, of_events)))
    }

    async fn corrupt(&self, _: &Arc<dyn Journal>, id: &PersistenceId, seq_nr: SeqNr) -> bool {
        self.flip(0x02, id, seq_nr).await
    }
}

#[async_trait]
impl ChangeFactory for Disk {
    async fn open(&self) -> (Arc<dyn StateStore>, Arc<dyn EventQueries>) {
        let store = self.store().await;
        (store.clone(), Arc::new(ReopenedQueries(store, of_states)))
    }

    async fn corrupt(&self, _: &Arc<dyn StateStore>, id: &PersistenceId) -> bool {
        self.flip(0x20, id, SeqNr::ZERO).await
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_changes_conform() {
    for every in [0, 40] {
        let report = tck::changes(&Disk::new(every), Flags::default()).await;
        report.assert_conforms();
        // Commits are numbered in order, so no event is committed late.
        let skipped: Vec<_> = report.skipped().collect();
        assert_eq!(skipped, ["10 what is committed late is found by going back"], "{report}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_queries_conform() {
    let report = tck::queries(&Disk::new(0), Flags::default()).await;
    report.assert_conforms();
    assert_eq!(report.skipped().count(), 0, "{report}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_queries_conform_when_it_is_opened_again_all_the_time() {
    tck::queries(&Disk::new(40), Flags::default()).await.assert_conforms();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_journal_conforms() {
    let report = tck::journal(&Disk::new(0), Flags::default()).await;
    report.assert_conforms();
    // Only the client of the journal service can lose an answer; here every try is answered.
    let skipped: Vec<_> = report.skipped().collect();
    assert_eq!(skipped, ["43 retry after an unanswered try"], "{report}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_journal_conforms_when_it_is_opened_again_all_the_time() {
    let flags = Flags { concurrent_ids: 50, ..Flags::default() };
    tck::journal(&Disk::new(7), flags).await.assert_conforms();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_snapshots_conform() {
    for every in [0, 3] {
        let report = tck::snapshots(&Disk::new(every), Flags::default()).await;
        report.assert_conforms();
        assert_eq!(report.skipped().count(), 0, "{report}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_offsets_conform() {
    for every in [0, 12] {
        let report = tck::offsets(&Disk::new(every), Flags::default()).await;
        report.assert_conforms();
        assert_eq!(report.skipped().count(), 0, "{report}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_states_conform() {
    for every in [0, 40] {
        let report = tck::states(&Disk::new(every), Flags::default()).await;
        report.assert_conforms();
        assert_eq!(report.skipped().count(), 0, "{report}");
    }
}

/// Scenarios persistence 63, 65, 68 and 69 on disk, with a journal that stays open and one that is opened again all
/// the time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_writers_have_one_history() {
    for (every, interleavings) in [(0, 100), (40, 10)] {
        let flags = Flags { interleavings, ..Flags::default() };
        let (journals, snapshots) = (Disk::new(every), Disk::new(every));
        let report = tck::writers(&journals, &snapshots, flags).await;
        report.assert_conforms();
        assert_eq!(report.skipped().count(), 0, "{report}");
    }
}
