//! The own numbers reserved as images of removed replicas' numbers.
//!
//! One range per span of numbers serves all entries; numbers that turn up later get ranges of their own.
//! Source: ddata Z6.

use std::collections::BTreeMap;

use greylag_crdt::{DotSource, Range, ReplicaId};

/// The reserved ranges.
#[derive(Debug, Default)]
pub(crate) struct Ranges {
    by_removed: BTreeMap<ReplicaId, Vec<Range>>,
    /// The reserved own numbers as ranges `(above, up to]`, which no delta claims (ddata K7).
    reserved: Vec<(u64, u64)>,
}

impl Ranges {
    /// The ranges for one removed replica.
    pub(crate) fn of(&self, removed: ReplicaId) -> &[Range] {
        self.by_removed.get(&removed).map_or(&[], Vec::as_slice)
    }

    /// The own numbers reserved, until the removed replicas are forgotten.
    pub(crate) fn reserved(&self) -> &[(u64, u64)] {
        &self.reserved
    }

    /// Reserves ranges for the numbers of `lowest..=highest` that are not covered yet.
    pub(crate) fn cover(&mut self, numbers: &DotSource, removed: ReplicaId, lowest: u64, highest: u64) {
        let own = self.by_removed.entry(removed).or_default();
        let mut next = lowest;
        let mut open = Vec::new();
        while next <= highest {
            if let Some(range) = own.iter().find(|range| range.covers(next)) {
                next = range.hi.saturating_add(1);
                continue;
            }
            let above = own.iter().map(|range| range.lo + 1).filter(|low| *low > next).min();
            let end = above.map_or(highest, |above| highest.min(above - 1));
            open.push((next, end));
            next = end.saturating_add(1);
            if end == u64::MAX {
                break;
            }
        }
        own.extend(open.into_iter().filter_map(|(low, high)| Range::reserve(numbers, low, high)));
        self.refresh();
    }

    /// Drops the ranges of removed replicas that `keep` refuses.
    pub(crate) fn retain(&mut self, mut keep: impl FnMut(ReplicaId) -> bool) {
        self.by_removed.retain(|removed, _| keep(*removed));
        self.refresh();
    }

    fn refresh(&mut self) {
        self.reserved = self.by_removed.values().flatten().map(Range::reserved).collect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const R: ReplicaId = ReplicaId(9);

    /// ddata §9, K2: nothing is reserved for a span that no replica has drawn, and no number of spans uses up the own
    /// numbers.
    #[test]
    fn absurd_spans_are_not_covered() {
        let (numbers, mut ranges) = (DotSource::above(100), Ranges::default());
        ranges.cover(&numbers, R, 1, 1 << 62);
        assert_eq!((ranges.of(R), numbers.last()), (&[][..], 100));
        for at in 0..100 {
            ranges.cover(&numbers, ReplicaId(1_000 + at), 1, 1 << 56);
        }
        assert!(numbers.last() <= 1 << 62, "{}", numbers.last());
        let last = numbers.draw();
        assert_eq!(numbers.draw(), last + 1);
    }

    /// ddata Z6: ranges begin just below the lowest number, and only uncovered numbers get a range.
    #[test]
    fn spans_are_covered_once() {
        let (numbers, mut ranges) = (DotSource::above(100), Ranges::default());
        ranges.cover(&numbers, R, 1_000_005, 1_000_008);
        assert_eq!(ranges.of(R), [Range { lo: 1_000_004, hi: 1_000_008, offset: 100 }]);
        ranges.cover(&numbers, R, 1_000_006, 1_000_007);
        assert_eq!(ranges.of(R).len(), 1);
        ranges.cover(&numbers, R, 1_000_001, 1_000_010);
        let below = Range { lo: 1_000_000, hi: 1_000_004, offset: 104 };
        let above = Range { lo: 1_000_008, hi: 1_000_010, offset: 108 };
        assert_eq!(ranges.of(R)[1..], [below, above]);
        assert_eq!((ranges.reserved().len(), numbers.last()), (3, 110));
        ranges.retain(|_| false);
        assert_eq!(ranges.reserved(), []);
    }
}
