//! Encodes and decodes starts, messages and confirmations of queues, for events and rows alike.
//!
//! These bytes are kept on disk for years: fields are added, never changed, and unknown ones are ignored. A record that
//! cannot be decoded is an error; missing data is not guessed.

use bytes::Bytes;
#[cfg(feature = "persistence")]
use bytes::BytesMut;
use greylag_core::{CodecId, DecodeError, Encoded, NodeAddress, Uid, UniqueAddress};

use super::rows::QueueHead;
use super::stored::Started;
use super::{MessageSent, Qualifier, TimestampMillis};
use crate::ids::{ControllerRef, Epoch, SeqNr, StreamId};

// Only the feature `persistence` writes events.
#[allow(missing_docs, clippy::all, unreachable_pub, dead_code)]
pub(super) mod generated {
    include!("../generated/greylag.delivery.queue.v1.rs");
}

/// The manifest of a message's event.
pub(super) const SENT: &str = "gl.delivery.queue.sent";
/// Maximum length of a manifest, as everywhere on wire and disk.
const MAX_MANIFEST_BYTES: usize = 255;

#[cfg(feature = "persistence")]
pub(super) fn put(message: &impl prost::Message, buffer: &mut BytesMut) {
    // Encoding into a growing buffer cannot fail, since only a short buffer is an error.
    let _ = message.encode(buffer);
}

pub(super) fn read<M: prost::Message + Default>(manifest: &str, bytes: Bytes) -> Result<M, DecodeError> {
    M::decode(bytes).map_err(|error| DecodeError::malformed(manifest, error))
}

pub(super) fn write_sent<M>(sent: &MessageSent<M>, encoded: Option<&Encoded>, event: u64) -> generated::Sent {
    let payload = encoded.map(|Encoded { codec, manifest, payload }| generated::Payload {
        codec: codec.as_u32(),
        manifest: manifest.to_string(),
        bytes: payload.clone(),
    });
    let MessageSent { seq_nr, ack, qualifier, timestamp_ms, .. } = sent;
    let (seq_nr, qualifier) = (seq_nr.get(), qualifier.to_string());
    generated::Sent { seq_nr, ack: *ack, qualifier, timestamp_ms: *timestamp_ms, payload, event }
}

pub(super) fn read_sent(sent: generated::Sent) -> Result<MessageSent<Encoded>, DecodeError> {
    let payload = sent.payload.ok_or_else(|| DecodeError::malformed(SENT, "the message is missing"))?;
    if !(1..u64::MAX).contains(&sent.seq_nr) {
        return Err(DecodeError::malformed(SENT, "a number that no message has"));
    }
    Ok(MessageSent {
        seq_nr: SeqNr(sent.seq_nr),
        message: read_payload(SENT, payload)?,
        ack: sent.ack,
        qualifier: sent.qualifier.into(),
        timestamp_ms: sent.timestamp_ms,
    })
}

pub(super) fn read_payload(manifest: &str, payload: generated::Payload) -> Result<Encoded, DecodeError> {
    if payload.manifest.len() > MAX_MANIFEST_BYTES {
        return Err(DecodeError::malformed(manifest, "the manifest of the message is too long"));
    }
    let codec = CodecId::from_u32(payload.codec);
    Ok(Encoded { codec, manifest: payload.manifest.into(), payload: payload.bytes })
}

pub(super) fn write_up_to(qualifier: &Qualifier, seq_nr: SeqNr, timestamp_ms: u64) -> generated::UpTo {
    generated::UpTo { qualifier: qualifier.to_string(), seq_nr: seq_nr.get(), timestamp_ms }
}

pub(super) fn write_started(started: &Started) -> generated::Started {
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

pub(super) fn read_started(manifest: &str, started: generated::Started) -> Result<Started, DecodeError> {
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

// ---- rows -------------------------------------------------------------------------------------------

const HEAD_ROW: &str = "the head row of a queue";
const CONFIRMED_ROW: &str = "a confirmed row of a queue";

pub(super) fn encoded(message: &impl prost::Message) -> Bytes {
    message.encode_to_vec().into()
}

impl QueueHead {
    /// Encodes the row, for stores without columns. The format is described in `docs/formats/delivery-queue.md`.
    pub fn to_bytes(&self) -> Bytes {
        let Self { stream_id, epoch, controller, current, highest_confirmed } = self;
        let started = Started { stream_id: *stream_id, epoch: *epoch, controller: controller.clone() };
        encoded(&generated::Head {
            started: Some(write_started(&started)),
            current_seq_nr: current.get(),
            highest_confirmed_seq_nr: highest_confirmed.get(),
        })
    }

    /// Decodes the bytes of [`to_bytes`](Self::to_bytes).
    ///
    /// # Errors
    /// [`DecodeError`] if the bytes are no head row.
    pub fn from_bytes(bytes: Bytes) -> Result<Self, DecodeError> {
        let head: generated::Head = read(HEAD_ROW, bytes)?;
        let started = head.started.ok_or_else(|| DecodeError::malformed(HEAD_ROW, "its start is missing"))?;
        let Started { stream_id, epoch, controller } = read_started(HEAD_ROW, started)?;
        let (current, highest_confirmed) = (SeqNr(head.current_seq_nr), SeqNr(head.highest_confirmed_seq_nr));
        if current == SeqNr::NONE {
            return Err(DecodeError::malformed(HEAD_ROW, "numbers begin at 1"));
        }
        Ok(Self { stream_id, epoch, controller, current, highest_confirmed })
    }
}

impl MessageSent<Encoded> {
    /// Encodes the row, for stores without columns.
    pub fn to_bytes(&self) -> Bytes {
        encoded(&write_sent(self, Some(&self.message), 0))
    }

    /// Decodes the bytes of [`to_bytes`](Self::to_bytes).
    ///
    /// # Errors
    /// [`DecodeError`] if the bytes are no message.
    pub fn from_bytes(bytes: Bytes) -> Result<Self, DecodeError> {
        read_sent(read(SENT, bytes)?)
    }
}

/// Encodes the row of a qualifier, including the qualifier itself, for stores without columns.
pub fn confirmed_to_bytes(qualifier: &Qualifier, seq_nr: SeqNr, timestamp_ms: TimestampMillis) -> Bytes {
    encoded(&write_up_to(qualifier, seq_nr, timestamp_ms))
}

/// Decodes the bytes of [`confirmed_to_bytes`].
///
/// # Errors
/// [`DecodeError`] if the bytes are no such row.
pub fn confirmed_from_bytes(bytes: Bytes) -> Result<(Qualifier, SeqNr, TimestampMillis), DecodeError> {
    let generated::UpTo { qualifier, seq_nr, timestamp_ms } = read(CONFIRMED_ROW, bytes)?;
    Ok((qualifier.into(), SeqNr(seq_nr), timestamp_ms))
}

#[cfg(test)]
mod tests;
