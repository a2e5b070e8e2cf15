//! The outbox of a sharded entity, opened with the producer that sends for it.

use std::any::type_name;

use greylag_sharding::{EntityInit, EntityKey};

use crate::driver::node::registry::ProducerReporter;
use crate::driver::node::state::NodeState;
use crate::driver::queue::EVENT_OVERHEAD;
use crate::driver::{EntityOutbox, MessageStorage, ShardingProducer};
use crate::error::StartError;
use crate::ids::ProducerId;

impl EntityOutbox {
    /// The outbox of a sharded entity, and the producer that sends its messages to the entities of the type `key`, for
    /// as long as the outbox is kept. Call it in the factory of the sending entity's type:
    ///
    /// ```
    /// use greylag_delivery::EntityOutbox;
    /// use greylag_sharding::{EntityInit, EntityKey, Failure};
    ///
    /// const CARD: EntityKey<u32> = EntityKey::new("Card");
    ///
    /// struct Order { outbox: EntityOutbox }
    ///
    /// // EntityType::event_sourced(ORDER, order).commands(…).events(…).with_delivery()
    /// fn order(init: &EntityInit) -> Result<Order, Failure> {
    ///     Ok(Order { outbox: EntityOutbox::open(init, CARD)? })
    /// }
    /// ```
    ///
    /// The receiving type must be set up on this node with delivery, as a host or as a proxy; [`EntityOutbox::send`]
    /// takes the codec of its deliveries. The producer's id is `type/id` of the sending entity, and its settings are
    /// those of the node.
    ///
    /// Messages leave the outbox while the entity is active. Entities of a type with
    /// [`EntityType::remember_entities`](greylag_sharding::EntityType::remember_entities) are started again after the
    /// death of their node; an entity of another type sends the rest when a message activates it.
    ///
    /// # Errors
    /// [`StartError`]: the receiving type is not set up here, or the entity's type and id are too long for a
    /// [`ProducerId`].
    #[allow(clippy::needless_pass_by_value, reason = "keys are constants, and are named as such elsewhere")]
    pub fn open<T: Send + Sync + 'static>(init: &EntityInit, key: EntityKey<T>) -> Result<Self, StartError> {
        let sharding = init.sharding().ok_or(StartError::NodeEnded)?;
        let state = NodeState::of(init.extensions());
        let not_set_up = || StartError::NotSetUp { entity_type: key.name().to_owned(), message: type_name::<T>() };
        let producer_target = state.producer_target::<T>(key.name()).ok_or_else(not_set_up)?;
        let region = producer_target.region(&sharding).ok_or_else(not_set_up)?;
        let no_codec = || StartError::NoCodec { entity_type: key.name().to_owned() };
        let codec = producer_target.codec.clone().ok_or_else(no_codec)?;
        let stores = init.stores().ok_or(StartError::NoStores)?;
        let (outbox, queue) = Self::new(stores.journal.caps().max_event_bytes.saturating_sub(EVENT_OVERHEAD));
        let id = ProducerId::new(format!("{}/{}", init.entity_type, init.id))?;
        let storage = MessageStorage::Durable(id.clone(), Box::new(queue));
        let settings = state.settings();
        let producer = ShardingProducer::open(sharding.remoting().clone(), storage, region, codec, settings)?;
        let reporter =
            ProducerReporter::new(producer.sending(), id, key.name().to_owned(), settings.producer.drain_on_drop);
        state.outboxes().add(init.entity_type.as_str(), key.name(), Box::new(reporter));
        Ok(outbox.with_producer(producer))
    }
}
