//! Delivery on one node: the entity types set up there, and the producers and consumers started there.
//!
//! [`types`] sets entity types up, and [`starting`] starts producers and consumers. Both use the node's [`state`], which
//! knows the entity types; a [`registry`] there knows the producers and consumers.

mod node_delivery;
mod registry;
mod starting;
mod state;
mod types;

pub use node_delivery::NodeDelivery;
pub use registry::{ConsumersReport, DeliveryReport, ProducerCounts, ProducerKind, ProducerReport};
pub use starting::{
    ProducerName, StartConsumerController, StartProducer, StartProducerController, StartWorkProducer, StartWorker,
    WorkKey,
};
#[cfg(feature = "persistence")]
pub use types::EventSourcedDelivery;
pub use types::{DeliveryTypeSettings, ProxyDelivery};

#[cfg(all(test, feature = "persistence"))]
mod tests;
