//! Messages that get their bytes only when they leave their node.
//!
//! A message to a consumer of the producer's own node is handed over as the value that it is, with neither bytes nor chunks. If
//! the consumer turns out to be on another node, the message gets both then.
//!
//! Source: delivery K1, K7.

use greylag_core::EncodeError;

use crate::machine::producer_link::Frames;

/// A frame's content, as far as the machines of producers look into it.
pub trait Portable: Clone {
    /// Whether it may leave its node as it is. The default: it always may.
    fn is_portable(&self) -> bool {
        true
    }

    /// A message as it may leave its node: encoded, and cut into chunks (K1). A message that may leave already is returned
    /// unchanged.
    ///
    /// # Errors
    /// [`UnsendableError`]: the message can never leave its node.
    fn into_portable(frames: Frames<Self>) -> Result<Frames<Self>, UnsendableError> {
        Ok(frames)
    }
}

/// A number has its bytes: for tests and simulations.
impl Portable for u64 {}

/// Why a message cannot be sent to another node.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UnsendableError {
    /// Its codec refused it, or panicked.
    #[error(transparent)]
    Encode(#[from] EncodeError),
    /// It is larger than messages may be (`producer.max_message_bytes`).
    #[error("the message has {size} bytes, at most {max} are allowed")]
    TooLarge {
        /// Its size in bytes.
        size: usize,
        /// The limit in bytes.
        max: usize,
    },
}
