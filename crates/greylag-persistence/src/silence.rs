//! The time for which an entity has handled no message, for its receive timeout.
//!
//! A [`Silence`] holds the instant of the last message and no timer, so a message costs one assignment; the machine
//! that waits for the deadline compares again when it has come. Time in which the entity waits for its own work does
//! not count.
//!
//! Source: sharding §4.4.

use std::time::{Duration, Instant};

/// The clock of one entity's receive timeout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Silence {
    longest: Duration,
    heard_at: Instant,
    /// Start of the pause: since then the entity waits for its own work.
    paused_at: Option<Instant>,
}

impl Silence {
    /// A silence that begins now, and is too long after `longest`.
    pub fn new(longest: Duration, now: Instant) -> Self {
        Self { longest, heard_at: now, paused_at: None }
    }

    /// Restarts the silence: a message was handled, or the message of the timeout.
    pub fn begin(&mut self, now: Instant) {
        self.heard_at = now;
        if let Some(paused_at) = &mut self.paused_at {
            *paused_at = now;
        }
    }

    /// Stops the count of time. No effect during a pause.
    pub fn pause(&mut self, now: Instant) {
        self.paused_at.get_or_insert(now);
    }

    /// Resumes the count of time.
    pub fn go_on(&mut self, now: Instant) {
        if let Some(paused_at) = self.paused_at.take() {
            let pause = now.saturating_duration_since(paused_at);
            self.heard_at = self.heard_at.checked_add(pause).unwrap_or(now);
        }
    }

    /// When the silence is too long, if no message restarts it. `None` during a pause, and for a time beyond the range
    /// of `Instant`.
    pub fn due_at(&self) -> Option<Instant> {
        if self.paused_at.is_some() { None } else { self.heard_at.checked_add(self.longest) }
    }

    /// Whether the silence is too long now.
    pub fn is_due(&self, now: Instant) -> bool {
        self.due_at().is_some_and(|due_at| due_at <= now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn what_is_heard_begins_it_anew_and_a_pause_does_not_count() {
        let start = Instant::now();
        let mut silence = Silence::new(SECOND * 10, start);
        assert_eq!(silence.due_at(), Some(start + SECOND * 10));
        silence.begin(start + SECOND * 4);
        assert!(!silence.is_due(start + SECOND * 13) && silence.is_due(start + SECOND * 14));
        silence.pause(start + SECOND * 6);
        silence.pause(start + SECOND * 60);
        assert!(silence.due_at().is_none() && !silence.is_due(start + SECOND * 100));
        silence.go_on(start + SECOND * 106);
        assert_eq!(silence.due_at(), Some(start + SECOND * 114), "of ten seconds two had passed before the pause");
    }

    #[test]
    fn what_is_heard_during_a_pause_leaves_the_whole_time() {
        let start = Instant::now();
        let mut silence = Silence::new(SECOND * 10, start);
        silence.pause(start + SECOND * 3);
        silence.begin(start + SECOND * 5);
        silence.go_on(start + SECOND * 8);
        assert_eq!(silence.due_at(), Some(start + SECOND * 18));
        assert_eq!(Silence::new(Duration::MAX, start).due_at(), None, "beyond all time is never");
    }
}
