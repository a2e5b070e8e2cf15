//! The deadlines of many children under one timer.
//!
//! Children move their deadlines with every message, mostly to later. The heap keeps at most one live entry per child,
//! which may be early: an entry that fires too early is pushed again with the child's present deadline. So a message
//! costs nothing here unless its deadline moves to an earlier time, and a tick touches only children whose entry is
//! due.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::{Duration, Instant};

/// `now` plus `pause`, cut to a century.
pub(crate) fn after(now: Instant, pause: Duration) -> Instant {
    now + pause.min(Duration::from_secs(100 * 365 * 24 * 3600))
}

/// Kept by a child: the time of its entry in the heap, if there is one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct ArmedTimer(Option<Instant>);

/// A heap with at most one live entry per key.
#[derive(Debug, Clone)]
pub(crate) struct Deadlines<K> {
    heap: BinaryHeap<Reverse<(Instant, K)>>,
}

impl<K: Ord> Deadlines<K> {
    pub(crate) fn new() -> Self {
        Self { heap: BinaryHeap::new() }
    }

    /// Pushes an entry for `key` unless one at or before the deadline exists.
    pub(crate) fn arm(&mut self, key: K, armed: &mut ArmedTimer, deadline: Option<Instant>) {
        let Some(deadline) = deadline else { return };
        if armed.0.is_none_or(|at| deadline < at) {
            armed.0 = Some(deadline);
            self.heap.push(Reverse((deadline, key)));
        }
    }

    /// The time of the earliest entry; may be early.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.heap.peek().map(|Reverse((at, _))| *at)
    }

    /// Pops the next due entry, with its time for [`ArmedTimer::fired`].
    pub(crate) fn pop_due(&mut self, now: Instant) -> Option<(Instant, K)> {
        if self.next()? > now {
            return None;
        }
        self.heap.pop().map(|Reverse(entry)| entry)
    }
}

impl ArmedTimer {
    /// Whether the child is looked at by this deadline.
    pub(crate) fn covers(&self, deadline: Option<Instant>) -> bool {
        deadline.is_none_or(|deadline| self.0.is_some_and(|at| at <= deadline))
    }

    /// Whether the popped entry was the child's live one, rather than one superseded by an earlier entry; a live entry
    /// is cleared.
    pub(crate) fn fired(&mut self, entry: Instant) -> bool {
        let live = self.0 == Some(entry);
        if live {
            self.0 = None;
        }
        live
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn later_deadlines_cost_nothing_and_superseded_entries_are_forgotten() {
        let start = Instant::now();
        let at = |s| start + Duration::from_secs(s);
        let (mut deadlines, mut armed) = (Deadlines::new(), ArmedTimer::default());
        deadlines.arm("a", &mut armed, Some(at(5)));
        deadlines.arm("a", &mut armed, Some(at(9)));
        assert_eq!(deadlines.heap.len(), 1, "the entry may be early");
        deadlines.arm("a", &mut armed, Some(at(2)));
        assert_eq!(deadlines.next(), Some(at(2)));
        let (entry, _) = deadlines.pop_due(at(3)).unwrap();
        assert!(armed.fired(entry));
        deadlines.arm("a", &mut armed, Some(at(9)));
        let (entry, _) = deadlines.pop_due(at(6)).unwrap();
        assert!(!armed.fired(entry), "superseded at 2 s");
        assert_eq!(deadlines.next(), Some(at(9)));
        assert_eq!(deadlines.pop_due(at(8)), None);
    }

    #[test]
    fn a_pause_is_added_whole_up_to_a_century() {
        let now = Instant::now();
        let year = Duration::from_secs(365 * 24 * 3600);
        assert_eq!(after(now, Duration::from_secs(90)), now + Duration::from_secs(90));
        assert_eq!(after(now, 99 * year), now + 99 * year);
        assert_eq!(after(now, Duration::MAX), now + 100 * year);
    }
}
