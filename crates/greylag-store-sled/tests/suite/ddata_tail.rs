//! A store of durable entries whose end is lost is refused by name, or complete; it never opens as an older state.
//!
//! Source: ddata U2, U5, scenario 88.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use greylag_core::Registry;
use greylag_crdt::{GCounter, Markers, UpdateCx};
use greylag_ddata::{
    DurableSettings, DurableStore, Key, KeyId, Lifecycle, LoadedRecord, Membership, ReadLevel, Replicator,
    ReplicatorSettings, StaleStore, StopReason, StoreError, StoreMeta, StoreOp, TypeTable, UpdateError, WriteLevel,
    tck,
};
use greylag_store_sled::{DdataStore, DdataStoreSettings, GUARD_FILE};
use greylag_testkit::small_disk::{self, SmallDisk};
use greylag_transport::memory::MemoryNetwork;

const SEGMENT: u64 = 8 << 20;

/// The last acknowledged value of each entry.
type Kept = BTreeMap<KeyId, Bytes>;

fn put(key: &str, bytes: Vec<u8>) -> StoreOp {
    StoreOp::Put { key: key.into(), tag: "gl.x/1".into(), bytes: bytes.into(), markers: Markers::new() }
}

async fn load(path: &Path) -> Result<Kept, StoreError> {
    let store = DdataStore::new(path, DdataStoreSettings::test());
    let batch = tck::load(&store).await;
    let closed = store.close().await;
    let records = batch?.records.into_iter().map(|record| match record {
        LoadedRecord::Value { key, bytes, .. } => Ok((key, bytes)),
        LoadedRecord::Bad { why, .. } => Err(StoreError::Failed { place: path.display().to_string(), why }),
        other => panic!("{other:?} was never stored"),
    });
    closed.and_then(|()| records.collect())
}

/// Stores acknowledged changes: one entry that is overwritten again and again, and many large ones, over several
/// segments of the log. Copies the files to `copy` as a killed process leaves them.
async fn fill(path: &Path, copy: &Path) -> Kept {
    let mut kept = Kept::new();
    let store = DdataStore::new(path, DdataStoreSettings::test());
    tck::load(&store).await.unwrap();
    for number in 0..220_u32 {
        let (small, large) = (number.to_be_bytes().to_vec(), vec![number as u8 | 1; 50_000]);
        let key = format!("large-{}", number % 150);
        tck::store(&store, vec![put("small", small.clone()), put(&key, large.clone())]).await.unwrap();
        kept.insert("small".into(), small.into());
        kept.insert(key.as_str().into(), large.into());
        // Reopen now and then, so that the engine has an index of a part of the log.
        if number % 90 == 89 {
            store.close().await.unwrap();
            tck::load(&store).await.unwrap();
        }
    }
    copy_files(path, copy);
    store.close().await.unwrap();
    kept
}

