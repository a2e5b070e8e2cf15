//! Errors of sending, starting and delivering.

use std::fmt;

use greylag_core::EncodeError;

use crate::ids::{ControllerRef, Epoch, InvalidProducerId, InvalidServiceKey, SeqNr};
use crate::machine::controller::Failure;
use crate::machine::portable::UnsendableError;
use crate::settings::SettingsError;

/// Why a message was not sent, or not confirmed.
#[derive(thiserror::Error)]
pub enum SendError<T> {
    /// The codec refused the message. Nothing was sent.
    #[error("the message cannot be encoded: {1}")]
    Encode(T, #[source] EncodeError),
    /// The message is larger than the limit. Nothing was sent.
    #[error("the message has {size} bytes, at most {max} are allowed")]
    MessageTooLarge {
        /// The message.
        message: T,
        /// Size of the message in bytes.
        size: usize,
        /// The limit in bytes.
        max: usize,
    },
    /// The entity id is invalid. Nothing was sent.
    #[error("invalid entity id {id:?}: {reason}")]
    InvalidEntity {
        /// The message.
        message: T,
        /// The id.
        id: String,
        /// What is wrong with the id.
        reason: greylag_core::DeadLetterReason,
    },
    /// The producer is closed. Nothing was sent; the message is given back.
    #[error("the producer is closed")]
    Closed(Option<T>),
    /// A controller with a higher epoch of the stream is active, so this producer has ended. Nothing was sent.
    #[error("fenced: {} of the stream is active", newer_epoch(.newer.as_ref()))]
    Fenced {
        /// The active epoch, if a consumer reported it.
        newer: Option<Epoch>,
        /// The message.
        message: Option<T>,
    },
    /// Another handle of the producer was started after this one. Nothing was sent; the message is given back.
    #[error("another handle of the producer has taken over")]
    Superseded(Option<T>),
    /// The producer's queue does not store at present. Nothing was sent; the message is given back.
    #[error("the producer's queue does not store messages at present")]
    Unavailable(Option<T>),
    /// The queue gave no answer: either the message is stored under this number and will be delivered, or it is not
    /// stored.
    #[error("it is unknown whether the queue has stored the message, as number {seq_nr}")]
    StoreUnknown {
        /// The number of the message if it is stored.
        seq_nr: SeqNr,
    },
    /// The message was sent under this number, and the producer ended before it was confirmed: it
    /// may or may not have been processed.
    #[error("the producer ended before message {0} was confirmed")]
    Unconfirmed(SeqNr),
    /// The message was handed unencoded to its entity on this node, under this number. The entity moved to another node
    /// before it confirmed the message, and the message cannot be sent there ([`UnsendableError`]): it is given up, and
    /// may have been processed.
    #[error("message {seq_nr} cannot be sent to its entity's new node: {error}")]
    Unsendable {
        /// The number of the message.
        seq_nr: SeqNr,
        /// Why the message cannot be sent to another node.
        #[source]
        error: UnsendableError,
    },
}

impl<T> SendError<T> {
    /// Converts the outcome of a message, adding the message if it was not sent.
    pub(crate) fn of(error: SentError, message: Option<T>) -> Self {
        match error {
            SentError::Superseded => Self::Superseded(message),
            SentError::Closed => Self::Closed(message),
            SentError::Unavailable => Self::Unavailable(message),
            SentError::StoreUnknown { seq_nr } => Self::StoreUnknown { seq_nr },
            SentError::Fenced { newer } => Self::Fenced { newer, message },
            SentError::Unconfirmed(seq_nr) => Self::Unconfirmed(seq_nr),
            SentError::Unsendable { seq_nr, error } => Self::Unsendable { seq_nr, error },
        }
    }
}

impl<T> fmt::Debug for SendError<T> {
    /// Formats the error sentence: the message that is given back may be of a type without [`fmt::Debug`].
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        greylag_core::fmt_sentence(self, f)
    }
}

fn newer_epoch(newer: Option<&Epoch>) -> String {
    newer.map_or("a newer incarnation".to_owned(), |epoch| format!("epoch {epoch}"))
}

/// The outcome of a message whose sender does not get the message back.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SentError {
    /// Another handle of the producer was started first. Nothing was sent.
    #[error("another handle of the producer has taken over")]
    Superseded,
    /// The producer was closed first. Nothing was sent.
    #[error("the producer is closed")]
    Closed,
    /// The producer's queue does not store at present. Nothing was sent.
    #[error("the producer's queue does not store messages at present")]
    Unavailable,
    /// The queue gave no answer: either the message is stored under this number and will be delivered, or it is not
    /// stored.
    #[error("it is unknown whether the queue has stored the message, as number {seq_nr}")]
    StoreUnknown {
        /// The number of the message if it is stored.
        seq_nr: SeqNr,
    },
    /// A controller with a higher epoch of the stream is active. Nothing was sent.
    #[error("fenced: {} of the stream is active", newer_epoch(.newer.as_ref()))]
    Fenced {
        /// The active epoch, if a consumer reported it.
        newer: Option<Epoch>,
    },
    /// The message was sent under this number, and the producer ended before it was confirmed: it may or may not have
    /// been processed.
    #[error("the producer ended before message {0} was confirmed")]
    Unconfirmed(SeqNr),
    /// The message was handed unencoded to its entity on this node, under this number. The entity moved to another node
    /// before it confirmed the message, and the message cannot be sent there ([`UnsendableError`]): it is given up, and
    /// may have been processed.
    #[error("message {seq_nr} cannot be sent to its entity's new node: {error}")]
    Unsendable {
        /// The number of the message.
        seq_nr: SeqNr,
        /// Why the message cannot be sent to another node.
        #[source]
        error: UnsendableError,
    },
}

