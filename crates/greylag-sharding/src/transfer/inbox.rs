//! A bounded queue with many writers and one reader that can be sealed.
//!
//! Writers never wait for room. Sealing draws a line: a push before the seal is in the queue, a push after it is
//! refused and handed back, so no item is lost between two owners of a route. The reader takes everything at once; the
//! lock is held for a push or a swap of two vectors, and belongs to one queue alone.
//!
//! Source: sharding §2.4 (flips are linearisable), §10 (local path).

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};

/// Why an item was handed back.
#[derive(Debug)]
pub(crate) enum Refused<T> {
    /// The queue is sealed; read the route again.
    Sealed(T),
    /// The queue is at its capacity.
    Full(T),
}

/// The bound of an inbox.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bound {
    pub(crate) items: usize,
    pub(crate) bytes: usize,
}

/// See the module's description.
pub(crate) struct Inbox<T> {
    state: Mutex<State<T>>,
    bound: Bound,
}

struct State<T> {
    queue: VecDeque<T>,
    /// Sum of the items' sizes in bytes.
    bytes: usize,
    sealed: bool,
    /// The reader, while it waits.
    reader: Option<Waker>,
    /// Number of items pushed so far, for tests that count hand-overs.
    #[cfg(test)]
    pushed: u64,
}

impl<T> State<T> {
    fn add(&mut self, item: T, bytes: u32) {
        self.queue.push_back(item);
        self.bytes = self.bytes.saturating_add(bytes as usize);
        #[cfg(test)]
        {
            self.pushed += 1;
        }
    }
}

/// An emptied vector with more slots than this is freed.
const KEPT_CAPACITY: usize = 4096;

impl<T> Inbox<T> {
    pub(crate) fn new(bound: Bound) -> Self {
        let state = State {
            queue: VecDeque::new(),
            bytes: 0,
            sealed: false,
            reader: None,
            #[cfg(test)]
            pushed: 0,
        };
        Self { state: Mutex::new(state), bound }
    }

    /// Number of items pushed so far.
    #[cfg(test)]
    pub(crate) fn pushed(&self) -> u64 {
        self.lock().pushed
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().expect("nothing panics while it holds an inbox")
    }

    /// Appends one item of size `bytes`, and wakes the reader if it waits.
    pub(crate) fn push(&self, item: T, bytes: u32) -> Result<(), Refused<T>> {
        let state = self.lock();
        if state.sealed {
            return Err(Refused::Sealed(item));
        }
        self.add_within(state, item, bytes).map_err(Refused::Full)
    }

    /// Appends as many of the items as [`Inbox::push`] would take, with their sizes from `bytes`, and wakes the reader
    /// once for all. The others stay in `items`, in their order; returns why they were refused.
    pub(crate) fn push_all(&self, items: &mut VecDeque<T>, bytes: impl Fn(&T) -> u32) -> Option<Refused<()>> {
        let mut state = self.lock();
        if state.sealed {
            return Some(Refused::Sealed(()));
        }
        while let Some(item) = items.pop_front() {
            let size = bytes(&item);
            if let Err(item) = self.admit(&mut state, item, size) {
                items.push_front(item);
                break;
            }
        }
        Self::wake(state);
        (!items.is_empty()).then_some(Refused::Full(()))
    }

    /// As [`Inbox::push`], even if the inbox is sealed: for the task that seals it. Gives the item back if the inbox is
    /// full.
    pub(crate) fn push_sealed(&self, item: T, bytes: u32) -> Result<(), T> {
        self.add_within(self.lock(), item, bytes)
    }

    /// Appends one item, even if the inbox is full or sealed: for items that must not be lost.
    pub(crate) fn push_anyway(&self, item: T) {
        let mut state = self.lock();
        state.add(item, 0);
        Self::wake(state);
    }

    fn add_within(&self, mut state: MutexGuard<'_, State<T>>, item: T, bytes: u32) -> Result<(), T> {
        self.admit(&mut state, item, bytes)?;
        Self::wake(state);
        Ok(())
    }

    /// Appends an item if there is room for it. An item larger than the whole bound waits alone.
    fn admit(&self, state: &mut State<T>, item: T, bytes: u32) -> Result<(), T> {
        let is_beyond = state.bytes.saturating_add(bytes as usize) > self.bound.bytes && !state.queue.is_empty();
        if state.queue.len() >= self.bound.items || is_beyond {
            return Err(item);
        }
        state.add(item, bytes);
        Ok(())
    }

    /// Wakes the reader after the lock is released, as the reader would otherwise run into the lock at once.
    fn wake(mut state: MutexGuard<'_, State<T>>) {
        let reader = state.reader.take();
        drop(state);
        if let Some(reader) = reader {
            reader.wake();
        }
    }

    /// Number of waiting items.
    pub(crate) fn len(&self) -> usize {
        self.lock().queue.len()
    }

    /// Refuses every later push. Items in the queue stay there for the reader.
    pub(crate) fn seal(&self) {
        self.lock().sealed = true;
    }

