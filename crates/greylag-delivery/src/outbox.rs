//! What an event-sourced entity has to send, as a part of its own state.
//!
//! An entity persists its outgoing messages together with the events that they tell of, so that either both are there or
//! neither is. [`DeliveryOutbox`] is the part of its state that remembers them until they are confirmed, and
//! [`OutboxEvent`] what happens to it, within an event of the entity. Numbers are given when a command is handled; they
//! count in the entity's own stream.
//!
//! ```text
//! command ─▶ outbox.send(...) ─▶ [event of the entity, OutboxEvent] ─ append Ok ─▶ handed to the producer
//! confirmed by its target ─▶ outbox.confirm(...) ─▶ [OutboxEvent]
//! ```
//!
//! Nothing here sends: a message of an append that failed is in no state. [`EntityOutbox`](crate::EntityOutbox) hands
//! over what is stored. Source: delivery §7 (chained exactly-once), scenario 76.

use std::time::Duration;

use bytes::Bytes;
use greylag_core::{DecodeError, Encoded};

use crate::ids::{ControllerRef, Epoch, SeqNr, StreamId};
use crate::queue::kept::QueueEvent;
use crate::queue::{
    Confirmation, MessageSent, Qualifier, QueueError, QueueState, Started, StoredQueue, TimestampMillis, wire,
};

/// The messages that an entity has sent and that are not confirmed. See the module's documentation.
///
/// With the feature `serde` it is written as one record, so that a state that holds one can be a snapshot of any format.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeliveryOutbox(StoredQueue<Encoded>);

/// What happened to an outbox. With the feature `serde` it is written as one record, within an event of any format.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutboxEvent(QueueEvent);

impl DeliveryOutbox {
    /// The events that send messages, in their order, each to a qualifier (the target entity's id): to be persisted
    /// together with what they tell of, by the very next persist.
    ///
    /// # Errors
    /// [`QueueError::Rejected`] if the numbers of the stream are used up.
    pub fn send(
        &self,
        messages: impl IntoIterator<Item = (Qualifier, Encoded)>,
        now_ms: TimestampMillis,
    ) -> Result<Vec<OutboxEvent>, QueueError> {
        let numbers = self.0.current().get()..u64::MAX;
        let mut events = Vec::new();
        let mut messages = messages.into_iter().fuse();
        for (number, (qualifier, message)) in numbers.zip(messages.by_ref()) {
            let (seq_nr, ack, timestamp_ms) = (SeqNr(number), false, now_ms);
            events.push(OutboxEvent(QueueEvent::Sent(MessageSent { seq_nr, message, ack, qualifier, timestamp_ms })));
        }
        match messages.next() {
            None => Ok(events),
            Some(_) => Err(QueueError::Rejected("the numbers of this stream are used up".to_owned())),
        }
    }

    /// The event by which `controller` begins to send what the outbox holds, under a raised epoch. The first one gives
    /// the outbox its stream.
    ///
    /// # Errors
    /// [`QueueError::Rejected`] if the epochs of the outbox are used up.
    pub fn start(&self, controller: ControllerRef, fresh_stream: StreamId) -> Result<OutboxEvent, QueueError> {
        let newest = self.0.started();
        let epoch = newest.map_or(Some(Epoch::FIRST), |newest| newest.epoch.0.checked_add(1).map(Epoch));
        let epoch = epoch.ok_or_else(|| QueueError::Rejected("the epochs of this outbox are used up".to_owned()))?;
        let stream_id = newest.map_or(fresh_stream, |newest| newest.stream_id);
        Ok(OutboxEvent(QueueEvent::Started(Started { stream_id, epoch, controller })))
    }

    /// The event that remembers confirmations; `None` if they are known.
    ///
    /// # Errors
    /// [`QueueError::OutOfOrder`] if one is of a message that was never sent.
    pub fn confirm(&self, confirmations: Vec<Confirmation>) -> Result<Option<OutboxEvent>, QueueError> {
        let news = self.0.judge_confirmations(confirmations)?;
        Ok((!news.is_empty()).then_some(OutboxEvent(QueueEvent::Confirmed(news))))
    }

    /// The event that forgets targets which confirmed their last message so long ago; `None` if there are none.
    pub fn clean_up(&self, now_ms: TimestampMillis, unused_after: Duration) -> Option<OutboxEvent> {
        let unused = self.0.unused_qualifiers(now_ms, unused_after);
        (!unused.is_empty()).then_some(OutboxEvent(QueueEvent::Cleanup(unused)))
    }

    /// Takes in an event of the outbox, from the entity's `apply`.
    pub fn apply(&mut self, event: &OutboxEvent) {
        match &event.0 {
            QueueEvent::Started(started) => self.0.start(started.clone()),
            QueueEvent::Sent(sent) => self.0.add(sent.clone()),
            QueueEvent::Confirmed(confirmations) => {
                confirmations.iter().for_each(|confirmation| self.0.confirm(confirmation));
            }
            QueueEvent::Cleanup(qualifiers) => self.0.forget(qualifiers),
        }
    }

    /// What is not confirmed, by rising numbers.
    pub fn unconfirmed(&self) -> impl Iterator<Item = &MessageSent<Encoded>> {
        self.0.unconfirmed()
    }

    /// What is not confirmed of the messages from a number on, by rising numbers.
    pub(crate) fn unconfirmed_from(&self, first: SeqNr) -> impl Iterator<Item = &MessageSent<Encoded>> {
        self.0.unconfirmed_from(first)
    }

    /// Whether every message is confirmed.
    pub fn is_empty(&self) -> bool {
        self.0.unconfirmed().next().is_none()
    }

    /// The number of the next message.
    pub fn current(&self) -> SeqNr {
        self.0.current()
    }

    /// The stream and the epoch under which the outbox is sent; `None` before the first start.
    pub fn started(&self) -> Option<&Started> {
        self.0.started()
    }

    /// What a producer begins with; `None` before the first start.
    pub fn loaded(&self) -> Option<QueueState<Encoded>> {
        let loaded: Result<_, std::convert::Infallible> = self.0.loaded(|message| Ok(message.clone()));
        loaded.ok().flatten()
    }

    /// The outbox as bytes, described in `docs/formats/delivery-queue.md`.
    pub fn to_bytes(&self) -> Bytes {
        wire::queue_to_bytes(&self.0)
    }

    /// Reads what [`to_bytes`](Self::to_bytes) wrote.
    ///
    /// # Errors
    /// [`DecodeError`] if these bytes are no outbox.
    pub fn from_bytes(bytes: Bytes) -> Result<Self, DecodeError> {
        wire::queue_from_bytes(bytes).map(Self)
    }
}

impl OutboxEvent {
    /// The message that the event sends, if it sends one.
    pub fn sent(&self) -> Option<&MessageSent<Encoded>> {
        if let QueueEvent::Sent(sent) = &self.0 { Some(sent) } else { None }
    }

    /// The event as bytes, described in `docs/formats/delivery-queue.md`.
    pub fn to_bytes(&self) -> Bytes {
        wire::event_to_bytes(&self.0)
    }

    /// Reads what [`to_bytes`](Self::to_bytes) wrote.
    ///
    /// # Errors
    /// [`DecodeError`] if these bytes are no event of an outbox.
    pub fn from_bytes(bytes: Bytes) -> Result<Self, DecodeError> {
        wire::event_from_bytes(bytes).map(Self)
    }
}

#[cfg(feature = "serde")]
mod serde;
#[cfg(test)]
mod tests;
