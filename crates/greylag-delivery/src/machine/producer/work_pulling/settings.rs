//! Settings of a producer controller of work pulling.

use std::time::{Duration, Instant};

use greylag_core::UniqueAddress;

use crate::ids::{Epoch, ProducerId, StreamId};
use crate::machine::omissions::Omissions;
use crate::queue::TimestampMillis;

/// Which worker with demand gets the next message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum WorkerSelection {
    /// A worker with the fewest messages in hand; a random one of several.
    #[default]
    LeastInFlight,
    /// A random worker.
    Random,
}

/// Settings of the controller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkPullingSettings {
    /// The logical producer.
    pub producer_id: ProducerId,
    /// The node (process) of the producer.
    pub node: UniqueAddress,
    /// The path to which workers answer. Links are numbered from 1 below it, so the path must never be given to another
    /// controller.
    pub path: std::sync::Arc<str>,
    /// Stream and epoch of a producer that stores nothing; a durable producer takes both from its queue.
    pub stream: Option<(StreamId, Epoch)>,
    /// Interval of P8 until the first answer.
    pub resend_first_interval: Duration,
    /// Interval of P8 afterwards, and the silence after which P9 probes.
    pub resend_first_unconfirmed_idle_timeout: Duration,
    /// Limit of pending messages (W4).
    pub buffer_size: usize,
    /// Which worker gets the next message (W3).
    pub selection: WorkerSelection,
    /// A worker that has not answered its first message for this long is suspect (W6).
    pub worker_first_timeout: Duration,
    /// A message unconfirmed for this long is also given to another worker; `None` waits for ever.
    pub work_timeout: Option<Duration>,
    /// Seed of the random selection.
    pub seed: u64,
    /// The wall clock at the creation of the controller, and the instant of that time.
    pub clock: (TimestampMillis, Instant),
    /// Clauses to omit, in simulations.
    #[doc(hidden)]
    pub omissions: Omissions,
}
