//! Encodes and decodes the events and the snapshot of a queue.
//!
//! These bytes are kept on disk for years: fields are added, never changed, and unknown ones are ignored. A record that
//! cannot be decoded is an error; missing data is not guessed.

use bytes::{Bytes, BytesMut};
use greylag_core::{Codec, CodecId, DecodeError, EncodeError, Encoded, Manifest};
use greylag_persistence::SeqNr as EventNr;

use super::persistent::{PersistentQueue, QueueEvent, UnconfirmedMessage, fits};
use super::records::{
    SENT, encoded, generated, put, read, read_payload, read_sent, read_started, write_sent, write_started, write_up_to,
};
use super::{Confirmation, MessageSent, Qualifier, StoredQueue};
use crate::ids::SeqNr;

const STARTED: &str = "gl.delivery.queue.started";
const CONFIRMED: &str = "gl.delivery.queue.confirmed";
const CLEANUP: &str = "gl.delivery.queue.cleanup";
const SNAPSHOT: &str = "gl.delivery.queue.snapshot";
const OUTBOX_EVENT: &str = "an event of an outbox";
const OUTBOX: &str = "an outbox";

/// The codec of events.
#[derive(Debug, Clone, Copy)]
pub(crate) struct EventCodec;

impl Codec<QueueEvent> for EventCodec {
    fn id(&self) -> CodecId {
        CodecId::INTERNAL
    }

    fn manifest(&self, event: &QueueEvent) -> Manifest {
        Manifest::from_static(match event {
            QueueEvent::Started(_) => STARTED,
            QueueEvent::Sent(_) => SENT,
            QueueEvent::Confirmed(_) => CONFIRMED,
            QueueEvent::Cleanup(_) => CLEANUP,
        })
    }

    fn manifests(&self) -> Vec<Manifest> {
        [STARTED, SENT, CONFIRMED, CLEANUP].map(Manifest::from_static).into()
    }

    fn encode(&self, event: &QueueEvent, buffer: &mut BytesMut) -> Result<(), EncodeError> {
        match event {
            QueueEvent::Started(started) => put(&write_started(started), buffer),
            QueueEvent::Sent(sent) => put(&write_sent(sent, Some(&sent.message), 0), buffer),
            QueueEvent::Confirmed(confirmations) => put(&write_confirmed(confirmations), buffer),
            QueueEvent::Cleanup(qualifiers) => {
                put(&generated::Cleanup { qualifiers: qualifiers.iter().map(ToString::to_string).collect() }, buffer);
            }
        }
        Ok(())
    }

    fn decode(&self, manifest: &str, bytes: Bytes) -> Result<QueueEvent, DecodeError> {
        match manifest {
            STARTED => read_started(manifest, read(manifest, bytes)?).map(QueueEvent::Started),
            SENT => read_sent(read(manifest, bytes)?).map(QueueEvent::Sent),
            CONFIRMED => read(manifest, bytes).map(read_confirmed).map(QueueEvent::Confirmed),
            CLEANUP => {
                let generated::Cleanup { qualifiers } = read(manifest, bytes)?;
                Ok(QueueEvent::Cleanup(qualifiers.into_iter().map(Qualifier::from).collect()))
            }
            _ => Err(DecodeError::UnknownManifest { codec: self.id(), manifest: manifest.to_owned() }),
        }
    }
}

/// The codec of snapshots; a snapshot of more than `max_bytes` leaves the messages out.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SnapshotCodec {
    pub(crate) max_bytes: usize,
}

impl Codec<PersistentQueue> for SnapshotCodec {
    fn id(&self) -> CodecId {
        CodecId::INTERNAL
    }

    fn manifest(&self, _: &PersistentQueue) -> Manifest {
        Manifest::from_static(SNAPSHOT)
    }

    fn manifests(&self) -> Vec<Manifest> {
        vec![Manifest::from_static(SNAPSHOT)]
    }

