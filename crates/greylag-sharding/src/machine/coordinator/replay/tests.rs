use super::*;
use crate::fingerprint::StateStoreMode;

fn region(n: u64) -> RegionId {
    RegionId { node: format!("n{n}:1#{n}").parse().unwrap(), incarnation: 1 }
}

fn generation(seq: u64) -> Generation {
    Generation::new(5, seq).unwrap()
}

fn fingerprint(role: &str) -> Fingerprint {
    Fingerprint {
        protocol_major: 1,
        type_name: "Cart".into(),
        extractor: ("HashV1".into(), 1),
        number_of_shards: 12,
        remember_entities: false,
        remember_entities_store: "ddata".into(),
        state_store_mode: StateStoreMode::Persistence,
        role: role.into(),
        codec: Vec::new(),
    }
}

fn epoch(epoch: Epoch) -> HistoryEvent {
    HistoryEvent::EpochStarted { epoch, coordinator: CoordinatorId { node: region(1).node, incarnation: epoch } }
}

fn registered(n: u64) -> HistoryEvent {
    HistoryEvent::RegionRegistered(region(n))
}

fn terminated(n: u64) -> HistoryEvent {
    HistoryEvent::RegionTerminated(region(n))
}

fn allocated(shard: u32, n: u64, seq: u64) -> HistoryEvent {
    let (shard, region, generation) = (ShardId::from_index(shard), region(n), generation(seq));
    HistoryEvent::ShardHomeAllocated { shard, region, generation, previous: None, leftovers_from: None }
}

fn deallocated(shard: u32, seq: u64) -> HistoryEvent {
    let (shard, generation) = (ShardId::from_index(shard), generation(seq));
    HistoryEvent::ShardHomeDeallocated { shard, generation, leftovers_from: Some(region(9)) }
}

fn replayed(strict: bool, events: &[HistoryEvent]) -> Result<Replay, Contradiction> {
    let mut replay = Replay::new(strict);
    events.iter().cloned().try_for_each(|event| replay.apply(event))?;
    Ok(replay)
}

/// A home as text: shard, owner, generation, and whether it has ended.
fn homes(state: &StoredState) -> Vec<String> {
    let show = |(shard, home): (&ShardId, &StoredHome)| {
        let end = if home.deallocated { " ended" } else { "" };
        format!("{shard} n{} {}{end}", home.region.node.uid().get(), home.generation.seq())
    };
    state.homes.iter().map(show).collect()
}

fn sound() -> Vec<HistoryEvent> {
    vec![
        HistoryEvent::FingerprintRecorded(fingerprint("first")),
        epoch(5),
        registered(1),
        HistoryEvent::Initialized,
        allocated(1, 1, 1),
        registered(2),
        allocated(2, 2, 2),
        deallocated(2, 2),
        allocated(2, 1, 3),
        epoch(5),
        terminated(2),
        epoch(7),
    ]
}

#[test]
fn a_sound_history_is_read_as_it_was_written() {
    for strict in [false, true] {
        let mut replay = replayed(strict, &sound()).unwrap();
        let state = replay.state(&fingerprint("own")).unwrap();
        assert_eq!(homes(&state), ["1 n1 1", "2 n1 3"]);
        assert_eq!(state.regions, [region(1)].into());
        assert!(state.initialized);
        let meta = state.meta.unwrap();
        assert_eq!((meta.epoch, meta.coordinator.incarnation, meta.fingerprint), (7, 7, fingerprint("first")));
        assert_eq!(replay.repairs(), 0);
        assert_eq!(replay.to_string(), "2 homes on 1 nodes");
    }
}

/// A snapshot in the middle of a history does not change its outcome.
#[test]
fn a_snapshot_stands_for_what_came_before_it() {
    let events = sound();
    let whole = replayed(true, &events).unwrap().state(&fingerprint("own")).unwrap();
    for cut in 1..events.len() {
        let before = replayed(true, &events[..cut]).unwrap().state(&fingerprint("first")).unwrap();
        let mut replay = Replay::from_snapshot(before, true);
        events[cut..].iter().cloned().for_each(|event| replay.apply(event).unwrap());
        // A state before the first epoch cannot hold the fingerprint, which its writer then writes again.
        if cut > 1 {
            assert_eq!(replay.state(&fingerprint("own")).unwrap(), whole, "cut at {cut}");
        }
    }
}

/// A tombstone keeps the facts about the ended home for the allocation that follows.
#[test]
fn a_tombstone_keeps_its_leftovers_and_its_last_owner() {
    let replay = replayed(true, &[registered(1), allocated(1, 1, 1), deallocated(1, 1)]).unwrap();
    let home = &replay.state.homes[&ShardId::from_index(1)];
    assert_eq!((&home.region, &home.leftovers_from, home.deallocated), (&region(1), &Some(region(9)), true));
}

