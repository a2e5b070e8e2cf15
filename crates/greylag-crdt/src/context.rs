//! Which dots have been seen.
//!
//! A context holds, per replica, a sorted list of disjoint closed intervals of dot numbers;
//! adjacent ones are fused. It is normally one interval per replica. A bare version vector is not
//! enough: recording "seen (B,5)" as "seen B up to 5" would delete elements that were never seen.
//!
//! Source: ddata K4.

use std::collections::BTreeMap;
use std::fmt;

use crate::codec::{DecodeError, Decoder, Encoder};
use crate::replica::{Dot, ReplicaId};

/// A set of dots, compact where numbers are consecutive.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Context {
    /// No list is empty; within a list, intervals ascend and leave a gap between them.
    seen: BTreeMap<ReplicaId, Vec<(u64, u64)>>,
}

impl Context {
    /// The context that has seen nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether nothing was seen.
    pub fn is_empty(&self) -> bool {
        self.seen.is_empty()
    }

    /// Whether this dot was seen.
    pub fn contains(&self, dot: Dot) -> bool {
        self.seen.get(&dot.replica).is_some_and(|list| {
            let at = list.partition_point(|(_, high)| *high < dot.number);
            list.get(at).is_some_and(|(low, _)| *low <= dot.number)
        })
    }

    /// The highest number seen of a replica; 0 if none.
    pub fn highest(&self, replica: ReplicaId) -> u64 {
        self.seen.get(&replica).and_then(|list| list.last()).map_or(0, |(_, high)| *high)
    }

    /// Adds one dot.
    pub fn insert(&mut self, dot: Dot) {
        self.insert_range(dot.replica, dot.number, dot.number);
    }

    /// Adds the closed interval of numbers `low..=high` of one replica; nothing if it is empty.
    pub fn insert_range(&mut self, replica: ReplicaId, low: u64, high: u64) {
        if low == 0 || low > high {
            return;
        }
        let list = self.seen.entry(replica).or_default();
        // What touches or overlaps the new interval is replaced by one interval over all.
        let from = list.partition_point(|(_, h)| h.saturating_add(1) < low);
        let to = list.partition_point(|(l, _)| *l <= high.saturating_add(1));
        let fused = match list.get(from..to) {
            Some([first, .., last]) => (first.0.min(low), last.1.max(high)),
            Some([only]) => (only.0.min(low), only.1.max(high)),
            _ => (low, high),
        };
        list.splice(from..to, [fused]);
    }

    /// Takes the closed interval `low..=high` of one replica out.
    pub fn remove_range(&mut self, replica: ReplicaId, low: u64, high: u64) {
        let Some(list) = self.seen.get_mut(&replica) else { return };
        let mut kept = Vec::with_capacity(list.len() + 1);
        for (l, h) in list.drain(..) {
            if h < low || l > high {
                kept.push((l, h));
                continue;
            }
            if l < low {
                kept.push((l, low - 1));
            }
            if h > high {
                kept.push((high + 1, h));
            }
        }
        *list = kept;
        if list.is_empty() {
            self.seen.remove(&replica);
        }
    }

    /// Forgets a replica.
    pub fn remove_replica(&mut self, replica: ReplicaId) {
        self.seen.remove(&replica);
    }

    /// Adds everything that the other has seen. Returns whether that was anything new.
    pub fn union(&mut self, other: &Self) -> bool {
        let mut grew = false;
        for (replica, theirs) in &other.seen {
            if self.seen.get(replica) == Some(theirs) {
                continue;
            }
            for (low, high) in theirs {
                if !self.covers(*replica, *low, *high) {
                    self.insert_range(*replica, *low, *high);
                    grew = true;
                }
            }
        }
        grew
    }