    fn encode(&self, queue: &PersistentQueue, buffer: &mut BytesMut) -> Result<(), EncodeError> {
        let whole = fits(queue, self.max_bytes);
        let confirmed = queue.confirmed().iter();
        let snapshot = generated::Snapshot {
            started: queue.started().map(write_started),
            current_seq_nr: queue.current().get(),
            highest_confirmed_seq_nr: queue.highest_confirmed().get(),
            confirmed: confirmed.map(|(qualifier, (seq_nr, at))| write_up_to(qualifier, *seq_nr, *at)).collect(),
            unconfirmed: queue.unconfirmed().map(|sent| write_unconfirmed(sent, whole)).collect(),
        };
        put(&snapshot, buffer);
        Ok(())
    }

    fn decode(&self, manifest: &str, bytes: Bytes) -> Result<PersistentQueue, DecodeError> {
        let snapshot: generated::Snapshot = read(manifest, bytes)?;
        let started = snapshot.started.map(|started| read_started(manifest, started)).transpose()?;
        let up_to = |up_to: generated::UpTo| (up_to.qualifier.into(), (SeqNr(up_to.seq_nr), up_to.timestamp_ms));
        let unconfirmed: Vec<_> = snapshot.unconfirmed.into_iter().map(read_unconfirmed).collect::<Result<_, _>>()?;
        let current = SeqNr(snapshot.current_seq_nr);
        if current == SeqNr::NONE || unconfirmed.iter().any(|sent| sent.seq_nr == SeqNr::NONE || sent.seq_nr >= current)
        {
            return Err(DecodeError::malformed(manifest, "a message beyond the end of the queue"));
        }
        Ok(StoredQueue::restored(
            started,
            current,
            SeqNr(snapshot.highest_confirmed_seq_nr),
            snapshot.confirmed.into_iter().map(up_to).collect(),
            unconfirmed,
        ))
    }
}

/// Encodes an event as one record, for entities that keep it within their own events.
pub(crate) fn event_to_bytes(event: &QueueEvent) -> Bytes {
    use generated::outbox_event::Event;
    let event = match event {
        QueueEvent::Started(started) => Event::Started(write_started(started)),
        QueueEvent::Sent(sent) => Event::Sent(write_sent(sent, Some(&sent.message), 0)),
        QueueEvent::Confirmed(confirmations) => Event::Confirmed(write_confirmed(confirmations)),
        QueueEvent::Cleanup(qualifiers) => {
            Event::Cleanup(generated::Cleanup { qualifiers: qualifiers.iter().map(ToString::to_string).collect() })
        }
    };
    encoded(&generated::OutboxEvent { event: Some(event) })
}

pub(crate) fn event_from_bytes(bytes: Bytes) -> Result<QueueEvent, DecodeError> {
    use generated::outbox_event::Event;
    let event: generated::OutboxEvent = read(OUTBOX_EVENT, bytes)?;
    match event.event.ok_or_else(|| DecodeError::malformed(OUTBOX_EVENT, "it says nothing"))? {
        Event::Started(started) => read_started(OUTBOX_EVENT, started).map(QueueEvent::Started),
        Event::Sent(sent) => read_sent(sent).map(QueueEvent::Sent),
        Event::Confirmed(confirmed) => Ok(QueueEvent::Confirmed(read_confirmed(confirmed))),
        Event::Cleanup(generated::Cleanup { qualifiers }) => {
            Ok(QueueEvent::Cleanup(qualifiers.into_iter().map(Qualifier::from).collect()))
        }
    }
}

