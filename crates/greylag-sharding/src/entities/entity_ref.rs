//! A reference to an entity, to send messages to.
//!
//! Cheap to clone. The reference names the entity, not an incarnation or a place: wherever the entity lives, and
//! whether or not it runs now, a message starts it and reaches it. Sending never blocks and never awaits.
//!
//! Source: sharding §1.2, §4.11.

mod error;
mod serde_impls;
mod view;

use std::any::type_name;
use std::fmt;
use std::future::IntoFuture;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use greylag_core::{DeadLetterReason, ReplyTo};

use crate::driver::Region;
use crate::ids::EntityId;
use crate::key::EntityKey;

pub use self::error::{Answer, AskError, SendError};
pub(crate) use self::view::{Entities, View, Wrapped};

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

impl<M: Send + 'static> Region<M> {
    /// A reference to an entity. An invalid id shows when a message is sent to it.
    pub fn entity_ref(&self, id: impl Into<Arc<str>>) -> EntityRef<M> {
        EntityRef::new(Entities::Of(self.clone()), id)
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
