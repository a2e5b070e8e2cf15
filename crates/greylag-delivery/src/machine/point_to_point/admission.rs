//! Who may send next: senders are served in their order, each when the consumer has room for one frame more.
//!
//! Source: delivery P11, P13.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Instant;

use super::{Effect, Message, PointToPoint, Refusal};
use crate::machine::producer_link::{Frames, ProducerLink};
use crate::machine::storing::{self, StoringState, Unstored};

/// A sender that waits for room.
#[derive(Debug, Clone)]
struct Waiter<P> {
    ticket: u64,
    /// `None` where a permit is wanted.
    message: Option<Message<P>>,
}

/// Senders, permits, and what is on its way to the queue.
#[derive(Debug, Clone)]
pub(super) struct Admission<P> {
    /// The producer; 0 before the first start.
    session: u64,
    waiters: VecDeque<Waiter<P>>,
    permits: BTreeSet<u64>,
    /// Messages that are being stored, with their number of frames.
    storing: BTreeMap<u64, u64>,
    storing_frames: u64,
}

impl<P> Default for Admission<P> {
    fn default() -> Self {
        Self {
            session: 0,
            waiters: VecDeque::new(),
            permits: BTreeSet::new(),
            storing: BTreeMap::new(),
            storing_frames: 0,
        }
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

    pub(super) fn storing(&self) -> u64 {
        self.storing.len() as u64
    }

    /// A message is stored, or will not be.
    pub(super) fn stored(&mut self, ticket: u64) {
        let frames = self.storing.remove(&ticket).unwrap_or(0);
        self.storing_frames -= frames;
    }

    pub(super) fn withdraw(&mut self, ticket: u64) {
        self.permits.remove(&ticket);
        self.waiters.retain(|waiter| waiter.ticket != ticket);
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

impl<P: Clone> PointToPoint<P> {
    /// P13: what the former producer did not use is the new one's.
    pub(super) fn on_start(&mut self, now: Instant, session: u64, out: &mut Vec<Effect<P>>) {
        if session > self.admission.session {
            self.admission.session = session;
            self.admission.refuse_all(Refusal::Superseded, out);
            self.open_link(now, out);
        }
    }

    pub(super) fn on_admit(
        &mut self,
        session: u64,
        ticket: u64,
        message: Message<P>,
        waits: bool,
        out: &mut Vec<Effect<P>>,
    ) {
        let why = if session != self.admission.session {
            Some(Refusal::Superseded)
        } else if !waits && (!self.admission.waiters.is_empty() || self.demand() == 0) {
            Some(Refusal::Full)
        } else {
            None
        };
        match why {
            Some(why) => out.push(Effect::Refused { ticket, frames: Some(message.frames), why }),
            None => self.admission.waiters.push_back(Waiter { ticket, message: Some(message) }),
        }
    }

    pub(super) fn on_reserve(&mut self, session: u64, ticket: u64, out: &mut Vec<Effect<P>>) {
        if session == self.admission.session {
            self.admission.waiters.push_back(Waiter { ticket, message: None });
        } else {
            out.push(Effect::Refused { ticket, frames: None, why: Refusal::Superseded });
        }
    }

    pub(super) fn on_use(&mut self, now: Instant, ticket: u64, message: Message<P>, out: &mut Vec<Effect<P>>) {
        if self.admission.permits.remove(&ticket) {
            self.accept(now, ticket, message, out);
        } else {
            out.push(Effect::Refused { ticket, frames: Some(message.frames), why: Refusal::Superseded });
        }
    }

    /// Serves senders as long as there is room for one more.
    pub(super) fn admit_waiting(&mut self, now: Instant, out: &mut Vec<Effect<P>>) {
        while self.demand() > 0
            && let Some(waiter) = self.admission.waiters.pop_front()
        {
            match waiter.message {
                Some(message) => self.accept(now, waiter.ticket, message, out),
                None => {
                    self.admission.permits.insert(waiter.ticket);
                    let (current_seq_nr, confirmed_seq_nr) = (self.current_seq_nr(), self.confirmed);
                    out.push(Effect::Permitted { ticket: waiter.ticket, current_seq_nr, confirmed_seq_nr });
                }
            }
        }
    }

    /// How many messages more the consumer has room for (P11). None while the queue cannot take any.
    fn demand(&self) -> u64 {
        if !matches!(self.storing.state(), StoringState::InMemory | StoringState::Open) {
            return 0;
        }
        let granted = self.link.as_ref().map_or(0, ProducerLink::demand);
        granted.saturating_sub(self.admission.storing_frames).saturating_sub(self.admission.permits())
    }

    fn accept(&mut self, now: Instant, ticket: u64, message: Message<P>, out: &mut Vec<Effect<P>>) {
        let Message { frames, bytes, ack } = message;
        let count = match &frames {
            Frames::Whole(_) => 1,
            Frames::Chunks(chunks) => chunks.len() as u64,
        };
        self.admission.storing.insert(ticket, count);
        self.admission.storing_frames += count;
        let timestamp_ms = self.timestamp(now);
        let message = Unstored { ticket, qualifier: "".into(), message: frames, bytes, ack, timestamp_ms };
        self.store(now, storing::Input::Accept { message, reserved: None }, out);
    }
}
