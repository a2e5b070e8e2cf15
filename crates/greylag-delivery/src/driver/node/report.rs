//! What an operator is shown of delivery on one node.

use std::fmt;
use std::time::Duration;

use futures::future::BoxFuture;

use crate::counters::DeliverySnapshot;
use crate::ids::ProducerId;

/// Delivery on one node, at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeliveryReport {
    /// The producers that run here, by id and then by where they send to.
    pub producers: Vec<ProducerReport>,
    /// What is delivered to here, by name.
    pub consumers: Vec<ConsumersReport>,
}

/// One producer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProducerReport {
    /// Its id.
    pub producer_id: ProducerId,
    /// What it sends to.
    pub kind: ProducerKind,
    /// The entity type, the key of the workers, or the consumer controller; empty if no consumer is registered.
    pub to: String,
    /// It keeps its messages in a queue that outlives it.
    pub is_durable: bool,
    /// Why it does not work as it should.
    pub trouble: Option<String>,
    /// What it has counted since its start, and what it holds now.
    pub counts: ProducerCounts,
}

/// What a producer sends to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ProducerKind {
    /// The entities of a type.
    Sharding,
    /// One consumer.
    PointToPoint,
    /// Workers, any of which will do.
    WorkPulling,
    /// The entities of a type, from the outboxes of the entities of another one, all together: [`ProducerReport::producer_id`]
    /// is `type/*`, and the counts are of the sending entities that are active.
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

/// What a producer has counted since its start, and what it holds now.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ProducerCounts {
    /// Links: entities or workers that it sends to.
    pub links: u64,
    /// Links that would take a message at once.
    pub links_with_demand: u64,
    /// Senders that wait for room.
    pub waiting: u64,
    /// Messages that were accepted and wait for demand.
    pub buffered: u64,
    /// Messages that were accepted and are not confirmed.
    pub unconfirmed: u64,
    /// How long the oldest of these has been.
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
    /// The entity type, or the key.
    pub name: String,
    /// What they have counted.
    pub counts: DeliverySnapshot,
}

/// A producer that runs on the node.
pub(crate) trait Reporting: Send + Sync {
    /// The producer's part of the node's report; `None` once the producer has ended.
    fn report(&self) -> Option<ProducerReport>;
    /// Delivers what it has for a while, then ends it.
    fn end(&self) -> BoxFuture<'static, ()>;
}
