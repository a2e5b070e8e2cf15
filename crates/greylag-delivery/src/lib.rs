//! Reliable delivery: ordered, flow-controlled, confirmed; effects exactly once at event-sourced entities.

pub mod consumer_link;
#[cfg(feature = "sharding")]
mod counters;
mod deadlines;
mod dedupe;
#[cfg(feature = "sharding")]
mod delivery;
#[cfg(feature = "sharding")]
mod driver;
mod error;
mod ids;
mod message;
#[cfg(feature = "sharding")]
mod payload;
pub mod producer_link;
mod settings;
pub mod sharding_consumer;
pub mod sharding_producer;
#[cfg(feature = "sharding")]
mod wire;
#[cfg(feature = "sharding")]
mod with_delivery;

#[cfg(feature = "sharding")]
pub use counters::{DeliveryCounters, DeliverySnapshot};
pub use dedupe::{Dedupe, Watermarks};
#[cfg(feature = "sharding")]
pub use delivery::{ConfirmHandle, Delivery};
#[cfg(feature = "sharding")]
pub use driver::{ConsumerDelivery, DeliveryEntity, DeliveryType, OnUndecodable, Sent, ShardingProducer};
#[cfg(feature = "persistence")]
pub use driver::{DeliveryCommand, DeliveryEffects, event_sourced_with_delivery};
pub use error::{SendError, StartError, Undelivered};
pub use ids::{ControllerRef, Epoch, InvalidProducerId, MessageId, ProducerId, ProducerIdentity, SeqNr, StreamId};
pub use message::{BatchHeader, Frame, ProducerStopped, SequencedBatch, SequencedMessage, Upstream, UpstreamMessage};
#[cfg(feature = "sharding")]
pub use payload::Payload;
pub use settings::{ConsumerSettings, DeliverySettings, ProducerSettings, SettingsError, ShardingSettings};
pub use sharding_producer::ProducerStats;
#[cfg(feature = "sharding")]
pub use with_delivery::{DeliveryCodec, NoBypass, Protocol, WithDelivery};
