//! The all-reachable clock: it runs only while no member is unreachable.
//!
//! Data cannot spread to an unreachable member however long one waits, so the waiting times of pruning are measured on
//! this clock. Source: ddata Z1.

use std::time::{Duration, Instant};

/// A clock that runs while all members are reachable.
#[derive(Debug, Default)]
pub(crate) struct ReachableClock {
    before: Duration,
    since: Option<Instant>,
}

impl ReachableClock {
    /// Starts or stops the clock.
    pub(crate) fn set(&mut self, now: Instant, all_reachable: bool) {
        match (self.since, all_reachable) {
            (None, true) => self.since = Some(now),
            (Some(_), false) => {
                self.before = self.elapsed(now);
                self.since = None;
            }
            _ => {}
        }
    }

    /// The total time that the clock has run.
    pub(crate) fn elapsed(&self, now: Instant) -> Duration {
        self.before + self.since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since))
    }

    /// Since when the clock has run without a break.
    pub(crate) fn running_since(&self) -> Option<Instant> {
        self.since
    }
}

/// Milliseconds of a duration.
pub(crate) fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// ddata Z1: the clock stands while a member is unreachable.
    #[test]
    fn the_clock_stands_while_a_member_is_unreachable() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut clock = ReachableClock::default();
        assert_eq!(clock.elapsed(at(5)), Duration::ZERO);
        clock.set(at(5), true);
        clock.set(at(7), true);
        assert_eq!((clock.elapsed(at(8)), clock.running_since()), (Duration::from_secs(3), Some(at(5))));
        clock.set(at(8), false);
        assert_eq!((clock.elapsed(at(60)), clock.running_since()), (Duration::from_secs(3), None));
        clock.set(at(60), true);
        assert_eq!(clock.elapsed(at(61)), Duration::from_secs(4));
    }
}
