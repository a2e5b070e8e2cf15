//! A context: the set of dots that were seen.
//!
//! A context holds, per replica, a sorted list of disjoint closed intervals of dot numbers; adjacent ones are fused.
//! Normally there is one interval per replica. A bare version vector is not enough: recording "seen (B,5)" as "seen B
//! up to 5" would delete elements that were never seen.
//!
//! Source: ddata K4.

use std::fmt;
use std::ops::Range;

use smallvec::SmallVec;

use crate::causality::replica::{Dot, MAX_NUMBER, ReplicaId};
use crate::encoding::codec::{DecodeError, Decoder, Encoder};
use crate::pruning::rename::Moves;

/// Up to so many intervals are looked up one by one; more are compared in one walk along both contexts.
const LOOKUP_LIMIT: usize = 4;

/// A closed interval of one replica's numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Interval {
    replica: ReplicaId,
    low: u64,
    high: u64,
}

/// One interval, as most contexts have, takes no heap memory.
type Intervals = SmallVec<[Interval; 1]>;

/// A set of dots, compact where numbers are consecutive.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Context {
    /// Sorted by replica, then ascending; two intervals of one replica have a gap between them.
    seen: Intervals,
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
        self.overlaps(dot.replica, dot.number, dot.number)
    }

    /// Whether any of the numbers `low..=high` of a replica was seen.
    pub fn overlaps(&self, replica: ReplicaId, low: u64, high: u64) -> bool {
        let at = self.seen.partition_point(|i| (i.replica, i.high) < (replica, low));
        self.seen.get(at).is_some_and(|i| i.replica == replica && i.low <= high)
    }

    /// Whether any dot is in both contexts.
    pub fn intersects(&self, other: &Self) -> bool {
        other.seen.iter().any(|i| self.overlaps(i.replica, i.low, i.high))
    }

    /// The highest number seen of a replica; 0 if none.
    pub fn highest(&self, replica: ReplicaId) -> u64 {
        self.of(replica).last().map_or(0, |interval| interval.high)
    }

    /// The lowest number seen of a replica.
    pub fn lowest(&self, replica: ReplicaId) -> Option<u64> {
        self.of(replica).first().map(|interval| interval.low)
    }

    fn of(&self, replica: ReplicaId) -> &[Interval] {
        let from = self.seen.partition_point(|i| i.replica < replica);
        let to = from + self.seen[from..].partition_point(|i| i.replica == replica);
        &self.seen[from..to]
    }

    /// Adds one dot.
    pub fn insert(&mut self, dot: Dot) {
        self.insert_range(dot.replica, dot.number, dot.number);
    }

    /// Adds the closed interval of numbers `low..=high` of one replica; does nothing if the interval is empty.
    pub fn insert_range(&mut self, replica: ReplicaId, low: u64, high: u64) {
        if low == 0 || low > high || self.covers(replica, low, high) {
            return;
        }
        // Fuse all intervals that touch or overlap the new one.
        let from = self.seen.partition_point(|i| (i.replica, i.high.saturating_add(1)) < (replica, low));
        let to = self.seen.partition_point(|i| (i.replica, i.low) <= (replica, high.saturating_add(1)));
        let list = &mut self.seen;
        let touched = &list[from..to];
        let low = touched.first().map_or(low, |first| first.low.min(low));
        let high = touched.last().map_or(high, |last| last.high.max(high));
        replace(list, from..to, [Interval { replica, low, high }]);
    }

    /// Removes the closed interval `low..=high` of one replica.
    pub fn remove_range(&mut self, replica: ReplicaId, low: u64, high: u64) {
        if low > high || !self.overlaps(replica, low, high) {
            return;
        }
        let from = self.seen.partition_point(|i| (i.replica, i.high) < (replica, low));
        let to = self.seen.partition_point(|i| (i.replica, i.low) <= (replica, high));
        let (first, last) = (self.seen[from], self.seen[to - 1]);
        let below = (first.low < low).then(|| Interval { high: low - 1, ..first });
        let above = (last.high > high).then(|| Interval { low: high + 1, ..last });
        replace(&mut self.seen, from..to, below.into_iter().chain(above));
    }

    /// Forgets a replica.
    pub fn remove_replica(&mut self, replica: ReplicaId) {
        self.remove_range(replica, 0, u64::MAX);
    }

    /// Adds everything that `other` has seen. Returns whether anything was new.
    pub fn union(&mut self, other: &Self) -> bool {
        let is_new = !self.covers_all(other);
        if is_new {
            self.add_all(other);
        }
        is_new
    }

    /// Adds everything that `other` has seen; for callers that know that something is new.
    pub(crate) fn add_all(&mut self, other: &Self) {
        if self.is_empty() {
            self.clone_from(other);
        } else if other.seen.len() <= LOOKUP_LIMIT {
            other.seen.iter().for_each(|i| self.insert_range(i.replica, i.low, i.high));
        } else {
            self.seen = self.merged(other);
        }
    }

    /// The union of two contexts, in one walk along both.
    fn merged(&self, other: &Self) -> Intervals {
        let (mut own, mut theirs) = (&self.seen[..], &other.seen[..]);
        let mut merged = Intervals::with_capacity(own.len() + theirs.len());
        let mut push = |next: &Interval| match merged.last_mut() {
            Some(last) if last.replica == next.replica && next.low <= last.high.saturating_add(1) => {
                last.high = last.high.max(next.high);
            }
            _ => merged.push(*next),
        };
        while let ([first, rest @ ..], [their_first, their_rest @ ..]) = (own, theirs) {
            if (first.replica, first.low) <= (their_first.replica, their_first.low) {
                push(first);
                own = rest;
            } else {
                push(their_first);
                theirs = their_rest;
            }
        }
        own.iter().chain(theirs).for_each(push);
        merged
    }

    /// Whether everything that `other` has seen was seen here.
    pub(crate) fn covers_all(&self, other: &Self) -> bool {
        if other.seen.len() <= LOOKUP_LIMIT {
            return other.seen.iter().all(|i| self.covers(i.replica, i.low, i.high));
        }
        let mut own = self.seen.iter();
        let mut next = own.next();
        self.seen == other.seen
            || other.seen.iter().all(|i| {
                while let Some(below) = next
                    && (below.replica, below.high) < (i.replica, i.low)
                {
                    next = own.next();
                }
                next.is_some_and(|next| next.replica == i.replica && next.low <= i.low && i.high <= next.high)
            })
    }

    /// The replicas of which something was seen, ascending.
    pub fn replicas(&self) -> impl Iterator<Item = ReplicaId> + '_ {
        self.seen.chunk_by(|a, b| a.replica == b.replica).map(|list| list[0].replica)
    }

    /// The intervals of one replica, ascending.
    pub fn intervals(&self, replica: ReplicaId) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.of(replica).iter().map(|interval| (interval.low, interval.high))
    }

    fn covers(&self, replica: ReplicaId, low: u64, high: u64) -> bool {
        let at = self.seen.partition_point(|i| (i.replica, i.high) < (replica, low));
        self.seen.get(at).is_some_and(|i| i.replica == replica && i.low <= low && high <= i.high)
    }

    /// Whether any number that the moves rename was seen.
    pub(crate) fn is_moved_by(&self, moves: &Moves) -> bool {
        moves.iter().any(|m| self.overlaps(m.from, m.low, m.high))
    }

    /// Renames all numbers of the moves at once.
    pub(crate) fn rename(&mut self, moves: &Moves) {
        let mut renamed: Vec<(Dot, u64)> = Vec::new();
        for m in moves.iter() {
            for (low, high) in self.intervals(m.from) {
                let (low, high) = (low.max(m.low), high.min(m.high));
                if low <= high {
                    renamed.push((m.target(low), high - low));
                }
            }
        }
        moves.iter().for_each(|m| self.remove_range(m.from, m.low, m.high));
        for (first, more) in renamed {
            self.insert_range(first.replica, first.number, first.number + more);
        }
    }

    /// Writes what `encode` writes if `others` is empty.
    pub(crate) fn encode_alone(&self, out: &mut Encoder) {
        out.u64(self.replicas().count() as u64);
        self.replicas().for_each(|replica| out.u64(replica.0));
        for list in self.seen.chunk_by(|a, b| a.replica == b.replica) {
            encode_list(list, out);
        }
    }

    /// Writes the replica table, which names `others` too, and the intervals. Dots written afterwards refer to the
    /// table.
    pub(crate) fn encode(&self, others: impl Iterator<Item = ReplicaId>, out: &mut Encoder) {
        let mut table: Vec<ReplicaId> = self.replicas().chain(others).collect();
        table.sort_unstable();
        table.dedup();
        out.begin_replicas(table.clone());
        for replica in table {
            encode_list(self.of(replica), out);
        }
    }

    /// Reads what `encode` wrote. Returns also the replicas without numbers: the caller must check that something else
    /// names them.
    pub(crate) fn decode(inp: &mut Decoder<'_>) -> Result<(Self, Vec<ReplicaId>), DecodeError> {
        let (mut seen, mut others) = (Intervals::new(), Vec::new());
        for replica in inp.begin_replicas()? {
            let count = inp.count()?;
            let mut above = 0_u64;
            for index in 0..count {
                let overflow = || DecodeError::NotCanonical("an interval exceeds the number space");
                let low = above.checked_add(inp.u64()?).ok_or_else(overflow)?;
                let high = low.checked_add(inp.u64()?).filter(|high| *high <= MAX_NUMBER).ok_or_else(overflow)?;
                if low == 0 || (index > 0 && low - above < 2) {
                    return Err(DecodeError::NotCanonical("intervals are not fused or begin at 0"));
                }
                seen.push(Interval { replica, low, high });
                above = high;
            }
            if count == 0 {
                others.push(replica);
            }
        }
        Ok((Self { seen }, others))
    }
}