fn copy_files(from: &Path, to: &Path) {
    fs::create_dir_all(to.join("blobs")).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap).filter(|entry| entry.path().is_file()) {
        fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

/// Damages a copy of the store and opens it: it must be complete, or return an error.
async fn judge(original: &Path, kept: &Kept, what: &str, damage: impl FnOnce(&Path)) -> Option<StoreError> {
    let place = tempfile::tempdir().unwrap();
    copy_files(original, place.path());
    damage(place.path());
    match load(place.path()).await {
        Ok(found) => {
            assert!(found == *kept, "{what}: it opened as an older state, with {} of {}", found.len(), kept.len());
            None
        }
        Err(error) => {
            assert!(error.to_string().contains(&place.path().display().to_string()), "{what}: {error} names no place");
            Some(error)
        }
    }
}

/// The length of the log up to the last byte ever written.
fn used(path: &Path) -> u64 {
    let bytes = fs::read(path.join("db")).unwrap();
    bytes.iter().rposition(|byte| *byte != 0).map_or(0, |at| at as u64 + 1)
}

fn cut(path: &Path, length: u64) {
    File::options().write(true).open(path.join("db")).unwrap().set_len(length).unwrap();
}

/// ddata 88, the first half: a store without its tail is refused or complete.
#[tokio::test(flavor = "multi_thread")]
async fn scenario_88_a_store_without_its_tail_is_refused_or_complete() {
    let (closed, killed) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let kept = fill(closed.path(), killed.path()).await;
    let mut refused = 0;
    for (original, how) in [(closed.path(), "closed"), (killed.path(), "killed")] {
        assert!(judge(original, &kept, "undamaged", |_| ()).await.is_none(), "{how}: nothing is missing");
        let used = used(original);
        for lost in [1, 512, 4096, 65_536] {
            let what = format!("{how}, without its last {lost} bytes");
            refused += usize::from(judge(original, &kept, &what, |path| cut(path, used - lost)).await.is_some());
        }
        for segment in 0..used.div_ceil(SEGMENT) {
            let what = format!("{how}, cut off after segment {segment}");
            let is_refused = judge(original, &kept, &what, |path| cut(path, segment * SEGMENT)).await.is_some();
            refused += usize::from(is_refused);
        }
        // Holes: sled opens over some of them.
        for part in 0..24 {
            let at = used / 24 * part + 5000;
            let hole = |path: &Path| {
                let log = File::options().write(true).open(path.join("db")).unwrap();
                log.write_all_at(&[0; 4096], at).unwrap();
            };
            let what = format!("{how}, with a hole at {at}");
            refused += usize::from(judge(original, &kept, &what, hole).await.is_some());
        }
        for entry in fs::read_dir(original).unwrap().map(Result::unwrap).filter(|entry| entry.path().is_file()) {
            let what = format!("{how}, without {}", entry.file_name().display());
            let remove = |path: &Path| fs::remove_file(path.join(entry.file_name())).unwrap();
            refused += usize::from(judge(original, &kept, &what, remove).await.is_some());
        }
    }
    assert!(refused >= 6, "{refused}: the damage did nothing");
}

/// A replicator without peers, whose entries are all durable.
fn alone(store: DdataStore, stale_store: StaleStore) -> Replicator {
    let remoting = MemoryNetwork::new().node("solo.tail:1#7".parse().unwrap(), Arc::new(Registry::new()));
    let durable = DurableSettings { stale_store, ..DurableSettings::of(["*"]) };
    let settings = ReplicatorSettings { durable, ..ReplicatorSettings::test() };
    Replicator::start_durable(settings, TypeTable::new(), remoting, Membership::fixed([]), Arc::new(store)).unwrap()
}

/// ddata 88, U5: a replicator stops and names both numbers, or sets the store aside and starts without it.
#[tokio::test(flavor = "multi_thread")]
async fn scenario_88_a_replicator_stops_or_sets_the_store_aside() {
    let place = tempfile::tempdir().unwrap();
    let (path, killed) = (place.path().join("ddata"), tempfile::tempdir().unwrap());
    fill(&path, killed.path()).await;
    let of_log = used(killed.path());
    copy_files(killed.path(), &path);
    cut(&path, of_log - 65_536);

    let start = |stale_store| alone(DdataStore::new(&path, DdataStoreSettings::test()), stale_store);
    let refusing = start(StaleStore::Refuse);
    let stopped = |lifecycle: &Lifecycle| matches!(lifecycle, Lifecycle::Stopped(_));
    let mut lifecycle = refusing.lifecycle();
    let reason = lifecycle.wait_for(stopped).await.unwrap().clone();
    let Lifecycle::Stopped(StopReason::StoreTailLost { place: named, expected, found }) = reason else {
        panic!("{reason:?}")
    };
    assert_eq!(named, path.display().to_string());
    assert!(found < expected && expected >= 220, "{found} of {expected}");
    assert!(path.join("db").exists(), "it is left where it was");

    let discarding = start(StaleStore::Discard);
    let visits = Key::<GCounter>::new("visits").unwrap();
    let visit = |visits: &mut GCounter, cx: &mut UpdateCx<'_>| visits.increment(cx, 1);
    discarding.update(&visits, WriteLevel::Local, GCounter::new, visit).await.unwrap();
    discarding.shutdown().await;
    let names: Vec<String> =
        fs::read_dir(place.path()).unwrap().map(|entry| entry.unwrap().file_name().display().to_string()).collect();
    let aside: Vec<_> = names.iter().filter(|name| name.starts_with("ddata.lost-")).collect();
    assert_eq!((names.len(), aside.len()), (2, 1), "{names:?}");
    let lost = load(&place.path().join(aside[0])).await.unwrap_err();
    assert_eq!(
        lost,
        StoreError::TailLost { place: place.path().join(aside[0]).display().to_string(), expected, found }
    );
    let again = start(StaleStore::Refuse);
    assert_eq!(again.get(&visits, ReadLevel::Local).await.unwrap().found().unwrap().value(), 1);
    again.shutdown().await;
}

/// ddata U2: a store whose commits were not numbered yet is accepted, and guarded from then on.
#[tokio::test(flavor = "multi_thread")]
async fn a_store_of_the_first_format_is_guarded_once_it_was_opened() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path();
    let store = DdataStore::new(path, DdataStoreSettings::test());
    tck::load(&store).await.unwrap();
    tck::store(&store, vec![put("a", vec![1]), put("b", vec![2])]).await.unwrap();
    store.close().await.unwrap();
    let db = || sled::Config::default().path(path).segment_size(SEGMENT as usize).open().unwrap();
    let kept: Kept = [("a".into(), Bytes::from(vec![1])), ("b".into(), Bytes::from(vec![2]))].into();
    {
        let db = db();
        let format = b"greylag ddata store 1";
        let crc = crc32c::crc32c_append(crc32c::crc32c(&[0x00]), format);
        db.insert([0x00], [&format[..], &crc.to_be_bytes()].concat()).unwrap();
        db.remove([0x03]).unwrap().expect("the record of the last commit");
        db.flush().unwrap();
    }
    fs::remove_file(path.join(GUARD_FILE)).unwrap();
    assert_eq!(load(path).await.unwrap(), kept);
    assert!(path.join(GUARD_FILE).exists());
    assert_eq!(load(path).await.unwrap(), kept);
    // One record gets its former value, as behind a hole in the log.
    let head = [&[0x10, 0, 1][..], b"a", &[0]].concat();
    db().remove(head).unwrap().expect("the head of an entry");
    let lost = load(path).await.unwrap_err().to_string();
    assert!(lost.contains("a part of the log is lost") && lost.contains("peers supply"), "{lost}");
    fs::remove_file(path.join(GUARD_FILE)).unwrap();
    let lost = load(path).await.unwrap_err().to_string();
    assert!(lost.contains("tail guard") && lost.contains("restore the directory"), "{lost}");
}

