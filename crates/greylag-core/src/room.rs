//! How much may wait in a queue between two tasks, in messages and in bytes.
//!
//! A channel counts messages, and one message may have megabytes. So a task that queues a message of a peer takes
//! a [`Share`] of the queue's [`Room`] first, and the share travels with the message: the room is free again once
//! the message was taken out and its share dropped, on whichever way that happens.
//!
//! ```
//! use greylag_core::Room;
//!
//! let room = Room::new(1000, 64 * 1024);
//! let share = room.take(40_000).expect("it is empty");
//! assert!(room.take(40_000).is_none(), "there is room for one of these");
//! drop(share);
//! assert!(room.take(1_000_000).is_some(), "into an empty queue goes anything");
//! ```

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// The bound of one queue. Clones share the bound. Source: cluster T38, T39.
#[derive(Debug, Clone)]
pub struct Room(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    most_messages: usize,
    most_bytes: usize,
    messages: AtomicUsize,
    bytes: AtomicUsize,
    refused: AtomicU64,
}

impl Room {
    /// An empty queue's room for at most `most_messages` messages with `most_bytes` bytes together.
    #[must_use]
    pub fn new(most_messages: usize, most_bytes: usize) -> Self {
        let (messages, bytes, refused) = Default::default();
        Self(Arc::new(Inner { most_messages, most_bytes, messages, bytes, refused }))
    }

    /// Takes a share for one message of `bytes`. Returns `None`, and counts a refusal, if one of the bounds would be
    /// exceeded; into an empty queue any message fits.
    pub fn take(&self, bytes: usize) -> Option<Share> {
        let Inner { most_messages, most_bytes, .. } = *self.0;
        // Add before comparing, so that two threads at once cannot both take the last place.
        let before = self.0.messages.fetch_add(1, Ordering::AcqRel);
        let bytes_before = self.0.bytes.fetch_add(bytes, Ordering::AcqRel);
        let share = Share { inner: self.0.clone(), bytes };
        if before == 0 || (before < most_messages && bytes_before.saturating_add(bytes) <= most_bytes) {
            return Some(share);
        }
        self.0.refused.fetch_add(1, Ordering::Relaxed);
        None
    }

    /// Whether [`Room::take`] would grant a message of `bytes` now; counts nothing.
    pub fn has_room(&self, bytes: usize) -> bool {
        let messages = self.messages();
        messages == 0 || (messages < self.0.most_messages && self.bytes().saturating_add(bytes) <= self.0.most_bytes)
    }

    /// The number of messages in the queue now.
    pub fn messages(&self) -> usize {
        self.0.messages.load(Ordering::Acquire)
    }

    /// The bytes of all messages in the queue now.
    pub fn bytes(&self) -> usize {
        self.0.bytes.load(Ordering::Acquire)
    }

    /// The number of messages refused so far.
    pub fn refused(&self) -> u64 {
        self.0.refused.load(Ordering::Relaxed)
    }
}

/// One message's part of a [`Room`]; given back when it is dropped.
#[derive(Debug)]
#[must_use = "dropped at once it bounds nothing"]
pub struct Share {
    inner: Arc<Inner>,
    bytes: usize,
}

impl Drop for Share {
    fn drop(&mut self) {
        self.inner.bytes.fetch_sub(self.bytes, Ordering::AcqRel);
        self.inner.messages.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_room_is_full_by_messages_or_by_bytes() {
        let room = Room::new(3, 100);
        let mut shares: Vec<_> = [10, 10, 10].map(|bytes| room.take(bytes).unwrap()).into();
        assert!(room.take(0).is_none(), "three messages are there");
        shares.pop();
        assert!(room.take(81).is_none() && !room.has_room(81) && room.has_room(80), "101 bytes");
        shares.push(room.take(80).unwrap());
        assert_eq!((room.messages(), room.bytes(), room.refused()), (3, 100, 2));
        shares.clear();
        assert_eq!((room.messages(), room.bytes()), (0, 0));
        assert!(room.take(usize::MAX).is_some(), "into an empty queue goes anything");
    }

    /// A refused message takes no room, however many threads ask at once.
    #[test]
    fn many_threads_never_have_more_than_there_is() {
        let room = Room::new(8, 1_000);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for round in 0..20_000 {
                        if let Some(share) = room.take(round % 400) {
                            let held = room.0.messages.load(Ordering::Acquire);
                            // Messages that are being refused are counted for a moment: one per thread.
                            assert!(held <= 8 + 4, "{held}");
                            drop(share);
                        }
                    }
                });
            }
        });
        assert_eq!((room.messages(), room.bytes()), (0, 0));
    }
}
