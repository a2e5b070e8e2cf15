//! Events of deliveries for operators: messages that failed or cannot be read, and producers that were replaced.

use std::sync::Arc;

use tokio::sync::broadcast;

use crate::ids::{ControllerRef, MessageId, ProducerId};
use crate::payload::UnreadableError;

/// Events that one subscriber may be behind; older ones are lost to it.
const CAPACITY: usize = 256;

/// Something that happened to a delivery, or to the link that it came by. A
/// [`ConsumerController`](crate::ConsumerController) has no entity, and gives its reference as `entity`. Source: delivery
/// §9, §6.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum DeliveryEvent {
    /// Every attempt at a message failed.
    Poisoned {
        /// The entity.
        entity: Arc<str>,
        /// The message.
        id: MessageId,
        /// How many attempts there were.
        attempts: u32,
    },
    /// A message arrived that cannot be read.
    Undecodable {
        /// The entity.
        entity: Arc<str>,
        /// The message.
        id: MessageId,
        /// Why it cannot be read.
        error: UnreadableError,
    },
    /// An entity has had a message in hand for `consumer.confirm_warn_after`.
    Overdue {
        /// The entity.
        entity: Arc<str>,
        /// The message.
        id: MessageId,
    },
    /// An entity listens to another controller of a stream, in place of one that may still live.
    ProducerReplaced {
        /// The entity.
        entity: Arc<str>,
        /// The producer.
        producer: ProducerId,
        /// The controller before.
        former: ControllerRef,
        /// The controller now.
        by: ControllerRef,
    },
    /// Two streams of one producer id reach an entity at the same time: there may be two producers of that name (S10).
    SameProducer {
        /// The entity.
        entity: Arc<str>,
        /// Their name.
        producer: ProducerId,
    },
    /// An entity has as many producers as it may have, none of them idle; messages of this one are dropped, and come again.
    TooManyProducers {
        /// The entity.
        entity: Arc<str>,
        /// The producer that is kept waiting.
        producer: ProducerId,
    },
}

/// The events of one entity type on one node, or of one consumer controller, from the subscription on.
#[derive(Debug)]
pub struct DeliveryEvents {
    receiver: broadcast::Receiver<DeliveryEvent>,
    missed: u64,
}

impl DeliveryEvents {
    /// The next event; `None` when nothing can send one any more. Cancel safe.
    pub async fn next(&mut self) -> Option<DeliveryEvent> {
        loop {
            match self.receiver.recv().await {
                Ok(event) => return Some(event),
                Err(broadcast::error::RecvError::Lagged(missed)) => self.missed = self.missed.saturating_add(missed),
                Err(broadcast::error::RecvError::Closed) => return None,
            }
        }
    }

    /// Events that were lost to this subscriber because it was too slow.
    pub fn missed(&self) -> u64 {
        self.missed
    }
}

/// Whether links wait for a person.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeliveryHealth {
    /// None of them waits for a person.
    Healthy,
    /// Links wait for a person.
    Degraded {
        /// Messages that cannot be read and wait to be confirmed.
        undecodable: usize,
    },
}

/// Where events go.
#[derive(Debug)]
pub(super) struct Announcements(broadcast::Sender<DeliveryEvent>);

impl Default for Announcements {
    fn default() -> Self {
        Self(broadcast::channel(CAPACITY).0)
    }
}

impl Announcements {
    pub(super) fn subscribe(&self) -> DeliveryEvents {
        DeliveryEvents { receiver: self.0.subscribe(), missed: 0 }
    }

    /// Tells the subscribers, if there are any.
    pub(super) fn announce(&self, event: DeliveryEvent) {
        self.0.send(event).ok();
    }
}
