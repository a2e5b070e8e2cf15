//! Reliable delivery: ordered, flow-controlled, confirmed; effects exactly once at event-sourced
//! entities.
//!
//! A [`ShardingProducer`] sends messages to sharded entities. Each entity gets its messages in order and confirms them;
//! a message lost on the way, or with an entity, a shard or a node, is sent again. An event-sourced entity stores the
//! position of a delivery in the same atomic write as its events, so a repeated message is recognised and applied once.
//!
//! ```
//! use std::{sync::Arc, time::Duration};
//!
//! use greylag_codec::json;
//! use greylag_core::{Registry, ReplyTo};
//! use greylag_delivery::*;
//! use greylag_persistence::{Ctx, Effect, EventSourced, Stores};
//! use greylag_sharding::{EntityKey, EntityType, Sharding, ShardingSettings};
//! use greylag_transport::memory::MemoryNetwork;
//!
//! // Deposits, and the balance on request.
//! const ACCOUNT: EntityKey<i64> = EntityKey::new("Account");
//!
//! struct Account;
//!
//! impl EventSourced for Account {
//!     type Command = DeliveryCommand<i64, ReplyTo<i64>>;
//!     type Event = i64;
//!     type State = i64;
//!
//!     fn on_command(&mut self, _: &mut Ctx<'_, Self::Command>, balance: &i64, command: Self::Command) -> Effect<Self> {
//!         match command {
//!             DeliveryCommand::Delivered(deposit) => {
//!                 let amount = *deposit;
//!                 Effect::persist_delivery(deposit, vec![amount])
//!             }
//!             DeliveryCommand::Bypass(reply_to) => Effect::reply(reply_to, *balance),
//!         }
//!     }
//!
//!     fn apply(balance: &mut i64, amount: &i64) {
//!         *balance += amount;
//!     }
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let remoting = MemoryNetwork::new().node("localhost:17355#1".parse()?, Arc::new(Registry::new()));
//! let sharding = Sharding::alone(remoting, Some(Stores::in_memory()), ShardingSettings::default()).await?;
//!
//! let accounts = EntityType::event_sourced(ACCOUNT, |_| Ok(Account))
//!     .commands(json("account.deposit"))
//!     .events(json("account.deposited"))
//!     .with_delivery_and(json("account.balance"));
//! let region = sharding.init(accounts)?;
//!
//! // The same stream, numbered from 1 in every run: messages of an earlier run are recognised.
//! let till = ProducerIdentity::stable(ProducerId::new("till 7")?, StreamId(7), Epoch(1));
//! let producer = ShardingProducer::start(&sharding, till, region.clone(), json::<i64>("deposit"), DeliverySettings::default())?;
//! for amount in [100, 20, 3] {
//!     producer.send("alice", amount).await?;
//! }
//! producer.drain(Duration::from_secs(10)).await?;
//!
//! let balance = region.entity_ref("alice").ask(WithDelivery::Bypass).await?;
//! assert_eq!(balance, 123);
//! # Ok(())
//! # }
//! ```
//!
//! # From one producer to one consumer
//!
//! Without entities, a [`Producer`] sends to the consumer that is registered at its [`ProducerController`], on any
//! node:
//!
//! ```
//! use std::sync::Arc;
//! use std::time::Duration;
//!
//! use greylag_codec::json;
//! use greylag_core::Registry;
//! use greylag_delivery::{ConsumerController, Dedupe, ProducerController, ProducerId};
//! use greylag_transport::memory::MemoryNetwork;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let network = MemoryNetwork::new();
//! let desk = network.node("desk:17355#1".parse()?, Arc::new(Registry::new()));
//! let store = network.node("store:17355#1".parse()?, Arc::new(Registry::new()));
//!
//! let orders = ProducerController::builder(ProducerId::new("desk 7")?, json::<String>("order")).spawn(&desk)?;
//! let picking = ConsumerController::builder(json::<String>("order")).spawn(&store)?;
//! picking.register_to(orders.reference());
//!
//! let mut deliveries = picking.start(Dedupe::none());
//! let producer = orders.start();
//! for order in ["one pear", "two apples"] {
//!     producer.send(order.to_owned()).await?; // waits for room at the consumer
//! }
//!
//! for expected in ["one pear", "two apples"] {
//!     let order = deliveries.next().await.expect("the controller runs");
//!     assert_eq!(*order, expected);
//!     order.confirm(); // dropped unconfirmed, it would come again
//! }
//! producer.drain(Duration::from_secs(10)).await?;
//! # Ok(())
//! # }
//! ```
//!
//! # Work pulling
//!
//! A [`WorkPullingProducer`] gives each job to one of the workers with demand, on any node.
//!
//! # Modules and features
//!
//! The protocol consists of pure machines, which can be used and tested on their own: the two ends of a link
//! ([`machine::producer_link`], [`machine::consumer_link`]), the controllers of one producer and one consumer
//! ([`machine::point_to_point`], [`machine::consumer_controller`]), of a producer with many workers
//! ([`machine::work_pulling`]), the controllers with a link per entity or producer ([`machine::sharding_producer`],
//! [`machine::sharding_consumer`]), and the storing of messages ([`machine::storing`]). Point to point and work pulling
//! need only a transport. The feature `sharding` adds [`ShardingProducer`], entities that take deliveries
//! ([`DeliveryEntity`]), and the entry point of a node ([`NodeDelivery`]); `persistence` adds queues in a journal, and
//! both features together add event-sourced entities ([`EventSourcedDelivery`]).
//!
//! A durable producer keeps messages across its own death in a [`DurableProducerQueue`], by the rules of [`queue`].
//! [`EventSourcedProducerQueue`] stores the queue in a journal, [`KvProducerQueue`] in any store that can change a few
//! rows atomically; [`InMemoryProducerQueue`] is for tests. The feature `tck` tests other queues against the guarantees
//! of the trait (`tck::durable_queue`). [`StartProducer::durable`] makes a producer with a queue.
//!
//! # Guarantees
//!
//! - Per producer and entity, first attempts are delivered in the order of sending.
//! - An accepted message is delivered as long as its producer lives; a stored message also by the next producer that
//!   loads the queue.
//! - At an event-sourced entity each message takes effect exactly once, *if* its effect consists of the events that the
//!   entity persists. Replies, calls and other databases are not covered.
//! - A stuck entity holds up only the senders to that entity.
//!
//! Source: delivery §5.

