//! The tokio part of the crate: the tasks of producers and consumers, the controllers inside entities, and durable
//! queues.

pub(crate) mod consumer;
mod dedupe_store;
#[cfg(feature = "sharding")]
pub(crate) mod entity;
#[cfg(feature = "sharding")]
mod node;
mod point_to_point;
#[cfg(feature = "sharding")]
mod producer;
mod queue;
#[cfg(feature = "sharding")]
mod region;
mod sending;
mod storing;
mod work_pulling;

#[cfg(feature = "sharding")]
pub use consumer::ConsumerDelivery;
pub use consumer::{DeliveryEvent, DeliveryEvents, DeliveryHealth, Undecodable};
pub use dedupe_store::{DedupeStore, RecordError};
#[cfg(all(feature = "persistence", feature = "sharding"))]
pub use entity::{DeliveryEffects, EntityOutbox, EntityOutboxQueue, OutboxRequest, WithOutbox};
#[cfg(feature = "sharding")]
pub use entity::{DeliveryEntity, DeliveryType};
#[cfg(all(feature = "persistence", feature = "sharding"))]
pub use node::EventSourcedDelivery;
#[cfg(feature = "sharding")]
pub use node::{
    ConsumersReport, DeliveryReport, DeliveryTypeSettings, NodeDelivery, ProducerCounts, ProducerKind, ProducerName,
    ProducerReport, ProxyDelivery, StartConsumerController, StartProducer, StartProducerController, StartWorkProducer,
    StartWorker, WorkKey,
};
pub use point_to_point::{
    ConsumerBuilder, ConsumerController, Deliveries, Producer, ProducerBuilder, ProducerController,
};
#[cfg(feature = "sharding")]
pub use producer::{ShardingProducer, ShardingRequestNext, ShardingSink};
#[cfg(feature = "persistence")]
pub use queue::EventSourcedProducerQueue;
pub use queue::{
    DurableProducerQueue, FaultyQueueStore, InMemoryProducerQueue, InMemoryQueues, KvProducerQueue,
    OutboxProducerQueue, OutboxStore, QueueCall, QueueFault, QueueStore, TypedQueue,
};
#[cfg(feature = "sharding")]
use sending::MessageStorage;
pub use sending::{ProducerSink, RequestNext, Sent};
#[cfg(feature = "ddata")]
pub use work_pulling::DdataWorkerDirectory;
pub use work_pulling::{
    LocalWorkerDirectory, RegisteredWorker, StaticWorkerDirectory, WorkPullingBuilder, WorkPullingProducer,
    WorkerBuilder, WorkerDirectory, WorkerHandle,
};
