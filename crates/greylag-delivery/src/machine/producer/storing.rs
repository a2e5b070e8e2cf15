//! Stores a producer's messages: each message before it may be sent, and its confirmation some time after it arrives.
//!
//! Every producer controller owns one [`Storing`]. An accepted message goes in, and comes out as [`Effect::Released`]
//! with its number: at once if the producer is in-memory, and after the queue has acknowledged it if the producer is
//! durable. While one append is under way, further accepted messages are collected for the next one, so a slow store
//! costs latency rather than throughput.
//!
//! ```text
//! Accept ─▶ [queued] ─▶ [batch] ─ Store ─▶ queue ─ Stored ─▶ Released        one call of the queue at a time
//! Confirm ─▶ [pending] ───────── Confirm ─▶ queue                             coalesced, behind the deliveries
//! ```
//!
//! If the queue does not answer, the identical batch is sent again (D7); if the queue must be loaded again, it is
//! loaded, under a raised epoch, and then gets the identical batch. After the last attempt the machine *degrades*:
//! messages of the batch may be stored or not ([`Effect::Unknown`]), other messages go back to their senders
//! ([`Effect::GivenBack`]), and the queue is loaded again, with pauses, until that succeeds.
//!
//! A queue whose messages others write, an outbox, is *polled* instead: while no other call is due, it is asked for new
//! messages, as many as the controller has room for.
//!
//! `M` is the message as the controller keeps it; a copy of it must be cheap. Source: delivery §4.1, D4 to D9, P14.

mod confirmations;
mod durable;
mod polling;
mod protocol;

use std::time::{Duration, Instant};

use crate::ids::SeqNr;
use durable::Durable;

pub use protocol::{Answer, Call, Effect, End, Found, Input, StoringSettings, StoringState, Unstored};

/// The machine. See the module's documentation.
#[derive(Debug, Clone)]
pub struct Storing<M> {
    /// The number of the next message.
    next: u64,
    /// `None` for an in-memory producer.
    durable: Option<Box<Durable<M>>>,
    ended: bool,
}

impl<M: Clone> Storing<M> {
    /// An in-memory machine: each message is released at once, and confirmations are not stored.
    pub fn in_memory() -> Self {
        Self { next: 1, durable: None, ended: false }
    }

    /// A durable machine: messages are stored in a queue before they are released.
    pub fn durable(settings: StoringSettings) -> Self {
        Self { next: 1, durable: Some(Box::new(Durable::new(settings))), ended: false }
    }

    /// Polls the queue for messages that others wrote, at this interval while there are none. Take the messages by
    /// [`take_found`](Self::take_found) after each input.
    pub fn polling(mut self, interval: Duration) -> Self {
        if let Some(durable) = &mut self.durable {
            durable.poll_every(interval);
        }
        self
    }

    /// Messages of polls that were not taken yet, by rising numbers.
    pub fn take_found(&mut self) -> Vec<Found<M>> {
        self.durable.as_mut().map_or_else(Vec::new, |durable| durable.take_found())
    }

    /// Sets how many polled messages the controller has room for.
    pub fn has_room_for(&mut self, messages: usize) {
        if let Some(durable) = &mut self.durable {
            durable.has_room_for(messages);
        }
    }

    /// Whether messages are stored.
    pub fn is_durable(&self) -> bool {
        self.durable.is_some()
    }

    /// The present state.
    pub fn state(&self) -> StoringState {
        match &self.durable {
            _ if self.ended => StoringState::Ended,
            None => StoringState::InMemory,
            Some(durable) => durable.state(),
        }
    }

    /// The number of the next accepted message; valid for a durable producer once its queue is loaded.
    pub fn current_seq_nr(&self) -> SeqNr {
        let queued = self.durable.as_ref().map_or(0, |durable| durable.queued());
        SeqNr(self.next.saturating_add(queued as u64))
    }

    /// Number of accepted messages that are neither released nor given up.
    pub fn pending(&self) -> usize {
        self.durable.as_ref().map_or(0, |durable| durable.pending())
    }

    /// Reserves a number for a message that is not accepted yet, so that waiting for room changes no numbers. `None`
    /// for a durable machine, whose queue permits no gaps, or when the numbers are used up.
    pub fn reserve(&mut self) -> Option<SeqNr> {
        if self.durable.is_some() || self.next == u64::MAX {
            return None;
        }
        self.next += 1;
        Some(SeqNr(self.next - 1))
    }

    /// Handles one input.
    pub fn handle(&mut self, now: Instant, input: Input<M>, out: &mut Vec<Effect<M>>) {
        if self.ended {
            if let Input::Accept { message, .. } = input {
                out.push(Effect::GivenBack(message));
            }
            return;
        }
        let Some(durable) = &mut self.durable else { return self.in_memory_input(input, out) };
        match input {
            Input::Start => durable.start(now, out),
            Input::Accept { message, .. } => durable.accept(message),
            Input::Confirm { confirmation, messages } => durable.confirm(now, confirmation, messages),
            Input::Answered { call, answer } => durable.answered(now, call, answer, &mut self.next, out),
            Input::Close => durable.close(out),
            Input::Fence => durable.fence(out),
            Input::Tick => durable.tick(now, out),
        }
        durable.go_on(now, &mut self.next, out);
        durable.check_invariants(self.next);
        self.ended = durable.is_over();
    }

    fn in_memory_input(&mut self, input: Input<M>, out: &mut Vec<Effect<M>>) {
        match input {
            Input::Accept { message, reserved } => match reserved.or_else(|| self.reserve()) {
                Some(seq_nr) => {
                    let ticket = message.ticket;
                    out.push(Effect::Released { ticket, sent: message.numbered(seq_nr) });
                }
                None => {
                    self.ended = true;
                    out.push(Effect::Ended(End::Exhausted));
                    out.push(Effect::GivenBack(message));
                }
            },
            Input::Close => {
                self.ended = true;
                out.push(Effect::Closed);
            }
            Input::Fence => self.ended = true,
            Input::Start | Input::Confirm { .. } | Input::Answered { .. } | Input::Tick => {}
        }
    }

    /// The next time at which a tick has an effect.
    pub fn next_deadline(&self) -> Option<Instant> {
        if self.ended { None } else { self.durable.as_ref()?.next_deadline() }
    }
}
