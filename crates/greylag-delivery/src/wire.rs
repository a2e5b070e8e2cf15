//! Converts between protobuf and domain types.
//!
//! Numbers and lengths come from peers: every decoder checks its input, bounds its allocations by the size of the
//! input, and refuses invalid input. Unknown fields are ignored.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use greylag_core::{CodecId, DecodeError, Encoded, NodeAddress, Uid, UniqueAddress};
use prost::Message as _;

use crate::ids::{ControllerRef, Epoch, ProducerId, SeqNr, StreamId};
use crate::message::{
    BatchHeader, Frame, ProducerStopped, SequencedBatch, SequencedMessage, Upstream, UpstreamMessage,
};

#[allow(missing_docs, clippy::all, unreachable_pub)]
mod generated {
    include!("generated/greylag.delivery.v1.rs");
}

/// Manifest of batches.
pub(crate) const BATCH: &str = "gl.delivery.batch";
/// Manifest of bypass messages.
pub(crate) const BYPASS: &str = "gl.delivery.bypass";
/// Manifest of the graceful end of a link.
pub(crate) const STOPPED: &str = "gl.delivery.stopped";
/// Manifest of upstream messages (consumer to producer).
pub(crate) const UPSTREAM: &str = "gl.delivery.upstream";

/// Maximum length of a manifest, as everywhere on the wire.
const MAX_MANIFEST_BYTES: usize = 255;

/// The payload of a frame on the wire. A whole message has neither of the two numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) encoded: Encoded,
    /// In a first chunk: the length of the whole message in bytes.
    pub(crate) total_len: Option<u64>,
    /// In a last chunk: the CRC-32C of the whole message.
    pub(crate) crc32c: Option<u32>,
}

fn put(message: &impl prost::Message, buffer: &mut BytesMut) {
    // Encoding into a growing buffer cannot fail, since only a short buffer is an error.
    let _ = message.encode(buffer);
}

fn read<M: prost::Message + Default>(manifest: &str, bytes: Bytes) -> Result<M, DecodeError> {
    M::decode(bytes).map_err(|error| DecodeError::malformed(manifest, error))
}

/// Encodes a batch; `piece` converts a payload.
pub(crate) fn put_batch<P>(
    header: &BatchHeader,
    frames: &[SequencedMessage<P>],
    piece: impl Fn(&P) -> Piece,
    buffer: &mut BytesMut,
) {
    let message = generated::SequencedBatch {
        producer_id: header.producer_id.as_str().to_owned(),
        stream_id: write_stream(header.stream_id),
        epoch: header.epoch.0,
        controller: Some(write_controller(&header.controller)),
        ordered: header.ordered,
        lowest: header.lowest,
        frames: frames.iter().map(|message| write_frame(message, piece(&message.frame.payload))).collect(),
    };
    put(&message, buffer);
}

/// Decodes a batch.
pub(crate) fn read_batch(bytes: Bytes) -> Result<SequencedBatch<Piece>, DecodeError> {
    let malformed = |why: &str| DecodeError::malformed(BATCH, why);
    let message: generated::SequencedBatch = read(BATCH, bytes)?;
    let header = BatchHeader {
        producer_id: ProducerId::new(message.producer_id).map_err(|error| DecodeError::malformed(BATCH, error))?,
        stream_id: read_stream(BATCH, &message.stream_id)?,
        epoch: Epoch(message.epoch),
        controller: read_controller(BATCH, message.controller)?,
        ordered: message.ordered,
        lowest: message.lowest,
    };
    let frames = message.frames.into_iter().map(|frame| read_frame(frame).ok_or_else(|| malformed("a bad frame")));
    Ok(SequencedBatch { header, frames: frames.collect::<Result<_, _>>()? })
}

fn write_frame<P>(message: &SequencedMessage<P>, piece: Piece) -> generated::SequencedMessage {
    let frame = &message.frame;
    let Piece { encoded, total_len, crc32c } = piece;
    let (codec, manifest, bytes) = (encoded.codec.as_u32(), encoded.manifest.to_string(), encoded.payload);
    let is_whole = frame.first_chunk && frame.last_chunk && total_len.is_none() && crc32c.is_none();
    let payload = if is_whole {
        generated::sequenced_message::Payload::Whole(generated::Whole { codec, manifest, bytes })
    } else {
        generated::sequenced_message::Payload::Chunk(generated::Chunk {
            first_chunk: frame.first_chunk,
            last_chunk: frame.last_chunk,
            total_len: total_len.unwrap_or_default(),
            crc32c: crc32c.unwrap_or_default(),
            codec,
            manifest,
            bytes,
        })
    };
    generated::SequencedMessage {
        seq_nr: frame.seq_nr,
        total_seq_nr: frame.total.get(),
        first: message.first,
        ack: frame.ack,
        payload: Some(payload),
    }
}

