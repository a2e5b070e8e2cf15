//! How long a failed entity waits before it is started again.
//!
//! Source: sharding §4.6 (Backoff).

use std::time::{Duration, Instant};

/// Waits that grow from failure to failure.
///
/// ```
/// use std::time::Duration;
///
/// use greylag_sharding::{Backoff, Directive, FailureCause, Supervision};
///
/// // An entity that cannot reach its device tries again after 1, 2, 4, ... s, at most every minute.
/// let patient = Supervision::decided_by(|cause| match cause {
///     FailureCause::Handler(_) => Directive::Backoff(Backoff::default()),
///     _ => Directive::Restart,
/// });
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Backoff {
    /// The wait after a first failure. Default 1 s.
    pub min: Duration,
    /// The longest wait. Default 1 min.
    pub max: Duration,
    /// The factor between a wait and the next one. At least 1. Default 2.
    pub factor: f64,
    /// Each wait is longer or shorter by up to this fraction, chosen at random, so that entities that failed together
    /// do not start together. From 0 to 1. Default 0.2.
    pub jitter: f64,
    /// Time without a failure after which an entity begins with `min` again. Default 5 min.
    pub reset_after: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Self {
            min: Duration::from_secs(1),
            max: Duration::from_secs(60),
            factor: 2.0,
            jitter: 0.2,
            reset_after: Duration::from_secs(300),
        }
    }
}

impl Backoff {
    /// The wait after `failures` failures before this one. `chance`, from 0 to 1, selects the jitter.
    pub(crate) fn wait(&self, failures: u32, chance: f64) -> Duration {
        let growth = self.factor.max(1.0).powi(i32::try_from(failures).unwrap_or(i32::MAX));
        let grown = self.min.as_secs_f64() * growth;
        let wait = if grown.is_finite() { grown.min(self.max.as_secs_f64()) } else { self.max.as_secs_f64() };
        let spread = self.jitter.clamp(0.0, 1.0) * (2.0 * chance - 1.0);
        Duration::try_from_secs_f64(wait * (1.0 + spread)).unwrap_or(self.max)
    }
}

/// The recent failures of one entity, which determine its next wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Failures {
    count: u32,
    last: Instant,
}

impl Failures {
    /// Counts a failure. Returns how many came before it, unless `reset_after` has passed since the last one.
    pub(crate) fn count(known: &mut Option<Self>, now: Instant, reset_after: Duration) -> u32 {
        let recent = known.filter(|known| now.saturating_duration_since(known.last) < reset_after);
        let before = recent.map_or(0, |known| known.count);
        *known = Some(Self { count: before.saturating_add(1), last: now });
        before
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn waits_double_up_to_the_longest_and_spread_around_it() {
        let backoff = Backoff::default();
        let waits = |chance: f64| (0..8).map(|failures| backoff.wait(failures, chance)).collect::<Vec<_>>();
        assert_eq!(waits(0.5), [1, 2, 4, 8, 16, 32, 60, 60].map(Duration::from_secs));
        assert_eq!(waits(0.0)[1], SECOND * 8 / 5);
        assert_eq!(waits(1.0)[1], SECOND * 12 / 5);
        assert_eq!(backoff.wait(u32::MAX, 0.5), SECOND * 60, "however often it failed");
        let never = Backoff { min: Duration::ZERO, ..backoff };
        assert_eq!(never.wait(3, 1.0), Duration::ZERO);
    }

    #[test]
    fn failures_are_forgotten_after_a_while() {
        let (now, mut known) = (Instant::now(), None);
        let mut count = |at: u32| Failures::count(&mut known, now + SECOND * at, SECOND * 10);
        assert_eq!([count(0), count(9), count(18), count(28), count(29)], [0, 1, 2, 0, 1]);
    }
}
