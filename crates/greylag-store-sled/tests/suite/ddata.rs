//! The store of durable replicated entries: the conformance kit, damage on disk, and a replicator on it.

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::future::BoxFuture;
use greylag_core::Registry;
use greylag_crdt::{GCounter, GSet, Markers, OrSet};
use greylag_ddata::tck::{self, Outcome, StoreBench};
use greylag_ddata::{
    DurableSettings, DurableStore, Key, Lifecycle, Membership, OnBadRecord, ReadLevel, Replicator, ReplicatorSettings,
    StopReason, StoreError, StoreOp, TypeTable, WriteLevel,
};
use greylag_store_sled::{DdataStore, DdataStoreSettings};
use greylag_transport::memory::MemoryNetwork;

fn settings() -> DdataStoreSettings {
    let mut settings = DdataStoreSettings::test();
    settings.engine.lock_retry = Duration::from_millis(300);
    settings
}

fn store(path: &Path) -> Arc<DdataStore> {
    Arc::new(DdataStore::new(path, settings()))
}

/// Flips bits of the record under a key, through sled itself.
fn damage(path: &Path, id: &str) -> bool {
    let db = sled::Config::default().path(path).segment_size(8 << 20).open().expect("no process has it open");
    let mut key = vec![0x10];
    key.extend_from_slice(&u16::try_from(id.len()).unwrap().to_be_bytes());
    key.extend_from_slice(id.as_bytes());
    key.push(0);
    let Some(found) = db.get(&key).unwrap() else { return false };
    let mut bytes = found.to_vec();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 0x10;
    db.insert(key, bytes).unwrap();
    db.flush().unwrap();
    true
}

struct Sled(tempfile::TempDir);

impl Sled {
    fn path(&self) -> PathBuf {
        self.0.path().join("ddata")
    }
}

impl StoreBench for Sled {
    fn fresh() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn open(&self) -> Arc<dyn DurableStore> {
        store(&self.path())
    }

    fn damage(&self, key: &str) -> BoxFuture<'_, bool> {
        Box::pin(std::future::ready(damage(&self.path(), key)))
    }
}

/// ddata U2: the store on sled passes the conformance kit.
#[tokio::test(flavor = "multi_thread")]
async fn the_store_conforms() {
    let report = tck::durable_store::<Sled>().await;
    report.assert_conforms();
    assert!(report.cases.iter().all(|(_, outcome)| *outcome == Outcome::Passed), "{report}");
}

/// The uid of the next start: every start is a new incarnation.
static UIDS: AtomicU64 = AtomicU64::new(1);

/// Starts a replicator without peers, on a store.
fn start(path: &Path, durable: DurableSettings) -> Replicator {
    let uid = UIDS.fetch_add(1, Ordering::Relaxed);
    let network = MemoryNetwork::new();
    let remoting = network.node(format!("solo.sled:1#{uid}").parse().unwrap(), Arc::new(Registry::new()));
    let settings = ReplicatorSettings { durable, ..ReplicatorSettings::test() };
    let types = TypeTable::new().with::<GSet<u64>>();
    Replicator::start_durable(settings, types, remoting, Membership::fixed([]), store(path)).unwrap()
}

async fn visits(replicator: &Replicator) -> Option<u128> {
    let key = Key::<GCounter>::new("visits").unwrap();
    replicator.get(&key, ReadLevel::Local).await.unwrap().found().map(|visits| visits.value())
}

async fn visit(replicator: &Replicator) {
    let key = Key::<GCounter>::new("visits").unwrap();
    replicator.update(&key, WriteLevel::Local, GCounter::new, |visits, cx| visits.increment(cx, 1)).await.unwrap();
}

/// ddata 39: three updates, stop, start; a get waits until everything is loaded.
#[tokio::test(flavor = "multi_thread")]
async fn scenario_39_a_get_waits_for_what_was_stored() {
    let place = tempfile::tempdir().unwrap();
    let first = start(place.path(), DurableSettings::of(["visits"]));
    for _ in 0..3 {
        visit(&first).await;
    }
    first.shutdown().await;
    let second = start(place.path(), DurableSettings::of(["visits"]));
    assert_eq!(visits(&second).await, Some(3));
    second.shutdown().await;
}

/// ddata U2, H4: a large set is stored as a snapshot and deltas, which come back as one.
#[tokio::test(flavor = "multi_thread")]
async fn a_large_entry_comes_back_with_its_latest_changes() {
    let place = tempfile::tempdir().unwrap();
    let key = Key::<OrSet<String>>::new("birds").unwrap();
    let first = start(place.path(), DurableSettings::of(["*"]));
    let many = (0..10_000).map(|index| format!("greylag number {index}"));
    let add = move |set: &mut OrSet<String>, cx: &mut greylag_crdt::UpdateCx<'_>| {
        set.add_all(cx, many);
        Ok::<_, std::convert::Infallible>(())
    };
    first.update(&key, WriteLevel::Local, OrSet::new, add).await.unwrap();
    for index in 0..20 {
        let change = move |set: &mut OrSet<String>, cx: &mut greylag_crdt::UpdateCx<'_>| {
            set.remove(cx, &format!("greylag number {index}"));
            set.add(cx, format!("barnacle {index}"));
            Ok::<_, std::convert::Infallible>(())
        };
        first.update(&key, WriteLevel::Local, OrSet::new, change).await.unwrap();
    }
    first.shutdown().await;
    let second = start(place.path(), DurableSettings::of(["*"]));
    let birds = second.get(&key, ReadLevel::Local).await.unwrap().found().unwrap();
    assert_eq!(birds.len(), 10_000);
    assert!(birds.contains("barnacle 19") && !birds.contains("greylag number 19"));
    second.shutdown().await;
}

