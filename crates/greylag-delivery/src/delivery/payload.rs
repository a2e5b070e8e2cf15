//! The payload of frames: a whole message, or a chunk of one.
//!
//! A message is encoded once, when it is accepted. If it is longer than the chunk size, it is sent as several frames,
//! each with a slice of the same bytes; the receiver joins the chunks, and checks length and checksum before decoding.
//!
//! ```text
//! value ─▶ encode ─▶ Payload ─▶ frames ─▶ Frames<Payload> ═══ link ═══▶ Frames<Payload> ─▶ join ─▶ value
//!   └────▶ keep ───▶ Payload ─────────────── on its node ────────────▶ Frames<Payload> ─▶ join ─▶ value
//! ```
//!
//! A message that does not leave its node is never decoded: its last frame has the value itself. A message for an
//! entity of the sender's node is not even encoded, unless the entity turns out to be on another node.
//!
//! Source: delivery K1 to K3, K7, K8.

mod encoding;
mod format;

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use greylag_core::{Codec, CodecId, DecodeError, EncodeError, Encoded, Manifest};

use crate::message::{Content, Frames};
use crate::wire::Piece;
use format::{UnencodedValue, write};

pub(crate) use format::Format;

/// The payload of one frame: a message with its bytes, a chunk of such a message, or a value without bytes that stays
/// on its node. Clones share value and bytes.
pub struct Payload<T>(Body<T>);

enum Body<T> {
    /// A message that is not encoded; it stays on its node, as far as is known.
    Unencoded(UnencodedValue<T>),
    Value(Encoded, Arc<T>),
    /// A whole message whose bytes the codec refused.
    Unreadable(Encoded, Arc<DecodeError>),
    Chunk(Encoded, Arc<Chunk<T>>),
}

/// Fields of a chunk besides its bytes.
struct Chunk<T> {
    /// In the first chunk: the length of the whole message in bytes.
    total_len: Option<u64>,
    /// In the last chunk: the CRC-32C of the whole message.
    crc32c: Option<u32>,
    source: Source<T>,
}

/// The source of the value of a message in chunks.
enum Source<T> {
    /// Decoded from the chunks' bytes by this codec.
    Bytes(Arc<dyn Codec<T>>),
    /// The value itself, in the last chunk: the message has not left its node.
    Value(Arc<T>),
    /// In the chunks before the one with the value.
    LaterChunk,
}

/// Why an arrived message cannot be handed to the application.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UnreadableError {
    /// The codec refused the bytes, or the bytes are of another codec.
    #[error(transparent)]
    Codec(Arc<DecodeError>),
    /// The message is larger than this node accepts (`producer.max_message_bytes`); its chunks were not kept.
    #[error("the message has {size} bytes, at most {max} are taken")]
    TooLarge {
        /// The size in bytes as declared by the sender.
        size: u64,
        /// The limit in bytes.
        max: u64,
    },
    /// The chunks have more or fewer bytes than the first of them declares, or are too many.
    #[error("the chunks of the message do not add up to its {expected} bytes")]
    WrongLength {
        /// The declared size in bytes.
        expected: u64,
    },
    /// The bytes differ from those that were sent.
    #[error("the checksum of the message is {actual:08x}, its sender says {expected:08x}")]
    WrongChecksum {
        /// The checksum in the last chunk.
        expected: u32,
        /// The CRC-32C of the bytes that arrived.
        actual: u32,
    },
    /// The message arrived without its beginning or its end.
    #[error("first or last chunk is missing")]
    Incomplete,
}

/// A message that cannot be decoded, with its bytes as far as they were kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Unreadable {
    pub(crate) error: UnreadableError,
    pub(crate) encoded: Encoded,
}

