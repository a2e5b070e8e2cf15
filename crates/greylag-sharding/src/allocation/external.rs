//! Shards placed by the program: each shard goes to the node that the program names.
//!
//! Desired locations come from outside, node by node, and may be unknown, out of date or about a node that is yet to
//! join. A location that cannot be obeyed now is no error: the shard goes to the region that asked for it, and moves
//! when the node has come. This module decides; storing and reading desired locations is left to the driver.
//!
//! Source: sharding §3; Pekko's external shard allocation strategy.

use std::collections::{BTreeMap, BTreeSet};

use greylag_core::NodeAddress;

use super::{RegionView, View};
use crate::ids::{RegionId, ShardId};

/// Puts shards where the program wants them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct External;

impl External {
    /// The region of the desired node, else the requester, else the most suitable region.
    ///
    /// `desired` is `None` if no location is desired or it could not be read in time; `requester` is `None` if no
    /// region asked, as after most handoffs. One pass over the regions for each of the three.
    ///
    /// Differs: Pekko names the requester even if it cannot host, because it is a proxy or gone, and the shard stays
    /// without a home.
    pub fn allocate(view: &View, requester: Option<&RegionId>, desired: Option<&NodeAddress>) -> Option<RegionId> {
        let at_node = |node: &NodeAddress| {
            let there = view.regions.iter().filter(|region| region.address() == node);
            there.min_by_key(|region| region.suitability())
        };
        let asking = |requester: &RegionId| view.regions.iter().find(|region| region.region == *requester);
        let choice = desired.and_then(at_node).or_else(|| requester.and_then(asking));
        choice.or_else(|| view.most_suitable()).map(|region| region.region.clone())
    }

