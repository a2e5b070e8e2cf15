//! The age of the oldest unconfirmed message of a stream.
//!
//! Messages are accepted in the order of their numbers, so a sample of (number, time) pairs gives the age of any
//! message accurately enough.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::ids::SeqNr;

/// Messages accepted within this time share one sample; the interval grows if messages wait for long.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(100);
/// Maximum number of samples; beyond it every other one is dropped, and the interval doubles.
const MAX_SAMPLES: usize = 1024;

/// See the module's documentation.
#[derive(Debug, Clone)]
pub(crate) struct AgeSamples {
    /// Samples: number of a message, and when it was accepted; both rise.
    accepted: VecDeque<(u64, Instant)>,
    interval: Duration,
}

impl Default for AgeSamples {
    fn default() -> Self {
        Self { accepted: VecDeque::new(), interval: SAMPLE_INTERVAL }
    }
}

impl AgeSamples {
    /// Starts over with the message `first`, as old as the oldest message before.
    pub(crate) fn start_again(&mut self, oldest: Option<Instant>, first: Option<SeqNr>) {
        *self = Self::default();
        if let (Some(oldest), Some(first)) = (oldest, first) {
            self.accept(first.get(), oldest);
        }
    }

    /// Notes the acceptance of a message, whose number is above all earlier ones.
    pub(crate) fn accept(&mut self, number: u64, now: Instant) {
        let is_near = |at: Instant| now.saturating_duration_since(at) < self.interval;
        if self.accepted.back().is_some_and(|(_, at)| is_near(*at)) {
            return;
        }
        if self.accepted.len() >= MAX_SAMPLES {
            self.interval = self.interval.saturating_mul(2);
            let mut is_kept = false;
            self.accepted.retain(|_| {
                is_kept = !is_kept;
                is_kept
            });
        }
        self.accepted.push_back((number, now));
    }

    /// All messages below `number` are confirmed, or were never sent.
    pub(crate) fn confirm_below(&mut self, number: u64) {
        while self.accepted.get(1).is_some_and(|(next, _)| *next <= number) {
            self.accepted.pop_front();
        }
        if self.accepted.len() <= 1 {
            self.interval = SAMPLE_INTERVAL;
        }
    }

    /// When the oldest unconfirmed message was accepted, or up to one interval earlier; only meaningful if there is
    /// such a message.
    pub(crate) fn oldest(&self) -> Option<Instant> {
        self.accepted.front().map(|(_, at)| *at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn oldest_unconfirmed_time_is_accurate_to_one_interval() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut ages = AgeSamples::default();
        for (number, ms) in [(1, 0), (2, 50), (5, 300), (6, 1_000)] {
            ages.accept(number, at(ms));
        }
        for (confirmed_below, oldest) in [(1, 0), (2, 0), (4, 0), (5, 300), (6, 1_000), (9, 1_000)] {
            ages.confirm_below(confirmed_below);
            assert_eq!(ages.oldest(), Some(at(oldest)), "below {confirmed_below}");
        }
    }

    #[test]
    fn number_of_age_samples_is_bounded() {
        let start = Instant::now();
        let mut ages = AgeSamples::default();
        for number in 1..=100_000_u32 {
            ages.accept(number.into(), start + SAMPLE_INTERVAL * number);
        }
        assert!(ages.accepted.len() <= MAX_SAMPLES);
        assert_eq!(ages.oldest(), Some(start + SAMPLE_INTERVAL), "the oldest keeps its time");
        ages.confirm_below(90_000);
        let oldest = ages.oldest().unwrap().saturating_duration_since(start);
        assert!(oldest <= SAMPLE_INTERVAL * 90_000 && oldest > SAMPLE_INTERVAL * 89_000, "{oldest:?}");
    }
}
