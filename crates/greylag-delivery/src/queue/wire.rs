//! The events and the snapshot of a queue as bytes, and back.
//!
//! These bytes rest on disk for years: fields are added, never changed, and unknown ones are
//! ignored. A record that cannot be read is an error; nothing is guessed.

use bytes::{Bytes, BytesMut};
use greylag_core::{Codec, CodecId, DecodeError, EncodeError, Encoded, Manifest, NodeAddress, Uid, UniqueAddress};
use greylag_persistence::SeqNr as EventNr;

use super::kept::{Kept, KeptQueue, QueueEvent, fits};
use super::stored::Started;
use super::{Confirmation, MessageSent, Qualifier, StoredQueue};
use crate::ids::{ControllerRef, Epoch, SeqNr, StreamId};

#[allow(missing_docs, clippy::all, unreachable_pub)]
mod generated {
    include!("../generated/greylag.delivery.queue.v1.rs");
}

const STARTED: &str = "gl.delivery.queue.started";
const SENT: &str = "gl.delivery.queue.sent";
const CONFIRMED: &str = "gl.delivery.queue.confirmed";
const CLEANUP: &str = "gl.delivery.queue.cleanup";
const SNAPSHOT: &str = "gl.delivery.queue.snapshot";

/// Longest manifest, as everywhere on wire and disk.
const MAX_MANIFEST_BYTES: usize = 255;

fn put(message: &impl prost::Message, buffer: &mut BytesMut) {
    // A growing buffer cannot be too short, which is the only way for this to fail.
    let _ = message.encode(buffer);
}

fn read<M: prost::Message + Default>(manifest: &str, bytes: Bytes) -> Result<M, DecodeError> {
    M::decode(bytes).map_err(|error| DecodeError::malformed(manifest, error))
}

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

/// The codec of snapshots; one of more than `max_bytes` leaves the messages out.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SnapshotCodec {
    pub(crate) max_bytes: usize,
}

impl Codec<KeptQueue> for SnapshotCodec {
    fn id(&self) -> CodecId {
        CodecId::INTERNAL
    }

    fn manifest(&self, _: &KeptQueue) -> Manifest {
        Manifest::from_static(SNAPSHOT)
    }

    fn manifests(&self) -> Vec<Manifest> {
        vec![Manifest::from_static(SNAPSHOT)]
    }

    fn encode(&self, queue: &KeptQueue, buffer: &mut BytesMut) -> Result<(), EncodeError> {
        let whole = fits(queue, self.max_bytes);
        let confirmed = queue.confirmed().iter();
        let snapshot = generated::Snapshot {
            started: queue.started().map(write_started),
            current_seq_nr: queue.current().get(),
            highest_confirmed_seq_nr: queue.highest_confirmed().get(),
            confirmed: confirmed.map(|(qualifier, (seq_nr, at))| write_up_to(qualifier, *seq_nr, *at)).collect(),
            unconfirmed: queue.unconfirmed().map(|sent| write_kept(sent, whole)).collect(),
        };
        put(&snapshot, buffer);
        Ok(())
    }