/// Encodes a whole queue as one record, for entities that keep it within their own state.
pub(crate) fn queue_to_bytes(queue: &StoredQueue<Encoded>) -> Bytes {
    let confirmed = queue.confirmed().iter();
    encoded(&generated::Snapshot {
        started: queue.started().map(write_started),
        current_seq_nr: queue.current().get(),
        highest_confirmed_seq_nr: queue.highest_confirmed().get(),
        confirmed: confirmed.map(|(qualifier, (seq_nr, at))| write_up_to(qualifier, *seq_nr, *at)).collect(),
        unconfirmed: queue.unconfirmed().map(|sent| write_sent(sent, Some(&sent.message), 0)).collect(),
    })
}

pub(crate) fn queue_from_bytes(bytes: Bytes) -> Result<StoredQueue<Encoded>, DecodeError> {
    let snapshot: generated::Snapshot = read(OUTBOX, bytes)?;
    let started = snapshot.started.map(|started| read_started(OUTBOX, started)).transpose()?;
    let unconfirmed: Vec<_> = snapshot.unconfirmed.into_iter().map(read_sent).collect::<Result<_, _>>()?;
    let current = SeqNr(snapshot.current_seq_nr);
    if current == SeqNr::NONE || unconfirmed.iter().any(|sent| sent.seq_nr == SeqNr::NONE || sent.seq_nr >= current) {
        return Err(DecodeError::malformed(OUTBOX, "a message beyond its end"));
    }
    let up_to = |up_to: generated::UpTo| (up_to.qualifier.into(), (SeqNr(up_to.seq_nr), up_to.timestamp_ms));
    let confirmed = snapshot.confirmed.into_iter().map(up_to).collect();
    let highest_confirmed = SeqNr(snapshot.highest_confirmed_seq_nr);
    Ok(StoredQueue::restored(started, current, highest_confirmed, confirmed, unconfirmed))
}

fn write_unconfirmed(sent: &MessageSent<UnconfirmedMessage>, whole: bool) -> generated::Sent {
    let UnconfirmedMessage { event, encoded } = &sent.message;
    write_sent(sent, encoded.as_ref().filter(|_| whole), event.as_u64())
}

fn read_unconfirmed(sent: generated::Sent) -> Result<MessageSent<UnconfirmedMessage>, DecodeError> {
    let encoded = sent.payload.map(|payload| read_payload(SNAPSHOT, payload)).transpose()?;
    let message = UnconfirmedMessage { event: EventNr::saturating(sent.event), encoded };
    Ok(MessageSent {
        seq_nr: SeqNr(sent.seq_nr),
        message,
        ack: sent.ack,
        qualifier: sent.qualifier.into(),
        timestamp_ms: sent.timestamp_ms,
    })
}

fn write_confirmed(confirmations: &[Confirmation]) -> generated::Confirmed {
    let mut confirmed = generated::Confirmed::default();
    for confirmation in confirmations {
        match confirmation {
            Confirmation::UpTo { qualifier, seq_nr, timestamp_ms } => {
                confirmed.up_to.push(write_up_to(qualifier, *seq_nr, *timestamp_ms));
            }
            Confirmation::Exact { seq_nrs, timestamp_ms } => {
                let exact = confirmed.exact.get_or_insert_default();
                exact.seq_nrs.extend(seq_nrs.iter().map(|seq_nr| seq_nr.get()));
                exact.timestamp_ms = exact.timestamp_ms.max(*timestamp_ms);
            }
        }
    }
    confirmed
}

fn read_confirmed(confirmed: generated::Confirmed) -> Vec<Confirmation> {
    let up_to = |generated::UpTo { qualifier, seq_nr, timestamp_ms }| Confirmation::UpTo {
        qualifier: qualifier.into(),
        seq_nr: SeqNr(seq_nr),
        timestamp_ms,
    };
    let exact = |generated::Exact { seq_nrs, timestamp_ms }| Confirmation::Exact {
        seq_nrs: seq_nrs.into_iter().map(SeqNr).collect(),
        timestamp_ms,
    };
    confirmed.up_to.into_iter().map(up_to).chain(confirmed.exact.map(exact)).collect()
}

#[cfg(test)]
mod tests;
