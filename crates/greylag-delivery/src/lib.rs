//! Reliable delivery: ordered, flow-controlled, confirmed; effects exactly once at event-sourced entities.

pub mod consumer_link;
mod deadlines;
mod dedupe;
mod ids;
mod message;
mod payload;
pub mod producer_link;
mod settings;
pub mod sharding_consumer;
pub mod sharding_producer;
mod wire;

pub use dedupe::{Dedupe, Watermarks};
pub use ids::{ControllerRef, Epoch, InvalidProducerId, MessageId, ProducerId, ProducerIdentity, SeqNr, StreamId};
pub use message::{BatchHeader, Frame, ProducerStopped, SequencedBatch, SequencedMessage, Upstream, UpstreamMessage};
pub use payload::Payload;
pub use settings::{ConsumerSettings, DeliverySettings, ProducerSettings, SettingsError, ShardingSettings};
