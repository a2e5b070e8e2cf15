//! The error of every reader, and skipping what a reader does not know.

use prost::encoding::{DecodeContext, WireType, skip_field};

/// The bytes read do not conform to the schema; the stream is closed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("malformed frame: {0}")]
pub(crate) struct Malformed(pub(crate) String);

impl From<prost::DecodeError> for Malformed {
    fn from(error: prost::DecodeError) -> Self {
        Self(error.to_string())
    }
}

/// Skips a field whose key was read.
pub(super) fn skip(wire: WireType, field: u32, rest: &mut &[u8]) -> Result<(), Malformed> {
    skip_field(wire, field, rest, DecodeContext::default()).map_err(Malformed::from)
}