#![cfg_attr(
    not(feature = "sharding"),
    allow(dead_code, unused_imports, reason = "controllers share more with those of entities than they use alone")
)]

mod delivery;
mod driver;
mod error;
#[cfg(all(any(test, feature = "fuzzing"), feature = "sharding"))]
#[doc(hidden)]
pub mod fuzzing;
mod ids;
pub mod machine;
mod message;
pub mod queue;
mod settings;
#[cfg(feature = "tck")]
pub mod tck;
mod wire;

pub use delivery::batch::DeliveryBatch;
#[cfg(all(feature = "persistence", feature = "sharding"))]
pub use delivery::command::{DeliveryCommand, UnderDelivery};
pub use delivery::payload::{Payload, UnreadableError};
#[cfg(feature = "sharding")]
pub use delivery::with_delivery::{DeliveryCodec, NoBypass, Protocol, WithDelivery};
pub use delivery::{ConfirmHandle, Delivery};
#[cfg(feature = "ddata")]
pub use driver::DdataWorkerDirectory;
#[cfg(feature = "persistence")]
pub use driver::EventSourcedProducerQueue;
pub use driver::consumer::counters::{DeliveryCounters, DeliverySnapshot};
pub use driver::{
    ConsumerBuilder, ConsumerController, Deliveries, DeliveryEvent, DeliveryEvents, DeliveryHealth, Producer,
    ProducerBuilder, ProducerController, ProducerSink, RequestNext, Sent, Undecodable,
};
#[cfg(feature = "sharding")]
pub use driver::{
    ConsumerDelivery, ConsumersReport, DeliveryEntity, DeliveryReport, DeliveryType, DeliveryTypeSettings,
    NodeDelivery, ProducerCounts, ProducerKind, ProducerName, ProducerReport, ProxyDelivery, ShardingProducer,
    ShardingRequestNext, ShardingSink, StartConsumerController, StartProducer, StartProducerController,
    StartWorkProducer, StartWorker, WorkKey,
};
pub use driver::{
    DedupeStore, DurableProducerQueue, FaultyQueueStore, InMemoryProducerQueue, InMemoryQueues, KvProducerQueue,
    OutboxProducerQueue, OutboxStore, QueueCall, QueueFault, QueueStore, RecordError, TypedQueue,
};
#[cfg(all(feature = "persistence", feature = "sharding"))]
pub use driver::{DeliveryEffects, EntityOutbox, EntityOutboxQueue, EventSourcedDelivery, OutboxRequest, WithOutbox};
pub use driver::{
    LocalWorkerDirectory, RegisteredWorker, StaticWorkerDirectory, WorkPullingBuilder, WorkPullingProducer,
    WorkerBuilder, WorkerDirectory, WorkerHandle,
};
pub use error::{ProducerError, SendError, SentError, StartError, TrySendError, Undelivered};
pub use ids::{
    ControllerRef, Epoch, InvalidControllerRef, InvalidProducerId, InvalidServiceKey, MessageId, ProducerId,
    ProducerIdentity, SeqNr, ServiceKey, StreamId,
};
pub use machine::controller::ControllerStats;
pub use machine::dedupe::{Dedupe, Watermarks};
#[cfg(feature = "sabotage")]
#[doc(hidden)]
pub use machine::omissions::Clause;
#[doc(hidden)]
pub use machine::omissions::Omissions;
pub use machine::portable::UnsendableError;
pub use machine::sharding_producer::{DemandSets, ProducerStats};
pub use machine::storing::StoringState;
pub use machine::work_pulling::{ListedWorker, WorkerSelection, WorkerStats};
pub use message::{
    BatchHeader, Content, Frame, ProducerStopped, SequencedBatch, SequencedMessage, Upstream, UpstreamMessage,
};
#[cfg(feature = "persistence")]
pub use queue::outbox::{DeliveryOutbox, OutboxEvent};
pub use settings::{
    ConsumerSettings, DeliverySettings, OnUndecodable, ProducerSettings, SettingsError, ShardingSettings,
    WorkPullingSettings,
};
