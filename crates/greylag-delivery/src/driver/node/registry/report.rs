//! The report of delivery on one node, for operators.

use std::fmt;
use std::time::Duration;

use futures::future::BoxFuture;

use crate::driver::consumer::counters::DeliverySnapshot;
use crate::ids::ProducerId;

/// Producers and consumers of one node, at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeliveryReport {
    /// The producers that run here, ordered by id and then by target.
    pub producers: Vec<ProducerReport>,
    /// The consumers (entity types, workers, consumer controllers) here, ordered by name.
    pub consumers: Vec<ConsumersReport>,
}

/// The state of one producer, or of the producers of one group of outboxes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProducerReport {
    /// The producer's id.
    pub producer_id: ProducerId,
    /// The kind of target.
    pub kind: ProducerKind,
    /// The target: the entity type, the key of the workers, or the consumer controller; empty if no consumer is
    /// registered.
    pub to: String,
    /// Whether the producer stores its messages in a queue that outlives it.
    pub is_durable: bool,
    /// Why the producer cannot deliver at present, for operators.
    pub trouble: Option<String>,
    /// Counts since the producer's start, and gauges.
    pub counts: ProducerCounts,
}

/// The kind of a producer's target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ProducerKind {
    /// The entities of a type.
    Sharding,
    /// One consumer controller.
    PointToPoint,
    /// Workers; any of them may take a message.
    WorkPulling,
    /// The entities of a type, from the outboxes of the entities of another type, added up:
    /// [`ProducerReport::producer_id`] is `type/*`, and the counts are sums over the active sending entities.
    Outboxes,
}

impl fmt::Display for ProducerKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Sharding => "sharding",
            Self::PointToPoint => "point-to-point",
            Self::WorkPulling => "work-pulling",
            Self::Outboxes => "outboxes",
        })
    }
}

/// Counts of a producer since its start, and gauges.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ProducerCounts {
    /// Links: entities or workers to which the producer sends.
    pub links: u64,
    /// Links with demand, whose next message is sent at once.
    pub links_with_demand: u64,
    /// Senders that wait for room.
    pub waiting: u64,
    /// Messages that were accepted and wait for demand.
    pub buffered: u64,
    /// Messages that were accepted and are not confirmed.
    pub unconfirmed: u64,
    /// Age of the oldest unconfirmed message.
    pub oldest_unconfirmed: Option<Duration>,
    /// Messages that were accepted.
    pub sent: u64,
    /// Frames that were transmitted again.
    pub resent: u64,
    /// Messages that were confirmed.
    pub confirmed: u64,
}

/// The consumers of one entity type, or of one key of workers, on this node together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConsumersReport {
    /// The entity type, the key of the workers, or the name of the consumer controllers.
    pub name: String,
    /// Sums of the consumers' counters.
    pub counts: DeliverySnapshot,
}

/// A producer that runs on the node.
pub(crate) trait Reporting: Send + Sync {
    /// The producer's part of the node's report; `None` once the producer has ended.
    fn report(&self) -> Option<ProducerReport>;
    /// Delivers the producer's messages for at most `drain_on_drop`, then ends the producer.
    fn end(&self) -> BoxFuture<'static, ()>;
}
