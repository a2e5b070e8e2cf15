//! When the requests of a hand-over are repeated, and when their number shows that it makes no progress.
//!
//! Source: cluster P4, P5.

use std::time::{Duration, Instant};

/// The repetitions of this node's requests.
#[derive(Debug)]
pub(super) struct Retries {
    interval: Duration,
    /// The number of requests to hand over after which the claimant is stuck.
    hand_over: u32,
    /// The number of offers after which this node's own hand-over is stuck.
    take_over: u32,
    count: u32,
    at: Option<Instant>,
}

impl Retries {
    /// Requests are repeated every `interval`; a claimant is stuck only once `margin` is over, during which removed
    /// members may count as running the instance.
    pub(super) fn new(interval: Duration, least: u32, margin: Duration) -> Self {
        let interval = interval.max(Duration::from_millis(1));
        let in_margin = u32::try_from(margin.as_millis() / interval.as_millis()).unwrap_or(u32::MAX - 3);
        let hand_over = least.max(in_margin + 3);
        Self { interval, hand_over, take_over: hand_over.saturating_sub(3).max(1), count: 0, at: None }
    }

    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.at
    }

    /// Counts from zero again; the time of the next repetition stays.
    pub(super) fn reset(&mut self) {
        self.count = 0;
    }

    /// Begins with requests that were sent just now.
    pub(super) fn begin(&mut self, now: Instant) {
        self.count = 0;
        self.at = Some(now + self.interval);
    }

    /// Repeats nothing any more.
    pub(super) fn stop(&mut self) {
        self.at = None;
    }

    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.at.is_some_and(|at| at <= now)
    }

    /// Whether a repetition will be due later.
    pub(super) fn waits(&self, now: Instant) -> bool {
        self.at.is_some_and(|at| now < at)
    }

    /// Notes that requests to hand over are repeated now; they count unless all their receivers are `busy` ending.
    pub(super) fn on_repeated(&mut self, now: Instant, busy: bool) {
        self.at = Some(now + self.interval);
        self.count += u32::from(!busy);
    }

    /// Whether the requests to hand over were repeated too often.
    pub(super) fn is_claim_stuck(&self) -> bool {
        self.count > self.hand_over
    }

    /// Notes that this node offers its instance now. Returns true if it has done so too often.
    pub(super) fn on_offered(&mut self, now: Instant) -> bool {
        self.at = Some(now + self.interval);
        self.count += 1;
        self.count > self.take_over
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_is_stuck_only_after_the_margin() {
        let now = Instant::now();
        let second = Duration::from_secs(1);
        let mut retries = Retries::new(second, 2, 10 * second);
        retries.begin(now);
        assert!(retries.waits(now) && retries.is_due(now + second));
        (0..13).for_each(|_| retries.on_repeated(now, false));
        retries.on_repeated(now, true);
        assert!(!retries.is_claim_stuck(), "10 s of the margin, and three more; a busy one does not count");
        retries.on_repeated(now, false);
        assert!(retries.is_claim_stuck());
    }
}
