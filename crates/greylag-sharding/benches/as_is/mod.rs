//! The codec of benchmarks whose messages are bytes.

use bytes::{BufMut, Bytes, BytesMut};
use greylag_core::{Codec, CodecId, DecodeError, EncodeError, Manifest};

/// Copies bytes unchanged, so that the codec costs one copy, as a bare stream does.
#[derive(Clone)]
pub(crate) struct AsIs;

impl Codec<Bytes> for AsIs {
    fn id(&self) -> CodecId {
        CodecId::FIRST_USER
    }

    fn manifest(&self, _: &Bytes) -> Manifest {
        Manifest::from_static("bench.tell")
    }

    fn manifests(&self) -> Vec<Manifest> {
        vec!["bench.tell".into()]
    }

    fn encode(&self, message: &Bytes, buffer: &mut BytesMut) -> Result<(), EncodeError> {
        buffer.put_slice(message);
        Ok(())
    }

    fn decode(&self, _: &str, bytes: Bytes) -> Result<Bytes, DecodeError> {
        Ok(bytes)
    }
}
