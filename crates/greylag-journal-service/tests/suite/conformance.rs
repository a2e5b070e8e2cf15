//! Every served store keeps its contract, call for call: with sled behind the server, and with stores in memory, whose
//! rows the kit can damage and whose answers it can lose.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::{ServedDisk, ServedMemory, loopback};
use async_trait::async_trait;
use greylag_journal_service::JournalClient;
use greylag_persistence::tck::{
    self, ChangeFactory, Flags, JournalFactory, OffsetFactory, QueryFactory, Report, SnapshotFactory, StateFactory,
};
use greylag_persistence::{
    AppendFault, EventQueries, Journal, OffsetKind, OffsetStore, PersistenceId, SeqNr, SnapshotStore, StateStore,
};

/// Factory of stores for the kit. It keeps the servers alive as long as the kit runs.
struct Disk(tokio::sync::Mutex<Vec<(ServedDisk, tempfile::TempDir)>>);

impl Disk {
    fn new() -> Self {
        Self(tokio::sync::Mutex::default())
    }

    async fn client(&self) -> JournalClient {
        let directory = tempfile::tempdir().unwrap();
        let served = ServedDisk::start(directory.path(), loopback()).await;
        let client = served.client().await;
        self.0.lock().await.push((served, directory));
        client
    }
}

/// As [`Disk`], in memory. The kit's hooks act on the store that was opened first.
struct Memory {
    kind: OffsetKind,
    opened: Mutex<Vec<Arc<ServedMemory>>>,
}

impl Memory {
    fn new(kind: OffsetKind) -> Self {
        Self { kind, opened: Mutex::default() }
    }

    async fn client(&self) -> JournalClient {
        let served = Arc::new(ServedMemory::start(self.kind).await);
        let client = served.client().await;
        self.opened.lock().unwrap().push(served);
        client
    }

    fn first(&self) -> Arc<ServedMemory> {
        self.opened.lock().unwrap()[0].clone()
    }
}

#[async_trait]
impl JournalFactory for Memory {
    async fn open(&self) -> Arc<dyn Journal> {
        Arc::new(self.client().await.journal())
    }

    async fn corrupt(&self, _: &Arc<dyn Journal>, id: &PersistenceId, seq_nr: SeqNr) -> bool {
        self.first().journal.corrupt(id, seq_nr)
    }

    async fn turn_clock_back(&self, _: &Arc<dyn Journal>, by: Duration) -> bool {
        self.first().clock.fetch_sub(u64::try_from(by.as_micros()).unwrap(), Ordering::Relaxed);
        true
    }

    async fn script_append(&self, _: &Arc<dyn Journal>, id: &PersistenceId, faults: &[AppendFault]) -> bool {
        self.first().journal.script_append(id, faults.iter().copied());
        true
    }
}

#[async_trait]
impl SnapshotFactory for Memory {
    async fn open(&self) -> Arc<dyn SnapshotStore> {
        Arc::new(self.client().await.snapshots())
    }

    async fn corrupt(&self, _: &Arc<dyn SnapshotStore>, id: &PersistenceId, seq_nr: SeqNr) -> bool {
        self.first().snapshots.damage(id, seq_nr, false)
    }
}

#[async_trait]
impl StateFactory for Memory {
    async fn open(&self) -> Arc<dyn StateStore> {
        Arc::new(self.client().await.states().unwrap())
    }

    async fn corrupt(&self, _: &Arc<dyn StateStore>, id: &PersistenceId) -> bool {
        self.first().states.corrupt(id)
    }
}

#[async_trait]
impl OffsetFactory for Memory {
    async fn open(&self) -> Arc<dyn OffsetStore> {
        Arc::new(self.client().await.offsets().unwrap())
    }
}

#[async_trait]
impl QueryFactory for Memory {
    async fn open(&self) -> (Arc<dyn Journal>, Arc<dyn EventQueries>) {
        let client = self.client().await;
        (Arc::new(client.journal()), Arc::new(client.queries().unwrap()))
    }

    async fn corrupt(&self, _: &Arc<dyn Journal>, id: &PersistenceId, seq_nr: SeqNr) -> bool {
        self.first().journal.corrupt(id, seq_nr)
    }
}

