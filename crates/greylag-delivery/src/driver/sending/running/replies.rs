//! The callers that wait for the outcome of their messages, and the callers of `drain`.
//!
//! `M` is a message as it is given back. Every ticket is settled once: by the confirmation or the refusal of its
//! message, or because its caller has gone away.

use std::collections::BTreeMap;

use tokio::sync::oneshot;

use crate::driver::sending::command::{Accepted, Confirmed};
use crate::error::SentError;
use crate::ids::SeqNr;
use crate::machine::tracking::contiguous::Contiguous;

struct PendingReply<M> {
    accepted: Option<Accepted<M>>,
    confirmed: Confirmed,
}

/// See the module's documentation.
pub(crate) struct Replies<M> {
    waiting: BTreeMap<u64, PendingReply<M>>,
    settled: Contiguous,
    last_ticket: u64,
    drains: Vec<(u64, oneshot::Sender<()>)>,
}

impl<M> Default for Replies<M> {
    fn default() -> Self {
        Self { waiting: BTreeMap::new(), settled: Contiguous::default(), last_ticket: 0, drains: Vec::new() }
    }
}

impl<M> Replies<M> {
    /// Adds a message that waits for acceptance. `ticket` must be larger than every earlier one.
    pub(crate) fn enter(&mut self, ticket: u64, accepted: Accepted<M>, confirmed: Confirmed) {
        self.last_ticket = self.last_ticket.max(ticket);
        self.waiting.insert(ticket, PendingReply { accepted: Some(accepted), confirmed });
    }

    /// Settles a number of the ticket sequence that belongs to no message.
    pub(crate) fn skip_ticket(&mut self, ticket: u64) {
        self.last_ticket = self.last_ticket.max(ticket);
        self.settled.insert(ticket);
    }

    pub(crate) fn accept(&mut self, ticket: u64, seq_nr: SeqNr) {
        let Some(waiting) = self.waiting.get_mut(&ticket) else { return };
        if let Some(accepted) = waiting.accepted.take() {
            accepted.accept(seq_nr);
        }
        if waiting.confirmed.is_closed() {
            // No caller waits for the confirmation; the ticket is settled when it arrives all the same.
            self.waiting.remove(&ticket);
        }
    }

    pub(crate) fn confirm(&mut self, ticket: u64, seq_nr: SeqNr) {
        if let Some(waiting) = self.settle(ticket) {
            waiting.confirmed.send(Ok(seq_nr)).ok();
        }
    }

    /// Reports an accepted message that is given up alone, with its own error.
    pub(crate) fn fail(&mut self, ticket: u64, error: SentError) {
        if let Some(waiting) = self.settle(ticket) {
            waiting.confirmed.send(Err(error)).ok();
        }
    }

    /// Reports a message that was not sent, or that may not have been sent.
    pub(crate) fn refuse(&mut self, ticket: u64, error: SentError, message: Option<M>) {
        if let Some(accepted) = self.settle(ticket).and_then(|waiting| waiting.accepted) {
            accepted.refuse(error, message);
        }
    }

    /// Reports an accepted message that is given up because its producer ends.
    pub(crate) fn give_up(&mut self, ticket: u64) {
        self.settle(ticket);
    }

    /// Removes a message whose caller has gone away. Returns whether the message was still waiting for acceptance.
    pub(crate) fn withdraw(&mut self, ticket: u64) -> bool {
        let asks = self.waiting.get(&ticket).is_some_and(|waiting| waiting.accepted.is_some());
        if asks {
            self.settle(ticket);
        }
        asks
    }

    fn settle(&mut self, ticket: u64) -> Option<PendingReply<M>> {
        if ticket > 0 {
            self.settled.insert(ticket);
        }
        self.waiting.remove(&ticket)
    }

    /// Answers `done` when every message entered until now is settled.
    pub(crate) fn drain(&mut self, done: oneshot::Sender<()>) {
        self.drains.push((self.last_ticket, done));
    }

    /// Answers the drains whose messages are settled.
    pub(crate) fn answer_drains(&mut self) {
        let settled = self.settled.last();
        for (_, done) in self.drains.extract_if(.., |(last, _)| *last <= settled) {
            done.send(()).ok();
        }
    }

    /// Whether every message ever entered is settled.
    pub(crate) fn is_settled(&self) -> bool {
        self.last_ticket <= self.settled.last()
    }
}
