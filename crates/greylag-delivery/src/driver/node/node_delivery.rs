//! Delivery of one node, as programs hold it.

use std::fmt;
use std::sync::Arc;

use greylag_sharding::{EntityKey, Sharding};

use super::registry::DeliveryReport;
use super::state::NodeState;
use crate::driver::consumer::ConsumerDelivery;
use crate::driver::consumer::counters::DeliveryCounters;
use crate::driver::work_pulling::WorkerDirectory;
use crate::settings::{DeliverySettings, SettingsError};

/// Delivery on one node: `node.delivery()`. Clones are the same.
///
/// Entity types under delivery start from its settings, and are found here by their key.
#[derive(Clone)]
pub struct NodeDelivery {
    pub(super) sharding: Sharding,
    pub(super) state: Arc<NodeState>,
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

    /// Sets the directory by which producers and workers of this node find each other; `open` is called when the first
    /// of them starts. Without a directory, they find only those of this node.
    pub fn find_workers_by(&self, open: impl FnOnce() -> Result<Arc<dyn WorkerDirectory>, String> + Send + 'static) {
        self.state.find_workers_by(Box::new(open));
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
