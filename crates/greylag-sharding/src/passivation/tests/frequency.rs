//! Least frequently used first. Source: sharding scenario 67; the upstream suite it names.

use std::ops::RangeInclusive;

use super::{NONE, Passivation, Region, ids};

/// Touches an id `times` times and returns the victims.
fn touch(region: &mut Region, shard: u32, id: u32, times: u32) -> Vec<u32> {
    (0..times).flat_map(|_| region.touch(shard, id)).collect()
}

/// Scenario sharding 67: from one shard to three.
#[test]
fn the_least_frequent_go_but_never_a_new_one() {
    let mut region = Region::new(Passivation::least_frequently_used(10));
    let victims: Vec<_> = (1..=20).flat_map(|id| touch(&mut region, 1, id, (id - 1) % 4 + 1)).collect();
    assert_eq!(victims, [1, 5, 9, 13, 2, 6, 10, 17, 14, 18]);
    assert_eq!(region.active(1), [3, 4, 7, 8, 11, 12, 15, 16, 19, 20]);
    assert_eq!(region.touch(2, 21), [3, 7, 11, 15, 19]);
    for id in 1..=20 {
        let times = (id - 1) % 4 + 1;
        assert_eq!(touch(&mut region, 1, id, times), [if times == 1 { id + 3 } else { id - 1 }]);
    }
    assert_eq!(region.active(1), [4, 8, 12, 16, 20]);
    for id in 21..=24 {
        assert_eq!(region.touch(2, id), NONE);
    }
    assert_eq!(region.touch(3, 31), [4, 8, 22]);
    let victims: Vec<_> = (21..=30).flat_map(|id| touch(&mut region, 2, id, (id - 1) % 4 + 1)).collect();
    assert_eq!(victims, [23, 24, 22, 21, 25, 26, 23, 27, 29]);
    let victims: Vec<_> = (31..=40).flat_map(|id| touch(&mut region, 3, id, 4 - (id - 1) % 4)).collect();
    assert_eq!(victims, [32, 31, 35, 36, 34, 38, 39]);
    assert_eq!((region.active(2), region.active(3)), (vec![24, 28, 30], vec![33, 37, 40]));
    for (shard, id) in [(1, 16), (2, 24), (3, 33)] {
        region.end(shard, id);
    }
    for (shard, first, expected) in [(1, 11, [0, 0, 11]), (2, 21, [0, 21, 30]), (3, 31, [0, 40, 31])] {
        for (at, victim) in (0..3).zip(expected) {
            let victims = touch(&mut region, shard, first + at, at + 1);
            assert_eq!(victims, if victim == 0 { vec![] } else { vec![victim] }, "{}", first + at);
        }
    }
    assert_eq!(
        (region.active(1), region.active(2), region.active(3)),
        (vec![12, 13, 20], vec![22, 23, 28], vec![32, 33, 37])
    );
}

/// Scenario sharding 67: formerly popular entities are displaced by those popular now.
#[test]
fn with_dynamic_aging_a_formerly_popular_set_is_displaced() {
    let mut region = Region::new(Passivation::least_frequently_used(10).dynamic_aging());
    (1..=2).for_each(|id| assert_eq!(touch(&mut region, 1, id, 5), NONE));
    (3..=5).for_each(|id| assert_eq!(touch(&mut region, 1, id, 10), NONE));
    for id in 6..=20 {
        assert_eq!(region.touch(1, id), if id > 10 { vec![id - 5] } else { vec![] });
    }
    assert_eq!(region.active(1), [ids(1..=5), ids(16..=20)].concat());
    assert_eq!(region.touch(2, 21), ids(16..=20));
    assert_eq!(region.active(1), ids(1..=5));
    let mut after = |range: RangeInclusive<u32>| {
        range.for_each(|id| drop(region.touch(1, id)));
        region.active(1)
    };
    assert_eq!(after(6..=10), [3, 4, 5, 9, 10]);
    assert_eq!(after(11..=15), [3, 4, 5, 14, 15]);
    assert_eq!(after(16..=20), ids(16..=20));
}

/// Scenario sharding 67: the limit of a region with two shards goes from 10 to 6 and then to 12.
#[test]
fn the_least_frequent_go_at_once_when_the_limit_falls() {
    let mut region = Region::new(Passivation::least_frequently_used(10));
    (1..=20).for_each(|id| drop(region.touch(1, id)));
    assert_eq!(region.touch(2, 21), ids(11..=15));
    assert_eq!(region.set_limit(6), [16, 17]);
    for id in 1..=10 {
        assert_eq!(region.touch(1, id), [if id < 4 { id + 17 } else { id - 3 }]);
    }
    assert_eq!(region.set_limit(12), NONE);
    for id in 11..=20 {
        assert_eq!(region.touch(1, id), if id > 13 { vec![id - 6] } else { vec![] });
    }
    assert_eq!(region.active(1), ids(15..=20));
}
