//! How the messages of a producer get their bytes, and messages that stay on their node without any.
//!
//! A message to an entity of the producer's own node is kept as the value that it is; nothing is encoded and nothing cut. It
//! is counted with the size that its codec expects. When its entity turns out to live elsewhere it gets its bytes, and is cut,
//! in the producer's task: errors that its sender would have been told at once come to light only then.
//!
//! Source: delivery K1, K7.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use greylag_core::{Codec, EncodeError, Encoded};

use super::{Body, Payload, write};
use crate::error::SendError;
use crate::machine::portable::{Portable, UnsendableError};
use crate::machine::producer_link::Frames;

/// How a producer's messages are written, how large they may be, and where they are cut.
pub(crate) struct Format<T> {
    pub(crate) codec: Arc<dyn Codec<T>>,
    /// Messages are cut into frames of so many bytes; 0 for one frame each.
    pub(crate) chunk_bytes: usize,
    pub(crate) max_message_bytes: usize,
}

impl<T: 'static> Format<T> {
    /// A message with its bytes, as it may go to other nodes and into a store.
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

    /// A message without bytes, for an entity of this node. A message that its codec expects to be too large is encoded,
    /// since only its bytes show how large it is.
    ///
    /// # Errors
    /// [`SendError`] with the message.
    pub(crate) fn keep(self: &Arc<Self>, message: T) -> Result<Payload<T>, SendError<T>> {
        let size = self.codec.size_hint(&message);
        if size > self.max_message_bytes {
            return self.encode(message);
        }
        Ok(Payload(Body::Kept(Kept { value: Arc::new(message), size, format: self.clone() })))
    }

    /// A message that was stored.
    pub(crate) fn read(&self, encoded: Encoded) -> Payload<T> {
        Payload::decode(encoded, &*self.codec)
    }

    /// The frames of a message.
    pub(crate) fn frames(&self, payload: Payload<T>) -> Frames<Payload<T>> {
        payload.frames(self.chunk_bytes)
    }
}

/// A message without bytes.
pub(super) struct Kept<T> {
    value: Arc<T>,
    /// The size in bytes that its codec expects.
    size: usize,
    format: Arc<Format<T>>,
}

impl<T> Kept<T> {
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

impl<T: 'static> Kept<T> {
    /// The message's bytes. A panic of the codec becomes an error, since this runs in the producer's task.
    pub(super) fn written(&self) -> Result<Encoded, EncodeError> {
        let codec = &*self.format.codec;
        catch_unwind(AssertUnwindSafe(|| write(&*self.value, codec))).unwrap_or_else(|_| {
            let manifest = std::any::type_name::<T>().to_owned();
            Err(EncodeError::Unrepresentable { manifest, reason: "the codec panicked".to_owned() })
        })
    }

    /// The message with its bytes, cut into chunks.
    fn leave(self) -> Result<Frames<Payload<T>>, UnsendableError> {
        let encoded = self.written()?;
        let (size, max) = (encoded.payload.len(), self.format.max_message_bytes);
        if size > max {
            return Err(UnsendableError::TooLarge { size, max });
        }
        Ok(self.format.frames(Payload(Body::Value(encoded, self.value))))
    }
}

impl<T> Clone for Kept<T> {
    fn clone(&self) -> Self {
        Self { value: self.value.clone(), size: self.size, format: self.format.clone() }
    }
}

impl<T: 'static> Portable for Payload<T> {
    fn is_portable(&self) -> bool {
        !matches!(self.0, Body::Kept(_))
    }

    fn into_portable(frames: Frames<Self>) -> Result<Frames<Self>, UnsendableError> {
        match frames {
            Frames::Whole(Self(Body::Kept(kept))) => kept.leave(),
            frames => Ok(frames),
        }
    }
}
