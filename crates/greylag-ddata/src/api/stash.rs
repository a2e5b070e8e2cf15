//! Requests that wait in order while durable entries are being loaded. Source: ddata U4.

use std::collections::VecDeque;

/// A bounded queue of requests.
#[derive(Debug)]
pub(crate) struct Stash<R> {
    waiting: VecDeque<R>,
    capacity: usize,
}

impl<R> Stash<R> {
    pub(crate) fn new(capacity: usize) -> Self {
        Self { waiting: VecDeque::new(), capacity }
    }

    /// Keeps a request if it has to wait and there is room; otherwise returns it.
    pub(crate) fn admit(&mut self, request: R, waits: bool) -> Option<R> {
        if waits && self.waiting.len() < self.capacity {
            self.waiting.push_back(request);
            return None;
        }
        Some(request)
    }

    /// Takes the oldest request.
    pub(crate) fn next(&mut self) -> Option<R> {
        self.waiting.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// ddata U4: requests stay in order, and at most as many are kept as there is room for.
    #[test]
    fn stashed_requests_keep_their_order_and_excess_ones_are_returned() {
        let mut stash = Stash::new(2);
        assert_eq!([1, 2, 3].map(|request| stash.admit(request, true)), [None, None, Some(3)]);
        assert_eq!(stash.admit(4, false), Some(4));
        assert_eq!([stash.next(), stash.next(), stash.next()], [Some(1), Some(2), None]);
    }
}
