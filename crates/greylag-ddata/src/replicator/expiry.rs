//! When expired entries are looked for.
//!
//! Every input first gives the entries the time: from its deadline on no request finds an entry. Expired entries are
//! removed some at a time, so that a million entries that expire at once keep no request waiting. Source: ddata E1, E2,
//! R5.

use std::time::{Duration, Instant};

/// The most entries that one input removes, or puts back because they were used.
pub(super) const STEP: usize = 1_000;
/// The pause between two steps.
const PAUSE: Duration = Duration::from_millis(1);

/// Plans the looks at expired entries.
#[derive(Debug)]
pub(super) struct ExpiryTimer {
    /// When expired entries are looked for next.
    at: Option<Instant>,
    /// The earliest time for the look after that.
    after: Instant,
}

impl ExpiryTimer {
    pub(super) fn new(now: Instant) -> Self {
        Self { at: None, after: now }
    }

    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.at
    }

    /// Plans the next look: at the next deadline, but at the earliest `interval` after the last look, so that entries
    /// that expire one by one do not each wake the machine.
    pub(super) fn plan(&mut self, now: Instant, wall_ms: i64, next_deadline_ms: Option<i64>, interval: Duration) {
        if self.at.is_some_and(|at| at <= now) {
            self.after = now + interval;
        }
        let after = self.after;
        self.at = next_deadline_ms.map(|deadline_ms| match u64::try_from(deadline_ms.saturating_sub(wall_ms)) {
            Err(_) | Ok(0) => now + PAUSE,
            Ok(wait) => now.checked_add(Duration::from_millis(wait)).unwrap_or(after).max(after),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// ddata E1, H2: what is overdue is looked at after a pause, and entries that expire one by one share a look.
    #[test]
    fn looks_are_an_interval_apart_unless_something_is_overdue() {
        let (start, second) = (Instant::now(), Duration::from_secs(1));
        let mut timer = ExpiryTimer::new(start);
        timer.plan(start, 0, Some(5_000), second);
        assert_eq!(timer.next_deadline(), Some(start + second * 5));
        let now = start + second * 5;
        timer.plan(now, 5_000, Some(5_100), second);
        assert_eq!(timer.next_deadline(), Some(now + second));
        timer.plan(now, 5_000, Some(5_000), second);
        assert_eq!(timer.next_deadline(), Some(now + PAUSE));
        timer.plan(now, 5_000, None, second);
        assert_eq!(timer.next_deadline(), None);
    }
}
