//! The flow control window of a link, which grows if it throttles the producer.
//!
//! On a link with a long round trip, a fast producer uses up its grant while the next grant is still on its way. If the
//! consumer runs empty exactly at the end of the grant *before* the last one, twice in a row, the window doubles. After
//! a long idle time the window returns to its base size.
//!
//! Source: delivery §7, auto-window.

use std::time::{Duration, Instant};

/// Idle time after which the window returns to its base size. Source: delivery §7.
const IDLE: Duration = Duration::from_secs(60);
/// How often in a row the consumer must run empty before the window doubles.
const OCCASIONS: u32 = 2;

/// The window of one link, in frames.
#[derive(Debug, Clone)]
pub(super) struct Window {
    base: u64,
    largest: u64,
    size: u64,
    /// The end of the last grant, and of the one before it.
    last: u64,
    before: u64,
    occasions: u32,
    heard_at: Option<Instant>,
}

impl Window {
    pub(super) fn new(base: u32, largest: u32) -> Self {
        let base = u64::from(base.max(1));
        let largest = u64::from(largest).max(base);
        Self { base, largest, size: base, last: 0, before: 0, occasions: 0, heard_at: None }
    }

    /// The present size.
    pub(super) fn size(&self) -> u64 {
        self.size
    }

    /// The largest size.
    pub(super) fn largest(&self) -> u64 {
        self.largest
    }

    /// Notes a frame of the producer.
    pub(super) fn on_frame(&mut self, now: Instant) {
        let idle = self.heard_at.is_some_and(|at| now.saturating_duration_since(at) >= IDLE);
        if idle {
            self.size = self.base;
            self.occasions = 0;
        }
        self.heard_at = Some(now);
    }

    /// Resets the window for another producer, whose numbers start over.
    pub(super) fn start_over(&mut self) {
        (self.last, self.before, self.occasions) = (0, 0, 0);
        self.size = self.base;
    }

    /// Notes a grant up to `up_to`.
    pub(super) fn granted(&mut self, up_to: u64) {
        if up_to > self.last {
            self.before = std::mem::replace(&mut self.last, up_to);
        }
    }

    /// Notes that frames up to `confirmed` are confirmed, and whether the buffer is empty. Called before the request
    /// that may follow.
    pub(super) fn confirmed(&mut self, confirmed: u64, is_empty: bool) {
        if self.size >= self.largest || !is_empty {
            return;
        }
        if confirmed != self.before {
            self.occasions = 0;
            return;
        }
        self.occasions += 1;
        if self.occasions >= OCCASIONS {
            self.size = self.size.saturating_mul(2).min(self.largest);
            self.occasions = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The consumer runs empty at `confirmed`, and then grants up to `up_to`.
    fn turn(window: &mut Window, confirmed: u64, up_to: u64) -> u64 {
        window.confirmed(confirmed, true);
        window.granted(up_to);
        window.size()
    }

    /// A window whose grant up to 20 has arrived, and whose grant up to 30 is on its way.
    fn begun(largest: u32) -> Window {
        let mut window = Window::new(20, largest);
        window.granted(20);
        window.granted(30);
        window
    }

    #[test]
    fn a_window_that_runs_dry_twice_doubles_up_to_its_limit() {
        let mut window = begun(70);
        assert_eq!(turn(&mut window, 20, 40), 20, "once is chance");
        assert_eq!(turn(&mut window, 30, 70), 40);
        assert_eq!(turn(&mut window, 40, 90), 40);
        assert_eq!(turn(&mut window, 70, 140), 70, "the limit");
        assert_eq!(turn(&mut window, 90, 160), 70);
    }

    #[test]
    fn slow_producer_does_not_grow_the_window() {
        let mut window = begun(1024);
        (11..20).for_each(|confirmed| window.confirmed(confirmed, true));
        assert_eq!(turn(&mut window, 20, 40), 20);
        window.confirmed(21, true);
        assert_eq!(turn(&mut window, 30, 50), 20, "not twice in a row");
        // Not empty: the frames in hand, not the window, hold the producer back.
        window.confirmed(40, false);
        assert_eq!(window.size(), 20);
    }

    #[test]
    fn an_idle_link_goes_back_to_its_base() {
        let now = Instant::now();
        let mut window = begun(1024);
        window.on_frame(now);
        turn(&mut window, 20, 40);
        assert_eq!(turn(&mut window, 30, 70), 40);
        window.on_frame(now + IDLE - Duration::from_millis(1));
        assert_eq!(window.size(), 40);
        window.on_frame(now + IDLE * 2);
        assert_eq!(window.size(), 20);
    }
}
