//! A bounded queue with many writers and one reader that can be sealed.
//!
//! Writers never wait for room. Sealing draws a line: a push that came before it is in the queue,
//! one that comes after it is refused and handed back, so nothing is ever lost between two owners
//! of a route. The reader takes everything at once; the lock is held for a push or a swap of two
//! vectors, and it belongs to one queue alone.
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

/// See the module's description.
pub(crate) struct Inbox<T> {
    state: Mutex<State<T>>,
    capacity: usize,
}

struct State<T> {
    queue: VecDeque<T>,
    sealed: bool,
    /// The reader, while it waits.
    reader: Option<Waker>,
    /// Items so far, for tests that count hand-overs.
    #[cfg(test)]
    pushed: u64,
}

/// Past this many slots an emptied vector is given back to the allocator.
const KEPT_CAPACITY: usize = 4096;

impl<T> Inbox<T> {
    pub(crate) fn new(capacity: usize) -> Self {
        let state = State {
            queue: VecDeque::new(),
            sealed: false,
            reader: None,
            #[cfg(test)]
            pushed: 0,
        };
        Self { state: Mutex::new(state), capacity }
    }

    /// How many items were ever pushed.
    #[cfg(test)]
    pub(crate) fn pushed(&self) -> u64 {
        self.lock().pushed
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().expect("nothing panics while it holds an inbox")
    }

    /// Appends one item and wakes the reader if it waits.
    pub(crate) fn push(&self, item: T) -> Result<(), Refused<T>> {
        let state = self.lock();
        if state.sealed {
            return Err(Refused::Sealed(item));
        }
        if state.queue.len() >= self.capacity {
            return Err(Refused::Full(item));
        }
        Self::add(state, item);
        Ok(())
    }

    /// Appends one item, also if the inbox is full or sealed: for the task that seals it.
    pub(crate) fn push_anyway(&self, item: T) {
        Self::add(self.lock(), item);
    }

    fn add(mut state: MutexGuard<'_, State<T>>, item: T) {
        state.queue.push_back(item);
        #[cfg(test)]
        {
            state.pushed += 1;
        }
        let reader = state.reader.take();
        // Waking outside of the lock: the reader would otherwise run into it at once.
        drop(state);
        if let Some(reader) = reader {
            reader.wake();
        }
    }

    /// Refuses every later push. Items in the queue stay there for the reader.
    pub(crate) fn seal(&self) {
        self.lock().sealed = true;
    }

    /// Takes pushes again.
    pub(crate) fn unseal(&self) {
        self.lock().sealed = false;
    }

    /// Moves everything queued into `batch`, which must be empty. Answers whether there was anything.
    pub(crate) fn take(&self, batch: &mut VecDeque<T>) -> bool {
        debug_assert!(batch.is_empty());
        Self::give_back(batch);
        let mut state = self.lock();
        std::mem::swap(&mut state.queue, batch);
        !batch.is_empty()
    }

    /// As [`Inbox::take`], waiting for the first item, sealed or not.
    pub(crate) fn poll_take(&self, cx: &Context<'_>, batch: &mut VecDeque<T>) -> Poll<()> {
        debug_assert!(batch.is_empty());
        Self::give_back(batch);
        let mut state = self.lock();
        if !state.queue.is_empty() {
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
        let inbox = Inbox::new(2);
        inbox.push(1).unwrap();
        inbox.push(2).unwrap();
        assert!(matches!(inbox.push(3), Err(Refused::Full(3))));
        inbox.seal();
        assert!(matches!(inbox.push(4), Err(Refused::Sealed(4))));
        inbox.push_anyway(5);
        let mut batch = VecDeque::new();
        assert!(inbox.take(&mut batch));
        assert_eq!(batch, [1, 2, 5]);
        inbox.unseal();
        inbox.push(6).unwrap();
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
        let inbox = Inbox::new(9);
        let mut batch = VecDeque::new();
        assert!(inbox.poll_take(&cx, &mut batch).is_pending());
        inbox.push('a').unwrap();
        inbox.push('b').unwrap();
        assert_eq!(count.0.load(std::sync::atomic::Ordering::Relaxed), 1, "the second push finds no task waiting");
        assert!(inbox.poll_take(&cx, &mut batch).is_ready());
        assert_eq!(batch, ['a', 'b']);
    }
}
