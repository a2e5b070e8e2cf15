//! Durable queues: the trait that producers use, a queue in a journal, and a queue in any store of rows.

mod durable;
#[cfg(feature = "persistence")]
mod event_sourced;
mod faulty;
mod kv;
mod memory;
mod outbox;
mod store;

#[cfg(feature = "persistence")]
pub(super) use durable::encoded;
pub use durable::{DurableProducerQueue, TypedQueue};
#[cfg(feature = "persistence")]
pub(super) use event_sourced::EVENT_OVERHEAD;
#[cfg(feature = "persistence")]
pub use event_sourced::EventSourcedProducerQueue;
pub use faulty::{FaultyQueueStore, QueueCall, QueueFault};
pub use kv::KvProducerQueue;
pub use memory::{InMemoryProducerQueue, InMemoryQueues};
pub use outbox::OutboxProducerQueue;
pub use store::{OutboxStore, QueueStore};

use std::time::{SystemTime, UNIX_EPOCH};

use crate::ids::StreamId;
use crate::queue::TimestampMillis;

/// The time of this machine's clock, in milliseconds since the Unix epoch.
pub(super) fn now_ms() -> TimestampMillis {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since_epoch.as_millis()).unwrap_or(u64::MAX)
}

/// A fresh stream id, unused by any queue.
pub(super) fn fresh_stream() -> StreamId {
    StreamId(uuid::Uuid::new_v4().as_u128())
}
