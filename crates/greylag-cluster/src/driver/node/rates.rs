//! Computes the messages dropped in the last minute from counters that only grow.
//!
//! Source: cluster M36.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use greylag_core::DeadLetterReason;

type Totals = BTreeMap<DeadLetterReason, u64>;

/// Least time between two samples of the counters.
const SAMPLE_INTERVAL: Duration = Duration::from_secs(10);
/// How far back a rate looks.
const WINDOW: Duration = Duration::from_secs(60);

/// Samples of the counters over the last minute.
#[derive(Debug, Default)]
pub(super) struct DeadLetterRates {
    samples: VecDeque<(Instant, Totals)>,
}

impl DeadLetterRates {
    /// Samples the counters if the last sample is old enough; returns whether it did. The driver's task wakes every
    /// second or so, which is often enough.
    pub(super) fn sample(&mut self, now: Instant, totals: impl FnOnce() -> Totals) -> bool {
        if self.samples.back().is_some_and(|(at, _)| now.saturating_duration_since(*at) < SAMPLE_INTERVAL) {
            return false;
        }
        self.samples.push_back((now, totals()));
        // Keep the newest sample that is older than the window, for comparison.
        while self.samples.get(1).is_some_and(|(at, _)| now.saturating_duration_since(*at) >= WINDOW) {
            self.samples.pop_front();
        }
        true
    }

    /// The messages dropped since the window began, by reason.
    pub(super) fn of_last_minute(&self, totals: Totals) -> Totals {
        let before = self.samples.front().map(|(_, totals)| totals);
        let since = |(reason, total): (DeadLetterReason, u64)| {
            let old = before.and_then(|before| before.get(&reason)).copied().unwrap_or(0);
            (total > old).then(|| (reason, total - old))
        };
        totals.into_iter().filter_map(since).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// cluster M36.
    #[test]
    fn only_the_last_minute_counts() {
        let start = Instant::now();
        let mut rates = DeadLetterRates::default();
        let totals = |count| Totals::from([(DeadLetterReason::QueueFull, count)]);
        for step in 0..20 {
            assert!(rates.sample(start + SAMPLE_INTERVAL * step, || totals(u64::from(step))));
            assert!(!rates.sample(start + SAMPLE_INTERVAL * step + SAMPLE_INTERVAL / 2, || totals(0)), "too early");
        }
        assert_eq!(rates.of_last_minute(totals(19)), totals(6), "of 19 in 190 s, 6 in the last minute");
        assert_eq!(rates.of_last_minute(totals(13)), Totals::new());
    }
}
