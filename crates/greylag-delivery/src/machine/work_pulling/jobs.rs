//! The messages that are accepted and not confirmed: those that wait for a worker, and those that one or more have in hand.
//!
//! Source: delivery W3, W5, W6, W8.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use crate::ids::SeqNr;
use crate::machine::ages::Ages;
use crate::machine::producer_link::Frames;
use crate::queue::QueueState;

/// A message that is not confirmed.
#[derive(Debug, Clone)]
struct Job<P> {
    frames: Frames<P>,
    ack: bool,
    /// Its sender, unless that was another incarnation of the producer.
    ticket: Option<u64>,
    /// The links that have it in hand; those of silent workers too.
    holders: BTreeSet<u64>,
}

/// See the module's documentation.
#[derive(Debug, Clone)]
pub(super) struct Jobs<P> {
    all: BTreeMap<SeqNr, Job<P>>,
    /// Messages among these that were in the queue when it was loaded, so that no sender waits for them.
    owed: usize,
    ages: Ages,
    pending: BTreeSet<SeqNr>,
    /// The highest number that was ever among these.
    last: SeqNr,
    work_timeout: Option<Duration>,
    /// When messages were given out, in that order; only where that is looked at.
    given_out: VecDeque<(Instant, SeqNr)>,
}

impl<P: Clone> Jobs<P> {
    pub(super) fn new(work_timeout: Option<Duration>) -> Self {
        let (all, pending, given_out) = (BTreeMap::new(), BTreeSet::new(), VecDeque::new());
        Self { all, owed: 0, ages: Ages::default(), pending, last: SeqNr::NONE, work_timeout, given_out }
    }

    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    /// Whether there are messages that no sender waits for.
    pub(super) fn owes_recovered(&self) -> bool {
        self.owed > 0
    }

    /// When the oldest of these was accepted, or a little before.
    pub(super) fn oldest(&self) -> Option<Instant> {
        self.ages.oldest().filter(|_| !self.all.is_empty())
    }

    pub(super) fn pending(&self) -> usize {
        self.pending.len()
    }

    pub(super) fn in_flight(&self) -> usize {
        self.all.len() - self.pending.len()
    }

    /// The last of the contiguously confirmed numbers. Numbers are given out in their order, so nothing below the first that
    /// is here can still come.
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

    /// What a queue that was opened again has: all of it waits, and senders of before go on waiting.
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

    /// The oldest message that waits and is not older than `from`.
    pub(super) fn next_waiting(&self, from: SeqNr) -> Option<SeqNr> {
        self.pending.range(from..).next().copied()
    }

    pub(super) fn is_held_by(&self, total: SeqNr, link: u64) -> bool {
        self.all.get(&total).is_some_and(|job| job.holders.contains(&link))
    }

    /// Takes a message that waits for a worker's link, with its content and whether its sender waits for it.
    pub(super) fn give_out(&mut self, now: Instant, total: SeqNr, link: u64) -> Option<(Frames<P>, bool)> {
        let job = self.all.get_mut(&total)?;
        job.holders.insert(link);
        self.pending.remove(&total);
        if self.work_timeout.is_some() {
            self.given_out.push_back((now, total));
        }
        Some((job.frames.clone(), job.ack))
    }

    /// A link does not have the message in hand any more, unless it `keeps` it for a late confirmation. It waits again, unless
    /// a worker `has` it that is not silent.
    pub(super) fn take_back(&mut self, total: SeqNr, link: u64, keeps: bool, has: impl Fn(u64) -> bool) {
        let Some(job) = self.all.get_mut(&total) else { return };
        if !keeps {
            job.holders.remove(&link);
        }
        if !job.holders.iter().any(|holder| *holder != link && has(*holder)) {
            self.pending.insert(total);
        }
    }

    /// Messages that were not confirmed for too long wait for another worker, too.
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

    /// The sender of a message that is confirmed; `None` if it is known to be already.
    pub(super) fn confirm(&mut self, total: SeqNr) -> Option<Option<u64>> {
        let job = self.all.remove(&total)?;
        self.ages.confirm_below(self.confirmed().get().saturating_add(1));
        self.pending.remove(&total);
        self.owed -= usize::from(job.ticket.is_none());
        Some(job.ticket)
    }

    /// Takes all of them, oldest first.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = (SeqNr, Option<u64>)> + use<P> {
        self.pending.clear();
        self.given_out.clear();
        self.owed = 0;
        std::mem::take(&mut self.all).into_iter().map(|(total, job)| (total, job.ticket))
    }

    pub(super) fn check_invariants(&self) {
        debug_assert!(self.pending.iter().all(|total| self.all.contains_key(total)));
        debug_assert!(
            self.all.iter().all(|(total, job)| !job.holders.is_empty() || self.pending.contains(total)),
            "a message waits, or a worker has it"
        );
        debug_assert_eq!(self.owed, self.all.values().filter(|job| job.ticket.is_none()).count());
    }
}
