//! The classical least-shard algorithm: moves shards from the fullest region while it has too many.
//!
//! A round looks at two regions only, the one with the most shards and the most suitable one, and moves a few shards
//! while their counts differ by more than a threshold. Rounds may overlap: shards in progress no longer count for the
//! region that they leave. The algorithm stops at a larger difference than the default and exists for clusters that are
//! tuned to it.
//!
//! Source: sharding §3; Pekko's least-shard allocation strategy with a threshold.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use super::View;
use crate::ids::{RegionId, ShardId};
use crate::settings::ClassicalLeastShardSettings;

/// Fewest shards first; evens out while the difference exceeds a threshold.
#[derive(Debug, Clone, Default)]
pub struct ClassicalLeastShard {
    settings: ClassicalLeastShardSettings,
}

impl ClassicalLeastShard {
    /// A strategy with this threshold and this limit.
    pub fn new(settings: ClassicalLeastShardSettings) -> Self {
        Self { settings }
    }

    /// The most suitable region. One pass over the regions, however many shards they have.
    pub fn choose(&self, view: &View) -> Option<RegionId> {
        view.most_suitable().map(|region| region.region.clone())
    }

    /// The shards to move now, besides those in progress; all from one region, in the order of their names.
    ///
    /// Looks at every shard once, and sorts the shards of one region.
    pub fn moves(&self, view: &View, in_progress: &BTreeSet<ShardId>) -> BTreeSet<ShardId> {
        if !view.is_good_time() {
            return BTreeSet::new();
        }
        let Some(least) = view.most_suitable() else { return BTreeSet::new() };
        let Some(mut most) = fullest(view, in_progress) else { return BTreeSet::new() };
        let threshold = self.settings.threshold.get();
        let room = self.settings.max_simultaneous.get().saturating_sub(in_progress.len());
        let beyond = most.len().saturating_sub(least.shards.len()).saturating_sub(threshold);
        most.sort_unstable();
        most.into_iter().take(beyond.min(threshold).min(room)).cloned().collect()
    }
}

