//! The in-memory state of an event-sourced queue, and the events from which it is folded.

use greylag_core::Encoded;
use greylag_persistence::SeqNr as EventNr;

use super::stored::Started;
use super::{Confirmation, MessageSent, Qualifier, StoredQueue};
use crate::ids::SeqNr;

/// An event of a queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum QueueEvent {
    /// A controller loaded the queue.
    Started(Started),
    /// A message was stored.
    Sent(MessageSent<Encoded>),
    /// Messages were confirmed; one event for each flush.
    Confirmed(Vec<Confirmation>),
    /// The confirmations of these qualifiers were forgotten.
    Cleanup(Vec<Qualifier>),
}

/// An unconfirmed message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct UnconfirmedMessage {
    /// The number of the event that stored it.
    pub(crate) event: EventNr,
    /// The message; `None` after a snapshot without messages, until the event is read.
    pub(crate) encoded: Option<Encoded>,
}

/// The state of the entity.
pub(crate) type PersistentQueue = StoredQueue<UnconfirmedMessage>;

/// Upper limit of a message's bytes in a snapshot, in addition to its content and names.
const MESSAGE_OVERHEAD: usize = 64;
/// Upper limit of a snapshot's bytes, in addition to messages and qualifiers.
const SNAPSHOT_OVERHEAD: usize = 1024;

/// Folds one event. With `refill`, only messages that the snapshot left out are taken from it; the snapshot has
/// everything else.
pub(crate) fn apply(queue: &mut PersistentQueue, event: &QueueEvent, number: EventNr, refill: bool) {
    match event {
        QueueEvent::Sent(sent) if refill => {
            if let Some(message) = queue.message_mut(sent.seq_nr).filter(|message| message.event == number) {
                message.encoded = Some(sent.message.clone());
            }
        }
        _ if refill => {}
        QueueEvent::Started(started) => queue.start(started.clone()),
        QueueEvent::Sent(MessageSent { seq_nr, message, ack, qualifier, timestamp_ms }) => queue.add(MessageSent {
            seq_nr: *seq_nr,
            message: UnconfirmedMessage { event: number, encoded: Some(message.clone()) },
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

/// Whether a snapshot of at most `max_bytes` has room for the messages.
pub(crate) fn fits(queue: &PersistentQueue, max_bytes: usize) -> bool {
    let confirmed = queue.confirmed().keys().map(|qualifier| qualifier.len() + MESSAGE_OVERHEAD);
    let unconfirmed = queue.unconfirmed().map(|sent| {
        let encoded = sent.message.encoded.as_ref();
        let bytes = encoded.map_or(0, |encoded| encoded.payload.len() + encoded.manifest.len());
        bytes + sent.qualifier.len() + MESSAGE_OVERHEAD
    });
    confirmed.chain(unconfirmed).fold(SNAPSHOT_OVERHEAD, usize::saturating_add) <= max_bytes
}

/// The event of the oldest message, from which recovery with a snapshot without messages must read.
pub(crate) fn oldest_event(queue: &PersistentQueue) -> Option<EventNr> {
    // Message numbers and event numbers have the same order.
    queue.unconfirmed().next().map(|sent| sent.message.event)
}

/// A message that the snapshot left out and whose event was not read.
pub(crate) fn first_missing(queue: &PersistentQueue) -> Option<SeqNr> {
    queue.unconfirmed().find(|sent| sent.message.encoded.is_none()).map(|sent| sent.seq_nr)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use greylag_core::{CodecId, Manifest};

    use super::*;

    /// The bounds of a snapshot count each qualifier and each message with its overhead.
    #[test]
    fn a_snapshot_has_room_for_all_qualifiers_and_messages_or_for_none() {
        let encoded = Encoded {
            codec: CodecId::JSON,
            manifest: Manifest::from_static("order"),
            payload: Bytes::from_static(b"payload"),
        };
        let sent = |seq_nr, qualifier: &str, encoded| MessageSent {
            seq_nr: SeqNr(seq_nr),
            message: UnconfirmedMessage { event: EventNr::FIRST, encoded },
            ack: false,
            qualifier: qualifier.into(),
            timestamp_ms: 1,
        };
        let mut queue = PersistentQueue::default();
        queue.add(sent(1, "a", None));
        queue.add(sent(2, "bc", Some(encoded)));
        queue.add(sent(3, "def", None));
        queue.confirm(&Confirmation::UpTo { qualifier: "a".into(), seq_nr: SeqNr(1), timestamp_ms: 1 });
        let confirmed = 1 + MESSAGE_OVERHEAD;
        let whole = "order".len() + "payload".len() + 2 + MESSAGE_OVERHEAD;
        let without_content = 3 + MESSAGE_OVERHEAD;
        let size = SNAPSHOT_OVERHEAD + confirmed + whole + without_content;
        assert!(fits(&queue, size));
        assert!(!fits(&queue, size - 1));
    }

    /// Of delivery §4.2: after a snapshot without messages, an event gives back its own message and changes no other.
    #[test]
    fn an_event_read_again_refills_its_own_message_only() {
        fn sent<M>(seq_nr: u64, message: M) -> MessageSent<M> {
            MessageSent { seq_nr: SeqNr(seq_nr), message, ack: false, qualifier: "".into(), timestamp_ms: 1 }
        }
        let encoded = |text: &'static str| Encoded {
            codec: CodecId::JSON,
            manifest: Manifest::from_static("order"),
            payload: text.into(),
        };
        let left_out = |event| UnconfirmedMessage { event, encoded: None };
        let (first, second) = (EventNr::FIRST, EventNr::saturating(2));
        let mut queue = PersistentQueue::default();
        queue.add(sent(1, left_out(first)));
        queue.add(sent(2, left_out(second)));
        apply(&mut queue, &QueueEvent::Sent(sent(1, encoded("one"))), first, true);
        apply(&mut queue, &QueueEvent::Sent(sent(2, encoded("stale"))), first, true);
        let kept: Vec<_> = queue.unconfirmed().map(|sent| sent.message.encoded.clone()).collect();
        assert_eq!(kept, [Some(encoded("one")), None]);
        apply(&mut queue, &QueueEvent::Cleanup(vec!["".into()]), second, true);
        assert_eq!(queue.unconfirmed().count(), 2, "the snapshot has all else already");
    }
}
