//! Climbs towards the window proportion with which most uses find their entity active.
//!
//! The climber takes a step, watches the rate for a while, and goes on in the same direction if the rate did not fall.
//! Steps grow shorter until the rate changes much, which means that the uses have changed.

use super::policy::HillClimbing;

/// The optimizer of a shard's admission window.
#[derive(Debug)]
pub(super) struct HillClimber {
    settings: HillClimbing,
    /// Uses between two steps.
    interval: f64,
    uses: u64,
    hits: u64,
    /// Hits per use in the interval before the last step.
    rate: f64,
    next_step: f64,
}

impl HillClimber {
    /// A climber whose first step goes down.
    pub(super) fn new(settings: HillClimbing, limit: usize) -> Self {
        let interval = settings.adjust_multiplier * limit as f64;
        Self { settings, interval, uses: 0, hits: 0, rate: 0.0, next_step: -settings.initial_step }
    }

    /// Changes the limit.
    pub(super) fn set_limit(&mut self, limit: usize) {
        self.interval = self.settings.adjust_multiplier * limit as f64;
    }

    /// Counts a use, of an entity that was active (a hit) or not. Returns a step if one is due: the change of the
    /// proportion.
    pub(super) fn count(&mut self, hit: bool) -> Option<f64> {
        self.uses += 1;
        self.hits += u64::from(hit);
        if (self.uses as f64) < self.interval {
            return None;
        }
        let rate = self.hits as f64 / self.uses as f64;
        let change = rate - self.rate;
        let step = if change >= 0.0 { self.next_step } else { -self.next_step };
        let restart = change.abs() >= self.settings.restart_threshold;
        self.next_step =
            if restart { self.settings.initial_step.copysign(step) } else { step * self.settings.step_decay };
        (self.uses, self.hits, self.rate) = (0, 0, rate);
        Some(step)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts uses 1 to `count`, `hit` or not; returns the numbers of those with a step, and the steps.
    fn steps(change: HillClimbing, count: u32, hit: impl Fn(u32) -> bool) -> Vec<(u32, f64)> {
        let mut climber = HillClimber::new(HillClimbing { adjust_multiplier: 2.0, ..change }, 5);
        (1..=count).filter_map(|at| Some((at, climber.count(hit(at))?))).collect()
    }

    /// Scenario sharding 68.
    #[test]
    fn the_first_step_goes_down() {
        let settings = HillClimbing { initial_step: 0.123, ..HillClimbing::default() };
        assert_eq!(steps(settings, 10, |_| false), [(10, -0.123)]);
    }

    /// Scenario sharding 68.
    #[test]
    fn a_step_is_due_after_so_many_uses_and_each_is_shorter() {
        let settings = HillClimbing { initial_step: 0.1, step_decay: 0.5, ..HillClimbing::default() };
        let expected: Vec<_> = (0..10).map(|at| ((at + 1) * 10, -0.1 * 0.5_f64.powf(f64::from(at)))).collect();
        assert_eq!(steps(settings, 100, |_| false), expected);
    }

    /// Scenario sharding 68.
    #[test]
    fn steps_restart_when_the_rate_jumps() {
        let settings = HillClimbing { initial_step: 0.1, step_decay: 0.5, ..HillClimbing::default() };
        let powers = [0, 1, 2, 3, 4, 0, 1, 2, 3, 4];
        let expected: Vec<_> = (10..).step_by(10).zip(powers.map(|power| -0.1 * 0.5_f64.powi(power))).collect();
        assert_eq!(steps(settings, 100, |at| at > 40), expected);
    }

    /// Scenario sharding 68.
    #[test]
    fn the_direction_turns_when_the_rate_falls() {
        let settings = HillClimbing { initial_step: 0.01, ..HillClimbing::default() };
        for (at, step) in steps(settings, 500, |at| at % 10 < 10_u32.saturating_sub(at / 50).max(1)) {
            assert_eq!(step < 0.0, ((at - 1) / 50) % 2 == 0, "{step} at {at}");
        }
    }
}
