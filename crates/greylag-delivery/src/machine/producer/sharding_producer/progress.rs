//! How far a producer's messages are accepted and confirmed, with the counters.

use std::time::{Duration, Instant};

use super::stats::ProducerStats;
use crate::ids::SeqNr;
use crate::machine::tracking::ages::AgeSamples;
use crate::machine::tracking::contiguous::Contiguous;
use crate::queue::QueueState;

/// See the module's documentation.
#[derive(Debug, Clone, Default)]
pub(super) struct Progress {
    /// The numbers that are settled: confirmed, given up, or never assigned to a message.
    settled: Contiguous,
    highest_confirmed: SeqNr,
    /// Counters, and gauges that are updated with each message.
    pub(super) stats: ProducerStats,
    silent_since: Option<Instant>,
    ages: AgeSamples,
}

impl Progress {
    /// The highest number up to which all messages are settled.
    pub(super) fn settled_up_to(&self) -> SeqNr {
        SeqNr(self.settled.last())
    }

    /// The highest confirmed number; lower ones may be unconfirmed.
    pub(super) fn highest_confirmed(&self) -> SeqNr {
        self.highest_confirmed
    }

    /// Begins with the state of a queue: all its numbers are settled but those of unconfirmed messages.
    pub(super) fn recovered<M>(&mut self, state: &QueueState<M>) {
        let end = state.current_seq_nr.get().saturating_sub(1);
        self.settled = Contiguous::up_to(0);
        let mut from = 1;
        for SeqNr(number) in state.unconfirmed.iter().map(|message| message.seq_nr) {
            self.settled.insert_range(from, number.saturating_sub(1));
            from = number.saturating_add(1);
        }
        self.settled.insert_range(from, end);
        self.highest_confirmed = state.highest_confirmed_seq_nr;
        self.stats.recovered = state.unconfirmed.len() as u64;
    }

    /// The numbers between `after` and `before` are assigned to no message.
    pub(super) fn skipped(&mut self, after: SeqNr, before: SeqNr) {
        self.settled.insert_range(after.get().saturating_add(1), before.get().saturating_sub(1));
    }

    /// The number of a sender that has withdrawn its message. The number is not assigned again, so the other numbers do
    /// not change.
    pub(super) fn withdrawn(&mut self, number: SeqNr) {
        self.settled.insert(number.get());
    }

    /// Counts a message that was accepted, or found in the queue.
    pub(super) fn accepted(&mut self, now: Instant, total: SeqNr) {
        self.ages.accept(total.get(), now);
        self.stats.unconfirmed += 1;
        self.silent_since.get_or_insert(now);
    }

    /// Counts a confirmed message.
    pub(super) fn confirmed(&mut self, now: Instant, total: SeqNr, accepted_at: Instant) {
        self.settle(total);
        self.stats.confirmed += 1;
        let took = now.saturating_duration_since(accepted_at);
        self.stats.slowest_confirmation = self.stats.slowest_confirmation.max(took);
        self.highest_confirmed = self.highest_confirmed.max(total);
    }

    /// Counts a message that was given up. Its number counts as settled, as after a withdrawal.
    pub(super) fn given_up(&mut self, total: SeqNr) {
        self.settle(total);
        self.end_silence();
    }

    fn settle(&mut self, total: SeqNr) {
        self.settled.insert(total.get());
        self.ages.confirm_below(self.settled.last().saturating_add(1));
        self.stats.unconfirmed -= 1;
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
