//! Starts a sharding producer: where its messages are kept, and its task.

use std::sync::Arc;
use std::time::Duration;

use greylag_core::{Codec, Encoded};
use greylag_sharding::{Region, Sharding};
use greylag_transport::Remoting;

use super::ShardingProducer;
use super::engine::Entities;
use super::entity_sender::EntitySender;
use crate::delivery::payload::Payload;
use crate::delivery::with_delivery::WithDelivery;
use crate::driver::queue::{DurableProducerQueue, now_ms};
use crate::driver::region::Downstream;
use crate::driver::sending::{Base, MessageStorage, now, spawn};
use crate::error::StartError;
use crate::ids::{ProducerId, ProducerIdentity};
use crate::machine::sharding_producer::ShardingProducer as Machine;
use crate::settings::DeliverySettings;

impl<T: Send + Sync + 'static> ShardingProducer<T> {
    /// Starts a producer of `identity` for the entities of `region`. `codec` must be the codec with which the entity
    /// type decodes deliveries.
    ///
    /// # Errors
    /// [`StartError`]; nothing was started.
    pub fn start<Q: Send + 'static>(
        sharding: &Sharding,
        identity: ProducerIdentity,
        region: Region<WithDelivery<T, Q>>,
        codec: impl Codec<T>,
        settings: DeliverySettings,
    ) -> Result<Self, StartError> {
        let storage = MessageStorage::InMemory(identity);
        Self::open(sharding.remoting().clone(), storage, Arc::new(region), Arc::new(codec), &settings)
    }

    /// Starts a producer for the entities of `region` that stores every message in `queue` before sending it. `codec`
    /// must be the codec with which the entity type decodes deliveries. The queue's unconfirmed messages are sent
    /// again, before new ones; senders wait while the queue is loaded, and whenever it does not answer.
    ///
    /// An [`OutboxProducerQueue`](crate::OutboxProducerQueue) is polled: the producer sends the messages that
    /// applications wrote into the outbox, to the entities named there, as fast as there is room. Calls that send
    /// through such a producer are refused.
    ///
    /// # Errors
    /// [`StartError`]; nothing was started, and the queue was not touched.
    pub fn start_durable<Q: Send + 'static>(
        sharding: &Sharding,
        producer_id: ProducerId,
        region: Region<WithDelivery<T, Q>>,
        codec: impl Codec<T>,
        queue: impl DurableProducerQueue<Encoded> + 'static,
        settings: DeliverySettings,
    ) -> Result<Self, StartError> {
        let storage = MessageStorage::Durable(producer_id, Box::new(queue));
        Self::open(sharding.remoting().clone(), storage, Arc::new(region), Arc::new(codec), &settings)
    }

    /// Starts a producer for the entities of a region; the type of bypass messages is erased.
    pub(in crate::driver) fn open(
        remoting: Arc<dyn Remoting>,
        storage: MessageStorage,
        downstream: Arc<dyn Downstream<T>>,
        codec: Arc<dyn Codec<T>>,
        settings: &DeliverySettings,
    ) -> Result<Self, StartError> {
        let polls = storage.poll_interval();
        let base = Base::open(&remoting, storage, codec, settings)?;
        let engine = Entities::new(&base, machine(&base, settings, polls), downstream.clone());
        Ok(Self { sender: EntitySender::new(spawn(base, engine), downstream) })
    }
}

fn machine<T: 'static>(base: &Base<T>, settings: &DeliverySettings, polls: Option<Duration>) -> Machine<Payload<T>> {
    let (machine, producer_id) = (settings.sharding_producer(), base.producer_id.clone());
    let (node, path) = (base.reference().node.clone(), base.reference().path.clone());
    if let Some((stream_id, epoch)) = base.stream {
        let identity = ProducerIdentity { producer_id, stream_id, epoch };
        return Machine::new(machine, identity, node, path);
    }
    let clock = (now(), now_ms());
    let machine = Machine::durable(machine, settings.storing(), producer_id, node, path, clock);
    match polls {
        Some(interval) => machine.polling(interval),
        None => machine,
    }
}
