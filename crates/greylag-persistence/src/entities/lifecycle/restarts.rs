//! When an entity that failed may start anew by itself. Source: persistence §2.6; sharding scenario 114.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::contract::settings::Backoff;

/// First wait after a start that was hurried because the store is back has failed; doubles each time.
const HURRIED_RESTART_WAIT: Duration = Duration::from_millis(100);

/// The failures of a machine, across its incarnations.
#[derive(Default)]
pub(crate) struct Restarts {
    failures: u32,
    failed_at: Option<Instant>,
    /// Number of back-offs cut short because the store is back, since the last successful write.
    hurried: u32,
    rejected: VecDeque<Instant>,
}

impl Restarts {
    /// How long to wait after a failure now, with `draw` in `0.0..1.0`.
    pub(crate) fn wait(&mut self, now: Instant, backoff: Backoff, draw: f64) -> Duration {
        if self.failed_at.is_some_and(|at| now.saturating_duration_since(at) >= backoff.reset_after()) {
            (self.failures, self.hurried) = (0, 0);
        }
        self.failures = self.failures.saturating_add(1);
        self.failed_at = Some(now);
        backoff.wait(self.failures, draw)
    }

    /// When to end a back-off of `until`, now that the store is back: at once the first time, then after doubling
    /// waits, since the store may answer others and still fail this entity.
    pub(crate) fn shorten_backoff(&mut self, now: Instant, until: Instant) -> Instant {
        let wait = match self.hurried.checked_sub(1) {
            None => Duration::ZERO,
            Some(futile) => HURRIED_RESTART_WAIT.saturating_mul(1 << futile.min(20)),
        };
        if now + wait >= until {
            return until;
        }
        self.hurried = self.hurried.saturating_add(1);
        now + wait
    }

    /// Notes a successful write of the entity.
    pub(crate) fn note_stored(&mut self) {
        self.hurried = 0;
    }

    /// Whether `max` a minute allows one more restart by a rejected append; if so, the restart is counted.
    pub(crate) fn allow_rejected(&mut self, now: Instant, max: u32) -> bool {
        let minute_ago = now.checked_sub(Duration::from_secs(60));
        self.rejected.retain(|at| minute_ago.is_none_or(|minute_ago| *at > minute_ago));
        let allowed = self.rejected.len() < max as usize;
        if allowed {
            self.rejected.push_back(now);
        }
        allowed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    /// Sharding scenario 114: an entity that a store fails while it answers others must not ask it without a pause.
    #[test]
    fn hurried_restarts_back_off_until_a_write_succeeds() {
        let (now, mut restarts) = (Instant::now(), Restarts::default());
        let backoff = Backoff { min: ms(1000), max: ms(30_000), jitter: 0.0 };
        let hurried = |restarts: &mut Restarts| {
            let until = now + restarts.wait(now, backoff, 0.0);
            restarts.shorten_backoff(now, until).duration_since(now)
        };
        let waits: Vec<_> = (0..11).map(|_| hurried(&mut restarts).as_millis()).collect();
        assert_eq!(
            waits,
            [0, 100, 200, 400, 800, 1600, 3200, 6400, 12_800, 25_600, 30_000],
            "at most its own back-off"
        );
        restarts.note_stored();
        assert_eq!(hurried(&mut restarts), Duration::ZERO);
        assert_eq!(hurried(&mut restarts), ms(100));
        // A minute without a failure resets the back-off and the hurried starts.
        let later = now + backoff.reset_after();
        let until = later + restarts.wait(later, backoff, 0.0);
        assert_eq!(restarts.shorten_backoff(later, until), later);
    }
}
