//! The requests that wait for a group, with the channels that take their answers.

use futures::channel::oneshot;

use crate::planner::Request;

/// A queue, first come, first served.
#[derive(Debug)]
pub(crate) struct Queue<R, A> {
    /// In a vector of their own, beside the senders: a group that takes all requests moves none.
    requests: Vec<R>,
    senders: Vec<oneshot::Sender<A>>,
    bytes: usize,
}

impl<R: Request, A> Queue<R, A> {
    pub(crate) fn push(&mut self, request: R, sender: oneshot::Sender<A>) {
        self.bytes += request.bytes();
        self.requests.push(request);
        self.senders.push(sender);
    }

    pub(crate) fn len(&self) -> usize {
        self.requests.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// The sum of [`Request::bytes`] of all requests.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Takes the first requests, at most `most` of at most `max_bytes` together; a larger request is taken alone.
    pub(crate) fn take(&mut self, most: usize, max_bytes: usize) -> (Vec<R>, Vec<oneshot::Sender<A>>) {
        let (count, bytes) = self.first(most, max_bytes);
        self.bytes -= bytes;
        (take_first(&mut self.requests, count), take_first(&mut self.senders, count))
    }

    /// How many requests [`take`](Self::take) takes, and their bytes.
    fn first(&self, most: usize, max_bytes: usize) -> (usize, usize) {
        if self.len() <= most && self.bytes <= max_bytes {
            return (self.len(), self.bytes);
        }
        let mut taken = 0;
        for (count, request) in self.requests.iter().enumerate() {
            let bytes = taken + request.bytes();
            if count > 0 && (count >= most || bytes > max_bytes) {
                return (count, taken);
            }
            taken = bytes;
        }
        (self.len(), taken)
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }
}

impl<R, A> Default for Queue<R, A> {
    fn default() -> Self {
        Self { requests: Vec::new(), senders: Vec::new(), bytes: 0 }
    }
}

fn take_first<T>(all: &mut Vec<T>, count: usize) -> Vec<T> {
    // Reserve the same room again: as many are likely to come.
    let rest = if count == all.len() { Vec::with_capacity(count) } else { all.split_off(count) };
    std::mem::replace(all, rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Bytes(usize);

    impl Request for Bytes {
        fn bytes(&self) -> usize {
            self.0
        }
    }

    fn queue(sizes: &[usize]) -> Queue<Bytes, ()> {
        let mut queue = Queue::default();
        sizes.iter().for_each(|bytes| queue.push(Bytes(*bytes), oneshot::channel().0));
        queue
    }

    fn take(queue: &mut Queue<Bytes, ()>, most: usize, max_bytes: usize) -> Vec<usize> {
        let (requests, senders) = queue.take(most, max_bytes);
        assert_eq!(requests.len(), senders.len());
        requests.iter().map(|request| request.0).collect()
    }

    #[test]
    fn groups_take_the_first_requests_within_both_bounds() {
        let mut queue = queue(&[1, 2, 3, 4, 5]);
        assert_eq!(take(&mut queue, 2, 100), [1, 2]);
        assert_eq!((queue.len(), queue.bytes()), (3, 12));
        assert_eq!(take(&mut queue, 10, 8), [3, 4]);
        assert_eq!(take(&mut queue, 10, 100), [5]);
        assert_eq!((queue.len(), queue.bytes(), queue.is_empty()), (0, 0, true));
    }

    #[test]
    fn a_request_too_large_for_a_group_is_taken_alone() {
        let mut queue = queue(&[9, 1]);
        assert_eq!(take(&mut queue, 10, 5), [9]);
        assert_eq!(take(&mut queue, 10, 5), [1]);
        assert_eq!(take(&mut queue, 10, 5), [0; 0]);
    }
}
