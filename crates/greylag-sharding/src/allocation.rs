//! Which region gets a shard, and which shards should move.
//!
//! A strategy sees a [`View`] and names regions or shards; the coordinator checks its answer. The
//! default puts a shard in the region with the fewest and evens out in small rounds.
//!
//! Source: sharding §3; Pekko's least-shard allocation strategy of 1.0 ("new").

use std::cmp::Reverse;
use std::collections::BTreeSet;

use greylag_cluster::AppVersion;

use crate::ids::{RegionId, ShardId};
use crate::membership::Phase;
use crate::settings::LeastShardSettings;

/// The regions that can host, as a strategy sees them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct View {
    /// In the order of their ids.
    pub regions: Vec<RegionView>,
    /// Whether a member is unreachable, or joins: no time to move shards.
    pub unsettled: bool,
}

/// One region.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RegionView {
    /// Which one.
    pub region: RegionId,
    /// What it hosts, in the order of allocation; allocations under way count.
    pub shards: Vec<ShardId>,
    /// Status of its member.
    pub phase: Phase,
    /// Whether its member is reachable.
    pub reachable: bool,
    /// Version of the application on its member.
    pub app_version: AppVersion,
}

impl View {
    /// Counts a shard as allocated, so that the next choice of the same batch sees it.
    pub fn place(&mut self, region: &RegionId, shard: &ShardId) {
        if let Some(view) = self.regions.iter_mut().find(|view| view.region == *region) {
            view.shards.push(shard.clone());
        }
    }
}

/// A strategy gave no answer; the request is dropped and will be asked again.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("allocation strategy failed: {0}")]
pub struct AllocationFailed(pub String);

/// The default: fewest shards first, evened out in rounds that are bounded twice.
#[derive(Debug, Clone, Default)]
pub struct LeastShard {
    settings: LeastShardSettings,
}

impl LeastShard {
    /// With these limits.
    pub fn new(settings: LeastShardSettings) -> Self {
        Self { settings }
    }

    /// The most suitable region.
    pub fn choose(&self, view: &View) -> Option<RegionId> {
        view.regions.iter().min_by_key(|region| suitability(region)).map(|region| region.region.clone())
    }

    /// The shards to move now.
    pub fn moves(&self, view: &View, in_progress: &BTreeSet<ShardId>) -> BTreeSet<ShardId> {
        if !in_progress.is_empty() || !is_good_time(view) {
            return BTreeSet::new();
        }
        let total: usize = view.regions.iter().map(|region| region.shards.len()).sum();
        let relative = (self.settings.rebalance_relative_limit * total as f64) as usize;
        let limit = relative.min(self.settings.rebalance_absolute_limit).max(1);
        let optimal = total.div_ceil(view.regions.len());
        let mut regions: Vec<_> = view.regions.iter().collect();
        regions.sort_by_key(|region| suitability(region));

        let excess = |region: &&RegionView| region.shards.len().saturating_sub(optimal);
        let phase_one = regions.iter().flat_map(|region| region.shards.iter().take(excess(region)));
        let phase_one: BTreeSet<_> = phase_one.take(limit).cloned().collect();
        if !phase_one.is_empty() {
            return phase_one;
        }
        let lacking = |region: &&RegionView| optimal.saturating_sub(1).saturating_sub(region.shards.len());
        let below: usize = regions.iter().map(lacking).sum();
        let offers = regions.iter().filter(|region| region.shards.len() >= optimal);
        offers.filter_map(|region| region.shards.first()).take(below.min(limit)).cloned().collect()
    }
}

/// Smaller is better: staying, reachable, newest version, fewest shards, lowest address.
fn suitability(region: &RegionView) -> (bool, bool, Reverse<&AppVersion>, usize, &RegionId) {
    let leaving = matches!(region.phase, Phase::Leaving | Phase::Exiting | Phase::Down);
    (leaving, !region.reachable, Reverse(&region.app_version), region.shards.len(), &region.region)
}