impl<T: 'static> Payload<T> {
    /// Encodes a value.
    ///
    /// # Errors
    /// [`EncodeError`] with the unchanged value.
    pub fn encode(value: T, codec: &dyn Codec<T>) -> Result<Self, (T, EncodeError)> {
        match write(&value, codec) {
            Ok(encoded) => Ok(Self(Body::Value(encoded, Arc::new(value)))),
            Err(error) => Err((value, error)),
        }
    }

    /// Decodes a whole message. Bytes that cannot be decoded are kept with the error, since the consumer's setting
    /// decides how to handle them.
    pub fn decode(encoded: Encoded, codec: &dyn Codec<T>) -> Self {
        Self(match read(&encoded, codec) {
            Ok(value) => Body::Value(encoded, Arc::new(value)),
            Err(error) => Body::Unreadable(encoded, Arc::new(error)),
        })
    }

    /// The payload of a frame from another node: a whole message, or a chunk, which `codec` decodes together with the
    /// others.
    pub(crate) fn arrived(piece: Piece, is_chunk: bool, codec: &Arc<dyn Codec<T>>) -> Self {
        let Piece { encoded, total_len, crc32c } = piece;
        if !is_chunk && total_len.is_none() && crc32c.is_none() {
            return Self::decode(encoded, &**codec);
        }
        let chunk = Chunk { total_len, crc32c, source: Source::Bytes(codec.clone()) };
        Self(Body::Chunk(encoded, Arc::new(chunk)))
    }

    /// Splits a message into frames: the message itself, or chunks of `chunk_bytes`, the last one with the rest. Chunks
    /// are slices of the encoded bytes. 0 for a single frame.
    pub fn frames(self, chunk_bytes: usize) -> Frames<Self> {
        let Body::Value(encoded, value) = &self.0 else { return Frames::Whole(self) };
        let whole = &encoded.payload;
        if chunk_bytes == 0 || whole.len() <= chunk_bytes {
            return Frames::Whole(self);
        }
        let last = (whole.len() - 1) / chunk_bytes;
        let chunks = (0..=last).map(|index| {
            let from = index * chunk_bytes;
            let payload = whole.slice(from..whole.len().min(from + chunk_bytes));
            let (codec, manifest) = match index {
                0 => (encoded.codec, encoded.manifest.clone()),
                _ => (NO_CODEC, Manifest::from_static("")),
            };
            let chunk = Chunk {
                total_len: (index == 0).then_some(whole.len() as u64),
                crc32c: (index == last).then(|| crc32c::crc32c(whole)),
                source: if index == last { Source::Value(value.clone()) } else { Source::LaterChunk },
            };
            Self(Body::Chunk(Encoded { codec, manifest, payload }, Arc::new(chunk)))
        });
        Frames::Chunks(chunks.collect())
    }

    /// Joins the frames of a message, and decodes its value. At most `max_bytes` are joined.
    ///
    /// # Errors
    /// [`Unreadable`], with as many bytes as were kept.
    pub(crate) fn join(frames: &Frames<Self>, max_bytes: u64) -> Result<Arc<T>, Unreadable> {
        let chunks = match frames {
            Frames::Whole(payload) => match &payload.0 {
                Body::Unencoded(unencoded) => return Ok(unencoded.value().clone()),
                Body::Value(_, value) => return Ok(value.clone()),
                Body::Unreadable(encoded, error) => {
                    let error = UnreadableError::Codec(error.clone());
                    return Err(Unreadable { error, encoded: encoded.clone() });
                }
                Body::Chunk(..) => std::slice::from_ref(payload),
            },
            Frames::Chunks(chunks) => chunks,
        };
        if let Some(Source::Value(value)) = chunks.last().and_then(Self::chunk).map(|last| &last.source) {
            return Ok(value.clone());
        }
        Self::join_chunks(chunks, max_bytes)
    }

    fn join_chunks(chunks: &[Self], max_bytes: u64) -> Result<Arc<T>, Unreadable> {
        let unreadable = |error| Err(Unreadable { error, encoded: concatenated(chunks) });
        let ends = chunks.first().and_then(Self::chunk).zip(chunks.last().and_then(Self::chunk));
        let Some((first, last)) = ends else { return unreadable(UnreadableError::Incomplete) };
        let Some(expected) = first.total_len else { return unreadable(UnreadableError::Incomplete) };
        if expected > max_bytes {
            return unreadable(UnreadableError::TooLarge { size: expected, max: max_bytes });
        }
        let actual: u64 = chunks.iter().map(|chunk| chunk.bytes_here().len() as u64).sum();
        if actual != expected {
            return unreadable(UnreadableError::WrongLength { expected });
        }
        let (Some(crc32c), Source::Bytes(codec)) = (last.crc32c, &last.source) else {
            return unreadable(UnreadableError::Incomplete);
        };
        let encoded = concatenated(chunks);
        let actual = crc32c::crc32c(&encoded.payload);
        if actual != crc32c {
            return Err(Unreadable { error: UnreadableError::WrongChecksum { expected: crc32c, actual }, encoded });
        }
        match read(&encoded, &**codec) {
            Ok(value) => Ok(Arc::new(value)),
            Err(error) => Err(Unreadable { error: UnreadableError::Codec(Arc::new(error)), encoded }),
        }
    }

    /// The bytes of a message, as far as they were kept. A message without bytes is encoded for this call.
    pub(crate) fn bytes(frames: &Frames<Self>) -> Encoded {
        match frames {
            Frames::Whole(Self(Body::Unencoded(unencoded))) => unencoded.written().unwrap_or_else(|_| nothing()),
            Frames::Whole(payload) => payload.encoded().cloned().unwrap_or_else(nothing),
            Frames::Chunks(chunks) => concatenated(chunks),
        }
    }

    fn chunk(&self) -> Option<&Chunk<T>> {
        match &self.0 {
            Body::Chunk(_, chunk) => Some(chunk),
            Body::Unencoded(_) | Body::Value(..) | Body::Unreadable(..) => None,
        }
    }

    /// The part of a frame that is sent. Empty for a message without bytes, whose frame must not leave the node.
    pub(crate) fn piece(&self) -> Piece {
        let (total_len, crc32c) = self.chunk().map_or((None, None), |chunk| (chunk.total_len, chunk.crc32c));
        Piece { encoded: self.encoded().cloned().unwrap_or_else(nothing), total_len, crc32c }
    }

    /// The value; `None` if there is none, or if its `Arc` has another clone.
    pub fn into_value(self) -> Option<T> {
        match self.0 {
            Body::Unencoded(unencoded) => unencoded.into_value(),
            Body::Value(_, value) => Arc::into_inner(value),
            Body::Chunk(_, chunk) => match Arc::into_inner(chunk)?.source {
                Source::Value(value) => Arc::into_inner(value),
                Source::Bytes(_) | Source::LaterChunk => None,
            },
            Body::Unreadable(..) => None,
        }
    }

    /// Size in bytes; estimated by the codec for a message without bytes.
    pub fn size(&self) -> usize {
        match &self.0 {
            Body::Unencoded(unencoded) => unencoded.size(),
            Body::Value(encoded, _) | Body::Unreadable(encoded, _) | Body::Chunk(encoded, _) => encoded.payload.len(),
        }
    }
}

