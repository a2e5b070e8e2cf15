//! Messages that the link has and that are not confirmed, in the order of their numbers: the senders that wait for them, and
//! their age.

use std::collections::{BTreeMap, VecDeque};
use std::time::Instant;

use crate::ids::SeqNr;
use crate::machine::ages::Ages;

/// One message.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sent {
    pub(super) total: SeqNr,
    /// The sender that waits for it, if there is one.
    pub(super) ticket: Option<u64>,
}

/// See the module's documentation.
#[derive(Debug, Clone, Default)]
pub(super) struct Unconfirmed {
    messages: VecDeque<Sent>,
    /// Messages among these that were in the queue when it was loaded, so that no sender waits for them.
    owed: usize,
    ages: Ages,
}

impl Unconfirmed {
    pub(super) fn len(&self) -> usize {
        self.messages.len()
    }

    /// Whether there are messages that no sender waits for.
    pub(super) fn owes_recovered(&self) -> bool {
        self.owed > 0
    }

    /// When the oldest message was accepted, or a little before.
    pub(super) fn oldest(&self) -> Option<Instant> {
        self.ages.oldest().filter(|_| !self.messages.is_empty())
    }

    /// Adds a message above all others.
    pub(super) fn add(&mut self, now: Instant, sent: Sent) {
        self.owed += usize::from(sent.ticket.is_none());
        self.ages.accept(sent.total.get(), now);
        self.messages.push_back(sent);
    }

    /// Takes the first message, if it is confirmed by a confirmation up to `total`.
    pub(super) fn confirm(&mut self, total: SeqNr) -> Option<Sent> {
        let done = self.messages.pop_front_if(|sent| sent.total <= total)?;
        self.owed -= usize::from(done.ticket.is_none());
        self.ages.confirm_below(done.total.get().saturating_add(1));
        Some(done)
    }

    /// The queue was opened again, with `first` as its first message: takes all messages away, and returns the senders that go
    /// on waiting. The oldest message keeps its age, since it was accepted before.
    pub(super) fn start_again(&mut self, first: Option<SeqNr>) -> BTreeMap<SeqNr, u64> {
        self.ages.start_again(self.oldest(), first);
        self.drain().filter_map(|sent| Some((sent.total, sent.ticket?))).collect()
    }

    /// Takes all messages away.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = Sent> + use<> {
        self.owed = 0;
        std::mem::take(&mut self.messages).into_iter()
    }

    pub(super) fn check_invariants(&self) {
        debug_assert!(self.messages.iter().map(|sent| sent.total).is_sorted());
    }
}
