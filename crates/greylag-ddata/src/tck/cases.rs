//! The requirements on every store.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use greylag_crdt::{Markers, Performed, Range, ReplicaId};

use super::{Outcome, Report, StoreBench, load, store};
use crate::api::key::{KeyId, MAX_ID_BYTES};
use crate::gate::{Start, Starts};
use crate::storage::store::{LoadBatch, LoadedRecord, StoreError, StoreMeta, StoreOp};

type Checked = Result<bool, String>;

/// Runs every case, each at a place of its own.
pub async fn durable_store<B: StoreBench>() -> Report {
    let mut report = Report::default();
    macro_rules! case {
        ($($case:ident)*) => {$(
            let outcome = match $case(&B::fresh()).await {
                Ok(true) => Outcome::Passed,
                Ok(false) => Outcome::Skipped,
                Err(why) => Outcome::Failed(why),
            };
            report.cases.push((stringify!($case), outcome));
        )*};
    }
    case!(
        a_new_store_is_empty
        put_values_are_loaded
        the_last_put_counts
        deltas_stand_beside_their_snapshot
        a_put_ends_the_deltas_before_it
        tombstones_and_values_replace_each_other
        removed_entries_are_gone
        changes_are_made_in_their_order
        the_replicator_remembers
        large_values_and_deltas_come_back_whole
        any_id_is_an_id
        every_entry_is_in_one_batch
        loading_changes_nothing
        flushed_changes_survive_a_crash
        one_process_at_a_time
        quarantined_records_are_loaded_no_more
        a_damaged_record_is_told_and_the_others_are_loaded
        a_store_set_aside_leaves_an_empty_place
    );
    report
}

fn failed(error: &StoreError) -> String {
    error.to_string()
}

fn markers() -> Markers {
    let mut marker = Performed::new(ReplicaId(3), ReplicaId(u64::MAX));
    marker.add_ranges(&[Range { lo: 1, hi: 9, offset: 70 }]);
    marker.obsolete_at = Some(-7);
    let mut markers = Markers::new();
    markers.add(&marker);
    markers
}

fn put(key: &str, bytes: &[u8]) -> StoreOp {
    StoreOp::Put {
        key: key.into(),
        tag: "gl.x/1".into(),
        bytes: Bytes::copy_from_slice(bytes),
        markers: Markers::new(),
    }
}

fn delta(key: &str, bytes: &[u8]) -> StoreOp {
    StoreOp::Delta { key: key.into(), bytes: Bytes::copy_from_slice(bytes) }
}

fn value(key: &str, bytes: &[u8], deltas: &[&[u8]]) -> LoadedRecord {
    LoadedRecord::Value {
        key: key.into(),
        tag: "gl.x/1".into(),
        bytes: Bytes::copy_from_slice(bytes),
        markers: Markers::new(),
        deltas: deltas.iter().map(|delta| Bytes::copy_from_slice(delta)).collect(),
    }
}

/// Records sorted by key, and the deltas of each sorted too.
fn sorted(batch: LoadBatch) -> Vec<LoadedRecord> {
    let mut records = batch.records;
    for record in &mut records {
        if let LoadedRecord::Value { deltas, .. } = record {
            deltas.sort();
        }
    }
    records.sort_by(|one, other| one.key().cmp(other.key()));
    records
}

/// Stores, closes, opens again, and compares.
async fn leads_to<B: StoreBench>(bench: &B, appends: Vec<Vec<StoreOp>>, expected: &[LoadedRecord]) -> Checked {
    let writer = bench.open();
    load(&*writer).await.map_err(|error| failed(&error))?;
    for ops in appends {
        store(&*writer, ops).await.map_err(|error| failed(&error))?;
    }
    writer.close().await.map_err(|error| failed(&error))?;
    is_loaded(bench, expected).await
}

async fn is_loaded<B: StoreBench>(bench: &B, expected: &[LoadedRecord]) -> Checked {
    let reader = bench.open();
    let found = sorted(load(&*reader).await.map_err(|error| failed(&error))?);
    reader.close().await.map_err(|error| failed(&error))?;
    if found == expected { Ok(true) } else { Err(format!("expected {expected:.200?}, found {found:.200?}")) }
}

