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
//! Every guarantee of [`DurableProducerQueue`] is a named case. Hooks for operations of the implementation (make its
//! store fail, restart its store, count its writes) are optional; a case without its hook is reported as skipped, never
//! as passed. Each case uses queues with names of its own, so a store may be used again. The kit needs no runtime of
//! its own: run it in the runtime that the queue needs.
//!
//! Source: delivery §4.1, §4.4, D1 to D5, scenarios 37, 39 to 43, 64, 72, 80, 87.

mod case;
mod confirming;
mod failing;
mod loading;
mod pieces;
mod rows;
mod storing;
mod writers;

use std::fmt;

use async_trait::async_trait;
use greylag_core::Encoded;

use crate::driver::{DurableProducerQueue, QueueFault};

pub use pieces::Piece;
pub use rows::queue_store;

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

/// The outcome of a case.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The queue conforms.
    Passed,
    /// The case was not run; names the missing hook.
    Skipped(&'static str),
    /// The queue does not conform: what was expected, and what happened.
    Failed(String),
}

/// The outcomes of all cases, in order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// The name of each case, and its outcome.
    pub cases: Vec<(&'static str, Outcome)>,
}

impl Report {
    /// The cases that failed.
    pub fn failed(&self) -> impl Iterator<Item = &'static str> {
        self.cases.iter().filter(|(_, outcome)| matches!(outcome, Outcome::Failed(_))).map(|(name, _)| *name)
    }

    /// The cases that were not run.
    pub fn skipped(&self) -> impl Iterator<Item = &'static str> {
        self.cases.iter().filter(|(_, outcome)| matches!(outcome, Outcome::Skipped(_))).map(|(name, _)| *name)
    }

    /// Panics unless every case passed or was skipped.
    ///
    /// # Panics
    /// With the whole report as message.
    pub fn assert_conforms(&self) {
        assert!(self.failed().next().is_none(), "it does not conform:\n{self}");
    }

    fn add(&mut self, name: &'static str, checked: case::Checked) {
        let outcome = match checked {
            Ok(()) => Outcome::Passed,
            Err(case::Failure::Skipped(why)) => Outcome::Skipped(why),
            Err(case::Failure::Wrong(how)) => Outcome::Failed(how),
        };
        self.cases.push((name, outcome));
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, outcome) in &self.cases {
            match outcome {
                Outcome::Passed => writeln!(f, "passed   {name}")?,
                Outcome::Skipped(why) => writeln!(f, "skipped  {name}: {why}")?,
                Outcome::Failed(how) => writeln!(f, "FAILED   {name}: {how}")?,
            }
        }
        Ok(())
    }
}

/// Tests a queue against every guarantee of [`DurableProducerQueue`], case by case.
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
