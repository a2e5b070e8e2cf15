//! The wall clock between two inputs that bring it.

use std::time::Instant;

use crate::pruning::millis;

/// The last wall clock that was given, with the time of that input.
#[derive(Debug, Clone, Copy)]
pub(super) struct WallClock {
    at: Instant,
    wall_ms: i64,
}

impl WallClock {
    /// A clock that shows 0, because none was given so far.
    pub(super) fn new(now: Instant) -> Self {
        Self { at: now, wall_ms: 0 }
    }

    /// The wall clock: the last one given, advanced by the time since.
    pub(super) fn ms(&self, now: Instant) -> i64 {
        self.wall_ms.saturating_add(millis(now.saturating_duration_since(self.at)))
    }

    /// The last wall clock given, however long ago.
    pub(super) fn last_ms(&self) -> i64 {
        self.wall_ms
    }

    /// Sets the clock. Returns by how many milliseconds it went back.
    pub(super) fn set(&mut self, now: Instant, wall_ms: i64) -> i64 {
        let by_ms = self.ms(now).saturating_sub(wall_ms);
        *self = Self { at: now, wall_ms };
        by_ms
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_clock_advances_with_the_time_and_says_by_how_much_it_went_back() {
        let now = Instant::now();
        let mut clock = WallClock::new(now);
        assert_eq!(clock.set(now, 5_000), -5_000);
        let later = now + Duration::from_millis(700);
        assert_eq!((clock.ms(later), clock.last_ms()), (5_700, 5_000));
        assert_eq!(clock.set(later, 5_600), 100);
        assert_eq!(clock.ms(later), 5_600);
    }
}
