//! Access of references to the entities of their type: by the type's region, or through a layer that wraps their
//! messages.

use std::sync::Arc;
use std::time::Duration;

use greylag_core::{DeadLetterReason, ReplyAddress, ReplyPort, ReplyTo, UniqueAddress};

use super::error::{AskError, SendError};
use crate::driver::{Asked, Region};
use crate::ids::EntityId;

/// Makes a question's message from the address and port of its answer.
pub(crate) type Question<'a, M> = Box<dyn FnOnce(ReplyAddress, Arc<dyn ReplyPort>) -> M + 'a>;

/// Entities behind a layer, seen as entities with messages of type `M`.
pub(crate) trait View<M>: Send + Sync {
    /// The entity id and the number of its shard, unless the id is invalid.
    fn target(&self, id: Arc<str>) -> Result<(EntityId, u32), DeadLetterReason>;
    /// Sends a message to an entity.
    fn tell(&self, shard: u32, id: EntityId, message: M) -> Result<(), SendError>;
    /// Sends a question to an entity.
    fn begin_ask(
        &self,
        shard: u32,
        id: EntityId,
        question: Question<'_, M>,
        timeout: Duration,
    ) -> Result<Asked, AskError>;
    /// Drops a message without an entity.
    fn drop_unaddressed(&self, message: M, reason: DeadLetterReason) -> SendError;
    /// The timeout of an ask without its own.
    fn ask_timeout(&self) -> Duration;
    /// The type's name.
    fn name(&self) -> &str;
    /// This node.
    fn node(&self) -> UniqueAddress;
}

/// The view through `wrap`, which makes the entities' messages.
pub(crate) struct Wrapped<N, F> {
    pub(crate) region: Region<N>,
    pub(crate) wrap: F,
}

impl<M, N, F> View<M> for Wrapped<N, F>
where
    N: Send + 'static,
    F: Fn(M) -> N + Send + Sync,
{
    fn target(&self, id: Arc<str>) -> Result<(EntityId, u32), DeadLetterReason> {
        self.region.target(id)
    }

    fn tell(&self, shard: u32, id: EntityId, message: M) -> Result<(), SendError> {
        self.region.tell(shard, id, (self.wrap)(message))
    }

    fn begin_ask(
        &self,
        shard: u32,
        id: EntityId,
        question: Question<'_, M>,
        timeout: Duration,
    ) -> Result<Asked, AskError> {
        self.region.begin_ask(shard, id, |address, port| (self.wrap)(question(address, port)), timeout)
    }

    fn drop_unaddressed(&self, message: M, reason: DeadLetterReason) -> SendError {
        self.region.drop_unaddressed((self.wrap)(message), reason)
    }

    fn ask_timeout(&self) -> Duration {
        self.region.ask_timeout()
    }

    fn name(&self) -> &str {
        self.region.name().as_str()
    }

    fn node(&self) -> UniqueAddress {
        self.region.id().node.clone()
    }
}

/// A reference's access to the entities of its type.
pub(crate) enum Entities<M> {
    /// By the type's region.
    Of(Region<M>),
    /// Through a layer.
    View(Arc<dyn View<M>>),
}

impl<M: Send + 'static> Entities<M> {
    pub(super) fn target(&self, id: Arc<str>) -> Result<(EntityId, u32), DeadLetterReason> {
        match self {
            Self::Of(region) => region.target(id),
            Self::View(view) => view.target(id),
        }
    }

    pub(super) fn tell(&self, shard: u32, id: EntityId, message: M) -> Result<(), SendError> {
        match self {
            Self::Of(region) => region.tell(shard, id, message),
            Self::View(view) => view.tell(shard, id, message),
        }
    }

    pub(super) fn begin_ask<R: Send + 'static>(
        &self,
        shard: u32,
        id: EntityId,
        question: impl FnOnce(ReplyTo<R>) -> M,
        timeout: Duration,
    ) -> Result<Asked, AskError> {
        let question = |address, port| question(ReplyTo::new(address, port));
        match self {
            Self::Of(region) => region.begin_ask(shard, id, question, timeout),
            Self::View(view) => view.begin_ask(shard, id, Box::new(question), timeout),
        }
    }

    pub(super) fn drop_unaddressed(&self, message: M, reason: DeadLetterReason) -> SendError {
        match self {
            Self::Of(region) => region.drop_unaddressed(message, reason),
            Self::View(view) => view.drop_unaddressed(message, reason),
        }
    }

    pub(super) fn ask_timeout(&self) -> Duration {
        match self {
            Self::Of(region) => region.ask_timeout(),
            Self::View(view) => view.ask_timeout(),
        }
    }

    pub(super) fn node(&self) -> UniqueAddress {
        match self {
            Self::Of(region) => region.id().node.clone(),
            Self::View(view) => view.node(),
        }
    }
}

impl<M> Entities<M> {
    pub(super) fn name(&self) -> &str {
        match self {
            Self::Of(region) => region.0.name.as_str(),
            Self::View(view) => view.name(),
        }
    }
}

impl<M> Clone for Entities<M> {
    fn clone(&self) -> Self {
        match self {
            Self::Of(region) => Self::Of(region.clone()),
            Self::View(view) => Self::View(view.clone()),
        }
    }
}
