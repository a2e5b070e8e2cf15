//! Shards spread by hash: the home of a shard depends on its id and on the present nodes.
//!
//! Every node draws a number for every shard, and the highest draw wins ("rendezvous"). A new node therefore takes
//! shards from the others and moves none between them; a node that goes leaves its shards to the rest. Shards of the
//! same id meet on one node, whatever their types.
//!
//! Source: sharding §3; Thaler and Ravishankar 1998, "Using name-based mappings to increase hit
//! rates". Differs: Pekko's strategy of this name puts ten points for each node on a ring.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use greylag_core::NodeAddress;
use twox_hash::XxHash3_64;

use super::{RegionView, View};
use crate::ids::{RegionId, ShardId};
use crate::settings::ConsistentHashingSettings;

/// Spreads shards by hash, so that few of them move when nodes come and go.
///
/// The number of shards of a node is random: of 1000 shards on 10 nodes about 100, give or take 20.
#[derive(Debug, Clone, Default)]
pub struct ConsistentHashing {
    settings: ConsistentHashingSettings,
}

impl ConsistentHashing {
    /// A strategy with this limit.
    pub fn new(settings: ConsistentHashingSettings) -> Self {
        Self { settings }
    }

    /// The region on the node that draws the highest number for the shard. One pass over the regions.
    pub fn choose(&self, shard: &ShardId, view: &View) -> Option<RegionId> {
        Nodes::of(view).winner(shard).map(|region| region.region.clone())
    }

    /// The shards to move now: shards that are out of place and not in progress, by node, then in the order of
    /// allocation, until the limit.
    ///
    /// Draws for every shard on every node, so a round costs shards times nodes.
    pub fn moves(&self, view: &View, in_progress: &BTreeSet<ShardId>) -> BTreeSet<ShardId> {
        if !view.is_good_time() {
            return BTreeSet::new();
        }
        let nodes = Nodes::of(view);
        let out_of_place = view.regions.iter().flat_map(|region| {
            let elsewhere = |shard: &&ShardId| nodes.winner(shard).is_some_and(|winner| winner.region != region.region);
            region.shards.iter().filter(|shard| !in_progress.contains(*shard)).filter(elsewhere)
        });
        let limit = self.settings.rebalance_limit.map_or(usize::MAX, usize::from);
        out_of_place.take(limit).cloned().collect()
    }
}

/// The candidates, each with the seed of its draws.
struct Nodes<'a>(Vec<(u64, &'a RegionView)>);

impl<'a> Nodes<'a> {
    fn of(view: &'a View) -> Self {
        Self(view.candidates().into_iter().map(|region| (seed(region.address()), region)).collect())
    }

    /// The region that draws the highest number; of equal draws the smaller address wins.
    fn winner(&self, shard: &ShardId) -> Option<&'a RegionView> {
        let drawn = self.0.iter().map(|(seed, region)| (draw(shard, *seed), *region));
        drawn.max_by_key(|(number, region)| (*number, Reverse(&region.region))).map(|(_, region)| region)
    }
}

/// Seed of a node, from its address alone: a process that restarts gets its shards back.
fn seed(address: &NodeAddress) -> u64 {
    XxHash3_64::oneshot(address.to_string().as_bytes())
}

