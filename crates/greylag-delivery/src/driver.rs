//! The tokio half: the task of a producer, the controllers inside entities, and durable queues.

#[cfg(feature = "sharding")]
pub(crate) mod consumer;
#[cfg(feature = "sharding")]
mod dedupe_store;
#[cfg(feature = "sharding")]
pub(crate) mod entity;
#[cfg(feature = "persistence")]
mod entity_outbox;
#[cfg(feature = "persistence")]
pub(crate) mod event_sourced;
#[cfg(feature = "sharding")]
mod node;
#[cfg(feature = "sharding")]
mod point_to_point;
#[cfg(feature = "sharding")]
mod producer;
#[cfg(feature = "sharding")]
mod queue;
#[cfg(feature = "sharding")]
mod region;
#[cfg(feature = "sharding")]
mod sending;
#[cfg(feature = "sharding")]
mod storing;
#[cfg(feature = "sharding")]
mod work_pulling;

#[cfg(feature = "sharding")]
pub use consumer::{ConsumerDelivery, DeliveryEvent, DeliveryEvents, DeliveryHealth, Undecodable};
#[cfg(feature = "sharding")]
pub use dedupe_store::{DedupeStore, RecordError};
#[cfg(feature = "sharding")]
pub use entity::{DeliveryEntity, DeliveryType};
#[cfg(feature = "persistence")]
pub use entity_outbox::{EntityOutbox, EntityOutboxQueue, OutboxRequest, WithOutbox};
#[cfg(feature = "persistence")]
pub use event_sourced::DeliveryEffects;
#[cfg(feature = "persistence")]
pub use node::EventSourcedDelivery;
#[cfg(feature = "sharding")]
pub use node::{
    ConsumersReport, DeliveryReport, DeliveryTypeSettings, NodeDelivery, ProducerCounts, ProducerKind, ProducerName,
    ProducerReport, ProxyDelivery, StartProducer, StartWorkProducer, StartWorker, WorkKey,
};
#[cfg(feature = "sharding")]
pub use point_to_point::{
    ConsumerBuilder, ConsumerController, Deliveries, Producer, ProducerBuilder, ProducerController,
};
#[cfg(feature = "sharding")]
pub use producer::{ShardingProducer, ShardingRequestNext, ShardingSink};
#[cfg(feature = "persistence")]
pub use queue::EventSourcedProducerQueue;
#[cfg(feature = "sharding")]
pub use queue::{
    DurableProducerQueue, FaultyQueueStore, InMemoryProducerQueue, InMemoryQueues, KvProducerQueue,
    OutboxProducerQueue, OutboxStore, QueueCall, QueueFault, QueueStore, TypedQueue,
};
#[cfg(feature = "sharding")]
use sending::Keeping;
#[cfg(feature = "sharding")]
pub use sending::{ProducerSink, RequestNext, Sent};
#[cfg(feature = "ddata")]
pub use work_pulling::DdataWorkerDirectory;
#[cfg(feature = "sharding")]
pub use work_pulling::{
    LocalWorkerDirectory, RegisteredWorker, StaticWorkerDirectory, WorkPullingBuilder, WorkPullingProducer,
    WorkerBuilder, WorkerDirectory, WorkerHandle,
};