/// Why a send that does not wait failed.
#[derive(thiserror::Error)]
pub enum TrySendError<T> {
    /// There is no room for the message now. Nothing was sent; the message is given back.
    #[error("there is no room for a message now")]
    Full(T),
    /// The producer is closed. Nothing was sent; the message is given back.
    #[error("the producer is closed")]
    Closed(T),
    /// The message itself cannot be sent: it cannot be encoded, or is too large.
    #[error(transparent)]
    Refused(SendError<T>),
}

impl<T> fmt::Debug for TrySendError<T> {
    /// Formats the error sentence: the message that is given back may be of a type without [`fmt::Debug`].
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        greylag_core::fmt_sentence(self, f)
    }
}

/// Why a producer gives no permits, or has ended.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProducerError {
    /// The producer is closed.
    #[error("the producer is closed")]
    Closed,
    /// Another handle of the producer was started after this one.
    #[error("another handle of the producer has taken over")]
    Superseded,
    /// A controller with a higher epoch of the stream is active; the queue now belongs to that controller.
    #[error("fenced: {} of the stream is active", newer_epoch(.newer.as_ref()))]
    Fenced {
        /// The active epoch, if a consumer reported it.
        newer: Option<Epoch>,
        /// The active controller, if the queue reported it.
        by: Option<ControllerRef>,
    },
    /// The consumer does not ask for lost messages (`consumer.only_flow_control`), so stored messages would be lost on
    /// their way. Use a producer without a queue, or a consumer without that setting.
    #[error("a durable producer needs a consumer that asks for lost messages again")]
    IncompatibleConsumer,
    /// The queue has lost messages that it had stored.
    #[error("the queue has lost message {expected} and those after it")]
    QueueLost {
        /// The first lost message.
        expected: SeqNr,
    },
    /// The numbers of the stream are used up.
    #[error("the numbers of the stream are used up")]
    Exhausted,
}

greylag_core::debug_is_sentence!(ProducerError);

impl From<Failure> for ProducerError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Fenced { newer, by } => Self::Fenced { newer, by },
            Failure::IncompatibleConsumer => Self::IncompatibleConsumer,
            Failure::QueueLost { expected } => Self::QueueLost { expected },
            Failure::Exhausted => Self::Exhausted,
        }
    }
}

/// Why a producer or a worker was not started.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
pub enum StartError {
    /// A setting is invalid.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// The name is not a valid producer id.
    #[error(transparent)]
    InvalidProducerId(#[from] InvalidProducerId),
    /// The entity type is not set up on this node with delivery of such messages. Set it up, as a host or as a proxy,
    /// with a description that calls `with_delivery`.
    #[error("entity type {entity_type:?} is not set up here with delivery of {message}")]
    NotSetUp {
        /// The type's name.
        entity_type: String,
        /// The Rust type of the messages to deliver.
        message: &'static str,
    },
    /// The entity type was described without a codec for its messages.
    #[error("entity type {entity_type:?} has no codec for its deliveries; set one where the type is defined")]
    NoCodec {
        /// The type's name.
        entity_type: String,
    },
    /// The name is not a valid name of a kind of work.
    #[error(transparent)]
    InvalidServiceKey(#[from] InvalidServiceKey),
    /// The directory of workers cannot be used.
    #[error("the directory of workers cannot be used: {why}")]
    NoWorkerDirectory {
        /// Why the directory cannot be used.
        why: String,
    },
    /// The producer is durable, but its node has no journal.
    #[error(
        "the producer is to be durable, but its node was started without stores; give it some, or a queue of your own"
    )]
    NoStores,
    /// Only sharding producers can send the messages that a program writes into an outbox.
    #[error("an outbox can only be used by a sharding producer")]
    Outbox,
    /// The node has ended, so nothing can be sent from it.
    #[error("the node has ended")]
    NodeEnded,
    /// The producer's id cannot be part of a persistence id, which its journal needs.
    #[cfg(feature = "persistence")]
    #[error("producer id cannot be part of a persistence id: {0}")]
    NoHistory(#[from] greylag_persistence::InvalidPersistenceId),
}

greylag_core::debug_is_sentence!(StartError);

/// A producer was not drained in time; it goes on delivering.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{unconfirmed} messages are not confirmed yet")]
pub struct Undelivered {
    /// Unconfirmed messages plus waiting senders.
    pub unconfirmed: u64,
}
