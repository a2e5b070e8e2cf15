//! Senders that wait for room, and those that have it as a permit: served in their order, and dead once another producer
//! has taken over.
//!
//! Source: delivery P11, P13, W4.

use std::collections::{BTreeSet, VecDeque};

use crate::machine::controller::{Effect, Message, Refusal};

/// A sender that waits for room.
#[derive(Debug, Clone)]
pub(super) struct Waiter<P> {
    pub(super) ticket: u64,
    /// `None` where a permit is wanted.
    pub(super) message: Option<Message<P>>,
}

/// See the module's documentation.
#[derive(Debug, Clone)]
pub(super) struct Admission<P> {
    /// The producer; 0 before the first start.
    session: u64,
    waiters: VecDeque<Waiter<P>>,
    permits: BTreeSet<u64>,
}

impl<P> Default for Admission<P> {
    fn default() -> Self {
        Self { session: 0, waiters: VecDeque::new(), permits: BTreeSet::new() }
    }
}

impl<P> Admission<P> {
    pub(super) fn is_started(&self) -> bool {
        self.session > 0
    }

    pub(super) fn waiting(&self) -> u64 {
        self.waiters.len() as u64
    }

    pub(super) fn permits(&self) -> u64 {
        self.permits.len() as u64
    }

    /// P13: a new producer; what the former one did not use is dead. Returns whether it is one.
    pub(super) fn start(&mut self, session: u64, out: &mut Vec<Effect<P>>) -> bool {
        let is_new = session > self.session;
        if is_new {
            self.session = session;
            self.refuse_all(Refusal::Superseded, out);
        }
        is_new
    }

    /// A message of the producer `session`; one that does not wait needs `room`.
    pub(super) fn admit(&mut self, session: u64, waiter: Waiter<P>, waits: bool, room: u64, out: &mut Vec<Effect<P>>) {
        let why = if session != self.session {
            Refusal::Superseded
        } else if !waits && (!self.waiters.is_empty() || room == 0) {
            Refusal::Full
        } else {
            return self.waiters.push_back(waiter);
        };
        out.push(Effect::Refused { ticket: waiter.ticket, frames: waiter.message.map(|message| message.frames), why });
    }

    /// Uses a permit up for a message, which is returned. Where the permit is dead, its message is refused.
    pub(super) fn redeem(
        &mut self,
        permit: u64,
        ticket: u64,
        message: Message<P>,
        out: &mut Vec<Effect<P>>,
    ) -> Option<Message<P>> {
        if self.permits.remove(&permit) {
            return Some(message);
        }
        out.push(Effect::Refused { ticket, frames: Some(message.frames), why: Refusal::Superseded });
        None
    }

    /// A sender gave up, or gave its permit back.
    pub(super) fn withdraw(&mut self, ticket: u64) {
        self.permits.remove(&ticket);
        self.waiters.retain(|waiter| waiter.ticket != ticket);
    }

    /// The sender that is served next. One that wants a permit has it from now on.
    pub(super) fn next(&mut self) -> Option<Waiter<P>> {
        let waiter = self.waiters.pop_front()?;
        if waiter.message.is_none() {
            self.permits.insert(waiter.ticket);
        }
        Some(waiter)
    }

    /// Refuses every sender that waits; permits are dead.
    pub(super) fn refuse_all(&mut self, why: Refusal, out: &mut Vec<Effect<P>>) {
        self.permits.clear();
        for waiter in self.waiters.drain(..) {
            let frames = waiter.message.map(|message| message.frames);
            out.push(Effect::Refused { ticket: waiter.ticket, frames, why });
        }
    }
}
