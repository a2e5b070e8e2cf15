//! One entity's state at its producer. Source: delivery S1.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use crate::ids::{ControllerRef, SeqNr};
use crate::machine::deadlines::Armed;
use crate::machine::portable::{Portable, UnsendableError};
use crate::machine::producer_link::{self, Frames, ProducerLink};

/// A sender that waits for room.
#[derive(Debug, Clone)]
pub(super) struct Waiter<P> {
    pub(super) ticket: u64,
    /// Its number, where numbers are given before messages have room.
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

/// A message that is accepted and not confirmed.
#[derive(Debug, Clone)]
pub(super) struct Accepted {
    pub(super) total: SeqNr,
    /// Its sender; `None` if it was found in the queue.
    pub(super) ticket: Option<u64>,
    pub(super) bytes: usize,
    pub(super) accepted_at: Instant,
}

/// See the module's documentation.
#[derive(Debug, Clone)]
pub(super) struct OutState<P> {
    pub(super) entity: Arc<str>,
    pub(super) shard: Arc<str>,
    pub(super) controller: ControllerRef,
    pub(super) link: ProducerLink<P>,
    /// The entity is on the producer's node, as far as is known, so messages without bytes may go to it.
    pub(super) is_here: bool,
    /// The link began anew because the entity has moved, and has heard nothing since: the move itself is told next.
    pub(super) began_anew: bool,
    pub(super) waiters: VecDeque<Waiter<P>>,
    pub(super) being_stored: VecDeque<BeingStored>,
    pub(super) buffered: VecDeque<Buffered<P>>,
    /// Buffered ones too; in the order of totals.
    pub(super) unconfirmed: VecDeque<Accepted>,
    /// The highest total that was accepted.
    pub(super) last_total: SeqNr,
    /// Of messages that have room.
    pub(super) bytes: usize,
    pub(super) used_at: Instant,
    pub(super) armed: Armed,
    /// What the demand sets say of this entity: the count of `without`, or `None` for with demand.
    pub(super) shown: Option<usize>,
}

impl<P: Clone> OutState<P> {
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
            began_anew: false,
            waiters: VecDeque::new(),
            being_stored: VecDeque::new(),
            buffered: VecDeque::new(),
            unconfirmed: VecDeque::new(),
            last_total: SeqNr::NONE,
            bytes: 0,
            used_at: now,
            armed: Armed::default(),
            shown: None,
        }
    }

    /// Gives the link a message; where the entity is on another node, as it may leave this one.
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

    /// Whether one message more would be transmitted at once; what is being stored comes before it.
    pub(super) fn has_demand(&self) -> bool {
        self.buffered.is_empty() && self.link.demand() > self.being_stored.len() as u64
    }

    pub(super) fn is_unused(&self) -> bool {
        self.unconfirmed.is_empty() && self.waiters.is_empty() && self.being_stored.is_empty()
    }
}
