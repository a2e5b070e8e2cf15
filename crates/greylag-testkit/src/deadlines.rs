//! Deadlines of machines: a tick must settle everything that is due.
//!
//! A driver sleeps until `next_deadline()` and then sends a tick. A machine that answers a tick with a deadline that is
//! not later keeps its driver awake for ever: one task takes a whole core and, if the driver prefers its timer, reads
//! no other input any more. A world that rounds deadlines up to its own step hides exactly that, so worlds call
//! [`assert_moved`] after each tick and wait until the machine's exact deadline.
//!
//! Source: cluster C4, cluster 84.

use std::time::Instant;

/// Asserts that after a tick at `now` the machine's next deadline is later, or that it has none.
///
/// # Panics
///
/// If `next` is not later than `now`; the message names the machine and how long ago the deadline was.
#[track_caller]
pub fn assert_moved(machine: &str, now: Instant, next: Option<Instant>) {
    if let Some(late) = next.and_then(|at| now.checked_duration_since(at)) {
        panic!("after a tick the next deadline of the {machine} must lie later, and it was due {late:?} ago");
    }
}

/// Most steps of long work at one instant.
const MOST_STEPS: u32 = 100_000;

/// Checks the ticks of a machine that does long work in steps. One tick does one step, and the next step is due at
/// once, so the deadline of such a machine may stand still; but the work is finite, so ticks at one instant must come
/// to an end.
#[derive(Debug, Default)]
pub struct Steps {
    at: Option<Instant>,
    taken: u32,
}

impl Steps {
    /// Asserts that a tick at `now`, after which the machine's deadline is `next`, is not one of too many at one
    /// instant.
    ///
    /// # Panics
    ///
    /// At the 100,000th tick at one instant that does not move the deadline.
    #[track_caller]
    pub fn assert_end(&mut self, machine: &str, now: Instant, next: Option<Instant>) {
        if next.is_none_or(|at| at > now) {
            *self = Self::default();
        } else if self.at.replace(now) == Some(now) {
            self.taken += 1;
            assert!(self.taken < MOST_STEPS, "the {machine} ticks without end: its deadline does not move");
        } else {
            self.taken = 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_later_or_missing_deadline_passes() {
        let now = Instant::now();
        assert_moved("machine", now, None);
        assert_moved("machine", now, Some(now + Duration::from_nanos(1)));
    }

    #[test]
    #[should_panic(expected = "the next deadline of the machine must lie later, and it was due 0ns ago")]
    fn a_deadline_that_does_not_move_is_reported() {
        let now = Instant::now();
        assert_moved("machine", now, Some(now));
    }

    #[test]
    fn a_bounded_number_of_steps_at_one_time_passes() {
        let (now, mut steps) = (Instant::now(), Steps::default());
        for _ in 0..3 {
            (1..MOST_STEPS).for_each(|_| steps.assert_end("machine", now, Some(now)));
            steps.assert_end("machine", now, None);
        }
    }

    #[test]
    #[should_panic(expected = "the machine ticks without end")]
    fn endless_steps_are_reported() {
        let (now, mut steps) = (Instant::now(), Steps::default());
        (0..MOST_STEPS).for_each(|_| steps.assert_end("machine", now, Some(now)));
    }
}
