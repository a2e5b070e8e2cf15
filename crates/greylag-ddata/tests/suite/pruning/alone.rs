//! Stores of owners that ran on alone.

use std::sync::Arc;
use std::time::Instant;

use greylag_crdt::{DotSource, GCounter, Markers, Performed, ReplicaId, ReplicatedData};
use greylag_ddata::{DurableSettings, Input, LoadedRecord, ReplicatorCore, ReplicatorSettings, StoreMeta, TypeTable};

use crate::pruning::world::{address, settings};

/// ddata Z9: only time in touch with others counts for the markers of a store. Otherwise an owner that performed, ran
/// on alone for longer than markers live and died would come back with a marker that all others do without, while they
/// have performed the same replica again: its updates would count twice (simulation, profile pruning, `LongAway`).
#[test]
fn time_alone_does_not_count_for_the_markers_of_a_store() {
    let settings = ReplicatorSettings { durable: DurableSettings::of(["*"]), ..settings() };
    let now = Instant::now();
    let mut core = ReplicatorCore::new(settings, TypeTable::new(), address('a', 1), DotSource::new(), 1, now);
    let mut out = Vec::new();
    core.handle(now, Input::Wall(6_000), &mut out);
    let (mut marker, mut markers) = (Performed::new(ReplicaId(9), ReplicaId(5)), Markers::new());
    marker.moved.set_amount(0, 0, 3);
    (marker.performed_at, marker.obsolete_at) = (1_000, Some(2_000));
    markers.add(&marker);
    let tag: Arc<str> = GCounter::TAG.to_string().into();
    let bytes = GCounter::zero().to_untagged_bytes().into();
    let record = LoadedRecord::Value { key: "c".into(), tag, bytes, markers, deltas: Vec::new() };
    let (written_at, synced_at) = (5_000, Some(1_000));
    let meta = StoreMeta { written_at, synced_at, has_met_others: true, ..StoreMeta::default() };
    core.handle(now, Input::Loaded(vec![record]), &mut out);
    core.handle(now, Input::LoadDone(Some(meta)), &mut out);
    let ends: Vec<_> = core.markers("c").iter().map(|marker| marker.obsolete_at).collect();
    assert_eq!(ends, [Some(7_000)], "five seconds have passed since it was in touch");
}
