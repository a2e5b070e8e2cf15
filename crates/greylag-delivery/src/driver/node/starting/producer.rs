//! Sharding producers of a node: from their name to their handle.

use std::any::type_name;
use std::fmt;
use std::marker::PhantomData;

use greylag_core::{Encoded, UniqueAddress};
#[cfg(feature = "persistence")]
use greylag_persistence::PersistenceId;
use greylag_sharding::{EntityKey, Sharding};

#[cfg(feature = "persistence")]
use crate::driver::EventSourcedProducerQueue;
use crate::driver::node::node_delivery::NodeDelivery;
use crate::driver::node::registry::ProducerReporter;
use crate::driver::{DurableProducerQueue, MessageStorage, ShardingProducer};
use crate::error::StartError;
use crate::ids::{InvalidProducerId, ProducerId};
use crate::settings::DeliverySettings;

/// The name of a producer, before its node is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProducerName {
    /// One producer of this name in the whole cluster.
    Is(ProducerId),
    /// One producer of this name on each node: the node's address becomes part of its id.
    PerNode(String),
}

impl ProducerId {
    /// The name of a producer that runs on every node: its id is the name with the node's address,
    /// `orders@10.0.0.7:17355`, and stays the same after a restart of the node.
    ///
    /// ```
    /// use greylag_delivery::{ProducerId, ProducerName};
    ///
    /// assert_eq!(ProducerId::per_node("orders"), ProducerName::PerNode("orders".to_owned()));
    /// ```
    pub fn per_node(name: impl Into<String>) -> ProducerName {
        ProducerName::PerNode(name.into())
    }
}

impl From<ProducerId> for ProducerName {
    fn from(id: ProducerId) -> Self {
        Self::Is(id)
    }
}

impl ProducerName {
    /// The id of the producer of this name on a node.
    ///
    /// # Errors
    /// [`InvalidProducerId`]: together with the node's address the name is too long, or it is empty.
    pub fn on(self, node: &UniqueAddress) -> Result<ProducerId, InvalidProducerId> {
        match self {
            Self::Is(id) => Ok(id),
            Self::PerNode(name) if name.is_empty() => ProducerId::new(name),
            Self::PerNode(name) => ProducerId::new(format!("{name}@{}", node.address())),
        }
    }
}

/// The persistence type of producers' queues in a journal; the producer's id is the id of the entity.
#[cfg(feature = "persistence")]
const QUEUES: &str = "delivery-producer";

/// A producer that is not started yet. See [`NodeDelivery::producer`].
#[must_use = "a producer does nothing until it is started"]
pub struct StartProducer<T> {
    node: NodeDelivery,
    entity_type: String,
    name: ProducerName,
    settings: DeliverySettings,
    durability: Durability,
    message: PhantomData<fn(T)>,
}

impl<T: Send + Sync + 'static> StartProducer<T> {
    pub(super) fn new(node: NodeDelivery, key: &EntityKey<T>, name: ProducerName) -> Self {
        let settings = node.settings().clone();
        Self {
            node,
            entity_type: key.name().to_owned(),
            name,
            settings,
            durability: Durability::None,
            message: PhantomData,
        }
    }

    /// Changes settings for this producer alone; `change` starts from the settings of the node.
    pub fn settings(mut self, change: impl FnOnce(&mut DeliverySettings)) -> Self {
        change(&mut self.settings);
        self
    }

    /// Stores every message in the node's journal before it is sent, so that it is delivered even if the producer's
    /// process dies. The queue is an [`EventSourcedProducerQueue`] of the producer's id, with the settings
    /// [`event_sourced_queue`](DeliverySettings::event_sourced_queue). Stored, unconfirmed messages are sent again when
    /// a producer of this id starts, before new ones. Source: delivery §4.
    #[cfg(feature = "persistence")]
    pub fn durable(self) -> Self {
        Self { durability: Durability::Journal, ..self }
    }

    /// Stores every message in `queue` before it is sent.
    ///
    /// ```no_run
    /// # use greylag_delivery::{InMemoryQueues, NodeDelivery, ProducerId};
    /// # use greylag_sharding::EntityKey;
    /// # struct Pay { cents: u64 }
    /// # const PAYMENT: EntityKey<Pay> = EntityKey::new("Payment");
    /// # async fn pay(delivery: &NodeDelivery) -> Result<(), Box<dyn std::error::Error>> {
    /// // In a program a `KvProducerQueue` over a store on disk, say; this one is for tests.
    /// let queue = InMemoryQueues::new().open("orders");
    /// let payments = delivery.producer(PAYMENT, ProducerId::per_node("orders")).durable_in(queue).start().await?;
    /// let mut sent = payments.send("order-4711", Pay { cents: 990 }).await?; // it is stored
    /// println!("message {}", sent.seq_nr().await?);
    /// # Ok(())
    /// # }
    /// ```
    pub fn durable_in(self, queue: impl DurableProducerQueue<Encoded> + 'static) -> Self {
        Self { durability: Durability::In(Box::new(queue)), ..self }
    }

    /// Starts the producer.
    ///
    /// # Errors
    /// [`StartError`]; nothing was started.
    pub async fn start(self) -> Result<ShardingProducer<T>, StartError> {
        let Self { node, entity_type, name, settings, durability, .. } = self;
        let not_set_up = || StartError::NotSetUp { entity_type: entity_type.clone(), message: type_name::<T>() };
        let producer_target = node.state.producer_target::<T>(&entity_type).ok_or_else(not_set_up)?;
        let region = producer_target.region(&node.sharding).ok_or_else(not_set_up)?;
        let codec = producer_target.codec.clone().ok_or(StartError::NoCodec { entity_type: entity_type.clone() })?;
        let remoting = node.sharding.remoting().clone();
        let id = name.on(remoting.self_address())?;
        let storage = durability.storage(&node.sharding, id.clone(), &settings)?;
        let producer = ShardingProducer::open(remoting, storage, region, codec, &settings)?;
        let reporter = ProducerReporter::new(producer.sending(), id, entity_type, settings.producer.drain_on_drop);
        node.state.watch(Box::new(reporter));
        Ok(producer)
    }
}

/// Where a producer keeps its messages.
pub(super) enum Durability {
    /// In memory alone.
    None,
    /// In the node's journal.
    #[cfg(feature = "persistence")]
    Journal,
    /// In a queue of the program.
    In(Box<dyn DurableProducerQueue<Encoded>>),
}

impl Durability {
    #[cfg_attr(not(feature = "persistence"), allow(unused_variables, clippy::unnecessary_wraps))]
    pub(super) fn storage(
        self,
        sharding: &Sharding,
        id: ProducerId,
        settings: &DeliverySettings,
    ) -> Result<MessageStorage, StartError> {
        match self {
            Self::None => Ok(MessageStorage::fresh(id)),
            Self::In(queue) => Ok(MessageStorage::Durable(id, queue)),
            #[cfg(feature = "persistence")]
            Self::Journal => {
                let stores = sharding.stores().ok_or(StartError::NoStores)?.clone();
                let history = PersistenceId::of(QUEUES, id.as_str())?;
                let permits = sharding.recovery_permits().clone();
                let queue =
                    EventSourcedProducerQueue::open(history, stores, permits, settings.event_sourced_queue.clone())?;
                Ok(MessageStorage::Durable(id, Box::new(queue)))
            }
        }
    }
}

impl<T> fmt::Debug for StartProducer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StartProducer")
            .field("entity_type", &self.entity_type)
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}
