//! Views for the tests of all strategies, and the tests of the shared parts.

use std::collections::BTreeSet;

use super::*;

/// The region of the node 10.0.0.n.
pub(super) fn region(n: usize) -> RegionId {
    RegionId { node: format!("10.0.0.{n}:7000#{n}").parse().unwrap(), incarnation: 1 }
}

/// Regions with these numbers of shards, named "001", "002", ... in that order.
pub(super) fn view(counts: &[usize]) -> View {
    let mut names = (1..).map(|n| ShardId::new(format!("{n:03}")).unwrap());
    let regions = counts.iter().enumerate().map(|(node, count)| RegionView {
        region: region(node + 1),
        shards: names.by_ref().take(*count).collect(),
        phase: MemberPhase::Up,
        reachable: true,
        app_version: AppVersion::default(),
    });
    View { regions: regions.collect(), unsettled: false }
}

pub(super) fn shards(ids: &[&str]) -> BTreeSet<ShardId> {
    ids.iter().map(|id| ShardId::new(*id).unwrap()).collect()
}

pub(super) fn names(shards: &BTreeSet<ShardId>) -> Vec<String> {
    shards.iter().map(|shard| shard.as_str().to_owned()).collect()
}

pub(super) fn counts_of(view: &View) -> Vec<usize> {
    view.regions.iter().map(|region| region.shards.len()).collect()
}

/// Moves shards as the coordinator does: all end, then each is allocated. Returns how many came back to their former
/// region.
pub(super) fn apply(
    view: &mut View,
    moves: BTreeSet<ShardId>,
    choose: impl Fn(&View, &ShardId) -> Option<RegionId>,
) -> usize {
    let mut former = Vec::new();
    for region in &mut view.regions {
        let left = region.shards.extract_if(.., |shard| moves.contains(shard));
        former.extend(left.map(|shard| (shard, region.region.clone())));
    }
    former.sort_unstable();
    assert!(former.iter().map(|(shard, _)| shard).eq(&moves), "only shards that have a home are moved");
    let mut back = 0;
    for (shard, from) in former {
        let home = choose(view, &shard).unwrap();
        back += usize::from(home == from);
        view.place(&home, &shard);
    }
    back
}

fn by_suitability(view: &View) -> Vec<usize> {
    let mut order: Vec<_> = (0..view.regions.len()).collect();
    order.sort_by_key(|at| view.regions[*at].suitability());
    order.into_iter().map(|at| at + 1).collect()
}

/// Scenario sharding 43: fewest and new, one and new, two and new, old version, leaving.
#[test]
fn regions_are_ordered_by_suitability() {
    let mut view = view(&[0, 0, 0, 1, 2]);
    for (at, version) in ["1.0.0", "1.0.0", "1.0.1", "1.0.1", "1.0.1"].into_iter().enumerate() {
        view.regions[at].app_version = version.parse().unwrap();
    }
    view.regions[1].phase = MemberPhase::Leaving;
    assert_eq!(by_suitability(&view), [3, 4, 5, 1, 2]);
    view.regions[3].reachable = false;
    assert_eq!(by_suitability(&view), [3, 5, 1, 4, 2], "reachable comes before version");
    view.regions[2].phase = MemberPhase::Down;
    assert_eq!(by_suitability(&view), [5, 1, 4, 3, 2], "staying comes before all");
    view.regions[4].phase = MemberPhase::Exiting;
    assert_eq!(view.most_suitable().map(|region| &region.region), Some(&region(1)));
}

#[test]
fn equally_suitable_regions_are_ordered_by_address() {
    assert_eq!(by_suitability(&view(&[1, 1, 0, 0])), [3, 4, 1, 2]);
    assert_eq!(View::default().most_suitable(), None);
    for phase in [MemberPhase::Up, MemberPhase::Preparing, MemberPhase::Joining] {
        let mut view = view(&[0, 1]);
        view.regions[0].phase = phase;
        assert_eq!(by_suitability(&view), [1, 2], "{phase:?} does not leave");
    }
}

/// Scenario sharding 43: when it is a good time to move shards.
#[test]
fn the_time_is_good_when_nothing_changes() {
    assert!(view(&[1]).is_good_time());
    assert!(view(&[1, 2, 3]).is_good_time());
    assert!(!View::default().is_good_time());
    assert!(!View { unsettled: true, ..view(&[1, 2]) }.is_good_time());
    for at in 0..3 {
        let mut silent = view(&[1, 2, 3]);
        silent.regions[at].reachable = false;
        assert!(!silent.is_good_time());
        let mut versions = view(&[1, 2, 3]);
        versions.regions[at].app_version = "0.0.1".parse().unwrap();
        assert!(!versions.is_good_time());
    }
}

/// sharding §2.12.
#[test]
fn candidates_stay_and_are_reachable_where_there_are_such() {
    let candidates = |leaving: &[usize], silent: &[usize]| {
        let mut view = view(&[0, 0, 0]);
        for n in leaving {
            view.regions[n - 1].phase = MemberPhase::Leaving;
        }
        for n in silent {
            view.regions[n - 1].reachable = false;
        }
        let numbers = view.candidates().into_iter().map(|region| region.region.node.uid().get());
        numbers.collect::<Vec<_>>()
    };
    assert_eq!(candidates(&[], &[]), [1, 2, 3]);
    assert_eq!(candidates(&[1], &[]), [2, 3]);
    assert_eq!(candidates(&[1], &[2]), [3]);
    assert_eq!(candidates(&[1], &[2, 3]), [2, 3], "staying counts for more");
    assert_eq!(candidates(&[1, 2, 3], &[]), [1, 2, 3]);
    assert_eq!(candidates(&[1, 2, 3], &[1]), [2, 3]);
    assert_eq!(candidates(&[1, 2, 3], &[1, 2, 3]), [1, 2, 3]);
    assert!(View::default().candidates().is_empty());
}

#[test]
fn a_placed_shard_counts_for_the_next_choice() {
    let mut view = view(&[0, 0]);
    view.place(&region(1), &ShardId::from_index(0));
    assert_eq!(counts_of(&view), [1, 0]);
    view.place(&region(3), &ShardId::from_index(1));
    assert_eq!(counts_of(&view), [1, 0], "a region outside of the view");
}
