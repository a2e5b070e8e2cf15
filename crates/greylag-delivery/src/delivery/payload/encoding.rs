//! Encodes the messages of a producer, except messages that stay on their node.
//!
//! A message to an entity of the producer's own node is kept as a value, neither encoded nor cut. Its size is the
//! codec's estimate. If the entity turns out to be on another node, the message is encoded and cut in the producer's
//! task; encoding errors, which a sender otherwise gets at once, only occur then.
//!
//! Source: delivery K1, K7.

use std::sync::Arc;

use greylag_core::Encoded;

use super::format::{Format, UnencodedValue};
use super::{Body, Payload};
use crate::error::SendError;
use crate::machine::portable::{Portable, UnsendableError};
use crate::message::Frames;

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
        Ok(Payload(Body::Unencoded(UnencodedValue::new(Arc::new(message), size, self.clone()))))
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

impl<T: 'static> Portable for Payload<T> {
    fn is_portable(&self) -> bool {
        !matches!(self.0, Body::Unencoded(_))
    }

    fn into_portable(frames: Frames<Self>) -> Result<Frames<Self>, UnsendableError> {
        match frames {
            Frames::Whole(Self(Body::Unencoded(unencoded))) => {
                let chunk_bytes = unencoded.chunk_bytes();
                let (encoded, value) = unencoded.into_encoded()?;
                Ok(Self(Body::Value(encoded, value)).frames(chunk_bytes))
            }
            frames => Ok(frames),
        }
    }
}
