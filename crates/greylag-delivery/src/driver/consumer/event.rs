//! Events of deliveries for operators: messages that failed or cannot be decoded, and producers that were replaced.

use std::sync::Arc;

use tokio::sync::broadcast;

use crate::delivery::payload::UnreadableError;
use crate::ids::{ControllerRef, MessageId, ProducerId};

/// Capacity of a subscriber's event queue; a slower subscriber loses the oldest events.
const CAPACITY: usize = 256;

/// Something that happened to a delivery, or to a link. A [`ConsumerController`](crate::ConsumerController) has no
/// entity, and gives its reference as `entity`. Source: delivery §9, §6.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum DeliveryEvent {
    /// Every permitted attempt at a message failed; the poison policy decides what follows.
    Poisoned {
        /// Id of the entity.
        entity: Arc<str>,
        /// Id of the message.
        id: MessageId,
        /// Number of attempts.
        attempts: u32,
    },
    /// A message arrived that cannot be decoded.
    Undecodable {
        /// Id of the entity.
        entity: Arc<str>,
        /// Id of the message.
        id: MessageId,
        /// Why the message cannot be decoded.
        error: UnreadableError,
    },
    /// A message was handed to an entity `consumer.confirm_warn_after` ago, and is not confirmed.
    Overdue {
        /// Id of the entity.
        entity: Arc<str>,
        /// Id of the message.
        id: MessageId,
    },
    /// A link switched to another controller of the same stream; the former controller may still be alive.
    ProducerReplaced {
        /// Id of the entity.
        entity: Arc<str>,
        /// Id of the producer.
        producer: ProducerId,
        /// The former controller.
        former: ControllerRef,
        /// The new controller.
        by: ControllerRef,
    },
    /// Two streams of one producer id reach an entity at the same time: two producers may use the same id (S10).
    SameProducer {
        /// Id of the entity.
        entity: Arc<str>,
        /// The producer id that both streams have.
        producer: ProducerId,
    },
    /// An entity has as many links as its limit permits, and none of them is idle; messages of this producer are
    /// dropped, and sent again later.
    TooManyProducers {
        /// Id of the entity.
        entity: Arc<str>,
        /// The producer without a link.
        producer: ProducerId,
    },
}

/// Subscription to the events of one entity type on one node, or of one consumer controller.
#[derive(Debug)]
pub struct DeliveryEvents {
    receiver: broadcast::Receiver<DeliveryEvent>,
    missed: u64,
}

impl DeliveryEvents {
    /// The next event; `None` once every possible source of events has ended. Cancel safe.
    pub async fn next(&mut self) -> Option<DeliveryEvent> {
        loop {
            match self.receiver.recv().await {
                Ok(event) => return Some(event),
                Err(broadcast::error::RecvError::Lagged(missed)) => self.missed = self.missed.saturating_add(missed),
                Err(broadcast::error::RecvError::Closed) => return None,
            }
        }
    }

    /// Number of events lost because this subscriber was too slow.
    pub fn missed(&self) -> u64 {
        self.missed
    }
}

/// Whether links are blocked until an operator acts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeliveryHealth {
    /// No link is blocked.
    Healthy,
    /// Some links are blocked until an operator acts.
    Degraded {
        /// Undecodable messages that are not confirmed yet.
        undecodable: usize,
    },
}

/// Broadcasts events to the subscribers.
#[derive(Debug)]
pub(super) struct EventBus(broadcast::Sender<DeliveryEvent>);

impl Default for EventBus {
    fn default() -> Self {
        Self(broadcast::channel(CAPACITY).0)
    }
}

impl EventBus {
    pub(super) fn subscribe(&self) -> DeliveryEvents {
        DeliveryEvents { receiver: self.0.subscribe(), missed: 0 }
    }

    /// Sends an event to the subscribers, if there are any.
    pub(super) fn announce(&self, event: DeliveryEvent) {
        self.0.send(event).ok();
    }
}
