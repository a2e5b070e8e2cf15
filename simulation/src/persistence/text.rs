//! Events and states as words, so that a person who looks for a cause can read what is stored.

use bytes::{Bytes, BytesMut};
use greylag_core::{Codec, CodecId, DecodeError, EncodeError, Manifest};

/// A value that is stored as words.
pub(super) trait Text: Sized + Send + Sync + 'static {
    const MANIFEST: &'static str;

    /// The words; `None` if the value cannot be encoded.
    fn write(&self) -> Option<String>;

    fn read(words: &mut dyn Iterator<Item = &str>) -> Option<Self>;
}

pub(super) struct Words;

impl<T: Text> Codec<T> for Words {
    fn id(&self) -> CodecId {
        CodecId::JSON
    }

    fn manifest(&self, _: &T) -> Manifest {
        T::MANIFEST.into()
    }

    fn manifests(&self) -> Vec<Manifest> {
        vec![T::MANIFEST.into()]
    }

    fn encode(&self, value: &T, buffer: &mut BytesMut) -> Result<(), EncodeError> {
        let mute =
            || EncodeError::Unrepresentable { manifest: T::MANIFEST.to_owned(), reason: "on purpose".to_owned() };
        buffer.extend_from_slice(value.write().ok_or_else(mute)?.as_bytes());
        Ok(())
    }

    fn decode(&self, manifest: &str, bytes: Bytes) -> Result<T, DecodeError> {
        let text = std::str::from_utf8(&bytes).ok();
        text.and_then(|text| T::read(&mut text.split(' '))).ok_or_else(|| DecodeError::Malformed {
            manifest: manifest.to_owned(),
            reason: "not these words".to_owned(),
        })
    }
}

/// The next word, as a number.
pub(super) fn number(words: &mut dyn Iterator<Item = &str>) -> Option<u64> {
    words.next()?.parse().ok()
}