/// The shards that the fullest region keeps once those in progress have left; of several fullest regions, those of the
/// most suitable one.
fn fullest<'a>(view: &'a View, in_progress: &BTreeSet<ShardId>) -> Option<Vec<&'a ShardId>> {
    let remaining = view.regions.iter().map(|region| {
        let shards = region.shards.iter().filter(|shard| !in_progress.contains(*shard));
        (shards.collect::<Vec<_>>(), region)
    });
    let fullest = remaining.min_by_key(|(shards, region)| (Reverse(shards.len()), region.suitability()));
    fullest.map(|(shards, _)| shards)
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;

    use rand::{RngExt, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    use super::*;
    use crate::allocation::tests::{apply, counts_of, names, region, shards, view};

    fn classical(threshold: usize, max_simultaneous: usize) -> ClassicalLeastShard {
        let [threshold, max_simultaneous] = [threshold, max_simultaneous].map(|n| NonZeroUsize::new(n).unwrap());
        ClassicalLeastShard::new(ClassicalLeastShardSettings { threshold, max_simultaneous })
    }

    /// Plays overlapping rounds: shards named by earlier rounds are still in progress in later ones.
    fn overlapping(strategy: &ClassicalLeastShard, view: &View, rounds: &[&[&str]]) {
        let mut in_progress = BTreeSet::new();
        for expected in rounds {
            let moves = strategy.moves(view, &in_progress);
            assert_eq!(names(&moves), *expected, "{:?} with {in_progress:?} in progress", counts_of(view));
            in_progress.extend(moves);
        }
    }

    /// Scenario sharding 44.
    #[test]
    fn the_classical_algorithm_moves_what_the_reference_suite_expects() {
        let one = classical(1, 10);
        overlapping(&one, &view(&[2, 0, 0]), &[&["001"], &[]]);
        overlapping(&one, &view(&[1, 1, 0]), &[&[]]);
        overlapping(&one, &view(&[1, 2, 0]), &[&["002"], &[]]);
        overlapping(&one, &view(&[3, 0, 0]), &[&["001"], &["002"]]);
        overlapping(&one, &view(&[4, 4, 0]), &[&["001"], &["005"]]);
        overlapping(&one, &view(&[4, 4, 2]), &[&["001"], &["005"]]);
        let two = classical(2, 10);
        overlapping(&two, &view(&[1, 2, 0]), &[&[]]);
        overlapping(&two, &view(&[2, 2, 0]), &[&[]]);
        overlapping(&two, &view(&[1, 3, 0]), &[&["002"], &[]]);
        overlapping(&two, &view(&[3, 3, 0]), &[&["001"], &["004"], &[]]);
        overlapping(&two, &view(&[4, 4, 0]), &[&["001", "002"], &["005", "006"], &[]]);
        overlapping(&two, &view(&[5, 5, 0]), &[&["001", "002"], &["006", "007"], &["003"]]);
        let rounds: [&[&str]; 3] = [&["001", "002"], &["051", "052"], &["003", "004"]];
        overlapping(&classical(2, 100), &view(&[50, 0, 50]), &rounds);
    }

    /// Scenario sharding 44: no more than a limit move at the same time, and none of them twice.
    #[test]
    fn moves_in_progress_take_room_and_are_not_named_again() {
        overlapping(&classical(3, 2), &view(&[1, 10, 0]), &[&["002", "003"], &[]]);
        let moves = classical(3, 4).moves(&view(&[10, 0, 0]), &shards(&["002", "003"]));
        assert_eq!(names(&moves), ["001", "004"]);
        let moves = classical(3, 2).moves(&view(&[10, 0, 0]), &shards(&["002", "003", "004"]));
        assert!(moves.is_empty(), "more in progress than a changed limit allows");
    }

    /// Scenario sharding 44: shards leave in the order of their names, whatever the order of allocation.
    #[test]
    fn shards_leave_in_the_order_of_their_names() {
        let mut view = view(&[5, 0]);
        view.regions[0].shards.reverse();
        assert_eq!(names(&classical(2, 10).moves(&view, &BTreeSet::new())), ["001", "002"]);
    }

    /// Scenario sharding 44: the order of suitability and the good time are those of the default.
    #[test]
    fn nothing_moves_while_versions_differ_or_a_member_is_silent_or_joins() {
        let strategy = classical(2, 100);
        let nothing = |view: &View| strategy.moves(view, &BTreeSet::new()).is_empty();
        assert!(!nothing(&view(&[5, 5, 0])));
        let mut versions = view(&[5, 5, 0]);
        versions.regions[1].app_version = "1.0.1".parse().unwrap();
        assert!(nothing(&versions));
        assert_eq!(strategy.choose(&versions), Some(region(2)));
        let mut silent = view(&[5, 5, 0]);
        silent.regions[1].reachable = false;
        assert!(nothing(&silent));
        assert!(nothing(&View { unsettled: true, ..view(&[5, 5, 0]) }));
        assert!(nothing(&View::default()));
        assert_eq!(strategy.choose(&View::default()), None);
        assert_eq!(strategy.choose(&view(&[1, 1, 0])), Some(region(3)));
    }

    /// Non-overlapping rounds come to an end, with the difference within the threshold.
    #[test]
    fn rounds_end_within_the_threshold_and_stay_so() {
        let mut rng = ChaCha8Rng::seed_from_u64(44);
        for _ in 0..50 {
            let counts: Vec<_> = (0..rng.random_range(1..=20)).map(|_| rng.random_range(0..=30)).collect();
            let threshold = rng.random_range(1..=10);
            let strategy = classical(threshold, rng.random_range(1..=5));
            let mut view = view(&counts);
            let unevenness = |view: &View| counts_of(view).iter().map(|count| count * count).sum::<usize>();
            loop {
                let before = unevenness(&view);
                let moves = strategy.moves(&view, &BTreeSet::new());
                if moves.is_empty() {
                    break;
                }
                let back = apply(&mut view, moves, |view, _| strategy.choose(view));
                assert_eq!(back, 0, "shards of {counts:?} moved to where they were");
                assert!(unevenness(&view) < before, "{counts:?}");
            }
            let sizes = counts_of(&view);
            assert!(sizes.iter().max().unwrap() - sizes.iter().min().unwrap() <= threshold, "{counts:?}");
        }
    }
}
