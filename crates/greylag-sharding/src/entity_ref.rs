//! A reference to an entity, to send messages to.
//!
//! Cheap to clone. The reference names the entity, not an incarnation or a place: wherever the entity lives, and
//! whether or not it runs now, a message starts it and reaches it. Sending never blocks and never awaits.
//!
//! Source: sharding §1.2, §4.11.

mod serde_impls;
mod view;

use std::any::type_name;
use std::fmt;
use std::future::IntoFuture;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use greylag_core::{DeadLetterReason, EntityError, ReplyTo, UniqueAddress};
use serde::{Deserialize, Serialize};

use crate::ids::EntityId;
use crate::key::EntityKey;

pub(crate) use view::{Entities, View, Wrapped};

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

/// A reference to one entity with messages of type `M`.
///
/// The reference may be part of a message, and reaches the same entity from wherever it is decoded; it must not be
/// stored.
pub struct EntityRef<M> {
    to: Result<To<M>, Unreachable<M>>,
}

struct To<M> {
    entities: Entities<M>,
    id: EntityId,
    shard: u32,
}

/// A reference to which nothing can be sent.
struct Unreachable<M> {
    entity_type: Arc<str>,
    id: Arc<str>,
    why: SendError,
    /// Where refused sends are counted, and with which reason, if the type is set up here.
    counted: Option<(Entities<M>, DeadLetterReason)>,
}

impl<M: Send + 'static> EntityRef<M> {
    pub(crate) fn new(entities: Entities<M>, id: impl Into<Arc<str>>) -> Self {
        let id = id.into();
        let to = match entities.target(id.clone()) {
            Ok((id, shard)) => Ok(To { entities, id, shard }),
            Err(reason) => {
                let (entity_type, why) = (entities.name().into(), SendError::from(reason));
                Err(Unreachable { entity_type, id, why, counted: Some((entities, reason)) })
            }
        };
        Self { to }
    }

    /// An entity of a type that is not set up here.
    pub(crate) fn unknown(key: EntityKey<M>, id: impl Into<Arc<str>>) -> Self {
        let why = SendError::NotStarted;
        Self { to: Err(Unreachable { entity_type: key.name().into(), id: id.into(), why, counted: None }) }
    }

    /// Sends a message, which is handled at most once, in the order in which one task sends.
    ///
    /// # Errors
    /// [`SendError`]: the message was not taken.
    pub fn tell(&self, message: M) -> Result<(), SendError> {
        match &self.to {
            Ok(to) => to.entities.tell(to.shard, to.id.clone(), message),
            Err(Unreachable { counted: Some((entities, reason)), .. }) => {
                Err(entities.drop_unaddressed(message, *reason))
            }
            Err(unreachable) => Err(unreachable.why),
        }
    }

    /// Asks the entity: `question` makes the message from the token by which the entity answers. Await the returned
    /// value, which waits for the type's ask timeout, or [as long as you say](Ask::timeout).
    pub fn ask<R, F>(&self, question: F) -> Ask<M, R, F>
    where
        R: Send + 'static,
        F: FnOnce(ReplyTo<R>) -> M,
    {
        Ask { to: self.clone(), question, timeout: None, answer: PhantomData }
    }

    fn begin_ask<R: Send + 'static>(
        self,
        question: impl FnOnce(ReplyTo<R>) -> M,
        timeout: Option<Duration>,
    ) -> Answer<R> {
        let begun = match &self.to {
            Ok(to) => {
                let timeout = timeout.unwrap_or_else(|| to.entities.ask_timeout());
                to.entities.begin_ask(to.shard, to.id.clone(), question, timeout)
            }
            Err(unreachable) => Err(unreachable.why.into()),
        };
        let to = self;
        Box::pin(async move {
            let answer = begun?.await;
            let asked = |timeout| AskError::Timeout {
                entity_type: to.entity_type().to_owned(),
                entity: to.id().to_owned(),
                message_type: type_name::<M>().to_owned(),
                timeout,
            };
            let answer = answer.map_err(|error| AskError::of_transport(error, asked, type_name::<M>()))?;
            answer.downcast::<R>().map(|answer| *answer).map_err(|_| to.other_type::<R>())
        })
    }

    fn other_type<R>(&self) -> AskError {
        let (type_name, cause) = (type_name::<R>().to_owned(), "the answer is of another type".to_owned());
        match &self.to {
            Ok(to) => AskError::Codec { type_name, node: to.entities.node(), cause },
            Err(unreachable) => unreachable.why.into(),
        }
    }
}

impl<M> EntityRef<M> {
    /// The entity's id, as given.
    pub fn id(&self) -> &str {
        match &self.to {
            Ok(to) => to.id.as_str(),
            Err(unreachable) => &unreachable.id,
        }
    }

    /// The entity type's name.
    pub fn entity_type(&self) -> &str {
        match &self.to {
            Ok(to) => to.entities.name(),
            Err(unreachable) => &unreachable.entity_type,
        }
    }
}

/// A question that is not sent yet: awaiting it sends it, or [`send`](Ask::send) does.
#[must_use = "a question leaves when it is awaited or sent"]
pub struct Ask<M, R, F> {
    to: EntityRef<M>,
    question: F,
    timeout: Option<Duration>,
    answer: PhantomData<fn() -> R>,
}

impl<M, R, F> Ask<M, R, F>
where
    M: Send + 'static,
    R: Send + 'static,
    F: FnOnce(ReplyTo<R>) -> M,
{
    /// Sets how long to wait for the answer, instead of the type's default.
    pub fn timeout(self, timeout: Duration) -> Self {
        Self { timeout: Some(timeout), ..self }
    }

    /// Sends the question now, in its place among the task's other messages; the answer can be awaited later.
    #[must_use = "dropping the answer to come ends the question"]
    pub fn send(self) -> Answer<R> {
        self.to.begin_ask(self.question, self.timeout)
    }
}

impl<M, R, F> IntoFuture for Ask<M, R, F>
where
    M: Send + 'static,
    R: Send + 'static,
    F: FnOnce(ReplyTo<R>) -> M,
{
    type Output = Result<R, AskError>;
    type IntoFuture = Answer<R>;

    fn into_future(self) -> Answer<R> {
        self.send()
    }
}

impl<M, R, F> fmt::Debug for Ask<M, R, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ask").field("to", &self.to).field("timeout", &self.timeout).finish_non_exhaustive()
    }
}

impl<M> Clone for To<M> {
    fn clone(&self) -> Self {
        Self { entities: self.entities.clone(), id: self.id.clone(), shard: self.shard }
    }
}

impl<M> Clone for Unreachable<M> {
    fn clone(&self) -> Self {
        let Self { entity_type, id, why, counted } = self;
        Self { entity_type: entity_type.clone(), id: id.clone(), why: *why, counted: counted.clone() }
    }
}

impl<M> Clone for EntityRef<M> {
    fn clone(&self) -> Self {
        Self { to: self.to.clone() }
    }
}

impl<M> fmt::Debug for EntityRef<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.to {
            Ok(to) => write!(f, "EntityRef({}/{} in shard {})", to.entities.name(), to.id, to.shard),
            Err(Unreachable { entity_type, id, why, .. }) => write!(f, "EntityRef({entity_type}/{id}: {why})"),
        }
    }
}

impl<M> PartialEq for EntityRef<M> {
    fn eq(&self, other: &Self) -> bool {
        (self.entity_type(), self.id()) == (other.entity_type(), other.id())
    }
}

impl<M> Eq for EntityRef<M> {}
