//! Inputs, effects and settings of a sharding consumer.

use std::sync::Arc;
use std::time::Duration;

use greylag_core::UniqueAddress;

use crate::ids::{ControllerRef, Epoch, MessageId, ProducerId};
use crate::machine::consumer_link::{self, ConsumerLinkSettings, DeliveryKey};
use crate::machine::dedupe::Dedupe;
use crate::message::{Frames, ProducerStopped, SequencedBatch, Upstream};

/// Settings of the controller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShardingConsumerSettings {
    /// Settings of every link.
    pub link: Arc<ConsumerLinkSettings>,
    /// Limit of frames that wait for the entity's start.
    pub buffer_size: usize,
    /// Idle time after which a link is dropped.
    pub consumer_idle_after: Duration,
    /// Limit of links; for one more, the link idle for longest is dropped, or the new producer is refused.
    pub max_producers_per_entity: usize,
    /// Number of streams that are remembered for ever.
    pub dedupe_streams_max: usize,
    /// Retention of streams beyond that number.
    pub dedupe_retention: Duration,
}

/// One attempt at one delivery of one link.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct DeliveryHandle {
    /// The id of the message.
    pub id: MessageId,
    /// The number of the link in this controller; a later link of the same stream has another number.
    pub link: u64,
    /// Delivery number and attempt within the link.
    pub key: DeliveryKey,
}

/// An input to the consumer controller of one entity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Input<P> {
    /// Frames arrived.
    Batch(SequencedBatch<P>),
    /// The entity has started; carries how far it has processed each stream.
    Start(Dedupe),
    /// The entity has processed a delivery.
    Confirm(DeliveryHandle),
    /// The entity has processed several deliveries at once; each producer gets one message about them.
    ConfirmAll(Vec<DeliveryHandle>),
    /// The entity gave an attempt up; the next one follows after the pause, or after the usual back-off.
    Abandon(DeliveryHandle, Option<Duration>),
    /// The entity has not looked at an attempt, or could not process it yet. The attempt is not counted, and is
    /// repeated after the pause.
    Return(DeliveryHandle, Duration),
    /// The message cannot be decoded; it waits until it is confirmed.
    Unreadable(DeliveryHandle),
    /// End the link of this delivery's producer; its frames are refused until the entity starts again.
    GiveUp(DeliveryHandle),
    /// A producer's link has ended.
    ProducerStopped(ProducerStopped),
    /// A node was removed from the cluster.
    NodeRemoved(UniqueAddress),
    /// The entity is asked to stop: hand out nothing more.
    Finish,
    /// The entity has ended.
    Stop,
    /// The entity has failed and another controller takes over: tell the producers to start over at once.
    StartOver,
    /// A deadline may have passed.
    Tick,
}

/// An effect of the controller; effects must be carried out in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect<P> {
    /// Hand a message to the entity.
    Deliver {
        /// The handle with which to confirm the message.
        handle: DeliveryHandle,
        /// The content of the message.
        parts: Frames<P>,
    },
    /// Send a message to a producer controller.
    Reply {
        /// The receiving link.
        to: ControllerRef,
        /// The epoch of the answered frames.
        epoch: Option<Epoch>,
        /// The message.
        message: Upstream,
    },
    /// A duplicate of a processed message; it is confirmed and not delivered.
    Suppressed(MessageId),
    /// The last permitted attempt at a message failed.
    Poisoned {
        /// The id of the message.
        id: MessageId,
        /// Number of attempts.
        attempts: u32,
    },
    /// A message waits for its next attempt and was not handed out here; an earlier controller had handed it out.
    Held(MessageId),
    /// A message is unconfirmed for `confirm_warn_after`.
    Overdue(MessageId),
    /// A link switched to another controller of its stream; the former one may still be alive.
    Replaced {
        /// The id of the producer.
        producer: ProducerId,
        /// The former controller.
        former: ControllerRef,
        /// The current controller.
        by: ControllerRef,
    },
    /// Two streams of one producer id are active at the same time, so two producers may use the same id (S10).
    SameProducer(ProducerId),
    /// Frames of another stream were dropped: the limit of producers is reached, and none is idle (S13).
    Refused(ProducerId),
    /// Whether a delivery is in hand or could be handed out; if so, passivation is vetoed (S15).
    Busy(bool),
    /// Every link has ended after `Finish` or `Stop`.
    Stopped,
}

impl<P> Effect<P> {
    /// Converts an effect of the link number `link`. `producer` is the link's current producer.
    pub(crate) fn of_link(effect: consumer_link::Effect<P>, link: u64, producer: Option<&ProducerId>) -> Option<Self> {
        Some(match effect {
            consumer_link::Effect::Deliver { key, id, parts } => {
                Self::Deliver { handle: DeliveryHandle { id, link, key }, parts }
            }
            consumer_link::Effect::Reply { to, epoch, message } => Self::Reply { to, epoch, message },
            consumer_link::Effect::Suppressed(id) => Self::Suppressed(id),
            consumer_link::Effect::Poisoned { id, attempts } => Self::Poisoned { id, attempts },
            consumer_link::Effect::Held(id) => Self::Held(id),
            consumer_link::Effect::Overdue(id) => Self::Overdue(id),
            consumer_link::Effect::Replaced { former, by } => {
                Self::Replaced { producer: producer?.clone(), former, by }
            }
            consumer_link::Effect::Stopped => Self::Stopped,
        })
    }
}