    /// The shards to move now: shards with a home, not in progress, whose desired node has a region and is another one.
    /// A shard without a desired node stays where it is.
    ///
    /// `desired` is empty if it could not be read in time. One look-up for each shard.
    ///
    /// Differs: a node that leaves or is unreachable while others are not is no target, as if it were absent. The
    /// coordinator would not let the strategy choose it, so the shard would move, and come back, in every round.
    pub fn moves(
        view: &View,
        in_progress: &BTreeSet<ShardId>,
        desired: &BTreeMap<ShardId, NodeAddress>,
    ) -> BTreeSet<ShardId> {
        let targets: BTreeSet<_> = view.candidates().into_iter().map(RegionView::address).collect();
        let misplaced = view.regions.iter().flat_map(|region| {
            let elsewhere = |node: &NodeAddress| node != region.address() && targets.contains(node);
            let is_misplaced = move |shard: &&ShardId| desired.get(*shard).is_some_and(&elsewhere);
            region.shards.iter().filter(is_misplaced)
        });
        misplaced.filter(|shard| !in_progress.contains(*shard)).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::allocation::ShardList;
    use crate::allocation::tests::{apply, region, shards, view};
    use crate::machine::membership::MemberPhase;

    fn node(n: usize) -> NodeAddress {
        region(n).node.address().clone()
    }

    fn desired(locations: &[(&str, usize)]) -> BTreeMap<ShardId, NodeAddress> {
        locations.iter().map(|(shard, n)| (ShardId::new(*shard).unwrap(), node(*n))).collect()
    }

    fn moves(view: &View, locations: &[(&str, usize)]) -> BTreeSet<ShardId> {
        External::moves(view, &BTreeSet::new(), &desired(locations))
    }

    /// Scenario sharding 37: the decisions; the client and the nodes are left to the driver.
    #[test]
    fn a_desired_location_takes_effect_once_its_node_has_joined() {
        let mut view = view(&[0, 0]);
        let cats = ShardId::new("cats").unwrap();
        let asker = region(2);
        assert_eq!(External::allocate(&view, Some(&asker), None), Some(region(2)), "no entry: who asks");
        assert_eq!(External::allocate(&view, Some(&asker), Some(&node(1))), Some(region(1)), "obeyed from others");
        assert_eq!(External::allocate(&view, Some(&asker), Some(&node(3))), Some(region(2)), "it has not joined");
        view.place(&region(1), &cats);
        assert!(moves(&view, &[("cats", 3)]).is_empty(), "it has not joined");

        view.regions.push(RegionView { region: region(3), shards: ShardList::default(), ..view.regions[0].clone() });
        for home in [3, 1] {
            let locations = [("cats", home)];
            let moved = moves(&view, &locations);
            assert_eq!(moved, shards(&["cats"]), "the entry names {home}");
            apply(&mut view, moved, |view, _| External::allocate(view, None, Some(&node(home))));
            assert_eq!(*view.regions[home - 1].shards, std::slice::from_ref(&cats));
            assert!(moves(&view, &locations).is_empty(), "it is in place");
        }
    }

    /// Scenario sharding 38: the effect of a query that timed out, and of a missing entry.
    #[test]
    fn without_a_location_shards_go_to_the_requester_and_stay() {
        let view = view(&[5, 3, 0]);
        for n in 1..=3 {
            assert_eq!(External::allocate(&view, Some(&region(n)), None), Some(region(n)));
        }
        assert!(moves(&view, &[]).is_empty());
        assert!(moves(&view, &[("cats", 3)]).is_empty(), "a shard without a home is not moved");
    }

    /// Scenario sharding 38: a requester that cannot host.
    #[test]
    fn for_a_requester_outside_of_the_view_the_most_suitable_region_is_chosen() {
        let view = view(&[2, 1, 2]);
        let older = RegionId { incarnation: 7, ..region(1) };
        for requester in [None, Some(&region(9)), Some(&older)] {
            assert_eq!(External::allocate(&view, requester, None), Some(region(2)), "{requester:?}");
            assert_eq!(External::allocate(&view, requester, Some(&node(8))), Some(region(2)), "{requester:?}");
            assert_eq!(External::allocate(&view, requester, Some(&node(3))), Some(region(3)), "{requester:?}");
        }
        assert_eq!(External::allocate(&View::default(), Some(&region(1)), Some(&node(1))), None);
    }

    #[test]
    fn only_misplaced_shards_move_and_each_once() {
        let view = view(&[3, 2, 0]);
        let locations = [("001", 1), ("002", 2), ("003", 3), ("004", 4), ("005", 1), ("006", 2)];
        assert_eq!(moves(&view, &locations), shards(&["002", "003", "005"]));
        let in_progress = shards(&["003", "001"]);
        assert_eq!(External::moves(&view, &in_progress, &desired(&locations)), shards(&["002", "005"]));
    }

    /// Two processes at one address: the newer one's member is `Up`, the older one's is not any more.
    #[test]
    fn of_two_regions_of_the_desired_node_the_more_suitable_gets_the_shard() {
        let mut view = view(&[0, 0]);
        view.regions[1].region.node = "10.0.0.1:7000#9".parse().unwrap();
        view.regions[0].phase = MemberPhase::Down;
        let newer = view.regions[1].region.clone();
        assert_eq!(External::allocate(&view, None, Some(&node(1))), Some(newer));
    }

    #[test]
    fn a_desired_node_that_leaves_or_is_silent_is_no_target() {
        let settled = view(&[1, 0]);
        let locations = [("001", 2)];
        assert_eq!(moves(&settled, &locations), shards(&["001"]));
        let mut leaving = settled.clone();
        leaving.regions[1].phase = MemberPhase::Leaving;
        assert!(moves(&leaving, &locations).is_empty());
        let mut silent = settled.clone();
        silent.regions[1].reachable = false;
        assert!(moves(&silent, &locations).is_empty());
        silent.regions[0].reachable = false;
        assert_eq!(moves(&silent, &locations), shards(&["001"]), "no region is reachable, so all are candidates");
        let unsettled = View { unsettled: true, ..settled };
        assert_eq!(moves(&unsettled, &locations), shards(&["001"]), "the program's word waits for no good time");
    }
}
