//! A name for an entity, to send messages to.
//!
//! Cheap to clone. It names the entity, not an incarnation or a place: wherever the entity lives, and
//! whether or not it runs now, a message starts it and reaches it. Sending never blocks and never
//! awaits.
//!
//! Source: sharding §1.2, §4.11.

use std::any::type_name;
use std::fmt;
use std::pin::Pin;
use std::time::Duration;

use greylag_core::{DeadLetterReason, EntityError, ReplyTo};

use crate::driver::Region;
use crate::ids::EntityId;

/// Why a message was not taken. It is a dead letter; nothing of it will be handled.
///
/// Source: sharding §2.5, §8.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
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
    /// Whether a handler may have run on the message: never, it was not taken.
    pub fn may_have_run(&self) -> bool {
        false
    }

    /// Whether the same message may be taken later although neither program nor settings change.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::BufferFull | Self::ShardInboxFull | Self::QueueFull => true,
            Self::Refused | Self::RegionStopped | Self::EmptyEntityId | Self::EntityIdTooLong => false,
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

/// Why an ask has no answer. Whether the message was handled only an answer can tell, except where
/// the variant says so.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AskError {
    /// Nothing came in time.
    #[error("{entity_type} {entity:?} did not answer {message_type} within {timeout:?}")]
    Timeout {
        /// The entity type.
        entity_type: String,
        /// The entity.
        entity: String,
        /// The Rust type of the message, for people only.
        message_type: &'static str,
        /// The asker's patience.
        timeout: Duration,
    },
    /// A timeout of zero cannot be met; nothing was sent.
    #[error("the timeout of an ask must not be zero")]
    InvalidTimeout,
    /// The message was not taken; nothing was handled.
    #[error(transparent)]
    Send(#[from] SendError),
    /// The entity's runtime answered in its stead.
    #[error(transparent)]
    Entity(EntityError),
    /// The message, or its answer, was dropped on its way.
    #[error("dropped: {0}")]
    Dropped(DeadLetterReason),
    /// The transport gave up.
    #[error(transparent)]
    Transport(greylag_transport::AskError),
}

impl AskError {
    /// Whether the message may have had an effect that lasts. `docs/errors.md` has every error.
    pub fn may_have_run(&self) -> bool {
        match self {
            Self::Timeout { .. } => true,
            Self::InvalidTimeout => false,
            Self::Send(error) => error.may_have_run(),
            Self::Entity(error) => error.may_have_run(),
            Self::Dropped(reason) => reason.may_have_run(),
            Self::Transport(error) => error.may_have_run(),
        }
    }

    /// Whether the same message may succeed later although neither program nor settings change. If it also
    /// [may have run](Self::may_have_run), look at the state first, or send only what can be done twice.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Timeout { .. } => true,
            Self::InvalidTimeout => false,
            Self::Send(error) => error.is_retryable(),
            Self::Entity(error) => error.is_retryable(),
            Self::Dropped(reason) => reason.is_retryable(),
            Self::Transport(error) => error.is_retryable(),
        }
    }
}

/// The answer to come; dropping it ends the question and frees its place.
pub type Answer<R> = Pin<Box<dyn Future<Output = Result<R, AskError>> + Send>>;

/// A name for one entity whose messages are `M`s.
pub struct EntityRef<M> {
    region: Region<M>,
    /// The id with its shard, or why no entity can have that id.
    target: Result<(EntityId, u32), DeadLetterReason>,
}

impl<M: Send + 'static> EntityRef<M> {
    pub(crate) fn new(region: Region<M>, target: Result<(EntityId, u32), DeadLetterReason>) -> Self {
        Self { region, target }
    }

    /// Sends a message. It is handled at most once, in the order in which one task sends.
    ///
    /// # Errors
    /// [`SendError`]: the message was not taken.
    pub fn tell(&self, message: M) -> Result<(), SendError> {
        let (id, shard) = self.target.clone()?;
        self.region.send(shard, id, message)
    }

    /// Sends a question and waits for its answer. The message leaves when this is called, not when
    /// the future is first polled, so it keeps its place among the task's other messages.
    ///
    /// # Errors
    /// The future resolves to an [`AskError`] unless the entity replied in time.
    pub fn ask<R: Send + 'static>(&self, message: impl FnOnce(ReplyTo<R>) -> M, timeout: Duration) -> Answer<R> {
        let begun = match &self.target {
            Ok((id, shard)) => self.region.begin_ask(*shard, id.clone(), message, timeout),
            Err(reason) => Err(SendError::from(*reason).into()),
        };
        let entity_type = self.region.name().to_string();
        let entity = self.id().to_owned();
        Box::pin(async move {
            use greylag_transport::AskError as Transport;
            match begun?.await {
                Ok(answer) => answer.downcast::<R>().map(|answer| *answer).map_err(|_| {
                    AskError::Transport(Transport::Undecodable(format!("the answer is no {}", type_name::<R>())))
                }),
                Err(Transport::Timeout(timeout)) => {
                    Err(AskError::Timeout { entity_type, entity, message_type: type_name::<M>(), timeout })
                }
                Err(Transport::Entity(error)) => Err(AskError::Entity(error)),
                Err(Transport::Dropped(reason)) => Err(AskError::Dropped(reason)),
                Err(Transport::NoSuchRecipient) => Err(AskError::Dropped(DeadLetterReason::NoSuchRecipient)),
                Err(other) => Err(AskError::Transport(other)),
            }
        })
    }

    /// The entity's id; empty if it is none.
    pub fn id(&self) -> &str {
        self.target.as_ref().map_or("", |(id, _)| id.as_str())
    }
}

impl<M> Clone for EntityRef<M> {
    fn clone(&self) -> Self {
        Self { region: self.region.clone(), target: self.target.clone() }
    }
}

impl<M> fmt::Debug for EntityRef<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.target {
            Ok((id, shard)) => write!(f, "EntityRef({}/{id} in shard {shard})", self.region.name()),
            Err(reason) => write!(f, "EntityRef({}/{reason})", self.region.name()),
        }
    }
}
