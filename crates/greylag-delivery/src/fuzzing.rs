//! Properties that must hold for every sequence of bytes from a peer or a disk; for `fuzz/` and the tests.
//!
//! No function here panics for any input except to report a violated property. Not part of the public API.

mod consumer;
mod input;
mod producer;
#[cfg(feature = "persistence")]
mod queue;
mod samples;
mod seeds;

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use greylag_core::{Codec, CodecId, DecodeError, EncodeError, Manifest};

use crate::delivery::payload::Payload;
use crate::delivery::with_delivery::{Protocol, ProtocolMessage, WithDelivery};
use crate::ids::{ControllerRef, ServiceKey};
use crate::message::{Frame, Frames, SequencedMessage};
use crate::wire::{self, Piece};
use samples::codec;

pub use consumer::consumer;
pub use producer::producer;
#[cfg(feature = "persistence")]
pub use queue::{outbox, queue_event, queue_rows, queue_snapshot};
pub use seeds::seeds;

/// A message of a producer: a batch of frames, a bypass message, or the end of a link; the first byte chooses. A
/// decoded value is equal after another round of encoding and decoding.
pub fn downstream(input: &[u8]) {
    let Some((kind, bytes)) = input.split_first() else { return };
    let bytes = Bytes::copy_from_slice(bytes);
    let manifest = match kind % 3 {
        0 => {
            batch(bytes.clone());
            wire::BATCH
        }
        1 => wire::BYPASS,
        _ => wire::STOPPED,
    };
    let Ok(message) = codec().decode(manifest, bytes) else { return };
    let mut again = BytesMut::new();
    codec().encode(&message, &mut again).expect("what was read can be written");
    let again = codec().decode(manifest, again.freeze()).expect("what was written can be read");
    match (message, again) {
        (WithDelivery::Bypass(message), WithDelivery::Bypass(again)) => assert_eq!(message, again),
        (WithDelivery::Protocol(Protocol(message)), WithDelivery::Protocol(Protocol(again))) => {
            match (message, again) {
                (ProtocolMessage::Batch(message), ProtocolMessage::Batch(again)) => assert_eq!(message, again),
                (ProtocolMessage::Stopped(message), ProtocolMessage::Stopped(again)) => assert_eq!(message, again),
                _ => panic!("it is read as a message of another kind"),
            }
        }
        _ => panic!("it is read as a message of another kind"),
    }
}

fn batch(bytes: Bytes) {
    let Ok(batch) = wire::read_batch(bytes) else { return };
    let mut again = BytesMut::new();
    wire::put_batch(&batch.header, &batch.frames, Piece::clone, &mut again);
    assert_eq!(wire::read_batch(again.freeze()), Ok(batch));
}

/// Messages of a consumer, registrations among them. A decoded value is equal after another round of encoding and
/// decoding.
pub fn upstream(input: &[u8]) {
    let Ok(said) = wire::read_upstream(Bytes::copy_from_slice(input)) else { return };
    assert_eq!(wire::read_upstream(wire::write_upstream(&said)), Ok(said));
}

/// An entry of a worker in a directory: the key of its work, a line feed, and the worker.
pub fn registration(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    let Some((key, worker)) = text.split_once('\n') else { return };
    let is_valid = ServiceKey::new(key).is_ok();
    assert_eq!(is_valid, (1..=200).contains(&key.len()), "{key:?}");
    let Ok(worker) = worker.parse::<ControllerRef>() else { return };
    assert_eq!(worker.to_string().parse(), Ok(worker));
}

/// A codec that leaves bytes unchanged.
struct Raw;

impl Codec<Bytes> for Raw {
    fn id(&self) -> CodecId {
        CodecId::INTERNAL
    }

    fn manifest(&self, _: &Bytes) -> Manifest {
        Manifest::from_static("raw")
    }

    fn manifests(&self) -> Vec<Manifest> {
        vec![Manifest::from_static("raw")]
    }

    fn encode(&self, bytes: &Bytes, buffer: &mut BytesMut) -> Result<(), EncodeError> {
        buffer.extend_from_slice(bytes);
        Ok(())
    }