impl<T> Payload<T> {
    /// The bytes; `None` for a message that is not encoded.
    pub fn encoded(&self) -> Option<&Encoded> {
        match &self.0 {
            Body::Unencoded(_) => None,
            Body::Value(encoded, _) | Body::Unreadable(encoded, _) | Body::Chunk(encoded, _) => Some(encoded),
        }
    }

    fn bytes_here(&self) -> &[u8] {
        self.encoded().map_or(&[], |encoded| &encoded.payload)
    }
}

impl<T: 'static> Frames<Payload<T>> {
    /// The bytes of the whole message, for a queue.
    pub(crate) fn encoded(&self) -> Encoded {
        Payload::bytes(self)
    }

    /// The value of a message that was not sent; `None` if its `Arc` has another clone.
    pub(crate) fn into_value(self) -> Option<T> {
        match self {
            Self::Whole(payload) => payload.into_value(),
            Self::Chunks(mut chunks) => chunks.pop().and_then(Payload::into_value),
        }
    }
}

/// The codec of chunks after the first, which do not repeat codec and manifest.
const NO_CODEC: CodecId = CodecId::from_u32(0);

/// No bytes, without a codec.
fn nothing() -> Encoded {
    Encoded { codec: NO_CODEC, manifest: Manifest::from_static(""), payload: Bytes::new() }
}

