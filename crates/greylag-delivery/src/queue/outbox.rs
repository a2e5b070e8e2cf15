//! The outgoing messages of an event-sourced entity, as a part of its state.
//!
//! An entity persists its outgoing messages together with the events to which they belong, so that both are stored or
//! neither is. [`DeliveryOutbox`] is the part of the state that has the messages until they are confirmed; an
//! [`OutboxEvent`] changes it, within an event of the entity. Messages are numbered when the command is handled, in the
//! entity's own stream.
//!
//! ```text
//! command ─▶ outbox.send(...) ─▶ [event of the entity, OutboxEvent] ─ append Ok ─▶ handed to the producer
//! confirmed by its target ─▶ outbox.confirm(...) ─▶ [OutboxEvent]
//! ```
//!
//! This module sends nothing, and a message whose append failed is in no state. [`EntityOutbox`](crate::EntityOutbox)
//! hands over the stored messages. Source: delivery §7 (chained exactly-once), scenario 76.

use std::time::Duration;

use bytes::Bytes;
use greylag_core::{DecodeError, Encoded};

use crate::ids::{ControllerRef, Epoch, SeqNr, StreamId};
use crate::queue::persistent::QueueEvent;
use crate::queue::{
    Confirmation, MessageSent, Qualifier, QueueError, QueueState, Started, StoredQueue, TimestampMillis, wire,
};

/// The unconfirmed messages of an entity. See the module's documentation.
///
/// With the feature `serde` it is serialised as one record, so that a state with an outbox may have snapshots of any
/// format.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeliveryOutbox(StoredQueue<Encoded>);

/// An event of an outbox. With the feature `serde` it is serialised as one record, within an entity's event of any
/// format.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutboxEvent(QueueEvent);

impl DeliveryOutbox {
    /// The events that send `messages`, in order, each to a qualifier (the target entity's id). Persist them together
    /// with the events to which they belong, by the very next persist.
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

    /// The event by which `controller` starts to send the outbox, under a raised epoch. The first start gives the
    /// outbox its stream.
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

    /// The event that stores confirmations; `None` if all of them are known.
    ///
    /// # Errors
    /// [`QueueError::OutOfOrder`] if a confirmed message was never sent.
    pub fn confirm(&self, confirmations: Vec<Confirmation>) -> Result<Option<OutboxEvent>, QueueError> {
        let news = self.0.judge_confirmations(confirmations)?;
        Ok((!news.is_empty()).then_some(OutboxEvent(QueueEvent::Confirmed(news))))
    }

    /// The event that forgets targets whose last confirmation is older than `unused_after`; `None` if there are none.
    pub fn clean_up(&self, now_ms: TimestampMillis, unused_after: Duration) -> Option<OutboxEvent> {
        let unused = self.0.unused_qualifiers(now_ms, unused_after);
        (!unused.is_empty()).then_some(OutboxEvent(QueueEvent::Cleanup(unused)))
    }

    /// Applies an event of the outbox; for the entity's `apply`.
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

    /// The unconfirmed messages, by rising numbers.
    pub fn unconfirmed(&self) -> impl Iterator<Item = &MessageSent<Encoded>> {
        self.0.unconfirmed()
    }

    /// The unconfirmed messages from a number on, by rising numbers.
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

    /// Stream, epoch and controller of the last start; `None` before the first start.
    pub fn started(&self) -> Option<&Started> {
        self.0.started()
    }

    /// The state with which a producer starts; `None` before the first start.
    pub fn loaded(&self) -> Option<QueueState<Encoded>> {
        let loaded: Result<_, std::convert::Infallible> = self.0.loaded(|message| Ok(message.clone()));
        loaded.ok().flatten()
    }

    /// Encodes the outbox in the format of `docs/formats/delivery-queue.md`.
    pub fn to_bytes(&self) -> Bytes {
        wire::queue_to_bytes(&self.0)
    }

    /// Decodes the bytes of [`to_bytes`](Self::to_bytes).
    ///
    /// # Errors
    /// [`DecodeError`] if the bytes are no outbox.
    pub fn from_bytes(bytes: Bytes) -> Result<Self, DecodeError> {
        wire::queue_from_bytes(bytes).map(Self)
    }
}

impl OutboxEvent {
    /// The message that the event sends, if it sends one.
    pub fn sent(&self) -> Option<&MessageSent<Encoded>> {
        if let QueueEvent::Sent(sent) = &self.0 { Some(sent) } else { None }
    }

    /// Encodes the event in the format of `docs/formats/delivery-queue.md`.
    pub fn to_bytes(&self) -> Bytes {
        wire::event_to_bytes(&self.0)
    }

    /// Decodes the bytes of [`to_bytes`](Self::to_bytes).
    ///
    /// # Errors
    /// [`DecodeError`] if the bytes are no event of an outbox.
    pub fn from_bytes(bytes: Bytes) -> Result<Self, DecodeError> {
        wire::event_from_bytes(bytes).map(Self)
    }
}

#[cfg(feature = "serde")]
mod serde;
#[cfg(test)]
mod tests;
