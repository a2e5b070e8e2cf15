//! What the kit asks of an implementation: its queues, and hooks for operations on its store.

use async_trait::async_trait;
use greylag_core::Encoded;

use crate::driver::{DurableProducerQueue, QueueFault};
use crate::ids::SeqNr;

/// A piece of a message, for queues that store messages in pieces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece {
    /// The number of the message.
    pub seq_nr: SeqNr,
    /// Whether it is the first piece of the message.
    pub first: bool,
    /// Whether it is the last piece of the message.
    pub last: bool,
    /// The bytes of the piece.
    pub bytes: &'static str,
}

/// Opens the queues to be tested; implemented for each queue implementation.
#[async_trait]
pub trait QueueBench: Send + Sync {
    /// The queue to be tested.
    type Queue: DurableProducerQueue<Encoded>;

    /// Opens the queue of this name like another process, without loading it. Several may be open at once.
    async fn open(&self, queue: &str) -> Self::Queue;

    /// Ends a queue and all its tasks.
    async fn close(&self, queue: Self::Queue) {
        drop(queue);
    }

    /// Plans one fault: the write of this queue fails that comes after `passing` others; every load, and every call
    /// with new data, is a write. Replaces the fault planned before. Returns whether the implementation supports this.
    async fn plan(&self, _queue: &str, _passing: u32, _fault: QueueFault) -> bool {
        false
    }

    /// Number of writes that the store made for this queue. Default `None`: not counted.
    async fn writes(&self, _queue: &str) -> Option<u64> {
        None
    }

    /// Closes the store and opens it again, like a restarted machine; no queue is open. Returns whether the
    /// implementation supports this.
    async fn restart(&self) -> bool {
        false
    }

    /// Puts pieces of messages into the queue of this name, which is not open, like a writer that died during a write.
    /// Only for queues that store messages in pieces. Returns whether the implementation supports this.
    async fn plant(&self, _queue: &str, _pieces: &[Piece]) -> bool {
        false
    }
}