#[async_trait]
impl ChangeFactory for Memory {
    async fn open(&self) -> (Arc<dyn StateStore>, Arc<dyn EventQueries>) {
        let client = self.client().await;
        (Arc::new(client.states().unwrap()), Arc::new(client.changes().unwrap()))
    }

    async fn corrupt(&self, _: &Arc<dyn StateStore>, id: &PersistenceId) -> bool {
        self.first().states.corrupt(id)
    }
}

/// Asserts that at least `cases` cases ran and passed, and that exactly these were skipped.
fn complete(report: &Report, cases: usize, skipped: &[&str]) {
    report.assert_conforms();
    assert!(report.cases.len() >= cases, "{report}");
    let left_out: Vec<&str> = report.skipped().collect();
    let expected = left_out.len() == skipped.len() && left_out.iter().zip(skipped).all(|(out, of)| out.starts_with(of));
    assert!(expected, "left out: {left_out:?}");
}

fn flags() -> Flags {
    Flags { concurrent_ids: 200, ..Flags::default() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_served_journal_conforms() {
    let disk = Disk::new();
    let open = || async { Arc::new(disk.client().await.journal()) as Arc<dyn Journal> };
    complete(&tck::journal(&open, flags()).await, 46, &["32", "37", "43"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_journal_served_out_of_memory_conforms_under_every_hook() {
    complete(&tck::journal(&Memory::new(OffsetKind::Ordinal), flags()).await, 46, &[]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_served_snapshots_conform() {
    let disk = Disk::new();
    let open = || async { Arc::new(disk.client().await.snapshots()) as Arc<dyn SnapshotStore> };
    tck::snapshots(&open, Flags::default()).await.assert_conforms();
    let small = Flags { largest: false, ..Flags::default() };
    tck::snapshots(&Memory::new(OffsetKind::Ordinal), small).await.assert_conforms();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_served_states_conform() {
    let disk = Disk::new();
    let open = || async { Arc::new(disk.client().await.states().unwrap()) as Arc<dyn StateStore> };
    complete(&tck::states(&open, Flags::default()).await, 18, &["11"]);
    complete(&tck::states(&Memory::new(OffsetKind::Ordinal), Flags::default()).await, 18, &[]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_served_offsets_conform() {
    let disk = Disk::new();
    let open = || async { Arc::new(disk.client().await.offsets().unwrap()) as Arc<dyn OffsetStore> };
    complete(&tck::offsets(&open, Flags::default()).await, 19, &[]);
    for kind in [OffsetKind::Ordinal, OffsetKind::Timestamp] {
        complete(&tck::offsets(&Memory::new(kind), Flags::default()).await, 19, &[]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_served_queries_conform() {
    let disk = Disk::new();
    let open = || async {
        let client = disk.client().await;
        (Arc::new(client.journal()) as Arc<dyn Journal>, Arc::new(client.queries().unwrap()) as Arc<dyn EventQueries>)
    };
    complete(&tck::queries(&open, Flags::default()).await, 13, &["13"]);
    complete(&tck::queries(&Memory::new(OffsetKind::Ordinal), Flags::default()).await, 13, &[]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_served_changes_conform() {
    let disk = Disk::new();
    let open = || async {
        let client = disk.client().await;
        let changes: Arc<dyn EventQueries> = Arc::new(client.changes().unwrap());
        (Arc::new(client.states().unwrap()) as Arc<dyn StateStore>, changes)
    };
    complete(&tck::changes(&open, Flags::default()).await, 12, &["10", "12"]);
    complete(&tck::changes(&Memory::new(OffsetKind::Ordinal), Flags::default()).await, 12, &["10"]);
}

/// Two clients of one server are two writers; scenarios persistence 63, 65, 68 and 69 through the service.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_writers_have_one_served_history() {
    let disk = Disk::new();
    let journals = || async { Arc::new(disk.client().await.journal()) as Arc<dyn Journal> };
    let snapshots = || async { Arc::new(disk.client().await.snapshots()) as Arc<dyn SnapshotStore> };
    let flags = Flags { interleavings: 60, ..Flags::default() };
    complete(&tck::writers(&journals, &snapshots, flags).await, 6, &[]);
    let memory = Memory::new(OffsetKind::Ordinal);
    complete(&tck::writers(&memory, &memory, Flags::default()).await, 6, &[]);
}
