//! Delivery on one node: the entity types set up there, and the producers and consumers started there.

mod consumer_registry;
#[cfg(feature = "persistence")]
mod delivered;
mod layer;
#[cfg(feature = "persistence")]
mod outbox;
#[cfg_attr(not(feature = "persistence"), allow(dead_code, reason = "only event-sourced entities have outboxes"))]
mod outboxes;
mod plain;
mod point_to_point;
mod producer_reporter;
mod report;
mod start_producer;
mod state;
mod work;

use std::fmt;
use std::sync::Arc;

use greylag_sharding::{EntityKey, Sharding};

use super::consumer::ConsumerDelivery;
use crate::counters::DeliveryCounters;
use crate::settings::{DeliverySettings, SettingsError};

#[cfg(feature = "persistence")]
pub use delivered::EventSourcedDelivery;
pub use layer::{DeliveryTypeSettings, ProxyDelivery};
pub use point_to_point::{StartConsumerController, StartProducerController};
pub use report::{ConsumersReport, DeliveryReport, ProducerCounts, ProducerKind, ProducerReport};
pub use start_producer::{ProducerName, StartProducer};
pub(crate) use state::NodeState;
pub use work::{StartWorkProducer, StartWorker, WorkKey};

/// Delivery on one node: `node.delivery()`. Clones are the same.
///
/// Entity types under delivery start from its settings, and are found here by their key.
#[derive(Clone)]
pub struct NodeDelivery {
    sharding: Sharding,
    state: Arc<NodeState>,
}

impl NodeDelivery {
    /// Delivery of the node that runs `sharding`. The settings of the first call apply, so make that call before entity
    /// types are set up.
    ///
    /// # Errors
    /// [`SettingsError`] names an invalid setting.
    pub fn of(sharding: &Sharding, settings: DeliverySettings) -> Result<Self, SettingsError> {
        settings.validate()?;
        let state = sharding.extensions().get_or_insert(NodeState::new(settings));
        Ok(Self { sharding: sharding.clone(), state })
    }

    /// The default settings of this node's producers and consumers.
    pub fn settings(&self) -> &DeliverySettings {
        self.state.settings()
    }

    /// A producer of messages for the entities of a type that is set up on this node with delivery, as a host or as a
    /// proxy.
    ///
    /// ```no_run
    /// # use greylag_delivery::{NodeDelivery, ProducerId};
    /// # use greylag_sharding::EntityKey;
    /// # struct Pay { cents: u64 }
    /// # const PAYMENT: EntityKey<Pay> = EntityKey::new("Payment");
    /// # async fn pay(delivery: &NodeDelivery) -> Result<(), Box<dyn std::error::Error>> {
    /// let payments = delivery.producer(PAYMENT, ProducerId::per_node("orders")).start().await?;
    /// payments.send("order-4711", Pay { cents: 990 }).await?;
    /// # Ok(())
    /// # }
    /// ```
    #[allow(clippy::needless_pass_by_value, reason = "keys are constants, and are named as such elsewhere")]
    pub fn producer<T: Send + Sync + 'static>(
        &self,
        key: EntityKey<T>,
        name: impl Into<ProducerName>,
    ) -> StartProducer<T> {
        StartProducer::new(self.clone(), &key, name.into())
    }

    /// Ends the producers that were started here, then the workers and consumer controllers. Each producer delivers its
    /// messages for at most its [`drain_on_drop`](crate::ProducerSettings::drain_on_drop), and accepts none after that.
    /// Workers get no more jobs; other workers do them. Jobs and deliveries in hand are waited for, at most for
    /// `drain_on_drop` of the node's settings; unconfirmed ones are delivered again elsewhere. A node calls `end`
    /// before it hands its shards over.
    pub async fn end(&self) {
        futures::future::join_all(self.state.end_producers()).await;
        let patience = self.settings().producer.drain_on_drop;
        let ended = futures::future::join_all(self.state.consumer_registry().end());
        if tokio::time::timeout(patience, ended).await.is_err() {
            tracing::warn!(
                "workers or consumers of the node have not ended in time; unconfirmed deliveries will be redelivered elsewhere"
            );
        }
    }

    /// The producers and consumers of this node, for operators; `greylag delivery` shows the report.
    pub fn report(&self) -> DeliveryReport {
        self.state.report()
    }

    /// Health, counters, events and undecodable messages of the deliveries to entities of a type on this node. `None`
    /// if the type is not set up here with delivery.
    pub fn consumers<T: 'static>(&self, key: &EntityKey<T>) -> Option<ConsumerDelivery> {
        self.state.known_consumers(key.name())
    }

    /// Counters of the deliveries to entities of a type on this node; `None` if the type is not set up here with
    /// delivery.
    pub fn counters<T: 'static>(&self, key: &EntityKey<T>) -> Option<DeliveryCounters> {
        self.state.counters(key.name())
    }
}

impl fmt::Debug for NodeDelivery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodeDelivery").field("node", self.sharding.remoting().self_address()).finish_non_exhaustive()
    }
}

#[cfg(all(test, feature = "persistence"))]
mod tests;
