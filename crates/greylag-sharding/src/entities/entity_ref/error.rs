//! Why a message was not taken, and why an ask has no answer.

use std::pin::Pin;
use std::time::Duration;

use greylag_core::{DeadLetterReason, EntityError, UniqueAddress};
use serde::{Deserialize, Serialize};

use crate::ids::EntityId;

/// Why a message was not taken. The message is a dead letter and will not be handled.
///
/// Source: sharding §2.5, §8.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
pub enum SendError {
    /// Too many messages wait in this node's region for shards without a home. Send slower.
    #[error("the region's buffer is full")]
    BufferFull,
    /// Too many messages wait in the entity's shard. Send slower.
    #[error("the shard's inbox is full")]
    ShardInboxFull,
    /// Too many messages wait on the lane to the shard's owner. Send slower.
    #[error("the lane to the shard's owner is full")]
    QueueFull,
    /// The cluster understands this entity type differently; the node must be changed.
    #[error("the coordinator refused this node's region; compare the settings of the nodes")]
    Refused,
    /// The region of this type has stopped, or the node is shutting down.
    #[error("the region has stopped")]
    RegionStopped,
    /// The entity type is not set up on this node. Set it up, as a host or as a proxy.
    #[error("the entity type is not set up on this node")]
    NotStarted,
    /// Entity ids have at least one byte.
    #[error("the entity id is empty")]
    EmptyEntityId,
    /// Entity ids have at most 1024 bytes.
    #[error("the entity id is longer than {} bytes", EntityId::MAX_BYTES)]
    EntityIdTooLong,
    /// Dropped for another reason.
    #[error("dropped: {0}")]
    Dropped(DeadLetterReason),
}

impl SendError {
    /// Whether a handler may have run on the message: never, since the message was not taken.
    pub fn may_have_run(&self) -> bool {
        false
    }

    /// Whether the same message may be taken later although neither program nor settings change.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::BufferFull | Self::ShardInboxFull | Self::QueueFull => true,
            Self::Refused | Self::RegionStopped | Self::NotStarted | Self::EmptyEntityId | Self::EntityIdTooLong => {
                false
            }
            Self::Dropped(reason) => reason.is_retryable(),
        }
    }
}

impl From<DeadLetterReason> for SendError {
    fn from(reason: DeadLetterReason) -> Self {
        match reason {
            DeadLetterReason::BufferFull => Self::BufferFull,
            DeadLetterReason::ShardInboxFull => Self::ShardInboxFull,
            DeadLetterReason::QueueFull => Self::QueueFull,
            DeadLetterReason::Refused => Self::Refused,
            DeadLetterReason::RegionStopped => Self::RegionStopped,
            DeadLetterReason::EmptyEntityId => Self::EmptyEntityId,
            DeadLetterReason::EntityIdTooLong => Self::EntityIdTooLong,
            other => Self::Dropped(other),
        }
    }
}

