//! The end of the contiguous run of inserted numbers, from 1 on.
//!
//! Numbers beyond the run are kept as ranges: one number that stays missing costs one range, however many numbers
//! follow.

use std::collections::BTreeMap;

/// See the module's documentation.
#[derive(Debug, Clone, Default)]
pub(crate) struct Contiguous {
    last: u64,
    /// First and last numbers of the ranges beyond the run; ranges touch neither each other nor the run.
    beyond: BTreeMap<u64, u64>,
}

impl Contiguous {
    /// A run up to `last`.
    pub(crate) fn up_to(last: u64) -> Self {
        Self { last, beyond: BTreeMap::new() }
    }

    /// Inserts one number.
    pub(crate) fn insert(&mut self, number: u64) {
        self.insert_range(number, number);
    }

    /// Inserts all numbers from `first` to `last`.
    pub(crate) fn insert_range(&mut self, first: u64, last: u64) {
        let first = first.max(self.last.saturating_add(1));
        if first > last {
            return;
        }
        let (mut first, mut last) = (first, last);
        // Merge ranges that touch the new one.
        while let Some((start, end)) = self.beyond.range(..=last.saturating_add(1)).next_back() {
            let (start, end) = (*start, *end);
            if end.saturating_add(1) < first {
                break;
            }
            self.beyond.remove(&start);
            first = first.min(start);
            last = last.max(end);
        }
        if first == self.last.saturating_add(1) {
            self.last = last;
        } else {
            self.beyond.insert(first, last);
        }
    }

    /// The end of the run: all numbers up to here were inserted.
    pub(crate) fn last(&self) -> u64 {
        self.last
    }

    #[cfg(test)]
    fn ranges(&self) -> usize {
        self.beyond.len()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_run_ends_before_the_first_gap() {
        let mut run = Contiguous::default();
        for (number, last) in [(2, 0), (4, 0), (1, 2), (1, 2), (3, 4), (u64::MAX, 4), (0, 4)] {
            run.insert(number);
            assert_eq!(run.last(), last, "after {number}");
        }
    }

    /// Of delivery 90: confirmations behind one unconfirmed message take one range.
    #[test]
    fn scenario_90_numbers_after_a_gap_are_one_range() {
        let mut run = Contiguous::up_to(6);
        (8..100_000).for_each(|number| run.insert(number));
        assert_eq!((run.last(), run.ranges()), (6, 1));
        run.insert(7);
        assert_eq!((run.last(), run.ranges()), (99_999, 0));
    }

    proptest! {
        #[test]
        fn contiguous_run_equals_a_set_of_numbers(ranges in prop::collection::vec((1_u64..40, 0_u64..6), 0..40)) {
            let (mut run, mut seen) = (Contiguous::default(), BTreeSet::new());
            for (first, length) in ranges {
                run.insert_range(first, first + length);
                seen.extend(first..=first + length);
                let last = (1..).take_while(|number| seen.contains(number)).last().unwrap_or(0);
                prop_assert_eq!(run.last(), last);
            }
        }
    }
}
