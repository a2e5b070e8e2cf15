//! Why something was not sent, started or delivered.

use std::fmt;

use greylag_core::EncodeError;

use crate::ids::{Epoch, InvalidProducerId, SeqNr};
use crate::settings::SettingsError;

/// Why a message was not sent, or not confirmed.
#[derive(thiserror::Error)]
pub enum SendError<T> {
    /// The codec refused the message. Nothing was sent.
    #[error("the message cannot be encoded: {1}")]
    Encode(T, #[source] EncodeError),
    /// The message is larger than messages may be. Nothing was sent.
    #[error("the message has {size} bytes, at most {max} are allowed")]
    MessageTooLarge {
        /// The message.
        message: T,
        /// Its size in bytes.
        size: usize,
        /// The limit in bytes.
        max: usize,
    },
    /// No entity can have this id. Nothing was sent.
    #[error("no entity can have the id {id:?}: {reason}")]
    InvalidEntity {
        /// The message.
        message: T,
        /// The id.
        id: String,
        /// What is wrong with it.
        reason: greylag_core::DeadLetterReason,
    },
    /// The producer is closed. Nothing was sent; the message is given back.
    #[error("the producer is closed")]
    Closed(Option<T>),
    /// A newer incarnation of the stream is active, so this producer has ended. Nothing was sent.
    #[error("fenced: epoch {newer} of the stream is active")]
    Fenced {
        /// The active epoch.
        newer: Epoch,
        /// The message.
        message: Option<T>,
    },
    /// The message was sent under this number, and the producer ended before it was confirmed: it
    /// may or may not have been processed.
    #[error("the producer ended before message {0} was confirmed")]
    Unconfirmed(SeqNr),
}

impl<T> fmt::Debug for SendError<T> {
    /// The sentence: the message that is given back may be of a type without [`fmt::Debug`].
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        greylag_core::fmt_sentence(self, f)
    }
}

/// Why a producer was not started.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
pub enum StartError {
    /// A setting makes no sense.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// The name cannot be a producer's.
    #[error(transparent)]
    InvalidProducerId(#[from] InvalidProducerId),
    /// The entity type is not set up on this node with delivery of such messages. Set it up, as a host or as a proxy, by a
    /// description that says `with_delivery`.
    #[error("entity type {entity_type:?} is not set up here with delivery of {message}")]
    NotSetUp {
        /// The type's name.
        entity_type: String,
        /// The Rust type of the messages to deliver.
        message: &'static str,
    },
    /// The entity type is described without a codec of its messages.
    #[error("entity type {entity_type:?} has no codec for what is delivered; name one where the type is defined")]
    NoCodec {
        /// The type's name.
        entity_type: String,
    },
}

greylag_core::debug_is_sentence!(StartError);

/// A producer was not drained in time. It goes on delivering.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{unconfirmed} messages are not confirmed yet")]
pub struct Undelivered {
    /// Messages that were accepted and are not confirmed, and senders that wait.
    pub unconfirmed: u64,
}
