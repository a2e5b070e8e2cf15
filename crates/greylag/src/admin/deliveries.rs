//! The node's reliable delivery for its admin service.

use greylag_delivery::{ConsumersReport, NodeDelivery, ProducerReport};
use greylag_management::{Delivery, v1};

/// Implements the admin service's view of a node's delivery.
pub(crate) struct NodeDeliveries(NodeDelivery);

impl NodeDeliveries {
    pub(crate) fn new(delivery: NodeDelivery) -> Self {
        Self(delivery)
    }
}

impl Delivery for NodeDeliveries {
    fn report(&self) -> v1::DeliveryReply {
        let report = self.0.report();
        v1::DeliveryReply {
            producers: report.producers.into_iter().map(producer).collect(),
            consumers: report.consumers.into_iter().map(consumers).collect(),
        }
    }
}

fn producer(report: ProducerReport) -> v1::DeliveryProducer {
    let ProducerReport { producer_id, kind, to, is_durable, trouble, counts } = report;
    let oldest = counts.oldest_unconfirmed.map(|age| u64::try_from(age.as_millis()).unwrap_or(u64::MAX));
    v1::DeliveryProducer {
        producer_id: producer_id.to_string(),
        kind: kind.to_string(),
        to,
        durable: is_durable,
        trouble: trouble.unwrap_or_default(),
        links: counts.links,
        links_with_demand: counts.links_with_demand,
        waiting: counts.waiting,
        buffered: counts.buffered,
        unconfirmed: counts.unconfirmed,
        oldest_unconfirmed_ms: oldest,
        sent: counts.sent,
        resent: counts.resent,
        confirmed: counts.confirmed,
    }
}

fn consumers(report: ConsumersReport) -> v1::DeliveryConsumers {
    let ConsumersReport { name, counts } = report;
    v1::DeliveryConsumers {
        name,
        delivered: counts.delivered,
        confirmed: counts.confirmed,
        suppressed: counts.suppressed,
        abandoned: counts.abandoned,
        poisoned: counts.poisoned,
        undecodable: counts.undecodable,
    }
}