fn read_frame(message: generated::SequencedMessage) -> Option<SequencedMessage<Piece>> {
    let (first_chunk, last_chunk, payload) = match message.payload? {
        generated::sequenced_message::Payload::Whole(whole) => {
            let encoded = read_encoded(whole.codec, whole.manifest, whole.bytes)?;
            (true, true, Piece { encoded, total_len: None, crc32c: None })
        }
        generated::sequenced_message::Payload::Chunk(chunk) => {
            let (first_chunk, last_chunk) = (chunk.first_chunk, chunk.last_chunk);
            let (total_len, crc32c) = (first_chunk.then_some(chunk.total_len), last_chunk.then_some(chunk.crc32c));
            let encoded = read_encoded(chunk.codec, chunk.manifest, chunk.bytes)?;
            (first_chunk, last_chunk, Piece { encoded, total_len, crc32c })
        }
    };
    let total = SeqNr(message.total_seq_nr);
    let frame = Frame { seq_nr: message.seq_nr, total, ack: message.ack, first_chunk, last_chunk, payload };
    Some(SequencedMessage { frame, first: message.first })
}

fn read_encoded(codec: u32, manifest: String, payload: Bytes) -> Option<Encoded> {
    (manifest.len() <= MAX_MANIFEST_BYTES).then(|| Encoded {
        codec: CodecId::from_u32(codec),
        manifest: manifest.into(),
        payload,
    })
}

/// Encodes a bypass message.
pub(crate) fn put_bypass(encoded: Encoded, buffer: &mut BytesMut) {
    let Encoded { codec, manifest, payload } = encoded;
    put(&generated::Bypass { codec: codec.as_u32(), manifest: manifest.into(), bytes: payload }, buffer);
}

/// Decodes a bypass message.
pub(crate) fn read_bypass(bytes: Bytes) -> Result<Encoded, DecodeError> {
    let message: generated::Bypass = read(BYPASS, bytes)?;
    read_encoded(message.codec, message.manifest, message.bytes)
        .ok_or_else(|| DecodeError::malformed(BYPASS, "the manifest is too long"))
}

/// Encodes the graceful end of a link.
pub(crate) fn put_stopped(stopped: &ProducerStopped, buffer: &mut BytesMut) {
    let controller = Some(write_controller(&stopped.controller));
    put(&generated::ProducerStopped { controller, epoch: stopped.epoch.0 }, buffer);
}

/// Decodes the graceful end of a link.
pub(crate) fn read_stopped(bytes: Bytes) -> Result<ProducerStopped, DecodeError> {
    let message: generated::ProducerStopped = read(STOPPED, bytes)?;
    Ok(ProducerStopped { controller: read_controller(STOPPED, message.controller)?, epoch: Epoch(message.epoch) })
}

/// Encodes upstream messages to one producer: all `messages` must be from the node of the first, and to its recipient
/// path. Empty for no messages.
pub(crate) fn write_upstream(messages: &[UpstreamMessage]) -> Bytes {
    let Some(UpstreamMessage { from, to, .. }) = messages.first() else { return Bytes::new() };
    let batch = generated::UpstreamBatch {
        from: Some(write_node(&from.node)),
        to: Some(write_node(&to.node)),
        path: to.path.to_string(),
        messages: messages.iter().map(write_word).collect(),
    };
    batch.encode_to_vec().into()
}

fn write_word(message: &UpstreamMessage) -> generated::Upstream {
    use generated::upstream::Message;
    let content = match message.message {
        Upstream::Request { confirmed, up_to, support_resend, via_timeout } => Message::Request(generated::Request {
            confirmed_seq_nr: confirmed,
            request_up_to_seq_nr: up_to,
            support_resend,
            via_timeout,
        }),
        Upstream::Ack { confirmed, up_to } => {
            Message::Ack(generated::Ack { confirmed_seq_nr: confirmed, request_up_to_seq_nr: up_to })
        }
        Upstream::Resend { from, to } => Message::Resend(generated::Resend { from_seq_nr: from, to_seq_nr: to }),
        Upstream::RegisterConsumer => Message::RegisterConsumer(generated::RegisterConsumer {}),
        Upstream::Fenced { stream_id, newer } => {
            Message::Fenced(generated::Fenced { stream_id: write_stream(stream_id), newer: newer.0 })
        }
    };
    generated::Upstream {
        path: message.from.path.to_string(),
        instance: message.from.instance,
        link: message.to.instance,
        epoch: message.epoch.map(|epoch| epoch.0),
        message: Some(content),
    }
}

