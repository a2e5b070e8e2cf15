//! Vetoes: which slot goes instead, and the effect of lifting a veto. Source: sharding §4.10.

use super::super::{FrequencySketch, ReplacementPolicy};
use super::{NONE, Passivation, Watched};

/// A shard with a limit of 4 and ids 1 to 4, touched in this order.
fn filled(settings: &Passivation) -> Watched {
    let mut shard = Watched::new(settings, 4);
    (1..=4).for_each(|id| assert_eq!(shard.touch(id), NONE));
    shard
}

/// For each policy: the order in which 1 to 4 go when one after another is under a veto.
#[test]
fn the_next_candidate_goes_instead() {
    let policies = [
        (Passivation::least_recently_used(4), [1, 2, 3, 4]),
        (Passivation::least_recently_used(4).segmented(2, &[0.5, 0.5]), [1, 2, 3, 4]),
        (Passivation::most_recently_used(4), [4, 3, 2, 1]),
        (Passivation::least_frequently_used(4), [1, 2, 3, 4]),
        (Passivation::least_frequently_used(4).dynamic_aging(), [1, 2, 3, 4]),
    ];
    for (settings, order) in policies {
        for under_veto in 0..4 {
            let mut shard = filled(&settings);
            for id in &order[..under_veto] {
                assert_eq!(shard.veto(*id, true), NONE);
            }
            assert_eq!(shard.touch(5), [order[under_veto]], "{settings:?}");
        }
    }
}

#[test]
fn the_limit_is_exceeded_until_a_veto_falls() {
    let policies = [
        Passivation::least_recently_used(4),
        Passivation::least_recently_used(4).segmented(3, &[]),
        Passivation::most_recently_used(4),
        Passivation::least_frequently_used(4).dynamic_aging(),
        Passivation::least_recently_used(4).admission_window(ReplacementPolicy::most_recently_used(), 0.5),
    ];
    for settings in policies {
        let mut shard = filled(&settings);
        (1..=4).for_each(|id| assert_eq!(shard.veto(id, true), NONE));
        // The new slot also stays while it is under a veto.
        assert_eq!((shard.veto(5, true), shard.touch(5)), (vec![], vec![]), "{settings:?}");
        assert_eq!((shard.limit(2), shard.active.len()), (vec![], 5), "{settings:?}");
        for (id, left) in [(3, 4), (1, 3), (5, 2)] {
            assert_eq!((shard.veto(id, false), shard.active.len()), (vec![id], left), "{settings:?}");
        }
        // Now the limit holds.
        assert_eq!((shard.veto(2, false), shard.veto(4, false)), (vec![], vec![]), "{settings:?}");
    }
}

/// An entity that was passed over keeps its place: it is the first to go once its veto is lifted.
#[test]
fn a_veto_does_not_count_as_a_use() {
    for settings in [
        Passivation::least_recently_used(4),
        Passivation::least_recently_used(4).segmented(2, &[0.5, 0.5]),
        Passivation::least_frequently_used(4),
    ] {
        let mut shard = filled(&settings);
        assert_eq!((shard.veto(1, true), shard.veto(3, true)), (vec![], vec![]));
        assert_eq!((shard.touch(5), shard.touch(6)), (vec![2], vec![4]), "{settings:?}");
        // Both were parked. They go in the order of their use, not in the order in which their vetoes were lifted.
        assert_eq!((shard.veto(3, false), shard.veto(1, false)), (vec![], vec![]));
        assert_eq!((shard.touch(7), shard.touch(8), shard.touch(9)), (vec![1], vec![3], vec![5]), "{settings:?}");
    }
}

/// Also with the most recently used first: slots that came in meanwhile are more recent, earlier slots are less.
#[test]
fn a_veto_keeps_the_place_among_the_most_recent() {
    let mut shard = filled(&Passivation::most_recently_used(4));
    assert_eq!((shard.veto(4, true), shard.touch(5), shard.veto(4, false)), (vec![], vec![3], vec![]));
    assert_eq!((shard.veto(5, true), shard.touch(6), shard.veto(5, false)), (vec![], vec![4], vec![]));
    assert_eq!(shard.limit(1), [6, 5, 2]);
}

/// The veto of an entity ends with it, and an ended entity is not counted.
#[test]
fn the_end_of_an_entity_lifts_its_veto() {
    let mut shard = filled(&Passivation::least_recently_used(4));
    assert_eq!((shard.veto(1, true), shard.touch(5)), (vec![], vec![2]));
    shard.end(1);
    shard.end(1);
    shard.end(2);
    assert_eq!((shard.touch(1), shard.touch(6)), (vec![], vec![3]));
    assert_eq!((shard.touch(7), shard.touch(8), shard.touch(9)), (vec![4], vec![5], vec![1]));
}

/// A victim that is touched while it still stops comes in as new, and the later report of its old end has no effect.
#[test]
fn a_victim_that_is_touched_is_new() {
    let mut shard = Watched::new(&Passivation::least_frequently_used(2), 2);
    for id in [1, 1, 1, 2, 2, 2, 2] {
        assert_eq!(shard.touch(id), NONE);
    }
    assert_eq!(shard.touch(3), [1]);
    assert_eq!(shard.touch(1), [3]);
    // With its old uses 1 would have outlived 2.
    assert_eq!(shard.touch(4), [1]);
}

/// A candidate under a veto without earlier uses cannot lose: the main area's victim goes, whatever the filter's
/// result.
#[test]
fn a_new_entity_under_a_veto_is_admitted() {
    let settings = Passivation::least_recently_used(2).frequency_sketch(FrequencySketch::default());
    let mut shard = Watched::new(&settings, 2);
    assert_eq!((shard.touch(1), shard.touch(2), shard.touch(3)), (vec![], vec![], vec![3]));
    assert_eq!((shard.veto(4, true), shard.touch(4)), (vec![], vec![1]));
    assert_eq!((shard.veto(2, true), shard.veto(5, true), shard.touch(5)), (vec![], vec![], vec![]));
    assert_eq!((shard.active.len(), shard.veto(2, false)), (3, vec![2]));
}

/// A window full of vetoes takes room from the main area instead of exceeding the limit.
#[test]
fn a_window_of_vetoes_displaces_from_the_main_area() {
    let settings = Passivation::least_recently_used(4).admission_window(ReplacementPolicy::least_recently_used(), 0.5);
    let mut shard = filled(&settings);
    (3..=4).for_each(|id| assert_eq!(shard.veto(id, true), NONE));
    assert_eq!((shard.touch(5), shard.touch(6)), (vec![1], vec![2]));
    assert_eq!(shard.veto(3, false), NONE);
    assert_eq!(shard.active.len(), 4);
}
