//! The public conformance kit for durable producer queues: one call tests an implementation.
//!
//! ```
//! use async_trait::async_trait;
//! use greylag_delivery::tck::{QueueBench, durable_queue};
//! use greylag_delivery::{InMemoryProducerQueue, InMemoryQueues};
//!
//! struct Memory(InMemoryQueues);
//!
//! #[async_trait]
//! impl QueueBench for Memory {
//!     type Queue = InMemoryProducerQueue;
//!     async fn open(&self, queue: &str) -> Self::Queue {
//!         self.0.open(queue)
//!     }
//! }
//!
//! # let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
//! # runtime.block_on(async {
//! durable_queue(&Memory(InMemoryQueues::new())).await.assert_conforms();
//! # });
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! [`queue_store`] tests a [`QueueStore`](crate::QueueStore), the store of rows under a
//! [`KvProducerQueue`](crate::KvProducerQueue).
//!
//! Every guarantee of [`DurableProducerQueue`](crate::DurableProducerQueue) is a named case. Hooks for operations of the
//! implementation (make its store fail, restart its store, count its writes) are optional; a case without its hook is
//! reported as skipped, never as passed. Each case uses queues with names of its own, so a store may be used again. The
//! kit needs no runtime of its own: run it in the runtime that the queue needs.
//!
//! Source: delivery §4.1, §4.4, D1 to D5, scenarios 37, 39 to 43, 64, 72, 80, 87.

mod bench;
mod case;
mod confirming;
mod failing;
mod loading;
mod pieces;
mod report;
mod rows;
mod storing;
mod writers;

pub use bench::{Piece, QueueBench};
pub use report::{Outcome, Report};
pub use rows::queue_store;

/// Tests a queue against every guarantee of [`DurableProducerQueue`](crate::DurableProducerQueue), case by case.
pub async fn durable_queue<B: QueueBench>(bench: &B) -> Report {
    let mut report = Report::default();
    loading::run(bench, &mut report).await;
    storing::run(bench, &mut report).await;
    confirming::run(bench, &mut report).await;
    failing::run(bench, &mut report).await;
    writers::run(bench, &mut report).await;
    pieces::run(bench, &mut report).await;
    report
}
