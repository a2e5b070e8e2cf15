//! The message type of entities under delivery: protocol messages, which carry deliveries, and bypass messages.
//!
//! The region carries both through one codec. Protocol messages are opaque to users, who make and see only
//! [`WithDelivery::Bypass`]. Source: delivery S9, S16.

use std::fmt;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use greylag_core::{Codec, CodecId, DecodeError, EncodeError, Encoded, Manifest};

use crate::delivery::payload::Payload;
use crate::machine::portable::Portable;
use crate::message::{ProducerStopped, SequencedBatch, SequencedMessage};
use crate::wire;

/// The message type of an entity type under delivery: deliveries of `T`, and bypass messages `Q`.
///
/// `Q` is for queries and ordinary messages, unordered relative to deliveries; use
/// [`Infallible`](std::convert::Infallible) where there are none.
pub enum WithDelivery<T, Q> {
    /// A bypass message, which goes directly to the entity.
    Bypass(Q),
    /// A message of the delivery protocol.
    Protocol(Protocol<T>),
}

/// See [`WithDelivery::Protocol`].
pub struct Protocol<T>(pub(crate) ProtocolMessage<T>);

pub(crate) enum ProtocolMessage<T> {
    Batch(SequencedBatch<Payload<T>>),
    Stopped(ProducerStopped),
    /// A deadline of the entity's controller has come. Never leaves the entity.
    Tick,
    /// A delivery was confirmed or given up outside of a handler. Never leaves the entity.
    Wake,
    /// The next delivery, or the end, is due. Never leaves the entity.
    Next,
    /// A delivery that the entity's own timers or tasks sent to it. Never leaves the entity.
    #[cfg_attr(not(feature = "persistence"), allow(dead_code))]
    Delivered(Box<crate::delivery::Delivery<T>>),
}

impl<T, Q> WithDelivery<T, Q> {
    pub(crate) fn protocol(message: ProtocolMessage<T>) -> Self {
        Self::Protocol(Protocol(message))
    }
}

impl<T, Q: fmt::Debug> fmt::Debug for WithDelivery<T, Q> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bypass(message) => f.debug_tuple("Bypass").field(message).finish(),
            Self::Protocol(message) => message.fmt(f),
        }
    }
}

impl<T> fmt::Debug for Protocol<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            ProtocolMessage::Batch(batch) => write!(f, "Batch({:?}, {} frames)", batch.header, batch.frames.len()),
            ProtocolMessage::Stopped(stopped) => stopped.fmt(f),
            ProtocolMessage::Tick => f.write_str("Tick"),
            ProtocolMessage::Wake => f.write_str("Wake"),
            ProtocolMessage::Next => f.write_str("Next"),
            ProtocolMessage::Delivered(_) => f.write_str("Delivered"),
        }
    }
}

/// The codec of [`WithDelivery`], composed of the codecs of its two types.
pub struct DeliveryCodec<T, Q> {
    deliveries: Arc<dyn Codec<T>>,
    bypass: Arc<dyn Codec<Q>>,
}

impl<T, Q> DeliveryCodec<T, Q> {
    /// Deliveries use one codec, bypass messages the other.
    pub fn new(deliveries: impl Codec<T>, bypass: impl Codec<Q>) -> Self {
        Self { deliveries: Arc::new(deliveries), bypass: Arc::new(bypass) }
    }
}

impl<T, Q> Clone for DeliveryCodec<T, Q> {
    fn clone(&self) -> Self {
        Self { deliveries: self.deliveries.clone(), bypass: self.bypass.clone() }
    }
}

impl<T, Q> fmt::Debug for DeliveryCodec<T, Q> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DeliveryCodec")
    }
}

impl<T: Send + Sync + 'static, Q: Send + 'static> Codec<WithDelivery<T, Q>> for DeliveryCodec<T, Q> {
    fn id(&self) -> CodecId {
        CodecId::INTERNAL
    }