/// Why an ask has no answer. The message may have been handled or not, except if the variant says so. The error may
/// itself be part of a message, as the outcome of another one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
pub enum AskError {
    /// No answer came in time.
    #[error("{entity_type} {entity:?} did not answer {message_type} within {timeout:?}")]
    Timeout {
        /// The entity type.
        entity_type: String,
        /// The entity.
        entity: String,
        /// The Rust type of the message, for people only.
        message_type: String,
        /// The timeout of the ask.
        timeout: Duration,
    },
    /// A timeout of zero cannot be met; nothing was sent.
    #[error("the timeout of an ask must not be zero")]
    InvalidTimeout,
    /// The message was not taken; nothing was handled.
    #[error(transparent)]
    Send(#[from] SendError),
    /// The entity's runtime answered in the entity's stead.
    #[error(transparent)]
    Entity(EntityError),
    /// The message, or its answer, was dropped on its way.
    #[error("dropped: {0}")]
    Dropped(DeadLetterReason),
    /// The answer could not be encoded on the entity's node, or not decoded on this one.
    #[error("an answer of type {type_name} could not be written or read on {node}: {cause}")]
    Codec {
        /// The Rust type of the answer, or its manifest if the type is not known; for people only.
        type_name: String,
        /// The node on which the codec failed.
        node: UniqueAddress,
        /// The codec's error, or that there is no codec.
        cause: String,
    },
    /// The message could not be decoded on the entity's node, which has no codec for it, or another one.
    #[error("{message_type} could not be decoded on {node}; see that node's log")]
    Undecodable {
        /// The Rust type of the message, for people only.
        message_type: String,
        /// The node on which decoding failed.
        node: UniqueAddress,
    },
    /// The owner's process was replaced by a newer one with the message in hand.
    #[error("the owner's process restarted")]
    PeerRestarted,
    /// The owner's process was removed from the cluster with the message in hand.
    #[error("the owner's process was removed from the cluster")]
    PeerRemoved,
    /// The owner's process is quarantined; the entity gets another home.
    #[error("the owner's process is quarantined")]
    Quarantined,
    /// There is an answer, but its lane does not carry messages of that size.
    #[error("the answer is too large to be sent")]
    ReplyTooLarge,
    /// This node ended while the asker waited.
    #[error("this node is shutting down")]
    ShuttingDown,
}

impl AskError {
    /// Whether the message may have had a lasting effect. `docs/errors.md` lists every error.
    pub fn may_have_run(&self) -> bool {
        match self {
            Self::Timeout { .. }
            | Self::Codec { .. }
            | Self::PeerRestarted
            | Self::PeerRemoved
            | Self::Quarantined
            | Self::ReplyTooLarge
            | Self::ShuttingDown => true,
            Self::InvalidTimeout | Self::Undecodable { .. } => false,
            Self::Send(error) => error.may_have_run(),
            Self::Entity(error) => error.may_have_run(),
            Self::Dropped(reason) => reason.may_have_run(),
        }
    }

    /// Whether the same message may succeed later although neither program nor settings change. If it also
    /// [may have run](Self::may_have_run), look at the state first, or send only what can be done twice.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Timeout { .. } | Self::PeerRestarted | Self::PeerRemoved | Self::Quarantined => true,
            Self::InvalidTimeout
            | Self::Codec { .. }
            | Self::Undecodable { .. }
            | Self::ReplyTooLarge
            | Self::ShuttingDown => false,
            Self::Send(error) => error.is_retryable(),
            Self::Entity(error) => error.is_retryable(),
            Self::Dropped(reason) => reason.is_retryable(),
        }
    }

    /// The ask error for a transport error, with the message type.
    pub(crate) fn of_transport(
        error: greylag_transport::AskError,
        asked: impl FnOnce(Duration) -> Self,
        message: &str,
    ) -> Self {
        use greylag_transport::{AskError as Transport, SendError as Unsent};
        match error {
            Transport::Timeout(timeout) => asked(timeout),
            Transport::Entity(error) => Self::Entity(error),
            Transport::Dropped(reason) => Self::Dropped(reason),
            Transport::NoSuchRecipient => Self::Dropped(DeadLetterReason::NoSuchRecipient),
            Transport::Send(Unsent::QueueFull) => Self::Send(SendError::QueueFull),
            Transport::Send(Unsent::Quarantined) => Self::Send(SendError::Dropped(DeadLetterReason::Quarantined)),
            Transport::Send(Unsent::ShuttingDown) => Self::Send(SendError::RegionStopped),
            Transport::Send(Unsent::TooLarge { .. } | Unsent::NameTooLong { .. }) => {
                Self::Send(SendError::Dropped(DeadLetterReason::TooLarge))
            }
            Transport::PeerRestarted => Self::PeerRestarted,
            Transport::PeerRemoved => Self::PeerRemoved,
            Transport::Quarantined => Self::Quarantined,
            Transport::ReplyTooLarge => Self::ReplyTooLarge,
            Transport::Undecodable { node } => Self::Undecodable { message_type: message.to_owned(), node },
            Transport::Codec { type_name, node, cause } => Self::Codec { type_name, node, cause },
            Transport::ShuttingDown => Self::ShuttingDown,
        }
    }
}

/// The pending answer; dropping it ends the question and frees its place.
pub type Answer<R> = Pin<Box<dyn Future<Output = Result<R, AskError>> + Send>>;