/// Whether shards may be moved now: no mixed versions, no unreachable region, and no member joining.
fn is_good_time(view: &View) -> bool {
    let same = view.regions.windows(2).all(|pair| pair[0].app_version == pair[1].app_version);
    !view.regions.is_empty() && !view.unsettled && same && view.regions.iter().all(|region| region.reachable)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region(node: usize) -> RegionId {
        RegionId { node: format!("10.0.0.{node}:7000#{node}").parse().unwrap(), incarnation: 1 }
    }

    /// Regions with so many shards each, named "001", "002", ... in that order.
    fn view(counts: &[usize]) -> View {
        let mut names = (1..).map(|n| ShardId::new(format!("{n:03}")).unwrap());
        let regions = counts.iter().enumerate().map(|(node, count)| RegionView {
            region: region(node + 1),
            shards: names.by_ref().take(*count).collect(),
            phase: Phase::Up,
            reachable: true,
            app_version: AppVersion::default(),
        });
        View { regions: regions.collect(), unsettled: false }
    }

    fn moved(strategy: &LeastShard, view: &View) -> Vec<String> {
        strategy.moves(view, &BTreeSet::new()).iter().map(|shard| shard.as_str().to_owned()).collect()
    }

    fn limits(absolute: usize, relative: f64) -> LeastShard {
        LeastShard::new(LeastShardSettings { rebalance_absolute_limit: absolute, rebalance_relative_limit: relative })
    }

    /// Scenario sharding 41.
    #[test]
    fn least_shard_moves_what_the_reference_suite_expects() {
        let strategy = limits(1000, 1.0);
        for (counts, expected) in [
            (&[1, 2, 0][..], &["002"][..]),
            (&[2, 0, 0], &["001"]),
            (&[1, 1, 0], &[]),
            (&[3, 0, 0], &["001", "002"]),
            (&[4, 4, 0], &["001", "005"]),
            (&[4, 4, 2], &["001"]),
            (&[5, 5, 0], &["001", "006"]),
        ] {
            assert_eq!(moved(&strategy, &view(counts)), expected, "{counts:?}");
        }
    }

    /// Scenario sharding 42.
    #[test]
    fn least_shard_keeps_both_limits() {
        assert_eq!(moved(&limits(3, 1.0), &view(&[1, 9, 0])), ["002", "003", "004"]);
        assert_eq!(moved(&limits(5, 0.3), &view(&[1, 9, 0])), ["002", "003", "004"]);
        let in_progress = BTreeSet::from([ShardId::from_index(1)]);
        assert!(limits(5, 0.3).moves(&view(&[1, 9, 0]), &in_progress).is_empty());
    }

    /// Scenario sharding 43.
    #[test]
    fn versions_reachability_and_joining_members_decide_first() {
        let strategy = LeastShard::default();
        let mut versions = view(&[0, 3, 0]);
        versions.regions[1].app_version = "2.0".parse().unwrap();
        assert_eq!(strategy.choose(&versions), Some(region(2)), "the newest version, whatever it hosts");
        assert!(moved(&strategy, &versions).is_empty(), "versions differ");
        let mut leaving = view(&[0, 3, 3]);
        leaving.regions[0].phase = Phase::Leaving;
        assert_eq!(strategy.choose(&leaving), Some(region(2)));
        let mut silent = view(&[0, 3, 0]);
        silent.regions[0].reachable = false;
        assert_eq!(strategy.choose(&silent), Some(region(3)));
        assert!(moved(&strategy, &silent).is_empty());
        let joining = View { unsettled: true, ..view(&[5, 0, 0]) };
        assert!(moved(&strategy, &joining).is_empty());
    }

    /// Scenario sharding 104: a release candidate comes before its release, and a missing number is a zero.
    #[test]
    fn versions_compare_by_precedence() {
        let strategy = LeastShard::default();
        let with = |first: &str, second: &str| {
            let mut view = view(&[0, 3]);
            view.regions[0].app_version = first.parse().unwrap();
            view.regions[1].app_version = second.parse().unwrap();
            view
        };
        assert_eq!(strategy.choose(&with("1.2.3-rc1", "1.2.3")), Some(region(2)));
        assert_eq!(strategy.choose(&with("1.2.3", "1.2.3-rc1")), Some(region(1)));
        assert_eq!(strategy.choose(&with("1.9", "1.10")), Some(region(2)));
        assert!(moved(&strategy, &with("1.2.3-rc1", "1.2.3")).is_empty(), "versions differ");
        assert!(!moved(&strategy, &with("1.2", "1.2.0")).is_empty(), "they are the same");
    }

    /// Scenario sharding 45.
    #[test]
    fn rounds_end_balanced_and_stay_so() {
        use rand::{RngExt, SeedableRng};
        let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(45);
        for _ in 0..50 {
            let counts: Vec<_> = (0..rng.random_range(1..=20)).map(|_| rng.random_range(0..=40)).collect();
            let mut view = view(&counts);
            let strategy = limits(1000, 1.0);
            for round in 0.. {
                let moves = strategy.moves(&view, &BTreeSet::new());
                if moves.is_empty() {
                    break;
                }
                assert!(round < 2, "two rounds are enough for {counts:?}");
                for region in &mut view.regions {
                    region.shards.retain(|shard| !moves.contains(shard));
                }
                for shard in moves {
                    let target = strategy.choose(&view).unwrap();
                    view.regions.iter_mut().find(|r| r.region == target).unwrap().shards.push(shard);
                }
            }
            let sizes = view.regions.iter().map(|region| region.shards.len());
            assert!(sizes.clone().max().unwrap() - sizes.min().unwrap() <= 1, "{counts:?}");
        }
    }
}