/// ddata U5: a damaged record stops the replicator and is named; or it is quarantined, and the rest is served.
#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_record_stops_the_replicator_or_is_moved_aside() {
    let place = tempfile::tempdir().unwrap();
    let durable = DurableSettings::of(["*"]);
    let first = start(place.path(), durable.clone());
    visit(&first).await;
    let other = Key::<GSet<u64>>::new("other").unwrap();
    first
        .update(&other, WriteLevel::Local, GSet::new, |set, _| {
            set.add(7);
            Ok::<_, ()>(())
        })
        .await
        .unwrap();
    first.shutdown().await;
    assert!(damage(place.path(), "visits"));

    let second = start(place.path(), durable.clone());
    assert!(!second.wait_loaded().await);
    let stopped = second.lifecycle().borrow().clone();
    assert!(
        matches!(&stopped, Lifecycle::Stopped(StopReason::BadRecord { key, .. }) if &**key == "visits"),
        "{stopped:?}"
    );

    let quarantine = DurableSettings { on_bad_record: OnBadRecord::Quarantine, ..durable };
    let third = start(place.path(), quarantine.clone());
    assert!(third.wait_loaded().await);
    assert_eq!(visits(&third).await, None);
    assert_eq!(third.get(&other, ReadLevel::Local).await.unwrap().found().unwrap().len(), 1);
    visit(&third).await;
    third.shutdown().await;
    let fourth = start(place.path(), quarantine);
    assert_eq!(visits(&fourth).await, Some(1), "what was moved aside is loaded no more");
    fourth.shutdown().await;
}

/// ddata U5: a second replicator with the same directory stops and names the reason.
#[tokio::test(flavor = "multi_thread")]
async fn a_place_in_use_is_locked() {
    let place = tempfile::tempdir().unwrap();
    let durable = DurableSettings {
        load_retries: 1,
        load_retry_window: Duration::from_millis(20),
        ..DurableSettings::of(["visits"])
    };
    let first = start(place.path(), durable.clone());
    visit(&first).await;
    let second = start(place.path(), durable);
    assert!(!second.wait_loaded().await);
    let stopped = second.lifecycle().borrow().clone();
    let locked = Lifecycle::Stopped(StopReason::StoreLoadFailed(StoreError::Locked {
        place: place.path().display().to_string(),
    }));
    assert_eq!(stopped, locked);
    visit(&first).await;
    assert_eq!(visits(&first).await, Some(2));
    first.shutdown().await;
}

/// Removing and replacing entries never makes sled merge a page with a damaged neighbour, which would cost hundreds of
/// sound pages.
#[tokio::test(flavor = "multi_thread")]
async fn a_removal_beside_a_damaged_page_costs_no_other_entry() {
    let place = tempfile::tempdir().unwrap();
    let id = |number: u32| format!("entry-{number:04}");
    let put = |number: u32| StoreOp::Put {
        key: id(number).as_str().into(),
        tag: "gl.x/1".into(),
        bytes: format!("value {number}, {}", "x".repeat(50_000)).into(),
        markers: Markers::new(),
    };
    let filled = store(place.path());
    tck::load(&*filled).await.unwrap();
    for number in 0..400 {
        tck::store(&*filled, vec![put(number)]).await.unwrap();
    }
    filled.close().await.unwrap();
    // Open once more, so that the engine writes an index of its log and trusts it.
    drop(sled::Config::default().path(place.path()).segment_size(8 << 20).open().unwrap());
    let log = std::fs::read(place.path().join("db")).unwrap();
    let file = std::fs::File::options().write(true).open(place.path().join("db")).unwrap();
    for at in (0..log.len()).filter(|at| log[*at..].starts_with(b"value 100,")) {
        file.write_all_at(b"V", at as u64).unwrap();
    }
    let unreadable = || {
        let db = sled::Config::default().path(place.path()).segment_size(8 << 20).open().unwrap();
        let key = |number: u32| [&[0x10, 0, 10][..], id(number).as_bytes(), &[0]].concat();
        (0..400).filter(|number| db.get(key(*number)).is_err()).collect::<Vec<u32>>()
    };
    let damaged = unreadable();
    assert!(damaged.contains(&100) && damaged.len() < 20, "{damaged:?}");
    let behind = damaged.last().unwrap() + 1;
    let working = store(place.path());
    for number in behind..behind + 6 {
        let op = match number % 2 {
            0 => StoreOp::Remove { key: id(number).as_str().into() },
            _ => StoreOp::Quarantine { key: id(number).as_str().into() },
        };
        tck::store(&*working, vec![op]).await.unwrap();
    }
    working.close().await.unwrap();
    let lost = unreadable();
    assert!(lost.len() <= damaged.len() + 6, "{damaged:?} became {lost:?}");
}