    fn manifest(&self, message: &WithDelivery<T, Q>) -> Manifest {
        Manifest::from_static(match message {
            WithDelivery::Bypass(_) => wire::BYPASS,
            WithDelivery::Protocol(Protocol(ProtocolMessage::Stopped(_))) => wire::STOPPED,
            WithDelivery::Protocol(_) => wire::BATCH,
        })
    }

    fn manifests(&self) -> Vec<Manifest> {
        [wire::BATCH, wire::BYPASS, wire::STOPPED].map(Manifest::from_static).into()
    }

    fn encode(&self, message: &WithDelivery<T, Q>, buffer: &mut BytesMut) -> Result<(), EncodeError> {
        match message {
            WithDelivery::Bypass(message) => {
                let mut payload = BytesMut::new();
                self.bypass.encode(message, &mut payload)?;
                let (codec, manifest) = (self.bypass.id(), self.bypass.manifest(message));
                wire::put_bypass(Encoded { codec, manifest, payload: payload.freeze() }, buffer);
                Ok(())
            }
            WithDelivery::Protocol(Protocol(ProtocolMessage::Batch(batch))) => {
                // A message without bytes stays here, with all frames after it. Once the producer knows that the frames
                // leave the node, the link is replaced, and its messages are encoded.
                let leave = |message: &&SequencedMessage<Payload<T>>| message.frame.payload.is_portable();
                let leaving = batch.frames.iter().take_while(leave).count();
                wire::put_batch(&batch.header, &batch.frames[..leaving], Payload::piece, buffer);
                Ok(())
            }
            WithDelivery::Protocol(Protocol(ProtocolMessage::Stopped(stopped))) => {
                wire::put_stopped(stopped, buffer);
                Ok(())
            }
            WithDelivery::Protocol(other) => Err(EncodeError::Unrepresentable {
                manifest: wire::BATCH.to_owned(),
                reason: format!("{other:?} stays in its entity"),
            }),
        }
    }

    fn decode(&self, manifest: &str, bytes: Bytes) -> Result<WithDelivery<T, Q>, DecodeError> {
        match manifest {
            wire::BATCH => {
                let batch = wire::read_batch(bytes)?;
                let frames = batch.frames.into_iter().map(|SequencedMessage { frame, first }| {
                    let is_chunk = !(frame.first_chunk && frame.last_chunk);
                    let frame = frame.map(|piece| Payload::arrived(piece, is_chunk, &self.deliveries));
                    SequencedMessage { frame, first }
                });
                let batch = SequencedBatch { header: batch.header, frames: frames.collect() };
                Ok(WithDelivery::protocol(ProtocolMessage::Batch(batch)))
            }
            wire::STOPPED => Ok(WithDelivery::protocol(ProtocolMessage::Stopped(wire::read_stopped(bytes)?))),
            wire::BYPASS => {
                let encoded = wire::read_bypass(bytes)?;
                if encoded.codec != self.bypass.id() {
                    let manifest = String::from(encoded.manifest);
                    return Err(DecodeError::UnknownCodec { codec: encoded.codec, manifest });
                }
                self.bypass.decode(&encoded.manifest, encoded.payload).map(WithDelivery::Bypass)
            }
            other => Err(DecodeError::UnknownManifest { codec: CodecId::INTERNAL, manifest: other.to_owned() }),
        }
    }
}

/// The codec of a type without values: for entities without bypass messages.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoBypass;

impl Codec<std::convert::Infallible> for NoBypass {
    fn id(&self) -> CodecId {
        CodecId::INTERNAL
    }

    fn manifest(&self, message: &std::convert::Infallible) -> Manifest {
        match *message {}
    }

    fn manifests(&self) -> Vec<Manifest> {
        Vec::new()
    }

    fn encode(&self, message: &std::convert::Infallible, _: &mut BytesMut) -> Result<(), EncodeError> {
        match *message {}
    }

