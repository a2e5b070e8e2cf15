//! The payload that a shard's machine carries for its entities without reading it.

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
pub(in crate::driver) enum QueuedMessage<M> {
    /// A message sent through sharding.
    User { message: Held<M>, ask: Option<Box<AskTag>>, origin: Option<Arc<Origin>>, size: u32 },
    /// A message sent to this incarnation alone.
    Direct { message: Held<M>, size: u32 },
    /// A request to start the entity and ack that, in order with the messages sent through sharding.
    Start { reply_to: ReplyTo<StartEntityAck>, ask: Option<Box<AskTag>>, origin: Option<Arc<Origin>>, size: u32 },
    /// A message of the entity to itself.
    Own(Held<M>),
    /// A repeating timer that has fallen due.
    Repeat(TimerKey),
    /// The result of asynchronous work.
    Resumption(Held<Resumption<M>>),
}

impl<M> QueuedMessage<M> {
    /// A message of the entity to itself.
    pub(in crate::driver) fn own(message: M) -> Self {
        Self::Own(Held::new(message))
    }

    /// A message or request sent through sharding, for another shard or the dead letters; `None` for other messages.
    pub(in crate::driver) fn into_parcel(self, id: EntityId) -> Option<Parcel<M>> {
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

    /// A message that an entity took and did not handle. An asker, if any, gets its answer by the reply token alone.
    pub(in crate::driver) fn given_back(message: M) -> Self {
        let size = u32::try_from(size_of::<M>()).unwrap_or(u32::MAX);
        Self::User { message: Held::new(message), ask: None, origin: None, size }
    }
}

impl<M> Weigh for QueuedMessage<M> {
    fn weight(&self) -> usize {
        match self {
            Self::User { size, .. } | Self::Direct { size, .. } | Self::Start { size, .. } => *size as usize,
            Self::Own(_) | Self::Repeat(_) | Self::Resumption(_) => 0,
        }
    }
}
