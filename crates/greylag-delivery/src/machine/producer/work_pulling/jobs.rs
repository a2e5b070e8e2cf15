//! The accepted, unconfirmed messages: pending ones, and jobs held by one or more workers.
//!
//! Source: delivery W3, W5, W6, W8.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use crate::ids::SeqNr;
use crate::machine::tracking::ages::AgeSamples;
use crate::message::Frames;
use crate::queue::QueueState;

/// An unconfirmed message.
#[derive(Debug, Clone)]
struct Job<P> {
    frames: Frames<P>,
    ack: bool,
    /// The ticket of its sender; `None` if an earlier incarnation of the producer sent the message.
    ticket: Option<u64>,
    /// The links that hold the message, including those of silent workers.
    holders: BTreeSet<u64>,
}

/// See the module's documentation.
#[derive(Debug, Clone)]
pub(super) struct Jobs<P> {
    all: BTreeMap<SeqNr, Job<P>>,
    /// Number of messages that came from the loaded queue and thus have no waiting sender.
    owed: usize,
    ages: AgeSamples,
    pending: BTreeSet<SeqNr>,
    /// The highest number ever added.
    last: SeqNr,
    work_timeout: Option<Duration>,
    /// When messages were given out, in order; only kept with a work timeout.
    given_out: VecDeque<(Instant, SeqNr)>,
}

impl<P: Clone> Jobs<P> {
    pub(super) fn new(work_timeout: Option<Duration>) -> Self {
        let (all, pending, given_out) = (BTreeMap::new(), BTreeSet::new(), VecDeque::new());
        Self { all, owed: 0, ages: AgeSamples::default(), pending, last: SeqNr::NONE, work_timeout, given_out }
    }

    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    /// Whether there are messages without a waiting sender.
    pub(super) fn has_unconfirmed_recovered(&self) -> bool {
        self.owed > 0
    }

    /// When the oldest message was accepted, or a little earlier.
    pub(super) fn oldest(&self) -> Option<Instant> {
        self.ages.oldest().filter(|_| !self.all.is_empty())
    }

    pub(super) fn pending(&self) -> usize {
        self.pending.len()
    }

    pub(super) fn in_flight(&self) -> usize {
        self.all.len() - self.pending.len()
    }

    /// The highest number up to which all messages are confirmed. Numbers are assigned in order, so no number below the
    /// first one here can be added any more.
    pub(super) fn confirmed(&self) -> SeqNr {
        self.all.first_key_value().map_or(self.last, |(total, _)| SeqNr(total.get().saturating_sub(1)))
    }

    pub(super) fn add(&mut self, now: Instant, total: SeqNr, frames: Frames<P>, ack: bool, ticket: Option<u64>) {
        self.owed += usize::from(ticket.is_none());
        self.ages.accept(total.get(), now);
        self.all.insert(total, Job { frames, ack, ticket, holders: BTreeSet::new() });
        self.pending.insert(total);
        self.last = self.last.max(total);
    }

    /// Takes the messages of a queue that was loaded again: all become pending, and senders from before go on waiting.
    pub(super) fn reload(&mut self, now: Instant, state: QueueState<Frames<P>>) {
        self.ages.start_again(self.oldest(), state.unconfirmed.first().map(|sent| sent.seq_nr));
        let before = std::mem::take(&mut self.all);
        self.owed = 0;
        self.pending.clear();
        self.given_out.clear();
        self.last = self.last.max(SeqNr(state.current_seq_nr.get().saturating_sub(1)));
        for sent in state.unconfirmed {
            let ticket = before.get(&sent.seq_nr).and_then(|job| job.ticket);
            self.add(now, sent.seq_nr, sent.message, sent.ack, ticket);
        }
    }

    /// The oldest pending message with a number of at least `from`.
    pub(super) fn next_waiting(&self, from: SeqNr) -> Option<SeqNr> {
        self.pending.range(from..).next().copied()
    }

    /// Whether the message is unconfirmed.
    pub(super) fn has(&self, total: SeqNr) -> bool {
        self.all.contains_key(&total)
    }

    pub(super) fn is_held_by(&self, total: SeqNr, link: u64) -> bool {
        self.all.get(&total).is_some_and(|job| job.holders.contains(&link))
    }

    /// Gives a pending message to a worker's link; returns its content, and whether its sender waits for the
    /// confirmation.
    pub(super) fn give_out(&mut self, now: Instant, total: SeqNr, link: u64) -> Option<(Frames<P>, bool)> {
        let job = self.all.get_mut(&total)?;
        job.holders.insert(link);
        self.pending.remove(&total);
        if self.work_timeout.is_some() {
            self.given_out.push_back((now, total));
        }
        Some((job.frames.clone(), job.ack))
    }

    /// Takes a message from a link; if it `keeps` the message, a late confirmation still counts. The message becomes
    /// pending, unless another worker holds it that is not silent (`has`).
    pub(super) fn take_back(&mut self, total: SeqNr, link: u64, keeps: bool, has: impl Fn(u64) -> bool) {
        let Some(job) = self.all.get_mut(&total) else { return };
        if !keeps {
            job.holders.remove(&link);
        }
        if !job.holders.iter().any(|holder| *holder != link && has(*holder)) {
            self.pending.insert(total);
        }
    }

    /// Makes messages pending again that were unconfirmed for too long.
    pub(super) fn give_out_again(&mut self, now: Instant) {
        let Some(timeout) = self.work_timeout else { return };
        while let Some((_, total)) = self.given_out.pop_front_if(|(at, _)| *at + timeout <= now) {
            if self.all.contains_key(&total) {
                self.pending.insert(total);
            }
        }
    }

    pub(super) fn next_deadline(&self) -> Option<Instant> {
        Some(self.given_out.front()?.0 + self.work_timeout?)
    }

    /// Removes a confirmed message; returns its sender's ticket, or `None` if the message was confirmed already.
    pub(super) fn confirm(&mut self, total: SeqNr) -> Option<Option<u64>> {
        let job = self.all.remove(&total)?;
        self.ages.confirm_below(self.confirmed().get().saturating_add(1));
        self.pending.remove(&total);
        self.owed -= usize::from(job.ticket.is_none());
        Some(job.ticket)
    }

    /// Removes and returns all messages, oldest first.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = (SeqNr, Option<u64>)> + use<P> {
        self.pending.clear();
        self.given_out.clear();
        self.owed = 0;
        std::mem::take(&mut self.all).into_iter().map(|(total, job)| (total, job.ticket))
    }

    pub(super) fn check_invariants(&self) {
        debug_assert!(self.pending.iter().all(|total| self.has(*total)), "only an unconfirmed message waits");
        let (newest, timeout) = (self.given_out.back(), self.work_timeout);
        debug_assert!(newest.is_none() || timeout.is_some(), "only a timeout needs the times");
        debug_assert!(self.all.last_key_value().is_none_or(|(total, _)| *total <= self.last), "numbers rise");
        debug_assert!(
            self.all.iter().all(|(total, job)| !job.holders.is_empty() || self.pending.contains(total)),
            "a message waits, or a worker has it"
        );
        debug_assert_eq!(self.owed, self.all.values().filter(|job| job.ticket.is_none()).count());
    }
}