fn draw(shard: &ShardId, seed: u64) -> u64 {
    XxHash3_64::oneshot_with_seed(seed, shard.as_str().as_bytes())
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;

    use super::*;
    use crate::allocation::ShardList;
    use crate::allocation::tests::{apply, counts_of, region, shards, view};
    use crate::machine::membership::MemberPhase;

    fn limited(limit: usize) -> ConsistentHashing {
        ConsistentHashing::new(ConsistentHashingSettings { rebalance_limit: NonZeroUsize::new(limit) })
    }

    /// A view of `nodes` regions, with the shards "0", "1", ... where the strategy wants them.
    fn placed(nodes: usize, shards: u32) -> View {
        let mut view = view(&vec![0; nodes]);
        for shard in (0..shards).map(ShardId::from_index) {
            let home = limited(0).choose(&shard, &view).unwrap();
            view.place(&home, &shard);
        }
        view
    }

    /// Adds an empty region.
    fn joined(mut view: View) -> View {
        view.regions.push(RegionView {
            region: region(view.regions.len() + 1),
            shards: ShardList::default(),
            ..view.regions[0].clone()
        });
        view
    }

    /// Scenario sharding 46: homes.
    #[test]
    fn shards_get_the_homes_of_the_specification() {
        let view = view(&[0, 0, 0]);
        for (shard, home) in [("0", 1), ("1", 3), ("2", 2), ("4", 3), ("7", 2), ("10", 2)] {
            let shard = ShardId::new(shard).unwrap();
            assert_eq!(limited(0).choose(&shard, &view), Some(region(home)), "{shard}");
        }
        assert_eq!(limited(0).choose(&ShardId::from_index(0), &View::default()), None);
    }

    /// Scenario sharding 46: a node that joins.
    #[test]
    fn a_node_that_joins_takes_shards_and_moves_none_between_others() {
        let before = placed(3, 16);
        assert!(limited(0).moves(&before, &BTreeSet::new()).is_empty(), "all are in place");
        let mut after = joined(before);
        let moves = limited(0).moves(&after, &BTreeSet::new());
        assert_eq!(moves, shards(&["1", "4", "11", "15"]));
        apply(&mut after, moves.clone(), |view, shard| limited(0).choose(shard, view));
        assert_eq!(BTreeSet::from_iter(after.regions[3].shards.iter().cloned()), moves);
        assert!(limited(0).moves(&after, &BTreeSet::new()).is_empty());
    }

    /// Scenario sharding 46: a node that goes.
    #[test]
    fn a_node_that_goes_leaves_its_shards_and_moves_none_between_others() {
        let mut view = placed(4, 200);
        let gone = view.regions.remove(3);
        assert!(limited(0).moves(&view, &BTreeSet::new()).is_empty(), "what the others have stays");
        for shard in &gone.shards {
            let home = limited(0).choose(shard, &view).unwrap();
            view.place(&home, shard);
        }
        let sorted = |mut view: View| {
            view.regions.iter_mut().for_each(|region| region.shards.sort_unstable());
            view
        };
        assert_eq!(sorted(view), sorted(placed(3, 200)), "as if it had never been there");
    }

    /// Scenario sharding 46: the limit counts by node, then in the order of allocation.
    #[test]
    fn a_limit_takes_shards_by_node_and_age() {
        let mut view = view(&[0, 0, 0]);
        view.regions[0].shards = ["0", "10", "7", "1"].map(|id| ShardId::new(id).unwrap()).into_iter().collect();
        view.regions[2].shards = ["2", "4"].map(|id| ShardId::new(id).unwrap()).into_iter().collect();
        let moves = |limit, in_progress: &[&str]| limited(limit).moves(&view, &shards(in_progress));
        assert_eq!(moves(0, &[]), shards(&["10", "7", "1", "2"]), "all but 0 and 4, which are in place");
        assert_eq!(moves(1, &[]), shards(&["10"]));
        assert_eq!(moves(2, &[]), shards(&["10", "7"]));
        assert_eq!(moves(3, &[]), shards(&["10", "7", "1"]));
        assert_eq!(moves(2, &["10", "7"]), shards(&["1", "2"]), "those in progress are not named again");
        assert_eq!(moves(2, &["10", "7", "1", "2"]), shards(&[]));
        assert_eq!(moves(9, &["7"]), shards(&["10", "1", "2"]));
    }

    /// Scenario sharding 46: the good time is that of the default.
    #[test]
    fn nothing_moves_while_versions_differ_or_a_member_is_silent_or_joins() {
        let view = joined(placed(3, 16));
        let nothing = |view: &View| limited(0).moves(view, &BTreeSet::new()).is_empty();
        assert!(!nothing(&view));
        let mut versions = view.clone();
        versions.regions[1].app_version = "1.0.1".parse().unwrap();
        assert!(nothing(&versions));
        let mut silent = view.clone();
        silent.regions[1].reachable = false;
        assert!(nothing(&silent));
        assert!(nothing(&View { unsettled: true, ..view }));
        assert!(nothing(&View::default()));
    }

    /// A leaving node draws no more: otherwise shards that it may not have would move in every round, and come back.
    #[test]
    fn a_node_that_leaves_gives_up_its_shards_and_gets_none() {
        let mut view = placed(4, 100);
        view.regions[3].phase = MemberPhase::Leaving;
        let moves = limited(0).moves(&view, &BTreeSet::new());
        assert_eq!(moves, view.regions[3].shards.iter().cloned().collect());
        let back = apply(&mut view, moves, |view, shard| limited(0).choose(shard, view));
        assert_eq!((back, view.regions[3].shards.len()), (0, 0));
        assert!(limited(0).moves(&view, &BTreeSet::new()).is_empty());
        view.regions.iter_mut().for_each(|region| region.phase = MemberPhase::Leaving);
        assert!(!limited(0).moves(&view, &BTreeSet::new()).is_empty(), "where all leave, all draw");
    }

    /// Equal draws come from equal addresses, or by chance once in 2^64.
    #[test]
    fn of_equal_draws_the_smaller_region_wins() {
        let mut view = view(&[0, 0]);
        view.regions[1].region = RegionId { incarnation: 2, ..region(1) };
        for shard in (0..20).map(ShardId::from_index) {
            assert_eq!(limited(0).choose(&shard, &view), Some(region(1)));
        }
    }

    #[test]
    fn a_node_gets_about_its_share() {
        let counts = counts_of(&placed(10, 1000));
        assert!(counts.iter().all(|count| (70..=130).contains(count)), "{counts:?}");
    }
}
