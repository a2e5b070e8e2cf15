//! Sharding producers: their handles, and the engine that routes frames to entities.
//!
//! Frames go to the region; answers of consumers arrive at a path of the producer's own, directly from the transport.

mod engine;
mod entity;
mod entity_sender;
mod permit;
mod sink;
mod start;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use super::sending::{Sending, Sent};
use crate::error::{ProducerError, SendError, TrySendError, Undelivered};
use crate::ids::SeqNr;
use crate::machine::sharding_producer::ProducerStats;
use crate::machine::storing::StoringState;
use entity::Entity;
use entity_sender::EntitySender;

pub(super) use entity::PublishedEntities;
pub use permit::ShardingRequestNext;
pub use sink::ShardingSink;

/// Sends messages to entities: in order per entity, with backpressure, resent until confirmed.
///
/// Clones are the same producer. When the last one is dropped, unconfirmed messages are delivered in
/// the background for a while ([`ProducerSettings::drain_on_drop`](crate::ProducerSettings)).
///
/// Sends are numbered in the order in which their futures are first polled. A producer with a stable
/// identity that repeats the same sends in the same order gives every message the same number again,
/// and consumers suppress messages that they have processed. A durable producer numbers messages when it stores them.
/// Source: delivery §3.1, §6.
pub struct ShardingProducer<T> {
    sender: EntitySender<T>,
}

impl<T: Send + Sync + 'static> ShardingProducer<T> {
    /// Sends a message, and waits until there is room for it, and for a durable producer until it is stored. From then
    /// on the message is delivered, even if the returned [`Sent`] is dropped; [`Sent`] gives its number and waits for
    /// its confirmation.
    ///
    /// If the future is dropped before there is room, the message is not sent; if dropped later, the message is
    /// delivered.
    ///
    /// # Errors
    /// [`SendError`]; the message was not sent, except perhaps after [`SendError::StoreUnknown`].
    pub async fn send(&self, entity: impl Into<Arc<str>>, message: T) -> Result<Sent, SendError<T>> {
        self.sender.sending().send(self.sender.prepare(entity.into(), message, false)?).await
    }

    /// Sends a message, and waits until it is stored if the producer is durable, and otherwise until its entity has
    /// confirmed it. Returns the message's number.
    ///
    /// # Errors
    /// As [`send`](Self::send); after [`SendError::Unconfirmed`] the message may have been processed.
    pub async fn ask(&self, entity: impl Into<Arc<str>>, message: T) -> Result<SeqNr, SendError<T>> {
        self.sender.sending().ask(self.sender.prepare(entity.into(), message, true)?).await
    }

    /// Sends a message, and waits until its entity has confirmed it. Returns the message's number.
    ///
    /// # Errors
    /// As [`send`](Self::send); after [`SendError::Unconfirmed`] the message may have been processed.
    pub async fn send_confirmed(&self, entity: impl Into<Arc<str>>, message: T) -> Result<SeqNr, SendError<T>> {
        self.sender.sending().send_confirmed(self.sender.prepare(entity.into(), message, true)?).await
    }

    /// Sends a message if there is room now, without waiting: there is room if the limits of messages that wait for the
    /// task and of messages that wait for the entity's demand are not reached. The number is known when the message is
    /// accepted, see [`Sent::seq_nr`].
    ///
    /// # Errors
    /// [`TrySendError::Full`] with the message, or the [`SendError`] of [`send`](Self::send).
    pub fn try_send(&self, entity: impl Into<Arc<str>>, message: T) -> Result<Sent, TrySendError<T>> {
        let (entity, message) = self.sender.address(entity.into(), message).map_err(TrySendError::Refused)?;
        self.sender.sending().try_send(entity, message)
    }

    /// Waits until the producer has room for one message to any entity, and reserves it: a permit, which also says
    /// which entities have demand. Several permits may be held at a time. Cancel safe; a dropped permit gives its room
    /// back.
    ///
    /// # Errors
    /// [`ProducerError`]: the producer has ended or this handle is superseded, so there will be no permit.
    pub async fn request_next(&self) -> Result<ShardingRequestNext<'_, T>, ProducerError> {
        Ok(ShardingRequestNext::new(&self.sender, self.sender.sending().permit().await?))
    }

    /// Returns a new handle of the same producer, for a part of the application that was restarted: earlier handles and
    /// permits are [`Superseded`](SendError::Superseded); numbers, and messages on their way, are unchanged. Source:
    /// delivery P13.
    #[must_use = "it is the only handle that sends from here on"]
    pub fn start_again(&self) -> Self {
        Self { sender: self.sender.start_again() }
    }

    /// Waits until every message sent before this call is confirmed; other handles may go on sending.
    ///
    /// # Errors
    /// [`Undelivered`] if that takes longer than `patience`; the producer goes on delivering.
    pub async fn drain(&self, patience: Duration) -> Result<(), Undelivered> {
        self.sender.sending().drain(patience).await
    }

    /// Ends the producer now: links are closed, and a durable producer stores the confirmations that it has.
    /// Unconfirmed messages are given up, or stay in the queue of a durable producer.
    pub async fn close(&self) {
        self.sender.sending().close().await;
    }
}

impl<T> ShardingProducer<T> {
    /// The highest number up to which all messages are confirmed.
    pub fn confirmed(&self) -> watch::Receiver<SeqNr> {
        self.sender.sending().confirmed()
    }

    /// Counters since the start, and the numbers of messages and entities held now.
    pub fn stats(&self) -> ProducerStats {
        self.sender.sending().published(|published| published.stats)
    }

    /// State of the queue; [`StoringState::Degraded`] if the queue does not answer.
    pub fn storing_state(&self) -> StoringState {
        self.sender.sending().published(|published| published.store)
    }

    /// Why the producer has ended on its own, if it has.
    pub fn failure(&self) -> Option<ProducerError> {
        self.sender.sending().failure()
    }

    /// The handle from which the node's report reads.
    pub(super) fn sending(&self) -> &Sending<T, Entity> {
        self.sender.sending()
    }
}

impl<T> Clone for ShardingProducer<T> {
    fn clone(&self) -> Self {
        Self { sender: self.sender.clone() }
    }
}

impl<T> fmt::Debug for ShardingProducer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ShardingProducer").field("stats", &self.stats()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
