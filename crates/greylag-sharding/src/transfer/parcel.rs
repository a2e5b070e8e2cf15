//! A message on its way through one node: the envelope of sharding, with its content still typed.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::ids::{EntityId, RegionId};
use crate::start::StartEntityAck;
use bytes::Bytes;
use greylag_core::{CodecId, Generation, Manifest, ReplyTo, UniqueAddress};

/// The question that a message carries, for its answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AskTag {
    /// The number of the question at the asking node.
    pub(crate) id: u64,
    /// When the asker stops waiting.
    pub(crate) deadline: Instant,
    /// The asking process; `None` if it is this one.
    pub(crate) asker: Option<UniqueAddress>,
}

impl AskTag {
    /// For a question of this process.
    pub(crate) fn own(id: u64, deadline: Instant) -> Self {
        Self { id, deadline, asker: None }
    }

    /// For a question of another process, with `budget` of its time left.
    pub(crate) fn of_another(asker: UniqueAddress, id: u64, now: Instant, budget: Duration) -> Self {
        Self { id, deadline: now.checked_add(budget).unwrap_or(now + FAR), asker: Some(asker) }
    }
}

/// Used instead of a wait that overflows the clock.
pub(crate) const FAR: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// The origin of a message that was submitted to another region.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Origin {
    /// The region it was submitted to.
    pub(crate) region: RegionId,
    /// The generation under which it first left that region.
    pub(crate) first: Generation,
}

/// A message, decoded or not.
pub(crate) enum Content<M> {
    /// A value: sent on this node, or decoded here.
    Value {
        /// The value.
        message: M,
        /// The manifest, once the codec was asked: before the region's lock is taken, since codecs are user code.
        manifest: Option<Manifest>,
    },
    /// The encoded message, as it came from another node; forwarding does not decode it.
    Bytes { codec: CodecId, manifest: Manifest, payload: Bytes },
    /// No message: a request to start the entity and to ack that.
    Start(ReplyTo<StartEntityAck>),
}

impl<M> Content<M> {
    pub(crate) fn value(message: M) -> Self {
        Self::Value { message, manifest: None }
    }
}

/// A message for one entity.
pub(crate) struct Parcel<M> {
    /// The receiving entity.
    pub(crate) id: EntityId,
    /// The message.
    pub(crate) content: Content<M>,
    /// The question that the message carries, if its sender asks.
    pub(crate) ask: Option<Box<AskTag>>,
    /// `None` if it was submitted to this node's region.
    pub(crate) origin: Option<Arc<Origin>>,
    /// Bytes that count towards the limits of buffers and queues: the size on the wire, or the size of the value in
    /// memory without data behind pointers, whose size only the program knows.
    pub(crate) size: u32,
}

impl<M> Parcel<M> {
    pub(crate) fn local(id: EntityId, message: M, ask: Option<Box<AskTag>>) -> Self {
        let size = size_of::<M>().saturating_add(id.as_bytes().len());
        Self { size: bounded(size), id, content: Content::value(message), ask, origin: None }
    }

    /// A request of this node to start the entity.
    pub(crate) fn start(id: EntityId, reply_to: ReplyTo<StartEntityAck>, ask: Box<AskTag>) -> Self {
        let size = bounded(size_of::<AskTag>().saturating_add(id.as_bytes().len()));
        Self { id, content: Content::Start(reply_to), ask: Some(ask), origin: None, size }
    }

    /// A message of another node.
    pub(crate) fn of_wire(id: EntityId, content: Content<M>, ask: Option<Box<AskTag>>, bytes: usize) -> Self {
        let size = bounded(bytes.saturating_add(id.as_bytes().len()));
        Self { id, content, ask, origin: None, size }
    }
}

fn bounded(size: usize) -> u32 {
    u32::try_from(size).unwrap_or(u32::MAX)
}

impl<M> fmt::Debug for Parcel<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Parcel").field("id", &self.id).field("ask", &self.ask).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Moving a value of up to 128 bytes takes a few instructions, and no call.
    #[test]
    fn a_message_is_moved_without_a_call_and_so_is_one_with_a_question_in_it() {
        assert!(size_of::<Parcel<u64>>() <= 112);
        assert!(size_of::<Parcel<Result<u64, ReplyTo<u64>>>>() <= 112);
    }
}