    /// The replicas of which something was seen, ascending.
    pub fn replicas(&self) -> impl Iterator<Item = ReplicaId> + '_ {
        self.seen.keys().copied()
    }

    /// The intervals of one replica, ascending.
    pub fn intervals(&self, replica: ReplicaId) -> &[(u64, u64)] {
        self.seen.get(&replica).map_or(&[], Vec::as_slice)
    }

    fn covers(&self, replica: ReplicaId, low: u64, high: u64) -> bool {
        let list = self.intervals(replica);
        let at = list.partition_point(|(_, h)| *h < low);
        list.get(at).is_some_and(|(l, h)| *l <= low && high <= *h)
    }

    /// Writes the replica table and the intervals; dots written afterwards refer to the table.
    pub(crate) fn encode(&self, out: &mut Encoder) {
        out.begin_replicas(self.seen.keys().copied().collect());
        for list in self.seen.values() {
            out.u64(list.len() as u64);
            let mut above = 0;
            for (low, high) in list {
                // Fused intervals leave a gap, so both distances fit and are as small as they can be.
                out.u64(low - above);
                out.u64(high - low);
                above = *high;
            }
        }
    }

    pub(crate) fn decode(inp: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        let mut seen = BTreeMap::new();
        for replica in inp.begin_replicas()? {
            let count = inp.count()?;
            let mut list: Vec<(u64, u64)> = Vec::new();
            let mut above = 0_u64;
            for index in 0..count {
                let overflow = DecodeError::NotCanonical("an interval exceeds the number space");
                let low = above.checked_add(inp.u64()?).ok_or(overflow)?;
                let high = low.checked_add(inp.u64()?).ok_or(overflow)?;
                if low == 0 || (index > 0 && low - above < 2) {
                    return Err(DecodeError::NotCanonical("intervals are not fused or begin at 0"));
                }
                list.push((low, high));
                above = high;
            }
            if list.is_empty() {
                return Err(DecodeError::NotCanonical("a replica without numbers"));
            }
            seen.insert(replica, list);
        }
        Ok(Self { seen })
    }
}

impl FromIterator<Dot> for Context {
    fn from_iter<I: IntoIterator<Item = Dot>>(dots: I) -> Self {
        let mut context = Self::new();
        for dot in dots {
            context.insert(dot);
        }
        context
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut map = f.debug_map();
        for (replica, list) in &self.seen {
            let text: Vec<String> = list.iter().map(|(low, high)| format!("{low}-{high}")).collect();
            map.entry(replica, &format_args!("{}", text.join(",")));
        }
        map.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    const A: ReplicaId = ReplicaId(1);

    fn intervals(ranges: &[(u64, u64)]) -> Context {
        let mut context = Context::new();
        for (low, high) in ranges {
            context.insert_range(A, *low, *high);
        }
        context
    }

    #[test]
    fn adjacent_intervals_fuse() {
        assert_eq!(intervals(&[(1, 4), (5, 9)]), intervals(&[(1, 9)]));
        assert_eq!(intervals(&[(1, 2), (6, 7), (3, 5)]).intervals(A), [(1, 7)]);
        assert_eq!(intervals(&[(1, 2), (6, 7)]).intervals(A), [(1, 2), (6, 7)]);
    }

    #[test]
    fn one_seen_dot_does_not_cover_those_below_it() {
        let context = intervals(&[(5, 5)]);
        assert!(context.contains(Dot::new(A, 5)));
        assert!(!context.contains(Dot::new(A, 4)));
    }

    proptest! {
        #[test]
        fn a_context_is_a_set(
            a in prop::collection::vec((1..40_u64, 0..6_u64), 0..12),
            b in prop::collection::vec((1..40_u64, 0..6_u64), 0..12),
            cut in (1..40_u64, 0..9_u64),
        ) {
            let ranges = |list: &[(u64, u64)]| list.iter().map(|(l, n)| (*l, l + n)).collect::<Vec<_>>();
            let numbers = |list: &[(u64, u64)]| list.iter().flat_map(|(l, n)| *l..=l + n).collect::<BTreeSet<_>>();
            let mut joined = intervals(&ranges(&a));
            let grew = joined.union(&intervals(&ranges(&b)));
            let mut model: BTreeSet<u64> = &numbers(&a) | &numbers(&b);
            prop_assert_eq!(grew, model != numbers(&a));
            prop_assert_eq!(&joined, &model.iter().map(|n| Dot::new(A, *n)).collect::<Context>());
            joined.remove_range(A, cut.0, cut.0 + cut.1);
            model.retain(|n| *n < cut.0 || *n > cut.0 + cut.1);
            prop_assert_eq!(joined, model.iter().map(|n| Dot::new(A, *n)).collect::<Context>());
        }
    }
}