    fn decode(&self, _: &str, bytes: Bytes) -> Result<Bytes, DecodeError> {
        Ok(bytes)
    }
}

/// Joins a message that was cut into chunks. The input has the size of a chunk, the position and kind of the damage,
/// the size limit, and the message. An undamaged message comes out equal, a damaged one cannot be decoded, and no more
/// bytes are joined than the limit allows.
pub fn chunks(input: &[u8]) {
    let Some((&[size, at, damage, most], message)) = input.split_first_chunk::<4>() else { return };
    let (message, most) = (Bytes::copy_from_slice(message), u64::from(most) * 64);
    let payload = Payload::encode(message.clone(), &Raw).map_err(|(_, error)| error).expect("bytes are written");
    // At most 16 chunks; with single-byte chunks an input would take milliseconds.
    let size = if size == 0 { 0 } else { usize::from(size).max(message.len().div_ceil(16)) };
    let Frames::Chunks(cut) = payload.frames(size) else { return };
    assert!(cut.iter().all(|chunk| (1..=size).contains(&chunk.size())));
    let (codec, last): (Arc<dyn Codec<Bytes>>, _) = (Arc::new(Raw), cut.len() - 1);
    let mut rest = usize::from(at);
    let arrived = cut.iter().enumerate().map(|(index, chunk)| {
        let mut piece = over_the_wire(chunk.piece(), index == 0, index == last);
        let length = piece.encoded.payload.len();
        if rest < length {
            let mut bytes = BytesMut::from(&piece.encoded.payload[..]);
            bytes[rest] ^= damage;
            piece.encoded.payload = bytes.freeze();
        }
        rest = rest.checked_sub(length).unwrap_or(usize::MAX);
        Payload::arrived(piece, true, &codec)
    });
    let is_damaged = damage != 0 && usize::from(at) < message.len();
    match Payload::join(&Frames::Chunks(arrived.collect()), most) {
        Ok(joined) => assert!(*joined == message && message.len() as u64 <= most && !is_damaged),
        Err(_) => assert!(message.len() as u64 > most || is_damaged, "an undamaged message of {} bytes", message.len()),
    }
}

/// Encodes and decodes a chunk, as if sent to another node.
fn over_the_wire(piece: Piece, first_chunk: bool, last_chunk: bool) -> Piece {
    let frame = Frame { seq_nr: 1, total: crate::SeqNr(1), ack: false, first_chunk, last_chunk, payload: piece };
    let frames = [SequencedMessage { frame, first: first_chunk }];
    let mut bytes = BytesMut::new();
    wire::put_batch(&samples::header(1), &frames, Piece::clone, &mut bytes);
    let mut read = wire::read_batch(bytes.freeze()).expect("what was written can be read");
    read.frames.remove(0).frame.payload
}

#[cfg(test)]
mod tests {
    use greylag_testkit::mutations::damaged;

    use super::*;

    /// Runs each target with some thousands of inputs, as `fuzz/` does with millions.
    #[test]
    fn damaged_input_is_refused_or_decodes_differently() {
        let seeds = seeds();
        let mut seed = 0;
        let now = std::time::Instant::now();
        let mut run = |target: &str, check: &dyn Fn(&[u8])| {
            let (_, inputs) = seeds.iter().find(|(name, _)| *name == target).expect("a target has seeds");
            seed += 1;
            damaged(inputs, 20_000, seed, check);
        };
        run("delivery_downstream", &downstream);
        run("delivery_upstream", &upstream);
        run("delivery_chunks", &chunks);
        run("delivery_registration", &registration);
        run("delivery_consumer", &|input| consumer(now, input));
        run("delivery_producer", &|input| producer(now, input));
        #[cfg(feature = "persistence")]
        {
            run("delivery_queue_event", &queue_event);
            run("delivery_queue_snapshot", &queue_snapshot);
            run("delivery_queue_rows", &queue_rows);
            run("delivery_outbox", &outbox);
        }
        assert_eq!(seed, seeds.len() as u64, "a target with seeds is not run");
    }
}
