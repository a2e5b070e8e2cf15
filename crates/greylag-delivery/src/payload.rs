//! A message between its acceptance and its delivery.

use std::fmt;
use std::sync::Arc;

use bytes::BytesMut;
use greylag_core::{Codec, DecodeError, EncodeError, Encoded};

/// What a frame carries: the value, and the bytes that it is.
///
/// The value is encoded once, when it is accepted, and decoded at most once, where it arrives; on the node
/// of its sender the value itself is handed on. Copies share both.
pub struct Payload<T> {
    encoded: Encoded,
    value: Result<Arc<T>, Arc<DecodeError>>,
}

impl<T: 'static> Payload<T> {
    /// Encodes a value.
    ///
    /// # Errors
    /// [`EncodeError`] with the value, which is as it was.
    pub fn encode(value: T, codec: &dyn Codec<T>) -> Result<Self, (T, EncodeError)> {
        let mut buffer = BytesMut::new();
        if let Err(error) = codec.encode(&value, &mut buffer) {
            return Err((value, error));
        }
        let encoded = Encoded { codec: codec.id(), manifest: codec.manifest(&value), payload: buffer.freeze() };
        Ok(Self { encoded, value: Ok(Arc::new(value)) })
    }

    /// Reads bytes that arrived. Those that cannot be read are kept with the reason: the consumer decides
    /// what becomes of them.
    pub fn decode(encoded: Encoded, codec: &dyn Codec<T>) -> Self {
        let value = if encoded.codec == codec.id() {
            codec.decode(&encoded.manifest, encoded.payload.clone())
        } else {
            let manifest = encoded.manifest.to_string();
            Err(DecodeError::UnknownCodec { codec: encoded.codec, manifest })
        };
        Self { encoded, value: value.map(Arc::new).map_err(Arc::new) }
    }

    /// The value, or why there is none.
    ///
    /// # Errors
    /// [`DecodeError`].
    pub fn value(&self) -> Result<&Arc<T>, &DecodeError> {
        self.value.as_ref().map_err(|error| &**error)
    }

    /// The value itself; `None` if there is none, or if another clone of its `Arc` is left.
    pub fn into_value(self) -> Option<T> {
        self.value.ok().and_then(Arc::into_inner)
    }

    /// The bytes.
    pub fn encoded(&self) -> &Encoded {
        &self.encoded
    }

    /// Size in bytes.
    pub fn size(&self) -> usize {
        self.encoded.payload.len()
    }
}

impl<T> Clone for Payload<T> {
    fn clone(&self) -> Self {
        Self { encoded: self.encoded.clone(), value: self.value.clone() }
    }
}

impl<T> PartialEq for Payload<T> {
    fn eq(&self, other: &Self) -> bool {
        self.encoded == other.encoded
    }
}

impl<T> Eq for Payload<T> {}

impl<T> fmt::Debug for Payload<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Payload({}, {} bytes)", self.encoded.manifest, self.encoded.payload.len())
    }
}

#[cfg(test)]
impl<T> Payload<T> {
    /// The same value under other bytes, as a broken sender would write it.
    pub(crate) fn with_encoded(
        mut self,
        codec: greylag_core::CodecId,
        manifest: &'static str,
        payload: bytes::Bytes,
    ) -> Self {
        self.encoded = Encoded { codec, manifest: manifest.into(), payload };
        self
    }
}