    fn decode(&self, manifest: &str, _: Bytes) -> Result<std::convert::Infallible, DecodeError> {
        Err(DecodeError::UnknownManifest { codec: CodecId::INTERNAL, manifest: manifest.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::delivery::payload::{Format, UnreadableError};
    use crate::ids::{ControllerRef, Epoch, ProducerId, SeqNr, StreamId};
    use crate::message::{BatchHeader, Frame, Frames};
    use greylag_codec::json;

    fn codec() -> DeliveryCodec<u32, String> {
        DeliveryCodec::new(json::<u32>("count"), json::<String>("question"))
    }

    fn batch() -> SequencedBatch<Payload<u32>> {
        let header = BatchHeader {
            producer_id: ProducerId::new("p").unwrap(),
            stream_id: StreamId(1),
            epoch: Epoch::FIRST,
            controller: ControllerRef { node: "n:1#1".parse().unwrap(), path: "delivery/1".into(), instance: 1 },
            ordered: true,
            lowest: 1,
        };
        let payload = Payload::encode(7, &json::<u32>("count")).unwrap();
        let frame = Frame { seq_nr: 1, total: SeqNr(3), ack: false, first_chunk: true, last_chunk: true, payload };
        SequencedBatch { header, frames: vec![SequencedMessage { frame, first: true }] }
    }

    fn round_trip(message: &WithDelivery<u32, String>) -> Result<WithDelivery<u32, String>, DecodeError> {
        let mut buffer = BytesMut::new();
        codec().encode(message, &mut buffer).unwrap();
        codec().decode(&codec().manifest(message), buffer.freeze())
    }

    #[test]
    fn both_types_travel_under_one_codec() {
        let Ok(WithDelivery::Bypass(question)) = round_trip(&WithDelivery::Bypass("how many?".into())) else {
            panic!("a bypass message came back as something else")
        };
        assert_eq!(question, "how many?");
        let message = WithDelivery::protocol(ProtocolMessage::Batch(batch()));
        let Ok(WithDelivery::Protocol(Protocol(ProtocolMessage::Batch(read)))) = round_trip(&message) else {
            panic!("a batch came back as something else")
        };
        assert_eq!(read, batch());
        let frames = Frames::Whole(read.frames[0].frame.payload.clone());
        assert_eq!(*Payload::join(&frames, 64).unwrap(), 7);
    }

    #[test]
    fn a_payload_that_cannot_be_read_keeps_its_frame() {
        let mut sent = batch();
        sent.frames[0].frame.payload =
            sent.frames[0].frame.payload.clone().with_encoded(CodecId::JSON, "count", Bytes::from_static(b"{"));
        let Ok(WithDelivery::Protocol(Protocol(ProtocolMessage::Batch(read)))) =
            round_trip(&WithDelivery::protocol(ProtocolMessage::Batch(sent)))
        else {
            panic!("the batch was lost with its payload")
        };
        let frames = Frames::Whole(read.frames[0].frame.payload.clone());
        assert!(matches!(Payload::join(&frames, 64).unwrap_err().error, UnreadableError::Codec(_)));
    }

    /// delivery K7: neither a message without bytes leaves its node, nor any frame after it.
    #[test]
    fn messages_without_bytes_stay_behind() {
        let format = Format { codec: Arc::new(json::<u32>("count")), chunk_bytes: 0, max_message_bytes: 1000 };
        let kept = Arc::new(format).keep(8).unwrap();
        let mut sent = batch();
        for payload in [kept, sent.frames[0].frame.payload.clone()] {
            let mut message = sent.frames[0].clone();
            (message.first, message.frame.payload) = (false, payload);
            message.frame.seq_nr = sent.frames.len() as u64 + 1;
            sent.frames.push(message);
        }
        let sent = WithDelivery::protocol(ProtocolMessage::Batch(sent));
        let Ok(WithDelivery::Protocol(Protocol(ProtocolMessage::Batch(read)))) = round_trip(&sent) else {
            panic!("a batch came back as something else")
        };
        assert_eq!(read, batch());
    }

    #[test]
    fn in_process_messages_are_not_encoded() {
        let message = WithDelivery::<u32, String>::protocol(ProtocolMessage::Tick);
        assert!(codec().encode(&message, &mut BytesMut::new()).is_err());
    }
}