/// Decodes the upstream messages of one node to one producer; at least one message.
pub(crate) fn read_upstream(bytes: Bytes) -> Result<Vec<UpstreamMessage>, DecodeError> {
    let batch: generated::UpstreamBatch = read(UPSTREAM, bytes)?;
    if batch.messages.is_empty() {
        return Err(DecodeError::malformed(UPSTREAM, "no message"));
    }
    let (from, to) = (read_node(UPSTREAM, batch.from)?, read_node(UPSTREAM, batch.to)?);
    let path: Arc<str> = batch.path.into();
    let messages = batch.messages.into_iter().map(|word| {
        let message = read_word(word.message)?;
        let from = ControllerRef { node: from.clone(), path: word.path.into(), instance: word.instance };
        let to = ControllerRef { node: to.clone(), path: path.clone(), instance: word.link };
        Ok(UpstreamMessage { from, to, epoch: word.epoch.map(Epoch), message })
    });
    messages.collect()
}

fn read_word(message: Option<generated::upstream::Message>) -> Result<Upstream, DecodeError> {
    use generated::upstream::Message;
    Ok(match message.ok_or_else(|| DecodeError::malformed(UPSTREAM, "an unknown message"))? {
        Message::Request(request) => Upstream::Request {
            confirmed: request.confirmed_seq_nr,
            up_to: request.request_up_to_seq_nr,
            support_resend: request.support_resend,
            via_timeout: request.via_timeout,
        },
        Message::Ack(ack) => Upstream::Ack { confirmed: ack.confirmed_seq_nr, up_to: ack.request_up_to_seq_nr },
        Message::Resend(resend) => Upstream::Resend { from: resend.from_seq_nr, to: resend.to_seq_nr },
        Message::RegisterConsumer(generated::RegisterConsumer {}) => Upstream::RegisterConsumer,
        Message::Fenced(fenced) => {
            Upstream::Fenced { stream_id: read_stream(UPSTREAM, &fenced.stream_id)?, newer: Epoch(fenced.newer) }
        }
    })
}

fn write_stream(stream: StreamId) -> Bytes {
    Bytes::copy_from_slice(&stream.0.to_be_bytes())
}

fn read_stream(manifest: &str, bytes: &[u8]) -> Result<StreamId, DecodeError> {
    let bytes = bytes.try_into().map_err(|_| DecodeError::malformed(manifest, "a stream id has 16 bytes"))?;
    Ok(StreamId(u128::from_be_bytes(bytes)))
}

fn write_controller(controller: &ControllerRef) -> generated::ControllerRef {
    generated::ControllerRef {
        node: Some(write_node(&controller.node)),
        path: controller.path.to_string(),
        instance: controller.instance,
    }
}

fn write_node(node: &UniqueAddress) -> generated::Node {
    let address = node.address();
    generated::Node { host: address.host().to_owned(), port: u32::from(address.port()), uid: node.uid().get() }
}

fn read_controller(manifest: &str, controller: Option<generated::ControllerRef>) -> Result<ControllerRef, DecodeError> {
    let controller = controller.ok_or_else(|| DecodeError::malformed(manifest, "a controller is missing"))?;
    let node = read_node(manifest, controller.node)?;
    Ok(ControllerRef { node, path: controller.path.into(), instance: controller.instance })
}

fn read_node(manifest: &str, node: Option<generated::Node>) -> Result<UniqueAddress, DecodeError> {
    let malformed = |why: &str| DecodeError::malformed(manifest, why);
    let node = node.ok_or_else(|| malformed("a controller's node is missing"))?;
    let port = u16::try_from(node.port).map_err(|_| malformed("a port above 65535"))?;
    let address = NodeAddress::new(&node.host, port).map_err(|error| DecodeError::malformed(manifest, error))?;
    let uid = Uid::new(node.uid).ok_or_else(|| malformed("a uid of 0"))?;
    Ok(UniqueAddress::new(address, uid))
}

#[cfg(test)]
mod tests;
