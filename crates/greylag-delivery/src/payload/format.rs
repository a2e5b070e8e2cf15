//! Encodes the messages of a producer, except messages that stay on their node.
//!
//! A message to an entity of the producer's own node is kept as a value, neither encoded nor cut. Its size is the
//! codec's estimate. If the entity turns out to be on another node, the message is encoded and cut in the producer's
//! task; encoding errors, which a sender otherwise gets at once, only occur then.
//!
//! Source: delivery K1, K7.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use greylag_core::{Codec, EncodeError, Encoded};

use super::{Body, Payload, write};
use crate::error::SendError;
use crate::machine::portable::{Portable, UnsendableError};
use crate::machine::producer_link::Frames;

/// Codec, size limit and chunk size of a producer's messages.
pub(crate) struct Format<T> {
    pub(crate) codec: Arc<dyn Codec<T>>,
    /// Messages are cut into frames of this many bytes; 0 for one frame each.
    pub(crate) chunk_bytes: usize,
    pub(crate) max_message_bytes: usize,
}

impl<T: 'static> Format<T> {
    /// Encodes a message, for other nodes or a store.
    ///
    /// # Errors
    /// [`SendError`] with the message.
    pub(crate) fn encode(&self, message: T) -> Result<Payload<T>, SendError<T>> {
        let payload =
            Payload::encode(message, &*self.codec).map_err(|(message, error)| SendError::Encode(message, error))?;
        let (size, max) = (payload.size(), self.max_message_bytes);
        if size <= max {
            return Ok(payload);
        }
        Err(match payload.into_value() {
            Some(message) => SendError::MessageTooLarge { message, size, max },
            None => SendError::Closed(None),
        })
    }

    /// Keeps a message as a value, for an entity of this node. If the codec's size estimate is above the limit, the
    /// message is encoded, since only its bytes show its true size.
    ///
    /// # Errors
    /// [`SendError`] with the message.
    pub(crate) fn keep(self: &Arc<Self>, message: T) -> Result<Payload<T>, SendError<T>> {
        let size = self.codec.size_hint(&message);
        if size > self.max_message_bytes {
            return self.encode(message);
        }
        Ok(Payload(Body::Unencoded(UnencodedValue { value: Arc::new(message), size, format: self.clone() })))
    }

    /// Decodes a stored message.
    pub(crate) fn read(&self, encoded: Encoded) -> Payload<T> {
        Payload::decode(encoded, &*self.codec)
    }

    /// Splits a message into frames.
    pub(crate) fn frames(&self, payload: Payload<T>) -> Frames<Payload<T>> {
        payload.frames(self.chunk_bytes)
    }
}

/// A message that is not encoded.
pub(super) struct UnencodedValue<T> {
    value: Arc<T>,
    /// The codec's estimate of the size in bytes.
    size: usize,
    format: Arc<Format<T>>,
}

impl<T> UnencodedValue<T> {
    pub(super) fn value(&self) -> &Arc<T> {
        &self.value
    }

    pub(super) fn into_value(self) -> Option<T> {
        Arc::into_inner(self.value)
    }

    pub(super) fn size(&self) -> usize {
        self.size
    }
}

impl<T: 'static> UnencodedValue<T> {
    /// Encodes the message. A panic of the codec becomes an error, since this runs in the producer's task.
    pub(super) fn written(&self) -> Result<Encoded, EncodeError> {
        let codec = &*self.format.codec;
        catch_unwind(AssertUnwindSafe(|| write(&*self.value, codec))).unwrap_or_else(|_| {
            let manifest = std::any::type_name::<T>().to_owned();
            Err(EncodeError::Unrepresentable { manifest, reason: "the codec panicked".to_owned() })
        })
    }

    /// Encodes the message and cuts it into chunks.
    fn into_frames(self) -> Result<Frames<Payload<T>>, UnsendableError> {
        let encoded = self.written()?;
        let (size, max) = (encoded.payload.len(), self.format.max_message_bytes);
        if size > max {
            return Err(UnsendableError::TooLarge { size, max });
        }
        Ok(self.format.frames(Payload(Body::Value(encoded, self.value))))
    }
}

impl<T> Clone for UnencodedValue<T> {
    fn clone(&self) -> Self {
        Self { value: self.value.clone(), size: self.size, format: self.format.clone() }
    }
}

impl<T: 'static> Portable for Payload<T> {
    fn is_portable(&self) -> bool {
        !matches!(self.0, Body::Unencoded(_))
    }

    fn into_portable(frames: Frames<Self>) -> Result<Frames<Self>, UnsendableError> {
        match frames {
            Frames::Whole(Self(Body::Unencoded(unencoded))) => unencoded.into_frames(),
            frames => Ok(frames),
        }
    }
}
