//! How a producer's messages are encoded, and the message that is not encoded yet.
//!
//! A message that is not encoded refers to the format of its producer, which encodes the message if its entity turns out
//! to be on another node.
//!
//! Source: delivery K1, K7.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use bytes::BytesMut;
use greylag_core::{Codec, EncodeError, Encoded};

use crate::machine::portable::UnsendableError;

/// Codec, size limit and chunk size of a producer's messages.
pub(crate) struct Format<T> {
    pub(crate) codec: Arc<dyn Codec<T>>,
    /// Messages are cut into frames of this many bytes; 0 for one frame each.
    pub(crate) chunk_bytes: usize,
    pub(crate) max_message_bytes: usize,
}

/// A message that is not encoded.
pub(super) struct UnencodedValue<T> {
    value: Arc<T>,
    /// The codec's estimate of the size in bytes.
    size: usize,
    format: Arc<Format<T>>,
}

impl<T> UnencodedValue<T> {
    pub(super) fn new(value: Arc<T>, size: usize, format: Arc<Format<T>>) -> Self {
        Self { value, size, format }
    }

    pub(super) fn value(&self) -> &Arc<T> {
        &self.value
    }

    pub(super) fn into_value(self) -> Option<T> {
        Arc::into_inner(self.value)
    }

    pub(super) fn size(&self) -> usize {
        self.size
    }

    /// The chunk size of the message's producer.
    pub(super) fn chunk_bytes(&self) -> usize {
        self.format.chunk_bytes
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

    /// Encodes the message, because it leaves the node, and checks its size.
    pub(super) fn into_encoded(self) -> Result<(Encoded, Arc<T>), UnsendableError> {
        let encoded = self.written()?;
        let (size, max) = (encoded.payload.len(), self.format.max_message_bytes);
        if size > max {
            return Err(UnsendableError::TooLarge { size, max });
        }
        Ok((encoded, self.value))
    }
}

impl<T> Clone for UnencodedValue<T> {
    fn clone(&self) -> Self {
        Self { value: self.value.clone(), size: self.size, format: self.format.clone() }
    }
}

/// Encodes a value.
pub(super) fn write<T: 'static>(value: &T, codec: &dyn Codec<T>) -> Result<Encoded, EncodeError> {
    let mut buffer = BytesMut::new();
    codec.encode(value, &mut buffer)?;
    Ok(Encoded { codec: codec.id(), manifest: codec.manifest(value), payload: buffer.freeze() })
}
