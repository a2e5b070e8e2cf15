//! Messages that are encoded only when they leave their node.
//!
//! A message to a consumer on the producer's own node is handed over as a value, neither encoded nor cut into chunks.
//! Both happen later if the consumer turns out to be on another node.
//!
//! Source: delivery K1, K7.

use greylag_core::EncodeError;

use crate::message::Frames;

/// The content of a frame, as the producers' machines need it.
pub trait Portable: Clone {
    /// Whether the content can be sent to another node as it is. Default: true.
    fn is_portable(&self) -> bool {
        true
    }

    /// Makes a message portable: encodes it, and cuts it into chunks (K1). A portable message is returned unchanged.
    ///
    /// # Errors
    /// [`UnsendableError`]: the message cannot be sent to another node.
    fn into_portable(frames: Frames<Self>) -> Result<Frames<Self>, UnsendableError> {
        Ok(frames)
    }
}

/// For tests and simulations: a number is portable.
impl Portable for u64 {}

/// Why a message cannot be sent to another node.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UnsendableError {
    /// The codec refused the message, or panicked.
    #[error(transparent)]
    Encode(#[from] EncodeError),
    /// The message is larger than the limit (`producer.max_message_bytes`).
    #[error("the message has {size} bytes, at most {max} are allowed")]
    TooLarge {
        /// Size of the message in bytes.
        size: usize,
        /// The limit in bytes.
        max: usize,
    },
}