async fn a_new_store_is_empty<B: StoreBench>(bench: &B) -> Checked {
    let store = bench.open();
    let found = load(&*store).await.map_err(|error| failed(&error))?;
    store.close().await.map_err(|error| failed(&error))?;
    if found == LoadBatch::default() { Ok(true) } else { Err(format!("found {found:.200?}")) }
}

async fn put_values_are_loaded<B: StoreBench>(bench: &B) -> Checked {
    let (key, tag, bytes): (KeyId, Arc<str>, _) = ("k".into(), "gl.lwwmap/1<str,str>".into(), Bytes::from_static(b"v"));
    let op = StoreOp::Put { key: key.clone(), tag: tag.clone(), bytes: bytes.clone(), markers: markers() };
    let record = LoadedRecord::Value { key, tag, bytes, markers: markers(), deltas: Vec::new() };
    leads_to(bench, vec![vec![op, put("empty", b"")]], &[value("empty", b"", &[]), record]).await
}

async fn the_last_put_counts<B: StoreBench>(bench: &B) -> Checked {
    let appends = vec![vec![put("a", b"1"), put("b", b"1")], vec![put("a", b"2")], vec![put("a", b"3")]];
    leads_to(bench, appends, &[value("a", b"3", &[]), value("b", b"1", &[])]).await
}

async fn deltas_stand_beside_their_snapshot<B: StoreBench>(bench: &B) -> Checked {
    let appends =
        vec![vec![put("a", b"1"), put("b", b"2")], vec![delta("a", b"x"), delta("a", b"y")], vec![delta("a", b"z")]];
    leads_to(bench, appends, &[value("a", b"1", &[b"x", b"y", b"z"]), value("b", b"2", &[])]).await
}

async fn a_put_ends_the_deltas_before_it<B: StoreBench>(bench: &B) -> Checked {
    let appends = vec![
        vec![put("a", b"1")],
        vec![delta("a", b"x")],
        vec![delta("a", b"y"), put("a", b"2"), delta("a", b"z")],
        vec![delta("a", b"zz")],
    ];
    leads_to(bench, appends, &[value("a", b"2", &[b"z", b"zz"])]).await
}

async fn tombstones_and_values_replace_each_other<B: StoreBench>(bench: &B) -> Checked {
    let dead = |key: &str| StoreOp::Tombstone { key: key.into(), deleted_at: i64::MIN };
    let gone = |key: &str| LoadedRecord::Tombstone { key: key.into(), deleted_at: i64::MIN };
    let appends =
        vec![vec![put("a", b"1"), dead("b"), dead("c")], vec![delta("a", b"x")], vec![dead("a"), put("b", b"2")]];
    leads_to(bench, appends, &[gone("a"), value("b", b"2", &[]), gone("c")]).await
}

async fn removed_entries_are_gone<B: StoreBench>(bench: &B) -> Checked {
    let remove = |key: &str| StoreOp::Remove { key: key.into() };
    let appends =
        vec![vec![put("a", b"1"), put("b", b"2")], vec![delta("a", b"x")], vec![remove("a"), remove("never")]];
    leads_to(bench, appends, &[value("b", b"2", &[])]).await
}

async fn changes_are_made_in_their_order<B: StoreBench>(bench: &B) -> Checked {
    let remove = StoreOp::Remove { key: "a".into() };
    let ops = vec![
        put("a", b"1"),
        delta("a", b"x"),
        remove,
        put("a", b"2"),
        delta("a", b"y"),
        put("b", b"1"),
        put("b", b"2"),
    ];
    leads_to(bench, vec![ops], &[value("a", b"2", &[b"y"]), value("b", b"2", &[])]).await
}

