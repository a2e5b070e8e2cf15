//! Sharding scenario 73, at the level of the machine.

use std::num::NonZeroU32;

use super::*;

const RETRY: Duration = Duration::from_secs(2);

fn starter(recovery: EntityRecovery, number: u32, frequency: Duration) -> Starter {
    let number_of_entities = NonZeroU32::new(number).unwrap();
    Starter::new(&RememberSettings { recovery, number_of_entities, frequency, ..RememberSettings::default() }, RETRY)
}

fn shard(index: u32) -> ShardId {
    ShardId::from_index(index)
}

fn generation() -> Generation {
    Generation::new(1, 1).unwrap()
}

fn id(n: usize) -> EntityId {
    EntityId::new(n.to_string()).unwrap()
}

fn loaded(index: u32, ids: std::ops::RangeInclusive<usize>) -> Input {
    Input::Loaded { shard: shard(index), generation: generation(), ids: ids.map(id).collect() }
}

fn acked(of: u32, n: usize, by: u32) -> Input {
    Input::Acked { of: shard(of), id: id(n), by: shard(by) }
}

/// Shard and number of each start; fails on any other effect.
fn starts(starter: &mut Starter, now: Instant, input: Input) -> Vec<(u32, usize)> {
    let mut effects = Vec::new();
    starter.handle(now, input, &mut effects);
    let start = |effect| match effect {
        Effect::Start { of, id } => (of.index().unwrap(), id.as_str().parse().unwrap()),
        other => panic!("{other:?}"),
    };
    effects.into_iter().map(start).collect()
}

#[test]
fn scenario_73_all_start_at_once_and_what_is_not_acked_is_asked_for_again() {
    let (mut starter, now) = (starter(EntityRecovery::All, 1, RETRY), Instant::now());
    assert_eq!(starts(&mut starter, now, loaded(1, 1..=5)), (1..=5).map(|n| (1, n)).collect::<Vec<_>>());
    assert_eq!(starts(&mut starter, now, acked(1, 2, 1)), []);
    assert_eq!(starts(&mut starter, now + RETRY / 2, Input::Tick), []);
    assert_eq!(starter.next_deadline(), Some(now + RETRY));
    assert_eq!(starts(&mut starter, now + RETRY, Input::Tick), [(1, 1), (1, 3), (1, 4), (1, 5)]);
    assert_eq!(starter.next_deadline(), Some(now + RETRY * 2));
    for n in [1, 3, 4, 5] {
        assert_eq!(starts(&mut starter, now + RETRY, acked(1, n, 1)), []);
    }
    assert_eq!((starter.next_deadline(), starter.shards.len()), (None, 0));
}

#[test]
fn scenario_73_so_many_in_so_long_and_the_first_lot_at_once() {
    let (mut starter, now) = (starter(EntityRecovery::Constant, 2, RETRY), Instant::now());
    assert_eq!(starts(&mut starter, now, loaded(1, 1..=5)), [(1, 1), (1, 2)]);
    for (n, lot) in [(1, vec![(1, 3), (1, 4)]), (2, vec![(1, 5)]), (3, vec![])] {
        // Ack every request at once, so that only the rate limits.
        let before = now + RETRY * (n - 1);
        for done in (2 * n - 1)..=(2 * n) {
            assert_eq!(starts(&mut starter, before, acked(1, done as usize, 1)), []);
        }
        assert_eq!(starts(&mut starter, before + RETRY / 2, Input::Tick), []);
        assert_eq!(starts(&mut starter, before + RETRY, Input::Tick), lot);
    }
    assert_eq!(starter.next_deadline(), None);
}

#[test]
fn scenario_73_two_shards_share_one_limiter_in_the_order_of_their_loads() {
    let (mut starter, now) = (starter(EntityRecovery::Constant, 2, RETRY), Instant::now());
    assert_eq!(starts(&mut starter, now, loaded(1, 1..=3)), [(1, 1), (1, 2)]);
    assert_eq!(starts(&mut starter, now, loaded(2, 4..=6)), [], "the lot is full");
    for n in [1, 2] {
        starts(&mut starter, now, acked(1, n, 1));
    }
    assert_eq!(starts(&mut starter, now + RETRY, Input::Tick), [(1, 3), (2, 4)]);
    starts(&mut starter, now + RETRY, acked(1, 3, 1));
    starts(&mut starter, now + RETRY, acked(2, 4, 2));
    assert_eq!(starts(&mut starter, now + RETRY * 2, Input::Tick), [(2, 5), (2, 6)]);
}

#[test]
fn scenario_73_entities_acked_by_other_shards_are_removed_from_the_store_of_the_old_one() {
    let (mut starter, now) = (starter(EntityRecovery::All, 1, RETRY), Instant::now());
    starts(&mut starter, now, loaded(1, 1..=3));
    starts(&mut starter, now, acked(1, 1, 2));
    assert_eq!(starts(&mut starter, now, acked(1, 1, 2)), [], "an ack that comes twice");
    starts(&mut starter, now, acked(1, 2, 1));
    let mut effects = Vec::new();
    starter.handle(now, acked(1, 3, 4), &mut effects);
    assert_eq!(effects, [Effect::Moved { shard: shard(1), generation: generation(), ids: vec![id(1), id(3)] }]);
    assert_eq!(starter.next_deadline(), None);
}

#[test]
fn a_shard_that_ends_or_begins_anew_takes_its_requests_with_it() {
    let (mut starter, now) = (starter(EntityRecovery::Constant, 1, RETRY), Instant::now());
    starts(&mut starter, now, loaded(1, 1..=3));
    starts(&mut starter, now, loaded(2, 7..=8));
    let older = Input::Ended { shard: shard(1), generation: Generation::new(1, 0).unwrap() };
    starts(&mut starter, now, older);
    assert_eq!(starter.shards.len(), 2);
    starts(&mut starter, now, Input::Ended { shard: shard(1), generation: generation() });
    assert_eq!(starts(&mut starter, now + RETRY, Input::Tick), [(2, 7)]);
    assert_eq!(starts(&mut starter, now + RETRY, loaded(2, 9..=9)), []);
    assert_eq!(starts(&mut starter, now + RETRY * 2, Input::Tick), [(2, 9)]);
}

#[test]
fn a_million_entities_are_asked_for_a_thousand_at_a_time() {
    let (mut starter, now) = (starter(EntityRecovery::All, 1, RETRY), Instant::now());
    assert_eq!(starts(&mut starter, now, loaded(1, 1..=5_000)).len(), MOST_UNDER_WAY);
    assert_eq!(starts(&mut starter, now, acked(1, 1, 1)), [(1, 1_001)]);
}
