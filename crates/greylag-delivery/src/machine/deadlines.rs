//! The deadlines of many children under one timer.
//!
//! Children move their deadlines with every message, mostly to later. The heap keeps one entry per
//! child and lets it be early: an entry that comes up too soon is put back at the child's present
//! deadline. So a message costs nothing here unless a deadline moved forward, and no child is ever
//! looked at because another one had work.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Instant;

/// A child's part: when its entry in the heap comes up, if it has one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Armed(Option<Instant>);

/// A heap with at most one live entry per key.
#[derive(Debug, Clone)]
pub(crate) struct Deadlines<K> {
    heap: BinaryHeap<Reverse<(Instant, K)>>,
}

impl<K: Ord> Deadlines<K> {
    pub(crate) fn new() -> Self {
        Self { heap: BinaryHeap::new() }
    }

    /// Makes sure that `key` comes up no later than its deadline.
    pub(crate) fn arm(&mut self, key: K, armed: &mut Armed, deadline: Option<Instant>) {
        let Some(deadline) = deadline else { return };
        if armed.0.is_none_or(|at| deadline < at) {
            armed.0 = Some(deadline);
            self.heap.push(Reverse((deadline, key)));
        }
    }

    /// When a tick next has something to look at; may be early.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.heap.peek().map(|Reverse((at, _))| *at)
    }

    /// Takes the next key whose entry is due, with the entry's instant for [`Armed::fired`].
    pub(crate) fn pop_due(&mut self, now: Instant) -> Option<(Instant, K)> {
        if self.next()? > now {
            return None;
        }
        self.heap.pop().map(|Reverse(entry)| entry)
    }
}

impl Armed {
    /// Whether the entry that came up was the child's live one. An entry that a sooner one had
    /// superseded is not, and is forgotten.
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
    use std::time::Duration;

    #[test]
    fn later_deadlines_cost_nothing_and_superseded_entries_are_forgotten() {
        let start = Instant::now();
        let at = |s| start + Duration::from_secs(s);
        let (mut deadlines, mut armed) = (Deadlines::new(), Armed::default());
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
}
