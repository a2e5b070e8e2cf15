//! Counters of a producer controller.

use std::time::{Duration, Instant};

use crate::ids::SeqNr;
use crate::machine::ages::AgeSamples;

/// Counters of the controller, and gauges.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ProducerStats {
    /// Messages accepted.
    pub sent: u64,
    /// Messages in the queue at the first load.
    pub recovered: u64,
    /// Frames transmitted again.
    pub resent: u64,
    /// Messages confirmed.
    pub confirmed: u64,
    /// Messages accepted and not confirmed.
    pub unconfirmed: u64,
    /// When the oldest of these was accepted, or a little earlier: usually at most 100 ms, more if messages wait for
    /// long.
    pub oldest_unconfirmed: Option<Instant>,
    /// Messages that have room and are being stored.
    pub storing: u64,
    /// Messages that wait for their entity's demand.
    pub buffered: u64,
    /// Senders that wait for room.
    pub waiting: u64,
    /// Entities with a link.
    pub entities: u64,
    /// Entities with demand: a message to one of them is sent at once.
    pub with_demand: u64,
    /// Longest time without a message of a consumer while a message was unconfirmed.
    pub longest_silence: Duration,
    /// Longest time from acceptance to confirmation of one message.
    pub slowest_confirmation: Duration,
    /// Confirmations of frames that were never sent, and messages to links that have ended.
    pub ignored: u64,
}

/// The counters, with the data needed to update them.
#[derive(Debug, Clone, Default)]
pub(super) struct Counters {
    pub(super) stats: ProducerStats,
    silent_since: Option<Instant>,
    ages: AgeSamples,
}

impl Counters {
    /// Counts a message that was accepted, or found in the queue.
    pub(super) fn accepted(&mut self, now: Instant, total: SeqNr) {
        self.ages.accept(total.get(), now);
        self.stats.unconfirmed += 1;
        self.silent_since.get_or_insert(now);
    }

    /// Counts a confirmed message; all messages below `contiguous` are confirmed.
    pub(super) fn confirmed(&mut self, now: Instant, accepted_at: Instant, contiguous: u64) {
        self.ages.confirm_below(contiguous.saturating_add(1));
        self.stats.confirmed += 1;
        self.stats.unconfirmed -= 1;
        let took = now.saturating_duration_since(accepted_at);
        self.stats.slowest_confirmation = self.stats.slowest_confirmation.max(took);
    }

    /// Counts a message that was given up; all messages below `contiguous` are settled.
    pub(super) fn given_up(&mut self, contiguous: u64) {
        self.ages.confirm_below(contiguous.saturating_add(1));
        self.stats.unconfirmed -= 1;
        self.end_silence();
    }

    /// Notes a message of a consumer.
    pub(super) fn on_consumer_message(&mut self, now: Instant) {
        if let Some(since) = self.silent_since.replace(now) {
            let silence = now.saturating_duration_since(since);
            self.stats.longest_silence = self.stats.longest_silence.max(silence);
        }
    }

    /// Ends the measurement of silence if no message is unconfirmed; called after a consumer's message was handled.
    pub(super) fn end_silence(&mut self) {
        if self.stats.unconfirmed == 0 {
            self.silent_since = None;
        }
    }

    /// Counters as of `now`, including a silence that still lasts.
    pub(super) fn read(&self, now: Instant) -> ProducerStats {
        let silence = self.silent_since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since));
        let oldest_unconfirmed = self.ages.oldest().filter(|_| self.stats.unconfirmed > 0);
        let longest_silence = self.stats.longest_silence.max(silence);
        ProducerStats { longest_silence, oldest_unconfirmed, ..self.stats }
    }
}
