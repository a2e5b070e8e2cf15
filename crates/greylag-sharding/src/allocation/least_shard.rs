//! The default strategy: fewest shards first, balanced in rounds.
//!
//! A round names shards of regions that have more than their share, as many as both limits allow. No round begins
//! before the previous one has ended, so that every round counts shards at their present homes. The rounds end when no
//! two regions differ by more than one shard.
//!
//! Source: sharding §3; Pekko's least-shard allocation strategy of 1.0 ("new").

use std::collections::BTreeSet;

use super::{RegionView, View};
use crate::ids::{RegionId, ShardId};
use crate::settings::LeastShardSettings;

/// The default: fewest shards first, balanced in rounds with two limits.
#[derive(Debug, Clone, Default)]
pub struct LeastShard {
    settings: LeastShardSettings,
}

impl LeastShard {
    /// A strategy with these limits.
    pub fn new(settings: LeastShardSettings) -> Self {
        Self { settings }
    }

    /// The most suitable region. One pass over the regions, however many shards they have.
    pub fn choose(&self, view: &View) -> Option<RegionId> {
        view.most_suitable().map(|region| region.region.clone())
    }

    /// The shards to move now; none while an earlier move is in progress.
    ///
    /// Sorts the regions, and reads only the shards that it names.
    ///
    /// Differs: a region that leaves has no share, since no shard could be allocated to it: shards moved for its sake
    /// would come back, and move again in the next round.
    pub fn moves(&self, view: &View, in_progress: &BTreeSet<ShardId>) -> BTreeSet<ShardId> {
        if !in_progress.is_empty() || !view.is_good_time() {
            return BTreeSet::new();
        }
        let total: usize = view.regions.iter().map(|region| region.shards.len()).sum();
        let candidates = view.candidates();
        let share = total.div_ceil(candidates.len());
        let limit = self.limit(total);
        let mut regions: Vec<_> = view.regions.iter().collect();
        regions.sort_unstable_by_key(|region| region.suitability());
        let excess = excess(&regions, share, limit);
        if excess.is_empty() { evening(&regions, &candidates, share, limit) } else { excess }
    }

    /// Most shards of one round: at least one, or few shards would never be balanced.
    fn limit(&self, total: usize) -> usize {
        let relative = (self.settings.rebalance_relative_limit * total as f64) as usize;
        relative.min(self.settings.rebalance_absolute_limit).max(1)
    }
}

/// The shards that regions host beyond the share, the oldest allocations of each region first.
fn excess(regions: &[&RegionView], share: usize, limit: usize) -> BTreeSet<ShardId> {
    let beyond = |region: &&RegionView| region.shards.len().saturating_sub(share);
    let offers = regions.iter().flat_map(|region| region.shards.iter().take(beyond(region)));
    offers.take(limit).cloned().collect()
}

/// One shard of each region that has its full share, as many as other regions need to come within one of the share.
fn evening(regions: &[&RegionView], candidates: &[&RegionView], share: usize, limit: usize) -> BTreeSet<ShardId> {
    let lacking = |region: &&RegionView| share.saturating_sub(1).saturating_sub(region.shards.len());
    let below: usize = candidates.iter().map(lacking).sum();
    let offers = regions.iter().filter(|region| region.shards.len() >= share);
    offers.filter_map(|region| region.shards.first()).take(below.min(limit)).cloned().collect()
}