    /// Takes pushes again.
    pub(crate) fn unseal(&self) {
        self.lock().sealed = false;
    }

    /// Moves everything queued into `batch`, which must be empty. Returns whether there was anything.
    pub(crate) fn take(&self, batch: &mut VecDeque<T>) -> bool {
        debug_assert!(batch.is_empty());
        Self::give_back(batch);
        let mut state = self.lock();
        state.bytes = 0;
        std::mem::swap(&mut state.queue, batch);
        !batch.is_empty()
    }

    /// As [`Inbox::take`], waiting for the first item, sealed or not.
    pub(crate) fn poll_take(&self, cx: &Context<'_>, batch: &mut VecDeque<T>) -> Poll<()> {
        debug_assert!(batch.is_empty());
        Self::give_back(batch);
        let mut state = self.lock();
        if !state.queue.is_empty() {
            state.bytes = 0;
            std::mem::swap(&mut state.queue, batch);
            return Poll::Ready(());
        }
        if !state.reader.as_ref().is_some_and(|reader| reader.will_wake(cx.waker())) {
            state.reader = Some(cx.waker().clone());
        }
        Poll::Pending
    }

    fn give_back(batch: &mut VecDeque<T>) {
        if batch.capacity() > KEPT_CAPACITY {
            *batch = VecDeque::new();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_push_is_before_the_seal_or_refused() {
        let inbox = Inbox::new(Bound { items: 2, bytes: 100 });
        inbox.push(1, 1).unwrap();
        inbox.push(2, 1).unwrap();
        assert!(matches!(inbox.push(3, 1), Err(Refused::Full(3))));
        inbox.seal();
        assert!(matches!(inbox.push(4, 1), Err(Refused::Sealed(4))));
        inbox.push_anyway(5);
        let mut batch = VecDeque::new();
        assert!(inbox.take(&mut batch));
        assert_eq!(batch, [1, 2, 5]);
        inbox.unseal();
        inbox.push(6, 1).unwrap();
    }

    #[test]
    fn many_items_are_pushed_as_far_as_there_is_room_and_none_past_the_seal() {
        let inbox = Inbox::new(Bound { items: 3, bytes: 100 });
        let size = |item: &char| if *item == 'd' { 90 } else { 10 };
        let mut items: VecDeque<_> = "abcd".chars().collect();
        assert!(matches!(inbox.push_all(&mut items, size), Some(Refused::Full(()))));
        assert_eq!(items, ['d'], "a fourth");
        let mut batch = VecDeque::new();
        inbox.take(&mut batch);
        assert_eq!(std::mem::take(&mut batch), ['a', 'b', 'c']);
        items.push_back('e');
        items.push_back('f');
        assert!(matches!(inbox.push_all(&mut items, size), Some(Refused::Full(()))));
        assert_eq!(items, ['f'], "too many bytes");
        inbox.take(&mut batch);
        assert!(inbox.push_all(&mut items, size).is_none() && items.is_empty());
        inbox.seal();
        items.push_back('g');
        assert!(matches!(inbox.push_all(&mut items, size), Some(Refused::Sealed(()))));
        assert_eq!(items, ['g']);
    }

    #[test]
    fn bytes_are_bounded_and_one_large_item_waits_alone() {
        let inbox = Inbox::new(Bound { items: 9, bytes: 100 });
        inbox.push(1, 1_000).unwrap();
        assert!(matches!(inbox.push(2, 1), Err(Refused::Full(2))));
        let mut batch = VecDeque::new();
        inbox.take(&mut batch);
        batch.clear();
        inbox.push(3, 60).unwrap();
        inbox.push(4, 40).unwrap();
        assert!(matches!(inbox.push(5, 1), Err(Refused::Full(5))));
        inbox.seal();
        assert_eq!(inbox.push_sealed(6, 1), Err(6));
        assert!(matches!(inbox.push(7, 0), Err(Refused::Sealed(7))));
        inbox.push_anyway(8);
        assert!(inbox.take(&mut batch));
        assert_eq!(batch, [3, 4, 8]);
    }

    #[test]
    fn a_waiting_reader_is_woken_by_the_first_push() {
        struct Count(std::sync::atomic::AtomicUsize);
        impl std::task::Wake for Count {
            fn wake(self: std::sync::Arc<Self>) {
                self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            }
        }
        let count = std::sync::Arc::new(Count(0.into()));
        let waker = Waker::from(count.clone());
        let cx = Context::from_waker(&waker);
        let inbox = Inbox::new(Bound { items: 9, bytes: 100 });
        let mut batch = VecDeque::new();
        assert!(inbox.poll_take(&cx, &mut batch).is_pending());
        inbox.push('a', 1).unwrap();
        inbox.push('b', 1).unwrap();
        assert_eq!(count.0.load(std::sync::atomic::Ordering::Relaxed), 1, "the second push finds no task waiting");
        assert!(inbox.poll_take(&cx, &mut batch).is_ready());
        assert_eq!(batch, ['a', 'b']);
    }
}
