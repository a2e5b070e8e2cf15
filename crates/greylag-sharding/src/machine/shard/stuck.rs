//! Whether a shard's handler has run for too long, by sampling a counter that rises when a handler begins and ends.
//!
//! Time counts only between samples that come in time: a process that slept did not run its handlers either.
//!
//! Source: sharding §2.10 (stuck_shard_action), §7 (stuck_handler_threshold).

use std::time::{Duration, Instant};

/// The finding of one sample of a shard's handlers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SampleOutcome {
    /// Nothing new.
    Fine,
    /// A handler has run for this long; reported once for each handler run.
    Stuck(Duration),
    /// The shard should have stopped long ago, and a handler prevents its stop: the process must end.
    Abort(Duration),
}

/// See the module's description.
#[derive(Debug)]
pub(crate) struct StuckHandler {
    threshold: Duration,
    /// How long after its stop request a stuck shard ends the process; `None` for never.
    abort_after: Option<Duration>,
    turn: u64,
    sampled_at: Instant,
    running_for: Duration,
    is_reported: bool,
}

impl StuckHandler {
    pub(crate) fn new(threshold: Duration, abort_after: Option<Duration>, now: Instant) -> Self {
        Self { threshold, abort_after, turn: 0, sampled_at: now, running_for: Duration::ZERO, is_reported: false }
    }

    /// Time between two samples.
    pub(crate) fn interval(&self) -> Duration {
        (self.threshold / 4).clamp(Duration::from_millis(1), Duration::from_secs(1))
    }

    /// Takes a sample: the counter, which is odd while a handler runs, and the time of the shard's stop request.
    pub(crate) fn sample(&mut self, now: Instant, turn: u64, stopping_since: Option<Instant>) -> SampleOutcome {
        let since = now.saturating_duration_since(self.sampled_at).min(self.interval() * 2);
        self.sampled_at = now;
        if turn.is_multiple_of(2) || turn != self.turn {
            (self.turn, self.running_for, self.is_reported) = (turn, Duration::ZERO, false);
            return SampleOutcome::Fine;
        }
        self.running_for = self.running_for.saturating_add(since);
        if self.running_for < self.threshold {
            return SampleOutcome::Fine;
        }
        let stopping_for = stopping_since.map(|since| now.saturating_duration_since(since));
        if self.abort_after.is_some_and(|after| stopping_for >= Some(after)) {
            return SampleOutcome::Abort(self.running_for);
        }
        if std::mem::replace(&mut self.is_reported, true) {
            SampleOutcome::Fine
        } else {
            SampleOutcome::Stuck(self.running_for)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// Takes a sample at each of `seconds`; returns the findings that were reported.
    fn samples(
        watch: &mut StuckHandler,
        start: Instant,
        seconds: std::ops::RangeInclusive<u32>,
        turn: u64,
        stop: Option<Instant>,
    ) -> Vec<(u32, SampleOutcome)> {
        let samples = seconds.map(|second| (second, watch.sample(start + SECOND * second, turn, stop)));
        samples.filter(|(_, sample)| *sample != SampleOutcome::Fine).collect()
    }

    #[test]
    fn a_handler_that_does_not_return_is_reported_once() {
        let start = Instant::now();
        let mut watch = StuckHandler::new(SECOND * 10, None, start);
        assert_eq!(samples(&mut watch, start, 1..=30, 2, None), [], "no handler runs");
        assert_eq!(samples(&mut watch, start, 31..=60, 3, None), [(41, SampleOutcome::Stuck(SECOND * 10))]);
        assert_eq!(
            samples(&mut watch, start, 61..=80, 5, None),
            [(71, SampleOutcome::Stuck(SECOND * 10))],
            "another one"
        );
        for turn in 6..100 {
            let at = start + SECOND * (80 + u32::try_from(turn).unwrap());
            assert_eq!(watch.sample(at, turn, None), SampleOutcome::Fine, "many short ones");
        }
    }

    #[test]
    fn a_process_that_slept_has_no_stuck_handler() {
        let start = Instant::now();
        let mut watch = StuckHandler::new(SECOND * 10, None, start);
        watch.sample(start + SECOND, 1, None);
        assert_eq!(watch.sample(start + SECOND * 600, 1, None), SampleOutcome::Fine);
        assert_eq!(samples(&mut watch, start, 601..=620, 1, None), [(608, SampleOutcome::Stuck(SECOND * 10))]);
    }

    #[test]
    fn a_shard_that_cannot_stop_ends_the_process_if_so_set() {
        let start = Instant::now();
        let stop = Some(start + SECOND * 5);
        let mut watch = StuckHandler::new(SECOND * 10, Some(SECOND * 70), start);
        let told = samples(&mut watch, start, 1..=75, 1, stop);
        assert_eq!(told, [(11, SampleOutcome::Stuck(SECOND * 10)), (75, SampleOutcome::Abort(SECOND * 74))]);
        let mut watch = StuckHandler::new(SECOND * 10, Some(SECOND * 70), start);
        assert_eq!(
            samples(&mut watch, start, 1..=200, 1, None),
            [(11, SampleOutcome::Stuck(SECOND * 10))],
            "it serves"
        );
        let mut watch = StuckHandler::new(SECOND * 10, Some(SECOND * 70), start);
        assert_eq!(samples(&mut watch, start, 1..=200, 2, stop), [], "its entities take long, and no handler is stuck");
    }
}
