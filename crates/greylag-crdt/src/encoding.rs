//! Canonical bytes and what is computed of them: codecs, elements, the tags of types, digests.

pub(crate) mod cached_digest;
pub(crate) mod codec;
pub(crate) mod element;
pub(crate) mod hash;
pub(crate) mod tag;
