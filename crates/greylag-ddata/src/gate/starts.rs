//! Starts: the moments at which a history went on after all replicators had stopped. Two replicators compare the starts
//! that they know to find out since when their histories differ. Source: ddata Z11.

use std::cmp::Reverse;

use greylag_crdt::{ReplicaId, hash64};

/// How many starts a replicator remembers; the newest are kept.
pub(crate) const KEPT: usize = 8;

/// A start: a replicator made its own data the measure by which all others are judged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Start {
    /// The replicator that made the start.
    pub maker: ReplicaId,
    /// The time up to which the maker's data were those of the former history: wall clock in milliseconds. `None` for
    /// the start of a new history, of replicators that had nothing stored.
    pub base: Option<i64>,
}

/// The starts that a replicator knows, the oldest first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Starts(Vec<Start>);

impl Starts {
    /// The newest eight of `starts`.
    pub fn of(starts: impl IntoIterator<Item = Start>) -> Self {
        let mut all: Vec<Start> = starts.into_iter().collect();
        all.drain(..all.len().saturating_sub(KEPT));
        Self(all)
    }

    /// All starts, the oldest first.
    pub fn iter(&self) -> impl Iterator<Item = &Start> {
        self.0.iter()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn latest(&self) -> Option<&Start> {
        self.0.last()
    }

    pub(crate) fn contains(&self, start: &Start) -> bool {
        self.0.contains(start)
    }

    pub(crate) fn push(&mut self, start: Start) {
        self.0.push(start);
        self.0.drain(..self.0.len().saturating_sub(KEPT));
    }

    /// A base for a further start of `maker`: `base`, or some milliseconds earlier if the maker made a start with that
    /// base before. A replicator that restarts in its process is the same maker, and may have the same time in touch;
    /// two starts that look alike would be taken for one.
    pub(crate) fn unused_base(&self, maker: ReplicaId, base: i64) -> i64 {
        let is_unused = |base: &i64| !self.contains(&Start { maker, base: Some(*base) });
        let near = (0..=KEPT as i64).map(|by| base.saturating_sub(by));
        // Try later times too: nothing is earlier than the least time.
        near.chain((1..=KEPT as i64).map(|by| base.saturating_add(by))).find(is_unused).unwrap_or(base)
    }

    /// The digest of the list, for a peer that knows it.
    pub(crate) fn digest(&self) -> u64 {
        let bytes = self.0.iter().flat_map(|start| {
            let base = start.base.unwrap_or_default().to_be_bytes();
            start.maker.0.to_be_bytes().into_iter().chain([u8::from(start.base.is_some())]).chain(base)
        });
        hash64(&bytes.collect::<Vec<u8>>())
    }

    /// Whether only starts of a new history are known, or none.
    pub(crate) fn has_no_base(&self) -> bool {
        self.latest().is_none_or(|latest| latest.base.is_none())
    }

    /// Whether these starts are later than `others`: a list with a base is later than one without; a list that goes on
    /// from another is later than that one. Of two forked histories the one whose first own start has the later base is
    /// later, then the one of the smaller maker. The order is total: of several histories every replicator finds the
    /// same latest one.
    pub(crate) fn are_later_than(&self, others: &Self) -> bool {
        let rank = |starts: &Self, other: &Self| {
            let shared = starts.0.iter().rposition(|start| other.contains(start)).map_or(0, |at| at + 1);
            let fork = starts.0.get(shared).map(|start| (start.base, Reverse(start.maker)));
            (!starts.has_no_base(), fork)
        };
        rank(self, others) > rank(others, self)
    }

    /// When a history that was in touch until `synced_at` and knows these starts parted from one that knows `others`;
    /// before everything, if a start without base is known to one side only.
    pub(crate) fn parted(&self, synced_at: i64, others: &Self) -> i64 {
        let of_one = self.0.iter().filter(|start| !others.contains(start));
        let of_other = others.0.iter().filter(|start| !self.contains(start));
        of_one.chain(of_other).map(|start| start.base.unwrap_or(i64::MIN)).fold(synced_at, i64::min)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn start(maker: u64, base: Option<i64>) -> Start {
        Start { maker: ReplicaId(maker), base }
    }

    /// ddata Z11: histories parted at the least of the time in touch and the bases that only one of both knows.
    #[test]
    fn histories_part_where_only_one_knows_a_start() {
        let own = Starts::of([start(1, None), start(2, Some(50))]);
        assert_eq!(own.parted(90, &own), 90);
        let ahead = Starts::of([start(1, None), start(2, Some(50)), start(3, Some(70))]);
        assert_eq!((own.parted(90, &ahead), ahead.parted(90, &own)), (70, 70));
        assert_eq!(own.parted(60, &ahead), 60);
        let other = Starts::of([start(4, Some(80)), start(2, Some(50))]);
        assert_eq!(own.parted(90, &other), i64::MIN, "one began anew");
    }

    /// ddata Z11: of any two lists one is later, and the order has no cycle. Later is the list that goes on from the
    /// other, that has a base, that forked with a later base, that has the smaller maker.
    #[test]
    fn one_of_two_histories_is_later() {
        let began = start(1, None);
        let ascending = [
            Starts::default(),
            Starts::of([start(5, None)]),
            Starts::of([start(4, None)]),
            Starts::of([began, start(2, Some(50))]),
            Starts::of([began, start(2, Some(50)), start(3, Some(40))]),
            Starts::of([began, start(2, Some(50)), start(6, Some(45))]),
            Starts::of([began, start(2, Some(50)), start(6, Some(45)), start(7, Some(10))]),
            Starts::of([began, start(9, Some(60))]),
            Starts::of([began, start(8, Some(60))]),
        ];
        for (at, one) in ascending.iter().enumerate() {
            for (other_at, other) in ascending.iter().enumerate() {
                assert_eq!(one.are_later_than(other), at > other_at, "{at} and {other_at}");
            }
        }
    }

    #[test]
    fn the_newest_are_kept() {
        let mut starts = Starts::of((0..20).map(|maker| start(maker, Some(1))));
        assert_eq!(starts.iter().map(|start| start.maker.0).collect::<Vec<_>>(), (12..20).collect::<Vec<_>>());
        starts.push(start(20, Some(2)));
        assert_eq!((starts.iter().count(), starts.latest()), (KEPT, Some(&start(20, Some(2)))));
        assert_ne!(starts.digest(), Starts::default().digest());
    }
}
