//! Point-to-point producer and consumer controllers of a node: from their name to their handle.

use std::fmt;
use std::sync::Arc;

use greylag_core::{Codec, Encoded};

use super::producer::{Durability, ProducerName};
use crate::driver::DurableProducerQueue;
use crate::driver::node::node_delivery::NodeDelivery;
use crate::driver::node::registry::ProducerReporter;
use crate::driver::point_to_point::{ConsumerController, ProducerController};
use crate::error::StartError;
use crate::settings::DeliverySettings;

/// A producer controller that is not started yet. See [`NodeDelivery::producer_controller`].
#[must_use = "a producer does nothing until it is started"]
pub struct StartProducerController<T> {
    node: NodeDelivery,
    name: ProducerName,
    codec: Arc<dyn Codec<T>>,
    settings: DeliverySettings,
    durability: Durability,
}

impl<T: Send + Sync + 'static> StartProducerController<T> {
    pub(super) fn new(node: NodeDelivery, name: ProducerName, codec: Arc<dyn Codec<T>>) -> Self {
        let settings = node.settings().clone();
        Self { node, name, codec, settings, durability: Durability::None }
    }

    /// Changes settings for this producer alone; `change` starts from the settings of the node.
    pub fn settings(mut self, change: impl FnOnce(&mut DeliverySettings)) -> Self {
        change(&mut self.settings);
        self
    }

    /// Stores every message in the node's journal before it is sent.
    #[cfg(feature = "persistence")]
    pub fn durable(self) -> Self {
        Self { durability: Durability::Journal, ..self }
    }

    /// Stores every message in `queue` before it is sent.
    pub fn durable_in(self, queue: impl DurableProducerQueue<Encoded> + 'static) -> Self {
        Self { durability: Durability::In(Box::new(queue)), ..self }
    }

    /// Starts the producer controller.
    ///
    /// # Errors
    /// [`StartError`]; nothing was started.
    pub async fn start(self) -> Result<ProducerController<T>, StartError> {
        let Self { node, name, codec, settings, durability } = self;
        let remoting = node.sharding.remoting().clone();
        let id = name.on(remoting.self_address())?;
        let storage = durability.storage(&node.sharding, id.clone(), &settings)?;
        let drain_on_drop = settings.producer.drain_on_drop;
        let builder = ProducerController::builder(id.clone(), codec).settings(settings);
        let controller = builder.storage(storage).spawn(&remoting)?;
        node.state.watch(Box::new(ProducerReporter::new(controller.sending(), id, String::new(), drain_on_drop)));
        Ok(controller)
    }
}

impl<T> fmt::Debug for StartProducerController<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StartProducerController").field("name", &self.name).finish_non_exhaustive()
    }
}

/// A consumer controller that is not started yet. See [`NodeDelivery::consumer_controller`].
#[must_use = "a consumer does nothing until it is started"]
pub struct StartConsumerController<T> {
    node: NodeDelivery,
    name: String,
    codec: Arc<dyn Codec<T>>,
    settings: DeliverySettings,
}

impl<T: Send + Sync + 'static> StartConsumerController<T> {
    pub(super) fn new(node: NodeDelivery, name: String, codec: Arc<dyn Codec<T>>) -> Self {
        let settings = node.settings().clone();
        Self { node, name, codec, settings }
    }

    /// Changes settings for this consumer alone; `change` starts from the settings of the node.
    pub fn settings(mut self, change: impl FnOnce(&mut DeliverySettings)) -> Self {
        change(&mut self.settings);
        self
    }

    /// Starts the consumer controller.
    ///
    /// # Errors
    /// [`StartError`]; nothing was started.
    pub async fn start(self) -> Result<ConsumerController<T>, StartError> {
        let Self { node, name, codec, settings } = self;
        let controller = ConsumerController::builder(codec).settings(settings).spawn(node.sharding.remoting())?;
        node.state.consumer_registry().add(name, controller.counters().clone(), controller.shutdown_handle());
        Ok(controller)
    }
}

impl<T> fmt::Debug for StartConsumerController<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StartConsumerController").field("name", &self.name).finish_non_exhaustive()
    }
}