async fn the_replicator_remembers<B: StoreBench>(bench: &B) -> Checked {
    let removed = [ReplicaId(0), ReplicaId(u64::MAX)].into();
    let first = StoreMeta { written_at: 1, ..StoreMeta::default() };
    let starts = Starts::of([None, Some(i64::MIN)].map(|base| Start { maker: ReplicaId(u64::MAX), base }));
    let (written_at, synced_at, forget_horizon) = (-5, Some(i64::MIN), Some(9));
    let last = StoreMeta { written_at, synced_at, has_met_others: true, forget_horizon, starts, removed };
    let writer = bench.open();
    load(&*writer).await.map_err(|error| failed(&error))?;
    for meta in [&first, &last] {
        store(&*writer, vec![StoreOp::Meta(meta.clone())]).await.map_err(|error| failed(&error))?;
    }
    writer.close().await.map_err(|error| failed(&error))?;
    let reader = bench.open();
    let found = load(&*reader).await.map_err(|error| failed(&error))?;
    reader.close().await.map_err(|error| failed(&error))?;
    let expected = LoadBatch { records: Vec::new(), meta: Some(last) };
    if found == expected { Ok(true) } else { Err(format!("expected {expected:?}, found {found:?}")) }
}

async fn large_values_and_deltas_come_back_whole<B: StoreBench>(bench: &B) -> Checked {
    let large = |length: usize, seed: usize| (0..length).map(|at| ((at * 31 + seed) % 251) as u8).collect::<Vec<u8>>();
    let lengths = [60 * 1024 - 40, 60 * 1024, 64 * 1024, 64 * 1024 + 1, 3 * 1024 * 1024 + 7];
    let mut ops = Vec::new();
    let mut expected = Vec::new();
    for (index, length) in lengths.into_iter().enumerate() {
        let (key, bytes, more) = (format!("k{index}"), large(length, index), large(100_000, index + 7));
        ops.extend([put(&key, &large(length * 2, 9)), put(&key, &bytes), delta(&key, &more), delta(&key, b"d")]);
        let mut deltas = [more.as_slice(), b"d".as_slice()];
        deltas.sort_unstable();
        expected.push(value(&key, &bytes, &deltas));
    }
    ops.extend([put("small", &large(200_000, 1)), put("small", b"s")]);
    expected.push(value("small", b"s", &[]));
    leads_to(bench, vec![ops], &expected).await
}

async fn any_id_is_an_id<B: StoreBench>(bench: &B) -> Checked {
    let long = "\u{10ffff}".repeat(MAX_ID_BYTES / 4);
    let mut ids = ["a", "a\0", "a\0b", "ab", "a/b", "..", " ", "*a", "é", "\u{7f}", &long];
    ids.sort_unstable();
    let ops = ids.iter().map(|id| put(id, id.as_bytes())).collect();
    let expected: Vec<LoadedRecord> = ids.iter().map(|id| value(id, id.as_bytes(), &[])).collect();
    leads_to(bench, vec![ops], &expected).await
}

async fn every_entry_is_in_one_batch<B: StoreBench>(bench: &B) -> Checked {
    let ids: Vec<String> = (0..3_000).map(|index| format!("entry-{index:05}")).collect();
    let ops = ids.iter().map(|id| put(id, &[7; 3_000])).collect();
    let deltas = ids.iter().map(|id| delta(id, b"d")).collect();
    let expected: Vec<LoadedRecord> = ids.iter().map(|id| value(id, &[7; 3_000], &[b"d"])).collect();
    leads_to(bench, vec![ops, deltas], &expected).await
}

async fn loading_changes_nothing<B: StoreBench>(bench: &B) -> Checked {
    let expected = [value("a", b"1", &[b"x"])];
    leads_to(bench, vec![vec![put("a", b"1"), delta("a", b"x")]], &expected).await?;
    let reader = bench.open();
    for _ in 0..2 {
        let found = sorted(load(&*reader).await.map_err(|error| failed(&error))?);
        if found != expected {
            return Err(format!("a second load found {found:?}"));
        }
    }
    store(&*reader, vec![delta("a", b"y")]).await.map_err(|error| failed(&error))?;
    reader.close().await.map_err(|error| failed(&error))?;
    is_loaded(bench, &[value("a", b"1", &[b"x", b"y"])]).await
}

