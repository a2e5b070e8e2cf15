//! How a sharding producer is started: what it keeps of its messages, and the task.

use std::sync::Arc;

use greylag_core::{Codec, Encoded};
use greylag_sharding::{Region, Sharding};
use greylag_transport::{LaneKind, Remoting};
use tokio::sync::watch;

use super::task::Task;
use super::{Limits, Seen, ShardingProducer, SharedState};
use crate::driver::entrance::Entrance;
use crate::driver::queue::DurableProducerQueue;
use crate::driver::region::Downstream;
use crate::driver::sending::{PATHS, now, upstream, wall_clock_ms};
use crate::driver::storing::Store;
use crate::error::StartError;
use crate::ids::{ControllerRef, Epoch, ProducerId, ProducerIdentity, SeqNr, StreamId};
use crate::machine::sharding_producer::{DemandSets, ProducerStats, ShardingProducer as Machine};
use crate::settings::{DeliverySettings, LANE_MARGIN};
use crate::with_delivery::WithDelivery;

/// The instance of a controller itself; those of its links begin above it.
const CONTROLLER: u64 = 0;

/// Where a producer keeps its messages.
pub(crate) enum Keeping {
    /// In memory alone, under this identity.
    InMemory(ProducerIdentity),
    /// In a queue, which knows stream and epoch.
    Durable(ProducerId, Box<dyn DurableProducerQueue<Encoded>>),
}

impl ProducerIdentity {
    /// A fresh stream, for a producer that remembers nothing across its starts.
    pub fn in_memory(producer_id: ProducerId) -> Self {
        Self { producer_id, stream_id: StreamId(uuid::Uuid::new_v4().as_u128()), epoch: Epoch::FIRST }
    }
}

impl<T: Send + Sync + 'static> ShardingProducer<T> {
    /// Starts a producer of `identity` for the entities of `region`. `codec` is the one that the
    /// entity type reads deliveries with.
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
        let keeping = Keeping::InMemory(identity);
        Self::open(sharding.remoting().clone(), keeping, Arc::new(region), Arc::new(codec), &settings)
    }

    /// Starts a producer that stores every message in `queue` before it sends it, for the entities of `region`. `codec` is
    /// the one that the entity type reads deliveries with. Messages that the queue has are sent again, before new ones;
    /// while it is loaded, and whenever it does not answer, senders wait.
    ///
    /// An [`OutboxProducerQueue`](crate::OutboxProducerQueue) is polled: the producer sends what applications wrote into
    /// it, to the entities that they named, as fast as there is room. Nothing is sent through such a producer itself.
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
        let keeping = Keeping::Durable(producer_id, Box::new(queue));
        Self::open(sharding.remoting().clone(), keeping, Arc::new(region), Arc::new(codec), &settings)
    }

    /// Starts a producer for the entities of a region whose second message type is forgotten.
    pub(in crate::driver) fn open(
        remoting: Arc<dyn Remoting>,
        keeping: Keeping,
        downstream: Arc<dyn Downstream<T>>,
        codec: Arc<dyn Codec<T>>,
        settings: &DeliverySettings,
    ) -> Result<Self, StartError> {
        settings.validate()?;
        let lane = remoting.maximum_message_size(LaneKind::Ordinary);
        settings.validate_for_lane(lane)?;
        let limits = Limits::new(settings, lane, &keeping);
        // The path is never given to another controller, so a message for this one cannot reach another.
        let path: Arc<str> = format!("{PATHS}{}", uuid::Uuid::new_v4().simple()).into();
        let node = remoting.self_address().clone();
        let controller = ControllerRef { node: node.clone(), path: path.clone(), instance: CONTROLLER };
        let (machine, store) = match keeping {
            Keeping::InMemory(identity) => {
                (Machine::new(settings.sharding_producer(), identity, node, path.clone()), None)
            }
            Keeping::Durable(id, queue) => {
                let (machine, storing) = (settings.sharding_producer(), settings.storing());
                let clock = (now(), wall_clock_ms());
                let mut machine = Machine::durable(machine, storing, id, node, path.clone(), clock);
                if let Some(interval) = queue.poll_interval() {
                    machine = machine.polling(interval);
                }
                (machine, Some(Store::open(queue, controller)))
            }
        };
        let (_, from_consumers) = upstream(&remoting, &path);
        let (entrance, inbox, served) = Entrance::new();
        let seen =
            Seen { stats: ProducerStats::default(), store: machine.storing_state(), demand: DemandSets::default() };
        let shared = Arc::new(SharedState {
            codec,
            downstream,
            limits,
            is_durable: store.is_some(),
            confirmed: watch::channel(SeqNr::NONE).0,
            seen: seen.into(),
            wants_demand: false.into(),
            end: None.into(),
            is_running: true.into(),
        });
        let task = Task::new(machine, shared.clone(), remoting, path, served, settings.producer.drain_on_drop);
        tokio::spawn(task.run(inbox, from_consumers, store));
        Ok(Self { entrance, shared })
    }
}

impl Limits {
    fn new(settings: &DeliverySettings, lane: usize, keeping: &Keeping) -> Self {
        let chunk_bytes = settings.producer.chunk_large_messages;
        let in_one_piece = if chunk_bytes == 0 { lane.saturating_sub(LANE_MARGIN) } else { usize::MAX };
        let stored = match keeping {
            Keeping::InMemory(_) => usize::MAX,
            Keeping::Durable(_, queue) => queue.max_message_bytes(),
        };
        Self {
            chunk_bytes,
            max_message_bytes: settings.producer.max_message_bytes.min(in_one_piece).min(stored),
            buffer_size: settings.sharding.buffer_size,
            buffer_size_per_entity: settings.sharding.buffer_size_per_entity,
        }
    }
}
