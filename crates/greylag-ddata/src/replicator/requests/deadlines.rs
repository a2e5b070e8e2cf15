//! The deadlines of requests that wait for other replicas, the earliest first, so that an input costs nothing for the
//! thousands that wait.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Instant;

/// Deadlines by request. The deadline of a request that is over stays until its time, and is then dropped.
#[derive(Debug, Default)]
pub(super) struct Deadlines {
    heap: BinaryHeap<Reverse<(Instant, u64)>>,
}

impl Deadlines {
    /// Notes that a request has something to do at this time.
    pub(super) fn note(&mut self, at: Instant, request: u64) {
        self.heap.push(Reverse((at, request)));
    }

    /// The next deadline.
    pub(super) fn next(&self) -> Option<Instant> {
        self.heap.peek().map(|Reverse((at, _))| *at)
    }

    /// Takes out the deadlines that have come, and those at the front whose requests are over. Returns the pending
    /// requests whose deadlines have come; a deadline that was noted several times counts once.
    pub(super) fn take_due(&mut self, now: Instant, is_pending: impl Fn(u64) -> bool) -> Vec<u64> {
        let mut due = Vec::new();
        while let Some(Reverse((at, request))) = self.heap.peek().copied() {
            if is_pending(request) {
                if at > now {
                    break;
                }
                due.push(request);
            }
            self.heap.pop();
        }
        due.dedup();
        due
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn deadlines_of_finished_requests_are_skipped() {
        let (now, second) = (Instant::now(), Duration::from_secs(1));
        let mut deadlines = Deadlines::default();
        (1..=4_u64).rev().for_each(|request| deadlines.note(now + second * request as u32, request));
        assert_eq!(deadlines.take_due(now, |request| request > 2), [] as [u64; 0]);
        assert_eq!(deadlines.next(), Some(now + second * 3));
        deadlines.note(now + second * 3, 3);
        assert_eq!(deadlines.take_due(now + second * 3, |_| true), [3]);
        assert_eq!(deadlines.take_due(now, |_| false), [] as [u64; 0]);
        assert_eq!(deadlines.next(), None);
    }
}