/// The contradictions of sharding §2.14, and how many repairs each history takes.
fn contradictions() -> Vec<(&'static str, Vec<HistoryEvent>, u64, &'static [&'static str], Contradiction)> {
    let shard = || ShardId::from_index(1);
    let twice = |generation, known| Contradiction::AllocatedTwice { shard: shard(), generation, known };
    let ended = |generation| Contradiction::UnknownHomeEnded { shard: shard(), generation };
    vec![
        (
            "an allocation to an unknown region registers it",
            vec![allocated(1, 1, 1), allocated(2, 1, 2)],
            1,
            &["1 n1 1", "2 n1 2"],
            Contradiction::UnknownOwner { shard: shard(), region: region(1) },
        ),
        (
            "of two allocations the larger generation wins, coming second",
            vec![registered(1), registered(2), allocated(1, 1, 1), allocated(1, 2, 4)],
            1,
            &["1 n2 4"],
            twice(generation(4), generation(1)),
        ),
        (
            "of two allocations the larger generation wins, coming first",
            vec![registered(1), registered(2), allocated(1, 1, 4), allocated(1, 2, 1)],
            1,
            &["1 n1 4"],
            twice(generation(1), generation(4)),
        ),
        (
            "an allocation below a tombstone is older than it",
            vec![registered(1), allocated(1, 1, 4), deallocated(1, 4), allocated(1, 1, 3)],
            1,
            &["1 n1 4 ended"],
            twice(generation(3), generation(4)),
        ),
        (
            "the end of another generation is ignored",
            vec![registered(1), allocated(1, 1, 4), deallocated(1, 3)],
            1,
            &["1 n1 4"],
            ended(generation(3)),
        ),
        ("the end of an unknown shard is ignored", vec![deallocated(1, 3)], 1, &[], ended(generation(3))),
        (
            "a second end is ignored",
            vec![registered(1), allocated(1, 1, 4), deallocated(1, 4), deallocated(1, 4)],
            1,
            &["1 n1 4 ended"],
            ended(generation(4)),
        ),
        (
            "a second registration is ignored",
            vec![registered(1), registered(1), registered(1), allocated(1, 1, 1)],
            2,
            &["1 n1 1"],
            Contradiction::RegisteredTwice(region(1)),
        ),
        (
            "the end of an unknown region is ignored",
            vec![terminated(2), registered(1), allocated(1, 1, 1)],
            1,
            &["1 n1 1"],
            Contradiction::UnknownRegionTerminated(region(2)),
        ),
        (
            "an epoch below an earlier one is ignored",
            vec![epoch(9), epoch(8), HistoryEvent::FingerprintRecorded(fingerprint(""))],
            1,
            &[],
            Contradiction::EpochFell { epoch: 8, known: 9 },
        ),
    ]
}

#[test]
fn contradictions_are_repaired_and_each_is_counted() {
    for (what, events, repairs, expected, first) in contradictions() {
        let mut replay = replayed(false, &events).unwrap();
        let state = replay.state(&fingerprint("own")).unwrap();
        assert_eq!(homes(&state), expected, "{what}");
        assert_eq!((replay.repairs(), replay.first_repair()), (repairs, Some(&first)), "{what}");
        let owners: BTreeSet<_> = state.homes.values().filter(|h| !h.deallocated).map(|h| h.region.clone()).collect();
        assert!(owners.is_subset(&state.regions), "{what}: an owner is no region");
        assert!(state.meta.is_none_or(|meta| meta.epoch == 9), "{what}");
    }
}

#[test]
fn a_strict_reader_refuses_the_first_contradiction() {
    for (what, events, _, _, first) in contradictions() {
        assert_eq!(replayed(true, &events).unwrap_err(), first, "{what}");
    }
}

#[test]
fn a_history_without_a_fingerprint_takes_the_readers() {
    let mut replay = replayed(false, &[epoch(5)]).unwrap();
    for _ in 0..2 {
        assert_eq!(replay.state(&fingerprint("own")).unwrap().meta.unwrap().fingerprint, fingerprint("own"));
        assert_eq!(replay.repairs(), 1, "counted once");
    }
    let refused = replayed(true, &[epoch(5)]).unwrap().state(&fingerprint("own"));
    assert_eq!(refused, Err(Contradiction::NoFingerprint));
}

/// A terminated region has no homes, whatever else is recorded.
#[test]
fn a_region_that_ended_has_no_homes() {
    let mut replay = replayed(true, &[registered(1), allocated(1, 1, 1), terminated(1)]).unwrap();
    let state = replay.state(&fingerprint("own")).unwrap();
    assert_eq!(homes(&state), ["1 n1 1 ended"]);
    assert!(state.regions.is_empty());
}
