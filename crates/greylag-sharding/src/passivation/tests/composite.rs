//! Window, filter and main area together. Source: sharding scenario 68; the upstream suite it names.

use std::ops::RangeInclusive;

use super::super::{FrequencySketch, HillClimbing, ReplacementPolicy};
use super::{NONE, Passivation, Region, ids};

/// A sketch so wide that no two ids share all their counters, since the scenarios depend on exact estimates.
fn exact_sketch() -> FrequencySketch {
    FrequencySketch { width_multiplier: 4096, ..FrequencySketch::default() }
}

fn window_and_filter() -> Passivation {
    Passivation::least_recently_used(20)
        .segmented(2, &[0.25, 0.75])
        .admission_window(ReplacementPolicy::least_recently_used(), 0.2)
        .frequency_sketch(exact_sketch())
}

/// Scenario sharding 68: limit 20, window 0.2.
#[test]
fn a_candidate_must_have_more_uses_than_the_one_it_would_displace() {
    let mut region = Region::new(window_and_filter());
    for id in 1..=40 {
        assert_eq!(region.touch(1, id), if id > 20 { vec![id - 4] } else { vec![] });
    }
    assert_eq!(region.active(1), [ids(1..=16), ids(37..=40)].concat());
    for id in 1..=20 {
        assert_eq!(region.touch(1, id), if id > 16 { vec![id + 20] } else { vec![] });
    }
    for id in (17..=20).flat_map(|id| [id; 5]) {
        assert_eq!(region.touch(1, id), NONE);
    }
    // 17 to 20 have more uses than 1 to 4 in the lower level, and 21 to 24 have fewer than any.
    for id in 21..=24 {
        assert_eq!(region.touch(1, id), [id - 20]);
    }
    for id in 25..=28 {
        assert_eq!(region.touch(1, id), [id - 4]);
    }
    assert_eq!(region.active(1), [ids(5..=20), ids(25..=28)].concat());
    assert_eq!(region.touch(2, 41), [25, 26, 17, 18, 19, 20, 5, 6, 7, 8]);
    assert_eq!((region.active(1), region.active(2)), ([ids(9..=16), ids(27..=28)].concat(), vec![41]));
    for (id, victim) in (17..=20).zip([27, 28, 9, 10]) {
        assert_eq!(region.touch(1, id), [victim]);
    }
    assert_eq!(region.active(1), ids(11..=20));
}

/// Scenario sharding 68: no window, limit 10.
#[test]
fn without_a_window_a_new_entity_that_is_not_admitted_goes_at_once() {
    let settings = Passivation::least_recently_used(10).frequency_sketch(exact_sketch());
    let mut region = Region::new(settings);
    for id in 1..=20 {
        assert_eq!(region.touch(1, id), if id > 10 { vec![id] } else { vec![] });
    }
    for id in 11..=20 {
        let victims: Vec<_> = (0..5).flat_map(|_| region.touch(1, id)).collect();
        assert_eq!(victims, [id - 10]);
    }
    for id in (1..=10).flat_map(|id| [id; 2]) {
        assert_eq!(region.touch(1, id), [id]);
    }
    assert_eq!(region.touch(2, 21), ids(11..=15));
    // The sketch is reset with the limit: the slots that come in first stay.
    for id in 1..=10 {
        assert_eq!(region.touch(1, id), [if id <= 5 { id + 15 } else { id }]);
    }
    assert_eq!((region.active(1), region.active(2)), (ids(1..=5), vec![21]));
}

/// Scenario sharding 68: the limit of a region with two shards goes from 20 to 10 and then to 30.
#[test]
fn both_areas_follow_the_limit() {
    let mut region = Region::new(window_and_filter());
    (1..=40).for_each(|id| drop(region.touch(1, id)));
    assert_eq!(region.touch(2, 41), [vec![37, 38], ids(1..=8)].concat());
    assert_eq!(region.set_limit(10), [vec![39], ids(9..=12)].concat());
    for id in 1..=10 {
        let victim = [40, 13, 14, 15, 16].get(id as usize - 1).copied();
        assert_eq!(region.touch(1, id), [victim.unwrap_or(id - 1)]);
    }
    assert_eq!(region.active(1), [ids(1..=4), vec![10]].concat());
    assert_eq!(region.set_limit(30), NONE);
    for id in 1..=20 {
        assert_eq!(region.touch(1, id), if id > 15 { vec![id - 3] } else { vec![] });
    }
    assert_eq!((region.active(1), region.active(2)), ([ids(1..=12), ids(18..=20)].concat(), vec![41]));
}

/// The limit of a shard is set whenever any shard starts or stops, and often does not change.
#[test]
fn the_same_limit_again_keeps_the_counts() {
    let mut region = Region::new(Passivation::least_recently_used(2).frequency_sketch(exact_sketch()));
    for id in [1, 1, 2, 2] {
        assert_eq!(region.touch(1, id), NONE);
    }
    assert_eq!((region.set_limit(2), region.touch(1, 3)), (vec![], vec![3]));
    // One use after a change is more than no use.
    assert_eq!((region.set_limit(3), region.set_limit(2), region.touch(1, 3)), (vec![], vec![], vec![1]));
}