    fn decode(&self, manifest: &str, bytes: Bytes) -> Result<KeptQueue, DecodeError> {
        let snapshot: generated::Snapshot = read(manifest, bytes)?;
        let started = snapshot.started.map(|started| read_started(manifest, started)).transpose()?;
        let up_to = |up_to: generated::UpTo| (up_to.qualifier.into(), (SeqNr(up_to.seq_nr), up_to.timestamp_ms));
        let unconfirmed: Vec<_> = snapshot.unconfirmed.into_iter().map(read_kept).collect::<Result<_, _>>()?;
        let current = SeqNr(snapshot.current_seq_nr);
        if unconfirmed.iter().any(|sent| sent.seq_nr == SeqNr::NONE || sent.seq_nr >= current) {
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

fn write_kept(sent: &MessageSent<Kept>, whole: bool) -> generated::Sent {
    let Kept { event, encoded } = &sent.message;
    write_sent(sent, encoded.as_ref().filter(|_| whole), event.as_u64())
}

fn read_kept(sent: generated::Sent) -> Result<MessageSent<Kept>, DecodeError> {
    let encoded = sent.payload.map(|payload| read_payload(SNAPSHOT, payload)).transpose()?;
    let message = Kept { event: EventNr::saturating(sent.event), encoded };
    Ok(MessageSent {
        seq_nr: SeqNr(sent.seq_nr),
        message,
        ack: sent.ack,
        qualifier: sent.qualifier.into(),
        timestamp_ms: sent.timestamp_ms,
    })
}

fn write_sent<M>(sent: &MessageSent<M>, encoded: Option<&Encoded>, event: u64) -> generated::Sent {
    let payload = encoded.map(|Encoded { codec, manifest, payload }| generated::Payload {
        codec: codec.as_u32(),
        manifest: manifest.to_string(),
        bytes: payload.clone(),
    });
    let MessageSent { seq_nr, ack, qualifier, timestamp_ms, .. } = sent;
    let (seq_nr, qualifier) = (seq_nr.get(), qualifier.to_string());
    generated::Sent { seq_nr, ack: *ack, qualifier, timestamp_ms: *timestamp_ms, payload, event }
}

fn read_sent(sent: generated::Sent) -> Result<MessageSent<Encoded>, DecodeError> {
    let payload = sent.payload.ok_or_else(|| DecodeError::malformed(SENT, "the message is missing"))?;
    Ok(MessageSent {
        seq_nr: SeqNr(sent.seq_nr),
        message: read_payload(SENT, payload)?,
        ack: sent.ack,
        qualifier: sent.qualifier.into(),
        timestamp_ms: sent.timestamp_ms,
    })
}

fn read_payload(manifest: &str, payload: generated::Payload) -> Result<Encoded, DecodeError> {
    if payload.manifest.len() > MAX_MANIFEST_BYTES {
        return Err(DecodeError::malformed(manifest, "the manifest of the message is too long"));
    }
    let codec = CodecId::from_u32(payload.codec);
    Ok(Encoded { codec, manifest: payload.manifest.into(), payload: payload.bytes })
}

fn write_up_to(qualifier: &Qualifier, seq_nr: SeqNr, timestamp_ms: u64) -> generated::UpTo {
    generated::UpTo { qualifier: qualifier.to_string(), seq_nr: seq_nr.get(), timestamp_ms }
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

fn write_started(started: &Started) -> generated::Started {
    let ControllerRef { node, path, instance } = &started.controller;
    let controller = generated::Controller {
        host: node.address().host().to_owned(),
        port: u32::from(node.address().port()),
        uid: node.uid().get(),
        path: path.to_string(),
        instance: *instance,
    };
    let stream_id = Bytes::copy_from_slice(&started.stream_id.0.to_be_bytes());
    generated::Started { stream_id, epoch: started.epoch.0, controller: Some(controller) }
}

fn read_started(manifest: &str, started: generated::Started) -> Result<Started, DecodeError> {
    let malformed = |why: &str| DecodeError::malformed(manifest, why);
    let stream = <[u8; 16]>::try_from(&started.stream_id[..]).map_err(|_| malformed("a stream id has 16 bytes"))?;
    let controller = started.controller.ok_or_else(|| malformed("the controller is missing"))?;
    let port = u16::try_from(controller.port).map_err(|_| malformed("a port above 65535"))?;
    let address = NodeAddress::new(&controller.host, port).map_err(|error| DecodeError::malformed(manifest, error))?;
    let uid = Uid::new(controller.uid).ok_or_else(|| malformed("a uid of 0"))?;
    let node = UniqueAddress::new(address, uid);
    let controller = ControllerRef { node, path: controller.path.into(), instance: controller.instance };
    Ok(Started { stream_id: StreamId(u128::from_be_bytes(stream)), epoch: Epoch(started.epoch), controller })
}

#[cfg(test)]
mod tests;
