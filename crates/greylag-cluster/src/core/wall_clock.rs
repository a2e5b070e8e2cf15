//! The wall clock of this node, as its driver last told it.

use std::time::Instant;

use crate::gossip::counter_bounds::CounterBounds;

/// The wall clock, in ms since 1970, at some instant.
#[derive(Debug, Clone, Copy)]
pub(super) struct WallClock {
    at: Instant,
    ms: u64,
}

impl WallClock {
    /// A clock that was not told the time yet.
    pub(super) fn new(now: Instant) -> Self {
        Self { at: now, ms: 0 }
    }

    /// Sets the clock to the time that the driver tells.
    pub(super) fn on_told(&mut self, now: Instant, ms: u64) {
        *self = Self { at: now, ms };
    }

    /// The time, in ms since 1970.
    pub(super) fn ms(&self, now: Instant) -> u64 {
        self.ms + u64::try_from(now.saturating_duration_since(self.at).as_millis()).unwrap_or(u64::MAX / 2)
    }

    /// The greatest values that honest counters can have by now.
    pub(super) fn counter_bounds(&self, now: Instant) -> CounterBounds {
        CounterBounds::at(self.ms(now))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_clock_goes_on_from_the_time_that_it_was_told() {
        let now = Instant::now();
        let mut clock = WallClock::new(now);
        clock.on_told(now + Duration::from_secs(1), 5_000);
        assert_eq!(clock.ms(now + Duration::from_secs(3)), 7_000);
        assert_eq!(clock.ms(now), 5_000, "an instant before the telling counts as that of the telling");
    }
}