/// Replaces a range of intervals by others.
fn replace(list: &mut Intervals, Range { start, end }: Range<usize>, others: impl IntoIterator<Item = Interval>) {
    let mut at = start;
    for other in others {
        match list.get_mut(at) {
            Some(former) if at < end => *former = other,
            _ => list.insert(at, other),
        }
        at += 1;
    }
    if at < end {
        list.drain(at..end);
    }
}

/// Writes the intervals of one replica.
fn encode_list(list: &[Interval], out: &mut Encoder) {
    out.u64(list.len() as u64);
    let mut above = 0;
    for Interval { low, high, .. } in list {
        // Two intervals have a gap between them, so both distances fit and are as small as they can be.
        out.u64(low - above);
        out.u64(high - low);
        above = *high;
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
        for replica in self.replicas() {
            let text: Vec<String> = self.intervals(replica).map(|(low, high)| format!("{low}-{high}")).collect();
            map.entry(&replica, &format_args!("{}", text.join(",")));
        }
        map.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    const A: ReplicaId = ReplicaId(2);

    /// The ranges of replica 2, with a neighbour on either side whose numbers must stay as they are.
    fn intervals(ranges: &[(u64, u64)]) -> Context {
        let mut context = Context::new();
        context.insert_range(ReplicaId(1), 5, u64::MAX);
        context.insert_range(ReplicaId(3), 1, 7);
        for (low, high) in ranges {
            context.insert_range(A, *low, *high);
        }
        context
    }

    fn of(numbers: &BTreeSet<u64>) -> Context {
        intervals(&numbers.iter().map(|n| (*n, *n)).collect::<Vec<_>>())
    }

    fn list(context: &Context) -> Vec<(u64, u64)> {
        context.intervals(A).collect()
    }

    /// ddata K4: adjacent intervals are one.
    #[test]
    fn adjacent_intervals_fuse() {
        assert_eq!(intervals(&[(1, 4), (5, 9)]), intervals(&[(1, 9)]));
        assert_eq!(list(&intervals(&[(1, 2), (6, 7), (3, 5)])), [(1, 7)]);
        assert_eq!(list(&intervals(&[(1, 2), (6, 7)])), [(1, 2), (6, 7)]);
    }

    #[test]
    fn one_seen_dot_does_not_cover_those_below_it() {
        let context = intervals(&[(5, 5)]);
        assert!(context.contains(Dot::new(A, 5)));
        assert!(!context.contains(Dot::new(A, 4)));
    }

    /// ddata §9, K2: a context that names a number that no process draws cannot be decoded.
    #[test]
    fn numbers_that_no_process_draws_are_not_decoded() {
        for (high, is_read) in [(MAX_NUMBER, true), (MAX_NUMBER + 1, false), (u64::MAX, false)] {
            let (mut context, mut out) = (Context::new(), Encoder::new());
            context.insert_range(A, 5, high);
            context.encode(std::iter::empty(), &mut out);
            let decoded = Context::decode(&mut Decoder::new(&out.finish()));
            assert_eq!(decoded.is_ok(), is_read, "{high}");
        }
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
            prop_assert_eq!(&joined, &of(&model));
            prop_assert_eq!(joined.overlaps(A, cut.0, cut.0 + cut.1), model.range(cut.0..=cut.0 + cut.1).count() > 0);
            joined.remove_range(A, cut.0, cut.0 + cut.1);
            model.retain(|n| *n < cut.0 || *n > cut.0 + cut.1);
            prop_assert_eq!(&joined, &of(&model));
            joined.remove_replica(A);
            prop_assert_eq!(joined, intervals(&[]));
        }
    }
}