/// Settings for a disk of 96 MiB.
fn with_a_watermark() -> DdataStoreSettings {
    DdataStoreSettings { min_free_bytes: 12 << 20, ballast_bytes: 4 << 20, ..DdataStoreSettings::test() }
}

/// Not a test of its own: runs on a disk of its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn child_with_a_watermark() {
    let Some(disk) = SmallDisk::mounted() else { return };
    let path = disk.path().join("store");
    let store = DdataStore::new(&path, with_a_watermark());
    tck::load(&store).await.unwrap();
    assert!(path.join("greylag.ballast").exists());
    tck::store(&store, vec![put("a", vec![1]), put("b", vec![1])]).await.unwrap();
    // With 1 MiB left nothing is added, but removals are done.
    let filler = disk.fill(1 << 20);
    for op in [put("a", vec![2]), StoreOp::Meta(StoreMeta::default())] {
        let low = tck::store(&store, vec![op]).await.unwrap_err();
        assert!(low.to_string().contains("storage is low") && low.to_string().contains("min_free_bytes"), "{low}");
    }
    tck::store(&store, vec![StoreOp::Remove { key: "b".into() }]).await.unwrap();
    let free = || greylag_store_sled::free_bytes(disk.path()).unwrap();
    assert!(free() > 1 << 19, "{} bytes are free", free());
    fs::remove_file(filler).unwrap();
    tck::store(&store, vec![put("a", vec![3])]).await.unwrap();
    // A caller that keeps writing is refused before the disk is full, and succeeds again once there is room.
    let filler = disk.fill(16 << 20);
    let mut number = 0_u8;
    let refused = loop {
        number = number.wrapping_add(1) | 1;
        match tck::store(&store, vec![put("c", vec![number; 1 << 20])]).await {
            Ok(()) => {}
            Err(error) => break error,
        }
    };
    assert!(refused.to_string().contains("storage is low"), "{refused}");
    assert!(free() > 2 << 20, "{} bytes are free", free());
    fs::remove_file(filler).unwrap();
    tck::store(&store, vec![put("c", vec![5])]).await.unwrap();
    store.close().await.unwrap();
    let kept = load(&path).await.unwrap();
    assert_eq!(kept, [("a".into(), Bytes::from(vec![3])), ("c".into(), Bytes::from(vec![5]))].into());
    disk.done();
}

/// ddata 88: the store itself refuses changes that only add, and does removals.
#[test]
fn scenario_88_changes_that_only_add_are_refused_before_the_disk_is_full() {
    small_disk::run("ddata_tail::child_with_a_watermark", 96);
}

/// Not a test of its own: runs on a disk of its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn child_with_a_replicator() {
    let Some(disk) = SmallDisk::mounted() else { return };
    let path = disk.path().join("store");
    let start = || alone(DdataStore::new(&path, with_a_watermark()), StaleStore::Refuse);
    let visits = Key::<GCounter>::new("visits").unwrap();
    let visit = async |replicator: &Replicator| {
        let visit = |visits: &mut GCounter, cx: &mut UpdateCx<'_>| visits.increment(cx, 1);
        replicator.update(&visits, WriteLevel::Local, GCounter::new, visit).await
    };
    let count = async |replicator: &Replicator| {
        replicator.get(&visits, ReadLevel::Local).await.unwrap().found().unwrap().value()
    };
    let replicator = start();
    visit(&replicator).await.unwrap();
    let filler = disk.fill(1 << 20);
    for _ in 0..50 {
        let refused = visit(&replicator).await.unwrap_err();
        assert!(matches!(refused, UpdateError::StoreFailed { .. }), "{refused:?}");
    }
    let free = greylag_store_sled::free_bytes(disk.path()).unwrap();
    assert!(free > 1 << 19, "{free} bytes are free: the file system is not full");
    // The value stays in memory, and the next update stores everything once there is room.
    assert_eq!(count(&replicator).await, 51);
    fs::remove_file(filler).unwrap();
    visit(&replicator).await.unwrap();
    replicator.shutdown().await;
    let again = start();
    assert_eq!(count(&again).await, 52);
    again.shutdown().await;
    disk.done();
}

/// ddata 88: with 1 MiB left, updates end with `StoreFailed` before the file system is full, and go on once there is room.
#[test]
fn scenario_88_updates_fail_before_the_disk_is_full_and_go_on_once_there_is_room() {
    small_disk::run("ddata_tail::child_with_a_replicator", 96);
}
