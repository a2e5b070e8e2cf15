//! What a shard's machine carries for its entities, and does not look into.

use std::sync::Arc;

use greylag_core::ReplyTo;

use crate::entity::TimerKey;
use crate::held::Held;
use crate::host::Resumption;
use crate::ids::EntityId;
use crate::machine::shard::Weigh;
use crate::parcel::{AskTag, Content, Origin, Parcel};
use crate::start::StartEntityAck;

/// A message as the shard's machine carries it.
pub(super) enum Letter<M> {
    /// Came through sharding.
    User { message: Held<M>, ask: Option<Box<AskTag>>, origin: Option<Arc<Origin>>, size: u32 },
    /// Came to this incarnation alone.
    Direct { message: Held<M>, size: u32 },
    /// No message: the entity is to run, and this told. In order with what came through sharding.
    Start { reply_to: ReplyTo<StartEntityAck>, ask: Option<Box<AskTag>>, origin: Option<Arc<Origin>>, size: u32 },
    /// From the entity itself.
    Own(Held<M>),
    /// The turn of a timer that repeats.
    Repeat(TimerKey),
    /// The result of asynchronous work.
    Resumption(Held<Resumption<M>>),
}

impl<M> Letter<M> {
    /// From the entity itself.
    pub(super) fn own(message: M) -> Self {
        Self::Own(Held::new(message))
    }

    /// What came through sharding, as it goes on to another shard or to the dead letters.
    pub(super) fn into_parcel(self, id: EntityId) -> Option<Parcel<M>> {
        match self {
            Self::User { message, ask, origin, size } => {
                Some(Parcel { id, content: Content::value(message.into_inner()), ask, origin, size })
            }
            Self::Start { reply_to, ask, origin, size } => {
                Some(Parcel { id, content: Content::Start(reply_to), ask, origin, size })
            }
            _ => None,
        }
    }

    /// A message that an entity took and did not handle. Its asker, if any, waits for the reply token alone.
    pub(super) fn given_back(message: M) -> Self {
        let size = u32::try_from(size_of::<M>()).unwrap_or(u32::MAX);
        Self::User { message: Held::new(message), ask: None, origin: None, size }
    }
}

impl<M> Weigh for Letter<M> {
    fn weight(&self) -> usize {
        match self {
            Self::User { size, .. } | Self::Direct { size, .. } | Self::Start { size, .. } => *size as usize,
            Self::Own(_) | Self::Repeat(_) | Self::Resumption(_) => 0,
        }
    }
}
