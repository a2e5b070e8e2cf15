//! When an entity that failed may start anew by itself. Source: persistence §2.6.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::settings::Backoff;

/// What the machine remembers of its failures, across its incarnations.
#[derive(Default)]
pub(crate) struct Restarts {
    failures: u32,
    failed_at: Option<Instant>,
    rejected: VecDeque<Instant>,
}

impl Restarts {
    /// How long to wait after a failure now, with `draw` in `0.0..1.0`.
    pub(crate) fn wait(&mut self, now: Instant, backoff: Backoff, draw: f64) -> Duration {
        if self.failed_at.is_some_and(|at| now.saturating_duration_since(at) >= backoff.reset_after()) {
            self.failures = 0;
        }
        self.failures = self.failures.saturating_add(1);
        self.failed_at = Some(now);
        backoff.wait(self.failures, draw)
    }

    /// Whether one more restart by a rejected append is within `max` a minute; if so, it counts.
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
