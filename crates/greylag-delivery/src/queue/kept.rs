//! The state of an event-sourced queue in memory, and the events that it is folded from.

use greylag_core::Encoded;
use greylag_persistence::SeqNr as EventNr;

use super::stored::Started;
use super::{Confirmation, MessageSent, Qualifier, StoredQueue};
use crate::ids::SeqNr;

/// What happened to a queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum QueueEvent {
    /// A controller loaded it.
    Started(Started),
    /// A message was stored.
    Sent(MessageSent<Encoded>),
    /// Messages were confirmed; one event for each flush.
    Confirmed(Vec<Confirmation>),
    /// What was confirmed of these qualifiers is of no use any more.
    Cleanup(Vec<Qualifier>),
}

/// A message that waits for its confirmation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Kept {
    /// The event that stored it.
    pub(crate) event: EventNr,
    /// The message; `None` while its event is still to be read, after a snapshot that left it out.
    pub(crate) encoded: Option<Encoded>,
}

/// The state of the entity.
pub(crate) type KeptQueue = StoredQueue<Kept>;

/// What a message takes in a snapshot beside its bytes and names, at most.
const MESSAGE_OVERHEAD: usize = 64;
/// What a snapshot takes beside what it has many of, at most.
const SNAPSHOT_OVERHEAD: usize = 1024;

/// Folds one event. While `refill`, only the messages that a snapshot left out are taken from it:
/// everything else is in the snapshot already.
pub(crate) fn apply(queue: &mut KeptQueue, event: &QueueEvent, number: EventNr, refill: bool) {
    match event {
        QueueEvent::Sent(sent) if refill => {
            if let Some(kept) = queue.message_mut(sent.seq_nr).filter(|kept| kept.event == number) {
                kept.encoded = Some(sent.message.clone());
            }
        }
        _ if refill => {}
        QueueEvent::Started(started) => queue.start(started.clone()),
        QueueEvent::Sent(MessageSent { seq_nr, message, ack, qualifier, timestamp_ms }) => queue.add(MessageSent {
            seq_nr: *seq_nr,
            message: Kept { event: number, encoded: Some(message.clone()) },
            ack: *ack,
            qualifier: qualifier.clone(),
            timestamp_ms: *timestamp_ms,
        }),
        QueueEvent::Confirmed(confirmations) => {
            confirmations.iter().for_each(|confirmation| queue.confirm(confirmation));
        }
        QueueEvent::Cleanup(qualifiers) => queue.forget(qualifiers),
    }
}

/// Whether a snapshot of at most `max_bytes` has room for the messages themselves.
pub(crate) fn fits(queue: &KeptQueue, max_bytes: usize) -> bool {
    let confirmed = queue.confirmed().keys().map(|qualifier| qualifier.len() + MESSAGE_OVERHEAD);
    let unconfirmed = queue.unconfirmed().map(|sent| {
        let encoded = sent.message.encoded.as_ref();
        let bytes = encoded.map_or(0, |encoded| encoded.payload.len() + encoded.manifest.len());
        bytes + sent.qualifier.len() + MESSAGE_OVERHEAD
    });
    confirmed.chain(unconfirmed).fold(SNAPSHOT_OVERHEAD, usize::saturating_add) <= max_bytes
}

/// The event of the oldest message, which a snapshot without messages is to be read on from.
pub(crate) fn oldest_event(queue: &KeptQueue) -> Option<EventNr> {
    // Messages are stored in the order of their numbers.
    queue.unconfirmed().next().map(|sent| sent.message.event)
}

/// A message whose event was not read, though its snapshot left it out.
pub(crate) fn first_missing(queue: &KeptQueue) -> Option<SeqNr> {
    queue.unconfirmed().find(|sent| sent.message.encoded.is_none()).map(|sent| sent.seq_nr)
}