async fn flushed_changes_survive_a_crash<B: StoreBench>(bench: &B) -> Checked {
    let writer = bench.open();
    load(&*writer).await.map_err(|error| failed(&error))?;
    store(&*writer, vec![put("a", b"1")]).await.map_err(|error| failed(&error))?;
    // Drop without closing.
    drop(writer);
    is_loaded(bench, &[value("a", b"1", &[])]).await
}

async fn one_process_at_a_time<B: StoreBench>(bench: &B) -> Checked {
    let first = bench.open();
    load(&*first).await.map_err(|error| failed(&error))?;
    let second = bench.open();
    match load(&*second).await {
        Err(StoreError::Locked { .. }) => {}
        other => return Err(format!("a second process was let in: {other:.200?}")),
    }
    store(&*first, vec![put("a", b"1")]).await.map_err(|error| failed(&error))?;
    first.close().await.map_err(|error| failed(&error))?;
    let found = sorted(load(&*second).await.map_err(|error| failed(&error))?);
    second.close().await.map_err(|error| failed(&error))?;
    if found == [value("a", b"1", &[])] { Ok(true) } else { Err(format!("after the first had closed: {found:?}")) }
}

async fn quarantined_records_are_loaded_no_more<B: StoreBench>(bench: &B) -> Checked {
    let quarantine = |key: &str| StoreOp::Quarantine { key: key.into() };
    let large = vec![3; 200_000];
    let appends = vec![
        vec![put("a", &large), put("b", b"1"), put("c", b"1")],
        vec![delta("a", b"x")],
        vec![quarantine("a"), quarantine("b"), put("b", b"2"), quarantine("never")],
        vec![quarantine("b"), put("b", b"3")],
    ];
    leads_to(bench, appends, &[value("b", b"3", &[]), value("c", b"1", &[])]).await
}

async fn a_damaged_record_is_told_and_the_others_are_loaded<B: StoreBench>(bench: &B) -> Checked {
    let appends = vec![vec![put("a", b"1"), put("b", b"2"), put("c", b"3")]];
    leads_to(bench, appends, &[value("a", b"1", &[]), value("b", b"2", &[]), value("c", b"3", &[])]).await?;
    if !bench.damage("b").await {
        return Ok(false);
    }
    let reader = bench.open();
    let found = load(&*reader).await.map_err(|error| failed(&error))?;
    let found: BTreeMap<KeyId, LoadedRecord> =
        found.records.into_iter().map(|record| (record.key().clone(), record)).collect();
    let is_bad = matches!(found.get("b"), Some(LoadedRecord::Bad { .. }));
    if !is_bad || found.get("a") != Some(&value("a", b"1", &[])) || found.get("c") != Some(&value("c", b"3", &[])) {
        return Err(format!("found {found:?}"));
    }
    store(&*reader, vec![StoreOp::Quarantine { key: "b".into() }]).await.map_err(|error| failed(&error))?;
    reader.close().await.map_err(|error| failed(&error))?;
    is_loaded(bench, &[value("a", b"1", &[]), value("c", b"3", &[])]).await
}

async fn a_store_set_aside_leaves_an_empty_place<B: StoreBench>(bench: &B) -> Checked {
    leads_to(bench, vec![vec![put("a", b"1")]], &[value("a", b"1", &[])]).await?;
    let writer = bench.open();
    load(&*writer).await.map_err(|error| failed(&error))?;
    let name = writer.set_aside().await.map_err(|error| failed(&error))?;
    let found = load(&*writer).await.map_err(|error| failed(&error))?;
    if name.is_empty() || found != LoadBatch::default() {
        return Err(format!("set aside as {name:?}, found {found:.200?}"));
    }
    store(&*writer, vec![put("b", b"2")]).await.map_err(|error| failed(&error))?;
    writer.close().await.map_err(|error| failed(&error))?;
    is_loaded(bench, &[value("b", b"2", &[])]).await
}
