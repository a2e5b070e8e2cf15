//! The public conformance kit for durable producer queues: one call proves an implementation.
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
//! [`queue_store`] does the same for a [`QueueStore`](crate::QueueStore), the store of rows under a
//! [`KvProducerQueue`](crate::KvProducerQueue).
//!
//! Every promise of [`DurableProducerQueue`] is a case with a name. Hooks for what only the queue itself can do (let
//! its store fail, start its store anew, count its writes) are optional; a case that lacks its hook is reported as
//! skipped, never as passed. Each case uses queues of its own names, so a store may be used again and
//! again. The kit needs no runtime of its own: run it in whatever the queue needs.
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

/// What an implementation gives the kit.
#[async_trait]
pub trait QueueBench: Send + Sync {
    /// The queue that is held against its promises.
    type Queue: DurableProducerQueue<Encoded>;

    /// The queue of this name as another process would open it; nothing is loaded. Several may be open at once.
    async fn open(&self, queue: &str) -> Self::Queue;

    /// Ends a queue and whatever works for it.
    async fn close(&self, queue: Self::Queue) {
        drop(queue);
    }

    /// Lets the write of the queue of this name fail that comes after `passing` others; every load and every call that
    /// has news is a write. Replaces the fault planned before. Answers whether it can.
    async fn plan(&self, _queue: &str, _passing: u32, _fault: QueueFault) -> bool {
        false
    }

    /// How many writes the store made for this queue. Default: nobody counts.
    async fn writes(&self, _queue: &str) -> Option<u64> {
        None
    }

    /// Closes the store and opens it again, as a restarted machine would; no queue is open. Answers whether it can.
    async fn restart(&self) -> bool {
        false
    }

    /// Puts the pieces of messages into the queue of this name, which nothing has open, as a writer left them that died
    /// on the way. Only for queues that store messages in pieces. Answers whether it can.
    async fn plant(&self, _queue: &str, _pieces: &[Piece]) -> bool {
        false
    }
}

/// What became of a case.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The queue does what it must.
    Passed,
    /// Not tried: which hook is missing.
    Skipped(&'static str),
    /// The queue does something else: what was expected, and what came.
    Failed(String),
}

/// What became of all cases, in their order.
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

    /// The cases that were not tried.
    pub fn skipped(&self) -> impl Iterator<Item = &'static str> {
        self.cases.iter().filter(|(_, outcome)| matches!(outcome, Outcome::Skipped(_))).map(|(name, _)| *name)
    }

    /// Fails unless every case passed or was skipped.
    ///
    /// # Panics
    /// With the whole report.
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

/// Holds a queue against every promise of [`DurableProducerQueue`], one case after the other.
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