#[cfg(test)]
mod tests {
    use rand::{RngExt, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    use super::*;
    use crate::allocation::tests::{apply, counts_of, names, region, view};
    use crate::machine::membership::MemberPhase;

    fn moved(strategy: &LeastShard, view: &View) -> Vec<String> {
        names(&strategy.moves(view, &BTreeSet::new()))
    }

    fn limits(absolute: usize, relative: f64) -> LeastShard {
        LeastShard::new(LeastShardSettings { rebalance_absolute_limit: absolute, rebalance_relative_limit: relative })
    }

    /// Scenario sharding 41.
    #[test]
    fn least_shard_moves_what_the_reference_suite_expects() {
        let strategy = limits(1000, 1.0);
        for (counts, expected, after) in [
            ([1, 2, 0], &["002"][..], [1, 1, 1]),
            ([2, 0, 0], &["001"], [1, 1, 0]),
            ([1, 1, 0], &[], [1, 1, 0]),
            ([3, 0, 0], &["001", "002"], [1, 1, 1]),
            ([4, 4, 0], &["001", "005"], [3, 3, 2]),
            ([4, 4, 2], &["001"], [3, 4, 3]),
            ([5, 5, 0], &["001", "006"], [4, 4, 2]),
        ] {
            let mut view = view(&counts);
            let moves = strategy.moves(&view, &BTreeSet::new());
            assert_eq!(names(&moves), expected, "{counts:?}");
            apply(&mut view, moves, |view, _| strategy.choose(view));
            assert_eq!(counts_of(&view), after, "{counts:?}");
        }
        assert_eq!(strategy.choose(&view(&[1, 1, 0])), Some(region(3)));
    }

    /// Scenario sharding 41: the last case takes a second round, which balances a difference of two.
    #[test]
    fn a_second_round_evens_out_what_the_first_left() {
        let strategy = limits(1000, 1.0);
        let mut view = view(&[5, 5, 0]);
        for (expected, after) in [(&["001", "006"][..], [4, 4, 2]), (&["002"], [3, 4, 3]), (&[], [3, 4, 3])] {
            let moves = strategy.moves(&view, &BTreeSet::new());
            assert_eq!(names(&moves), expected);
            apply(&mut view, moves, |view, _| strategy.choose(view));
            assert_eq!(counts_of(&view), after);
        }
    }

    /// Scenario sharding 42.
    #[test]
    fn least_shard_keeps_both_limits() {
        assert_eq!(moved(&limits(3, 1.0), &view(&[1, 9, 0])), ["002", "003", "004"]);
        assert_eq!(moved(&limits(5, 0.3), &view(&[1, 9, 0])), ["002", "003", "004"]);
        let in_progress = BTreeSet::from([ShardId::from_index(1)]);
        assert!(limits(5, 0.3).moves(&view(&[1, 9, 0]), &in_progress).is_empty());
        assert_eq!(moved(&limits(5, 0.0), &view(&[1, 9, 0])), ["002"], "one may always move");
        assert_eq!(moved(&limits(1, 1.0), &view(&[5, 5, 4, 1])), ["001"], "the second phase keeps the limit too");
    }

    /// Scenario sharding 42: within a limit, regions offer in the order of suitability.
    #[test]
    fn a_limit_takes_from_the_more_suitable_region_first() {
        let view = view(&[9, 1, 7]);
        assert_eq!(moved(&limits(1, 1.0), &view), ["011"]);
        assert_eq!(moved(&limits(2, 1.0), &view), ["001", "011"]);
        assert_eq!(moved(&limits(9, 1.0), &view), ["001", "002", "003", "011"]);
    }

    /// Scenario sharding 43: the cases of this strategy; the order of suitability is tested with the view.
    #[test]
    fn versions_reachability_and_joining_members_decide_first() {
        let strategy = LeastShard::default();
        let mut versions = view(&[0, 3, 0]);
        versions.regions[1].app_version = "2.0".parse().unwrap();
        assert_eq!(strategy.choose(&versions), Some(region(2)), "the newest version, whatever it hosts");
        assert!(moved(&strategy, &versions).is_empty(), "versions differ");
        let mut leaving = view(&[0, 3, 3]);
        leaving.regions[0].phase = MemberPhase::Leaving;
        assert_eq!(strategy.choose(&leaving), Some(region(2)));
        let mut silent = view(&[0, 3, 0]);
        silent.regions[0].reachable = false;
        assert_eq!(strategy.choose(&silent), Some(region(3)));
        assert!(moved(&strategy, &silent).is_empty());
        let joining = View { unsettled: true, ..view(&[5, 0, 0]) };
        assert!(moved(&strategy, &joining).is_empty());
        assert_eq!(strategy.choose(&View::default()), None);
        assert!(moved(&strategy, &View::default()).is_empty());
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

    /// Plays rounds until none moves a shard, and checks each: it keeps the limit, moves no shard back to its former
    /// region, and leaves the counts more even than before, so that the rounds cannot go in circles.
    fn play(strategy: &LeastShard, counts: &[usize]) -> usize {
        let mut view = view(counts);
        let total: usize = counts.iter().sum();
        let unevenness = |view: &View| counts_of(view).iter().map(|count| count * count).sum::<usize>();
        for round in 0.. {
            let before = unevenness(&view);
            let moves = strategy.moves(&view, &BTreeSet::new());
            let sizes = counts_of(&view);
            if moves.is_empty() {
                assert!(
                    sizes.iter().max().unwrap() - sizes.iter().min().unwrap() <= 1,
                    "{counts:?} ended as {sizes:?}"
                );
                return round;
            }
            assert!(moves.len() <= strategy.limit(total), "{counts:?}");
            let back = apply(&mut view, moves, |view, _| strategy.choose(view));
            assert_eq!(back, 0, "shards of {counts:?} moved to where they were");
            assert!(unevenness(&view) < before, "{counts:?} by way of {sizes:?}");
            assert_eq!(counts_of(&view).iter().sum::<usize>(), total);
        }
        unreachable!("the rounds are counted without end")
    }

    fn draw(rng: &mut ChaCha8Rng, regions: usize, shards: usize) -> Vec<usize> {
        (0..rng.random_range(1..=regions)).map(|_| rng.random_range(0..=shards)).collect()
    }

    /// Scenario sharding 45.
    #[test]
    fn rounds_end_balanced_and_stay_so() {
        let mut rng = ChaCha8Rng::seed_from_u64(45);
        for (regions, shards, repeats) in
            [(5, 5, 200), (5, 100, 50), (20, 5, 200), (20, 40, 50), (20, 200, 20), (100, 10, 50), (100, 100, 10)]
        {
            for _ in 0..repeats {
                let counts = draw(&mut rng, regions, shards);
                assert!(play(&limits(usize::MAX, 1.0), &counts) <= 2, "two rounds are enough for {counts:?}");
            }
        }
    }

    /// Scenario sharding 45: at full size, every region with up to a thousand shards.
    #[test]
    fn a_hundred_regions_of_a_thousand_shards_are_balanced_in_two_rounds() {
        let mut rng = ChaCha8Rng::seed_from_u64(451);
        for _ in 0..3 {
            let counts: Vec<_> = (0..100).map(|_| rng.random_range(0..=1000)).collect();
            assert!(play(&limits(usize::MAX, 1.0), &counts) <= 2, "{counts:?}");
        }
    }

    /// Scenario sharding 45: with limits that bind, there are as many rounds as the moves need, and no more.
    #[test]
    fn rounds_within_limits_end_balanced_and_stay_so() {
        let mut rng = ChaCha8Rng::seed_from_u64(452);
        for (regions, shards, repeats) in [(5, 5, 200), (20, 20, 50), (20, 50, 20), (100, 10, 20)] {
            for _ in 0..repeats {
                let counts = draw(&mut rng, regions, shards);
                let strategy = limits(rng.random_range(1..=12), rng.random_range(0.0..1.0));
                let total: usize = counts.iter().sum();
                let (share, limit) = (total.div_ceil(counts.len()), strategy.limit(total));
                let excess: usize = counts.iter().map(|count| count.saturating_sub(share)).sum();
                // The second phase moves less than one shard for each region.
                let enough = excess.div_ceil(limit) + counts.len().div_ceil(limit);
                assert!(play(&strategy, &counts) <= enough, "{enough} rounds of {limit} are enough for {counts:?}");
            }
        }
    }

    /// A region that leaves gets no shards, so no shards move for its sake.
    #[test]
    fn a_region_that_leaves_has_no_share() {
        let mut leaving = view(&[5, 5, 0]);
        leaving.regions[2].phase = MemberPhase::Leaving;
        assert!(LeastShard::default().moves(&leaving, &BTreeSet::new()).is_empty());
        leaving.regions[2].phase = MemberPhase::Up;
        assert!(!LeastShard::default().moves(&leaving, &BTreeSet::new()).is_empty());
    }
}
