//! Least and most recently used first. Source: sharding scenarios 65 and 66; the upstream suites they name.

use super::{NONE, Passivation, Region, ids};

/// Scenario sharding 65: from one shard to three, and entities that end by themselves.
#[test]
fn the_least_recent_go_when_a_limit_is_reached_or_divided() {
    let mut region = Region::new(Passivation::least_recently_used(10));
    for id in 1..=20 {
        assert_eq!(region.touch(1, id), if id > 10 { vec![id - 10] } else { vec![] });
    }
    assert_eq!(region.active(1), ids(11..=20));
    assert_eq!(region.touch(2, 21), ids(11..=15));
    for id in 1..=20 {
        assert_eq!(region.touch(1, id), [if id <= 5 { id + 15 } else { id - 5 }]);
    }
    for id in 22..=24 {
        assert_eq!(region.touch(2, id), NONE);
    }
    assert_eq!((region.active(1), region.active(2)), (ids(16..=20), ids(21..=24)));
    assert_eq!(region.touch(3, 31), [16, 17, 21]);
    for id in 25..=30 {
        assert_eq!(region.touch(2, id), [id - 3]);
    }
    for id in 31..=40 {
        assert_eq!(region.touch(3, id), if id > 33 { vec![id - 3] } else { vec![] });
    }
    for (shard, id) in [(1, 19), (2, 29), (3, 39)] {
        region.end(shard, id);
    }
    for (step, id) in (11..=13).enumerate() {
        for (shard, base) in [(1, 0), (2, 10), (3, 20)] {
            let expected = [vec![], vec![18 + base], vec![20 + base]];
            assert_eq!(region.touch(shard, id + base), expected[step]);
        }
    }
    assert_eq!((region.active(1), region.active(2), region.active(3)), (ids(11..=13), ids(21..=23), ids(31..=33)));
}

/// Scenario sharding 65: levels of 0.2 and 0.8.
#[test]
fn entities_used_once_do_not_displace_those_of_the_upper_level() {
    let mut region = Region::new(Passivation::least_recently_used(10).segmented(2, &[0.2, 0.8]));
    for id in 1..=20 {
        assert_eq!(region.touch(1, id), if id > 10 { vec![id - 10] } else { vec![] });
    }
    for id in 11..=20 {
        assert_eq!(region.touch(1, id), NONE);
    }
    // 11 and 12 have been moved down again.
    for id in 1..=5 {
        assert_eq!(region.touch(1, id), [if id < 3 { id + 10 } else { id - 2 }]);
    }
    assert_eq!(region.active(1), [ids(4..=5), ids(13..=20)].concat());
    assert_eq!(region.touch(2, 21), [4, 5, 13, 14, 15]);
    for id in (11..=20).rev() {
        let expected = if id == 15 { vec![20] } else { vec![id + 1] };
        assert_eq!(region.touch(1, id), if id > 15 { vec![] } else { expected });
    }
    assert_eq!((region.active(1), region.active(2)), ([vec![11], ids(16..=19)].concat(), vec![21]));
}

/// Scenario sharding 65: the limit of a region with two shards goes from 10 to 6 and then to 12.
#[test]
fn the_least_recent_go_at_once_when_the_limit_falls() {
    let mut region = Region::new(Passivation::least_recently_used(10));
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
    assert_eq!((region.active(1), region.active(2)), (ids(15..=20), vec![21]));
}

/// Scenario sharding 65, with levels: the limit goes from 20 to 10 and then to 30.
#[test]
fn levels_follow_the_limit() {
    let mut region = Region::new(Passivation::least_recently_used(20).segmented(2, &[0.2, 0.8]));
    for id in 1..=30 {
        assert_eq!(region.touch(1, id), if id > 20 { vec![id - 20] } else { vec![] });
    }
    assert_eq!(region.touch(2, 31), ids(11..=20));
    assert_eq!(region.set_limit(10), ids(21..=25));
    for id in 1..=10 {
        assert_eq!(region.touch(1, id), [if id < 6 { id + 25 } else { id - 5 }]);
    }
    assert_eq!(region.set_limit(30), NONE);
    for id in 11..=30 {
        assert_eq!(region.touch(1, id), if id > 20 { vec![id - 15] } else { vec![] });
    }
    assert_eq!((region.active(1), region.active(2)), (ids(16..=30), vec![31]));
}

/// Upper levels that round to the whole limit leave level 0 nothing; a new entity gets a place nevertheless.
#[test]
fn a_new_entity_displaces_the_least_recent_of_the_lowest_level_that_has_one() {
    let mut region = Region::new(Passivation::least_recently_used(2).segmented(2, &[0.0, 1.0]));
    for id in [1, 1, 2, 2] {
        assert_eq!(region.touch(1, id), NONE);
    }
    assert_eq!((region.touch(1, 3), region.touch(1, 4)), (vec![1], vec![3]));
}

/// Scenario sharding 66: from one shard to three, and entities that end by themselves.
#[test]
fn the_most_recent_go_but_not_the_one_just_touched() {
    let mut region = Region::new(Passivation::most_recently_used(10));
    for id in 1..=20 {
        assert_eq!(region.touch(1, id), if id > 10 { vec![id - 1] } else { vec![] });
    }
    assert_eq!(region.active(1), [ids(1..=9), vec![20]].concat());
    assert_eq!(region.touch(2, 21), [20, 9, 8, 7, 6]);
    for id in 1..=20 {
        assert_eq!(region.touch(1, id), if id > 5 { vec![id - 1] } else { vec![] });
    }
    for id in 21..=24 {
        assert_eq!(region.touch(2, id), NONE);
    }
    assert_eq!((region.active(1), region.active(2)), (vec![1, 2, 3, 4, 20], ids(21..=24)));
    assert_eq!(region.touch(3, 31), [20, 4, 24]);
    for id in 24..=30 {
        assert_eq!(region.touch(2, id), [id - 1]);
    }
    for id in 31..=40 {
        assert_eq!(region.touch(3, id), if id > 33 { vec![id - 1] } else { vec![] });
    }
    for (shard, id) in [(1, 2), (2, 22), (3, 32)] {
        region.end(shard, id);
    }
    for (shard, first) in [(1, 12), (2, 23), (3, 34)] {
        let victims: Vec<_> = (first..first + 3).map(|id| region.touch(shard, id)).collect();
        assert_eq!(victims, [vec![], vec![first], vec![first + 1]]);
    }
    assert_eq!(
        (region.active(1), region.active(2), region.active(3)),
        (vec![1, 3, 14], vec![21, 25, 30], vec![31, 36, 40])
    );
}

/// Scenario sharding 66: the limit of a region with two shards goes from 10 to 6 and then to 12.
#[test]
fn the_most_recent_go_first_when_the_limit_falls() {
    let mut region = Region::new(Passivation::most_recently_used(10));
    (1..=20).for_each(|id| drop(region.touch(1, id)));
    assert_eq!(region.touch(2, 21), [20, 9, 8, 7, 6]);
    assert_eq!(region.set_limit(6), [5, 4]);
    for id in 1..=10 {
        assert_eq!(region.touch(1, id), if id > 3 { vec![id - 1] } else { vec![] });
    }
    assert_eq!(region.active(1), [1, 2, 10]);
    assert_eq!(region.set_limit(12), NONE);
    for id in 11..=20 {
        assert_eq!(region.touch(1, id), if id > 13 { vec![id - 1] } else { vec![] });
    }
    assert_eq!(region.active(1), [1, 2, 10, 11, 12, 20]);
}
