//! The time for which an entity has handled no message, for its receive timeout.
//!
//! An [`IdleTimer`] holds the instant of the last message and no timer, so a message costs one assignment; the machine
//! that waits for the deadline compares again when it has come. Time in which the entity waits for its own work does
//! not count.
//!
//! Source: sharding §4.4.

use std::time::{Duration, Instant};

/// The clock of one entity's receive timeout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IdleTimer {
    timeout: Duration,
    last_message_at: Instant,
    /// Start of the pause: since then the entity waits for its own work.
    paused_at: Option<Instant>,
}

impl IdleTimer {
    /// A timer that starts now, and is due after `timeout`.
    pub fn new(timeout: Duration, now: Instant) -> Self {
        Self { timeout, last_message_at: now, paused_at: None }
    }

    /// Restarts the timer: a message was handled, or the message of the timeout.
    pub fn restart(&mut self, now: Instant) {
        self.last_message_at = now;
        if let Some(paused_at) = &mut self.paused_at {
            *paused_at = now;
        }
    }

    /// Stops the count of time. No effect during a pause.
    pub fn pause(&mut self, now: Instant) {
        self.paused_at.get_or_insert(now);
    }

    /// Resumes the count of time.
    pub fn resume(&mut self, now: Instant) {
        if let Some(paused_at) = self.paused_at.take() {
            let pause = now.saturating_duration_since(paused_at);
            self.last_message_at = self.last_message_at.checked_add(pause).unwrap_or(now);
        }
    }

    /// When the timer is due, if no message restarts it. `None` during a pause, and for a time beyond the range
    /// of `Instant`.
    pub fn due_at(&self) -> Option<Instant> {
        if self.paused_at.is_some() { None } else { self.last_message_at.checked_add(self.timeout) }
    }

    /// Whether the timer is due now.
    pub fn is_due(&self, now: Instant) -> bool {
        self.due_at().is_some_and(|due_at| due_at <= now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_message_restarts_the_receive_timeout_and_pauses_do_not_count() {
        let start = Instant::now();
        let mut timer = IdleTimer::new(SECOND * 10, start);
        assert_eq!(timer.due_at(), Some(start + SECOND * 10));
        timer.restart(start + SECOND * 4);
        assert!(!timer.is_due(start + SECOND * 13) && timer.is_due(start + SECOND * 14));
        timer.pause(start + SECOND * 6);
        timer.pause(start + SECOND * 60);
        assert!(timer.due_at().is_none() && !timer.is_due(start + SECOND * 100));
        timer.resume(start + SECOND * 106);
        assert_eq!(timer.due_at(), Some(start + SECOND * 114), "of ten seconds two had passed before the pause");
    }

    #[test]
    fn a_message_during_a_pause_restarts_the_whole_timeout() {
        let start = Instant::now();
        let mut timer = IdleTimer::new(SECOND * 10, start);
        timer.pause(start + SECOND * 3);
        timer.restart(start + SECOND * 5);
        timer.resume(start + SECOND * 8);
        assert_eq!(timer.due_at(), Some(start + SECOND * 18));
        assert_eq!(IdleTimer::new(Duration::MAX, start).due_at(), None, "beyond all time is never");
    }
}
