//! The names of messages on wire and disk, and the codecs that write and read them.

mod codec;
mod manifest;
mod registry;

pub use codec::{Codec, CodecId, DecodeError, EncodeError};
pub use manifest::Manifest;
pub(crate) use registry::{AnyMessage, Erased, ErasedCodec};
pub use registry::{Encoded, Registry, RegistryError};
