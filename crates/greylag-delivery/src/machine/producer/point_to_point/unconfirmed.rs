//! The link's unconfirmed messages, ordered by number: the senders that wait for them, and their age.

use std::collections::{BTreeMap, VecDeque};
use std::time::Instant;

use crate::ids::SeqNr;
use crate::machine::tracking::ages::AgeSamples;

/// An unconfirmed message.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sent {
    pub(super) total: SeqNr,
    /// The ticket of the waiting sender, if there is one.
    pub(super) ticket: Option<u64>,
}

/// See the module's documentation.
#[derive(Debug, Clone, Default)]
pub(super) struct Unconfirmed {
    messages: VecDeque<Sent>,
    /// Number of messages that came from the loaded queue and thus have no waiting sender.
    owed: usize,
    ages: AgeSamples,
}

impl Unconfirmed {
    pub(super) fn len(&self) -> usize {
        self.messages.len()
    }

    /// Whether there are messages without a waiting sender.
    pub(super) fn has_unconfirmed_recovered(&self) -> bool {
        self.owed > 0
    }

    /// When the oldest message was accepted, or a little earlier.
    pub(super) fn oldest(&self) -> Option<Instant> {
        self.ages.oldest().filter(|_| !self.messages.is_empty())
    }

    /// Adds a message, whose number is above all others.
    pub(super) fn add(&mut self, now: Instant, sent: Sent) {
        self.owed += usize::from(sent.ticket.is_none());
        self.ages.accept(sent.total.get(), now);
        self.messages.push_back(sent);
    }

    /// Removes and returns the first message if its number is at most `total`.
    pub(super) fn confirm(&mut self, total: SeqNr) -> Option<Sent> {
        let done = self.messages.pop_front_if(|sent| sent.total <= total)?;
        self.owed -= usize::from(done.ticket.is_none());
        self.ages.confirm_below(done.total.get().saturating_add(1));
        Some(done)
    }

    /// Removes all messages, since the queue was loaded again with `first` as its first message, and returns the
    /// senders that go on waiting. The oldest message keeps its age, since it was accepted before.
    pub(super) fn start_again(&mut self, first: Option<SeqNr>) -> BTreeMap<SeqNr, u64> {
        self.ages.start_again(self.oldest(), first);
        self.drain().filter_map(|sent| Some((sent.total, sent.ticket?))).collect()
    }

    /// Removes and returns all messages.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = Sent> + use<> {
        self.owed = 0;
        std::mem::take(&mut self.messages).into_iter()
    }

    pub(super) fn check_invariants(&self) {
        debug_assert!(self.messages.iter().map(|sent| sent.total).is_sorted());
    }
}
