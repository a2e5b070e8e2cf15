//! Queue of senders that wait for room, and the permits granted: first come, first served; all of them are refused once
//! another producer has taken over.
//!
//! Source: delivery P11, P13, W4.

use std::collections::{BTreeSet, VecDeque};

use crate::machine::controller::{Effect, Message, Refusal};

/// A sender that waits for room.
#[derive(Debug, Clone)]
pub(super) struct Waiter<P> {
    pub(super) ticket: u64,
    /// `None` if the sender wants a permit.
    pub(super) message: Option<Message<P>>,
}

/// See the module's documentation.
#[derive(Debug, Clone)]
pub(super) struct Admission<P> {
    /// The number of the present producer session; 0 before the first start.
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

    /// P13: starts a session. If the session is new, refuses the former one's waiters and drops its permits. Returns
    /// whether it is new.
    pub(super) fn start(&mut self, session: u64, out: &mut Vec<Effect<P>>) -> bool {
        let is_new = session > self.session;
        if is_new {
            self.session = session;
            self.refuse_all(Refusal::Superseded, out);
        }
        is_new
    }

    /// Queues a message of the producer `session`. A message that does not wait is refused if `room` is 0 or others
    /// wait.
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

    /// Uses a permit up for a message, which is returned. Without a valid permit, the message is refused.
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

    /// Removes a waiter, or a permit that was given back.
    pub(super) fn withdraw(&mut self, ticket: u64) {
        self.permits.remove(&ticket);
        self.waiters.retain(|waiter| waiter.ticket != ticket);
    }

    /// Removes and returns the next sender. If the sender wants a permit, the permit counts as granted from now on.
    pub(super) fn next(&mut self) -> Option<Waiter<P>> {
        let waiter = self.waiters.pop_front()?;
        if waiter.message.is_none() {
            self.permits.insert(waiter.ticket);
        }
        Some(waiter)
    }

    /// Refuses every waiting sender, and drops all permits.
    pub(super) fn refuse_all(&mut self, why: Refusal, out: &mut Vec<Effect<P>>) {
        self.permits.clear();
        for waiter in self.waiters.drain(..) {
            let frames = waiter.message.map(|message| message.frames);
            out.push(Effect::Refused { ticket: waiter.ticket, frames, why });
        }
    }
}
