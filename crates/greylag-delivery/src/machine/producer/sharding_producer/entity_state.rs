//! The state of one entity at its producer. Source: delivery S1.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use crate::ids::{ControllerRef, SeqNr};
use crate::machine::portable::{Portable, UnsendableError};
use crate::machine::producer_link::{self, Frames, ProducerLink};
use crate::machine::tracking::deadlines::ArmedTimer;

/// A sender that waits for room.
#[derive(Debug, Clone)]
pub(super) struct Waiter<P> {
    pub(super) ticket: u64,
    /// Its number, if numbers are assigned before messages have room.
    pub(super) reserved: Option<SeqNr>,
    pub(super) frames: Frames<P>,
    pub(super) bytes: usize,
    pub(super) ack: bool,
}

/// A message that has room and is being stored.
#[derive(Debug, Clone)]
pub(super) struct BeingStored {
    pub(super) bytes: usize,
    pub(super) accepted_at: Instant,
}

/// A message that waits for the entity's demand.
#[derive(Debug, Clone)]
pub(super) struct Buffered<P> {
    pub(super) total: SeqNr,
    pub(super) frames: Frames<P>,
    pub(super) ack: bool,
    pub(super) is_recovered: bool,
}

/// An accepted, unconfirmed message.
#[derive(Debug, Clone)]
pub(super) struct Accepted {
    pub(super) total: SeqNr,
    /// The ticket of its sender; `None` for a message from the queue.
    pub(super) ticket: Option<u64>,
    pub(super) bytes: usize,
    pub(super) accepted_at: Instant,
}

/// See the module's documentation.
#[derive(Debug, Clone)]
pub(super) struct EntityState<P> {
    pub(super) entity: Arc<str>,
    pub(super) shard: Arc<str>,
    pub(super) controller: ControllerRef,
    pub(super) link: ProducerLink<P>,
    /// Whether the entity is on the producer's node, as far as is known, so that messages need no encoding.
    pub(super) is_here: bool,
    /// Whether the link was replaced because the entity has moved, with no message since: the event of the move
    /// follows.
    pub(super) was_replaced: bool,
    pub(super) waiters: VecDeque<Waiter<P>>,
    pub(super) being_stored: VecDeque<BeingStored>,
    pub(super) buffered: VecDeque<Buffered<P>>,
    /// Accepted messages, including buffered ones; ordered by total.
    pub(super) unconfirmed: VecDeque<Accepted>,
    /// The highest total that was accepted.
    pub(super) last_total: SeqNr,
    /// Bytes of the messages that have room.
    pub(super) bytes: usize,
    pub(super) used_at: Instant,
    pub(super) armed: ArmedTimer,
    /// The entity's entry in the demand sets: the count of `without`, or `None` for with demand.
    pub(super) demand_entry: Option<usize>,
}

impl<P: Clone> EntityState<P> {
    pub(super) fn new(
        now: Instant,
        entity: Arc<str>,
        shard: Arc<str>,
        controller: ControllerRef,
        link: ProducerLink<P>,
    ) -> Self {
        Self {
            entity,
            shard,
            controller,
            link,
            is_here: true,
            was_replaced: false,
            waiters: VecDeque::new(),
            being_stored: VecDeque::new(),
            buffered: VecDeque::new(),
            unconfirmed: VecDeque::new(),
            last_total: SeqNr::NONE,
            bytes: 0,
            used_at: now,
            armed: ArmedTimer::default(),
            demand_entry: None,
        }
    }

    /// Takes a message of the queue into the buffer. Returns false for a message that the link has, or had, already.
    pub(super) fn take_stored(
        &mut self,
        now: Instant,
        total: SeqNr,
        frames: Frames<P>,
        bytes: usize,
        ack: bool,
    ) -> bool {
        if total <= self.last_total {
            return false;
        }
        self.last_total = total;
        self.bytes += bytes;
        self.used_at = now;
        self.unconfirmed.push_back(Accepted { total, ticket: None, bytes, accepted_at: now });
        self.buffered.push_back(Buffered { total, frames, ack, is_recovered: true });
        true
    }

    /// Gives the link a message, made portable if the entity is on another node.
    pub(super) fn accept(
        &mut self,
        now: Instant,
        total: SeqNr,
        frames: Frames<P>,
        ack: bool,
        out: &mut Vec<producer_link::Effect<P>>,
    ) -> Result<(), UnsendableError>
    where
        P: Portable,
    {
        let frames = if self.is_here { frames } else { P::into_portable(frames)? };
        self.link.handle(now, producer_link::Input::Accept { total, frames, ack }, out);
        Ok(())
    }

    /// Whether one more message would be transmitted at once, after the messages that are being stored.
    pub(super) fn has_demand(&self) -> bool {
        self.buffered.is_empty() && self.link.demand() > self.being_stored.len() as u64
    }

    pub(super) fn is_unused(&self) -> bool {
        self.unconfirmed.is_empty() && self.waiters.is_empty() && self.being_stored.is_empty()
    }
}