fn adaptive() -> Region {
    let climbing = HillClimbing { adjust_multiplier: 2.0, initial_step: 0.4, restart_threshold: 0.8, step_decay: 0.5 };
    let settings = Passivation::least_recently_used(10)
        .admission_window(ReplacementPolicy::least_recently_used(), 0.1)
        .window_bounds(0.1, 1.0)
        .hill_climbing(climbing)
        .frequency_sketch(FrequencySketch { reset_multiplier: 100.0, ..exact_sketch() });
    Region::new(settings)
}

/// Touches each id `times` times and expects one victim, at its first touch.
fn displace(region: &mut Region, ids: RangeInclusive<u32>, times: u32, victim: impl Fn(u32) -> u32) {
    for id in ids {
        assert_eq!(region.touch(1, id), [victim(id)], "{id}");
        (1..times).for_each(|_| assert_eq!(region.touch(1, id), NONE, "{id}"));
    }
}

/// Scenario sharding 68: the window grows and shrinks by the optimizer's steps, and no entity is passivated for that.
#[test]
fn the_window_follows_the_rate_of_hits() {
    let mut region = adaptive();
    (1..=10).flat_map(|id| [id; 10]).for_each(|id| assert_eq!(region.touch(1, id), NONE));
    // The window has 1 slot. The rate falls, so that after these touches the window grows by 0.4.
    for round in 1..=4 {
        displace(&mut region, 11..=20, 1, |id| if id == 11 && round > 1 { 20 } else { id - 1 });
    }
    assert_eq!(region.active(1), [ids(1..=9), vec![20]].concat());
    // The window has 5 slots: 20, 1, 2, 3, 4. The next step is 0.2.
    displace(&mut region, 21..=30, 2, |id| [20, 1, 2, 3, 4].get(id as usize - 21).copied().unwrap_or(id - 5));
    assert_eq!(region.active(1), [ids(5..=9), ids(26..=30)].concat());
    // The window has 7 slots: 26 to 30, 5, 6. The next step is 0.1.
    displace(&mut region, 21..=24, 5, |id| id + 5);
    assert_eq!(region.active(1), [ids(5..=9), ids(21..=24), vec![30]].concat());
    // The window has 8 slots. The rate falls to 0, so that the next step, of 0.05, goes down, and then the steps
    // restart.
    let window = [30, 5, 6, 21, 22, 23, 24, 7];
    displace(&mut region, 31..=40, 1, |id| window.get(id as usize - 31).copied().unwrap_or(id - 8));
    displace(&mut region, 31..=40, 1, |id| if id <= 38 { id + 2 } else { id - 8 });
    assert_eq!(region.active(1), [ids(8..=9), ids(33..=40)].concat());
    // The window has 7 slots. The next step is 0.4, downwards.
    displace(&mut region, 41..=50, 2, |id| id - 7);
    assert_eq!(region.active(1), [vec![8, 9, 33], ids(44..=50)].concat());
    // The window has 3 slots, and then 1.
    displace(&mut region, 51..=60, 2, |id| id - 3);
    let main = vec![8, 9, 33, 44, 45, 46, 47, 58, 59];
    assert_eq!(region.active(1), [main.clone(), vec![60]].concat());
    displace(&mut region, 61..=70, 1, |id| id - 1);
    assert_eq!(region.active(1), [main, vec![70]].concat());
}

/// A window of less than one entity counts as no window.
#[test]
fn the_preset_works_with_any_limit() {
    for limit in [1, 3, 99, 100, 1000] {
        let mut region = Region::new(Passivation::recommended().with_limit(limit));
        for round in 0..5 {
            (0..2 * limit as u32).for_each(|id| drop(region.touch(1, id)));
            assert_eq!(region.active(1).len(), limit, "round {round}");
        }
    }
}

/// Counts the uses that find their entity active: each round uses the same 80 ids, and 200 never used before.
fn hits_among_passers_by(settings: &Passivation) -> usize {
    let mut region = Region::new(settings.clone());
    let mut hits = 0;
    for round in 1..=50 {
        for id in (0..80).chain(round * 200..round * 200 + 200) {
            hits += usize::from(region.shards.get(&1).is_some_and(|shard| shard.active.contains(&id)));
            region.touch(1, id);
        }
    }
    hits
}

#[test]
fn passers_by_do_not_displace_those_that_stay() {
    let plain = hits_among_passers_by(&Passivation::least_recently_used(100));
    let recommended = hits_among_passers_by(&Passivation::recommended().with_limit(100));
    assert!(plain == 0 && recommended > 3500, "{plain} and {recommended} of 3920");
}