/// Decodes a value; a panic of the codec counts as a refusal of the bytes.
fn read<T: 'static>(encoded: &Encoded, codec: &dyn Codec<T>) -> Result<T, DecodeError> {
    if encoded.codec != codec.id() {
        let manifest = encoded.manifest.to_string();
        return Err(DecodeError::UnknownCodec { codec: encoded.codec, manifest });
    }
    let payload = encoded.payload.clone();
    catch_unwind(AssertUnwindSafe(|| codec.decode(&encoded.manifest, payload)))
        .unwrap_or_else(|_| Err(DecodeError::malformed(&encoded.manifest, "the codec panicked")))
}

/// Concatenates the bytes of chunks, with codec and manifest of the first one.
fn concatenated<T>(chunks: &[Payload<T>]) -> Encoded {
    let Some(first) = chunks.first().and_then(Payload::encoded) else { return nothing() };
    if chunks.len() == 1 {
        return first.clone();
    }
    let mut joined = BytesMut::with_capacity(chunks.iter().map(|chunk| chunk.bytes_here().len()).sum());
    chunks.iter().for_each(|chunk| joined.extend_from_slice(chunk.bytes_here()));
    Encoded { codec: first.codec, manifest: first.manifest.clone(), payload: joined.freeze() }
}

impl<T: 'static> Content for Payload<T> {
    fn size(&self) -> u64 {
        Self::size(self) as u64
    }

    fn total_len(&self) -> Option<u64> {
        self.chunk().and_then(|chunk| chunk.total_len)
    }
}

impl<T> Clone for Payload<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T> Clone for Body<T> {
    fn clone(&self) -> Self {
        match self {
            Self::Unencoded(unencoded) => Self::Unencoded(unencoded.clone()),
            Self::Value(encoded, value) => Self::Value(encoded.clone(), value.clone()),
            Self::Unreadable(encoded, error) => Self::Unreadable(encoded.clone(), error.clone()),
            Self::Chunk(encoded, chunk) => Self::Chunk(encoded.clone(), chunk.clone()),
        }
    }
}

/// Compares the parts that are sent; messages without bytes are equal if they share the value.
impl<T: 'static> PartialEq for Payload<T> {
    fn eq(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (Body::Unencoded(one), Body::Unencoded(other)) => Arc::ptr_eq(one.value(), other.value()),
            (Body::Unencoded(_), _) | (_, Body::Unencoded(_)) => false,
            _ => self.piece() == other.piece(),
        }
    }
}

impl<T: 'static> Eq for Payload<T> {}

impl<T> fmt::Debug for Payload<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kind, encoded) = match &self.0 {
            Body::Unencoded(_) => return f.write_str("Payload(without bytes)"),
            Body::Chunk(encoded, _) => ("Chunk", encoded),
            Body::Value(encoded, _) | Body::Unreadable(encoded, _) => ("Payload", encoded),
        };
        write!(f, "{kind}({}, {} bytes)", encoded.manifest, encoded.payload.len())
    }
}

#[cfg(test)]
impl<T> Payload<T> {
    /// Replaces the encoded bytes, like a faulty sender.
    pub(crate) fn with_encoded(self, codec: CodecId, manifest: &'static str, payload: Bytes) -> Self {
        let encoded = Encoded { codec, manifest: manifest.into(), payload };
        Self(match self.0 {
            Body::Unencoded(_) => panic!("it has no bytes"),
            Body::Value(_, value) => Body::Value(encoded, value),
            Body::Unreadable(_, error) => Body::Unreadable(encoded, error),
            Body::Chunk(_, chunk) => Body::Chunk(encoded, chunk),
        })
    }
}

#[cfg(test)]
mod tests;
