//! How a message becomes bytes, and under which name.
//!
//! On wire and disk a message is (codec id, manifest, bytes). The id says which codec reads it, the
//! manifest which type (and version) it is. Manifests are chosen by people, never derived from type
//! paths, so a rename in the code breaks nothing that is stored.

use std::fmt;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};

use super::manifest::Manifest;

/// Number of a codec; one space for wire and disk.
///
/// 1 to 999 are Greylag's, from 1000 on the user's. Source: cluster T34.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CodecId(u32);

impl CodecId {
    /// Protocol Buffers by prost.
    pub const PROST: Self = Self(1);
    /// JSON by serde.
    pub const JSON: Self = Self(2);
    /// CBOR by serde.
    pub const CBOR: Self = Self(3);
    /// Greylag's own protocol messages: protobuf whose manifests belong to a layer.
    pub const INTERNAL: Self = Self(10);
    /// The first id that users may give.
    pub const FIRST_USER: Self = Self(1000);

    /// Any id, as read from wire or disk.
    pub const fn from_u32(id: u32) -> Self {
        Self(id)
    }

    /// The number.
    pub const fn as_u32(self) -> u32 {
        self.0
    }
}

impl fmt::Display for CodecId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Writes and reads the messages of one Rust type.
///
/// A codec looks only at the manifest and the bytes. It must bound its allocations by the size
/// of the input. Source: cluster T34 to T36, persistence §1.
pub trait Codec<M>: Send + Sync + 'static {
    /// The id of the codec.
    fn id(&self) -> CodecId;

    /// The manifest under which `message` is written.
    fn manifest(&self, message: &M) -> Manifest;

    /// Every manifest that [`Codec::decode`] accepts; the registry refuses two owners of one.
    fn manifests(&self) -> Vec<Manifest>;

    /// Appends the bytes of `message`.
    ///
    /// # Errors
    /// [`EncodeError`] if the message cannot be represented; the buffer is then cut back by the caller.
    fn encode(&self, message: &M, buffer: &mut BytesMut) -> Result<(), EncodeError>;

    /// Reads a message back.
    ///
    /// # Errors
    /// [`DecodeError`] names the manifest, and what is wrong with the bytes.
    fn decode(&self, manifest: &str, bytes: Bytes) -> Result<M, DecodeError>;

    /// Estimates the encoded size of `message` in bytes without encoding the message. Byte budgets use the estimate for
    /// messages that are handed on as values. The default is the size of the value without the memory that the value
    /// points to, far too little for texts and lists; a codec that can count better should override the method.
    fn size_hint(&self, message: &M) -> usize {
        size_of_val(message)
    }
}

impl<M, C: Codec<M> + ?Sized> Codec<M> for Arc<C> {
    fn id(&self) -> CodecId {
        (**self).id()
    }

    fn manifest(&self, message: &M) -> Manifest {
        (**self).manifest(message)
    }

    fn manifests(&self) -> Vec<Manifest> {
        (**self).manifests()
    }

    fn encode(&self, message: &M, buffer: &mut BytesMut) -> Result<(), EncodeError> {
        (**self).encode(message, buffer)
    }

    fn decode(&self, manifest: &str, bytes: Bytes) -> Result<M, DecodeError> {
        (**self).decode(manifest, bytes)
    }

    fn size_hint(&self, message: &M) -> usize {
        (**self).size_hint(message)
    }
}

/// A message could not be written. It was not sent and not stored.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EncodeError {
    /// The codec refused this value.
    #[error("cannot encode a message with manifest {manifest:?}: {reason}")]
    Unrepresentable {
        /// The manifest of the message.
        manifest: String,
        /// The codec's reason, for people.
        reason: String,
    },
    /// No codec is registered for the type; register one before the first send.
    #[error("no codec is registered for {type_name}; register one when the node is built")]
    NotRegistered {
        /// The Rust type, for people only.
        type_name: &'static str,
    },
}

/// Bytes could not be read as a message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// No codec with this id is registered here.
    #[error("no codec with id {codec} is registered (manifest {manifest:?})")]
    UnknownCodec {
        /// The id found.
        codec: CodecId,
        /// The manifest found.
        manifest: String,
    },
    /// The codec does not know this manifest: the writer is newer, or the type was not registered.
    #[error("codec {codec} knows no manifest {manifest:?}; register its type, or deploy readers before writers")]
    UnknownManifest {
        /// The codec asked.
        codec: CodecId,
        /// The manifest found.
        manifest: String,
    },
    /// The bytes are not a message of this manifest.
    #[error("malformed message with manifest {manifest:?}: {reason}")]
    Malformed {
        /// The manifest of the message.
        manifest: String,
        /// The codec's reason, for people.
        reason: String,
    },
    /// The message is well-formed, but of another type than asked for.
    #[error("manifest {manifest:?} is not a {expected}")]
    WrongType {
        /// The manifest of the message.
        manifest: String,
        /// The Rust type asked for, for people only.
        expected: &'static str,
    },
}

impl DecodeError {
    /// A malformed message with this manifest.
    pub fn malformed(manifest: &str, reason: impl fmt::Display) -> Self {
        Self::Malformed { manifest: manifest.to_owned(), reason: reason.to_string() }
    }
}
