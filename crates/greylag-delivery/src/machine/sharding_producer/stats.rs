//! What a producer controller counts.

use std::time::{Duration, Instant};

use crate::ids::SeqNr;
use crate::machine::ages::Ages;

/// What the controller has seen so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ProducerStats {
    /// Messages accepted.
    pub sent: u64,
    /// Messages that the queue had when it was loaded first.
    pub recovered: u64,
    /// Frames transmitted again.
    pub resent: u64,
    /// Messages confirmed.
    pub confirmed: u64,
    /// Messages accepted and not confirmed.
    pub unconfirmed: u64,
    /// When the oldest of these was accepted, give or take a tenth of a second.
    pub oldest_unconfirmed: Option<Instant>,
    /// Messages that have room and are being stored.
    pub storing: u64,
    /// Messages that wait for their entity's demand.
    pub buffered: u64,
    /// Senders that wait for room.
    pub waiting: u64,
    /// Entities with a link.
    pub entities: u64,
    /// Entities that would take a message at once.
    pub with_demand: u64,
    /// Longest time with something unconfirmed in which no consumer said anything.
    pub longest_silence: Duration,
    /// Longest time from acceptance to confirmation of one message.
    pub slowest_confirmation: Duration,
    /// Confirmations of frames that were never sent, and messages to links that have ended.
    pub ignored: u64,
}

/// The counters as they grow.
#[derive(Debug, Clone, Default)]
pub(super) struct Tally {
    pub(super) stats: ProducerStats,
    silent_since: Option<Instant>,
    ages: Ages,
}

impl Tally {
    /// A message was accepted, or found in the queue.
    pub(super) fn accepted(&mut self, now: Instant, total: SeqNr) {
        self.ages.accept(total.get(), now);
        self.stats.unconfirmed += 1;
        self.silent_since.get_or_insert(now);
    }

    /// A message was confirmed; all below `contiguous` are.
    pub(super) fn confirmed(&mut self, now: Instant, accepted_at: Instant, contiguous: u64) {
        self.ages.confirm_below(contiguous.saturating_add(1));
        self.stats.confirmed += 1;
        self.stats.unconfirmed -= 1;
        let took = now.saturating_duration_since(accepted_at);
        self.stats.slowest_confirmation = self.stats.slowest_confirmation.max(took);
    }

    /// A message was given up; all below `contiguous` are settled.
    pub(super) fn given_up(&mut self, contiguous: u64) {
        self.ages.confirm_below(contiguous.saturating_add(1));
        self.stats.unconfirmed -= 1;
        self.settle();
    }

    /// A consumer spoke.
    pub(super) fn heard(&mut self, now: Instant) {
        if let Some(since) = self.silent_since.replace(now) {
            let silence = now.saturating_duration_since(since);
            self.stats.longest_silence = self.stats.longest_silence.max(silence);
        }
    }

    /// What a consumer said was taken in.
    pub(super) fn settle(&mut self) {
        if self.stats.unconfirmed == 0 {
            self.silent_since = None;
        }
    }

    /// The counters as of `now`; a silence that still lasts is counted.
    pub(super) fn read(&self, now: Instant) -> ProducerStats {
        let silence = self.silent_since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since));
        let oldest_unconfirmed = self.ages.oldest().filter(|_| self.stats.unconfirmed > 0);
        let longest_silence = self.stats.longest_silence.max(silence);
        ProducerStats { longest_silence, oldest_unconfirmed, ..self.stats }
    }
}
