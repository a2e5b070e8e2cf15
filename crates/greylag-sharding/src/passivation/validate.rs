//! Finds invalid settings of passivation, single or in combination. Source: sharding §7.

use std::fmt::Display;

use super::policy::{AdmissionWindow, FrequencySketch, HillClimbing, ReplacementPolicy, Segments};
use super::settings::Passivation;
use super::sketch::width;
use crate::error::InvalidSetting;

/// Allowed excess of a proportion, for rounding errors in sums of decimal fractions.
const ROUNDING: f64 = 1e-9;

/// An invalid setting: its key below `sharding`, its value, and the fault.
type Fault = (&'static str, String, &'static str);

impl Passivation {
    /// Checks the values, single and in combination.
    ///
    /// # Errors
    /// [`InvalidSetting`] names the first one found wrong.
    pub fn validate(&self) -> Result<(), InvalidSetting> {
        self.first_fault().map_err(|(key, value, reason)| InvalidSetting { key, value, reason })
    }

    pub(super) fn first_fault(&self) -> Result<(), Fault> {
        if let Some((key, value, reason)) = self.misplaced {
            return Err((key, value.to_owned(), reason));
        }
        if let Some(interval) = self.idle_interval {
            let value = format!("{interval:?}");
            let key = "passivation.<s>.idle_entity.interval";
            check(key, &value, !interval.is_zero(), "it must not be zero")?;
            check(key, &value, self.idle_timeout.is_some(), "it needs an idle timeout")?;
        }
        let Some(limit) = self.limit else { return Ok(()) };
        check("passivation.<s>.active_entity_limit", limit, limit > 0, "it must not be zero")?;
        if let ReplacementPolicy::LeastRecentlyUsed(Some(segments)) = &self.policy {
            check_segments(
                segments,
                "passivation.<s>.replacement.least_recently_used.segmented.levels",
                "passivation.<s>.replacement.least_recently_used.segmented.proportions",
            )?;
        }
        self.window.as_ref().map_or(Ok(()), check_window)?;
        self.filter.as_ref().map_or(Ok(()), |sketch| check_sketch(sketch, limit))
    }
}

fn check(key: &'static str, value: impl Display, holds: bool, reason: &'static str) -> Result<(), Fault> {
    if holds { Ok(()) } else { Err((key, value.to_string(), reason)) }
}

fn is_proportion(value: f64) -> bool {
    (0.0..=1.0).contains(&value)
}

fn check_proportion(key: &'static str, value: f64) -> Result<(), Fault> {
    check(key, value, is_proportion(value), "it must be from 0 to 1")
}

fn check_segments(segments: &Segments, levels: &'static str, proportions: &'static str) -> Result<(), Fault> {
    check(levels, segments.levels, segments.levels > 0, "it must not be zero")?;
    let parts = &segments.proportions;
    let value = format!("{parts:?}");
    let complete = parts.is_empty() || parts.len() == usize::from(segments.levels);
    check(proportions, &value, complete, "there must be as many as levels, or none")?;
    check(proportions, &value, parts.iter().copied().all(is_proportion), "each must be from 0 to 1")?;
    check(proportions, &value, parts.iter().sum::<f64>() <= 1.0 + ROUNDING, "their sum must not exceed 1")
}

fn check_window(window: &AdmissionWindow) -> Result<(), Fault> {
    if let ReplacementPolicy::LeastRecentlyUsed(Some(segments)) = &window.policy {
        check_segments(
            segments,
            "passivation.<s>.admission.window.least_recently_used.segmented.levels",
            "passivation.<s>.admission.window.least_recently_used.segmented.proportions",
        )?;
    }
    let (minimum, maximum) = (window.minimum_proportion, window.maximum_proportion);
    let key = "passivation.<s>.admission.window.minimum_proportion";
    check_proportion("passivation.<s>.admission.window.proportion", window.proportion)?;
    check_proportion(key, minimum)?;
    check_proportion("passivation.<s>.admission.window.maximum_proportion", maximum)?;
    check(key, minimum, minimum <= maximum, "it must not exceed maximum_proportion")?;
    window.optimizer.as_ref().map_or(Ok(()), check_hill_climbing)
}

fn check_hill_climbing(hill_climbing: &HillClimbing) -> Result<(), Fault> {
    let HillClimbing { adjust_multiplier, initial_step, restart_threshold, step_decay } = *hill_climbing;
    check_positive("passivation.<s>.admission.window.hill_climbing.adjust_multiplier", adjust_multiplier)?;
    check_proportion("passivation.<s>.admission.window.hill_climbing.initial_step", initial_step)?;
    check_proportion("passivation.<s>.admission.window.hill_climbing.restart_threshold", restart_threshold)?;
    check_proportion("passivation.<s>.admission.window.hill_climbing.step_decay", step_decay)
}

fn check_positive(key: &'static str, value: f64) -> Result<(), Fault> {
    check(key, value, value.is_finite() && value > 0.0, "it must be a number above 0")
}

fn check_sketch(sketch: &FrequencySketch, limit: usize) -> Result<(), Fault> {
    let FrequencySketch { depth, counter_bits, width_multiplier, reset_multiplier } = *sketch;
    check("passivation.<s>.admission.frequency_sketch.depth", depth, depth > 0, "it must not be zero")?;
    check(
        "passivation.<s>.admission.frequency_sketch.counter_bits",
        counter_bits,
        matches!(counter_bits, 2 | 4 | 8 | 16 | 32 | 64),
        "it must be 2, 4, 8, 16, 32 or 64",
    )?;
    let key = "passivation.<s>.admission.frequency_sketch.width_multiplier";
    check(key, width_multiplier, width_multiplier > 0, "it must not be zero")?;
    check(
        key,
        width_multiplier,
        width(width_multiplier, limit).is_some(),
        "with this active_entity_limit a row would have more than 2^31 counters",
    )?;
    check_positive("passivation.<s>.admission.frequency_sketch.reset_multiplier", reset_multiplier)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn lru() -> Passivation {
        Passivation::least_recently_used(10)
    }

    fn window(proportion: f64) -> Passivation {
        lru().admission_window(ReplacementPolicy::least_recently_used(), proportion)
    }

    fn climbing(change: impl FnOnce(&mut HillClimbing)) -> Passivation {
        let mut hill_climbing = HillClimbing::default();
        change(&mut hill_climbing);
        window(0.1).hill_climbing(hill_climbing)
    }

    fn sketched(change: impl FnOnce(&mut FrequencySketch)) -> Passivation {
        let mut sketch = FrequencySketch::default();
        change(&mut sketch);
        lru().frequency_sketch(sketch)
    }

    #[test]
    fn valid_strategies_pass_validation() {
        let second = Duration::from_secs(1);
        let good = [
            Passivation::none(),
            Passivation::default(),
            Passivation::idle_after(Duration::ZERO),
            Passivation::idle_after(second).idle_interval(second),
            Passivation::recommended().with_idle(second),
            Passivation::most_recently_used(1),
            Passivation::least_frequently_used(1).dynamic_aging(),
            lru().segmented(1, &[]),
            lru().segmented(3, &[]),
            // In floating point these sums are a little more than 1.
            lru().segmented(6, &[0.1, 0.2, 0.3, 0.1, 0.2, 0.1]),
            window(0.0),
            window(1.0).window_bounds(1.0, 1.0),
        ];
        for settings in good {
            assert_eq!(settings.validate(), Ok(()), "{settings:?}");
        }
    }

    #[test]
    fn nonsense_is_named() {
        let second = Duration::from_secs(1);
        let window_segments = ReplacementPolicy::segmented(2, &[0.8, 0.3]);
        let wrong = [
            (Passivation::least_recently_used(0), "active_entity_limit"),
            (Passivation::none().with_limit(3), "active_entity_limit"),
            (Passivation::idle_after(second).idle_interval(Duration::ZERO), "idle_entity.interval"),
            (lru().idle_interval(second), "idle_entity.interval"),
            (lru().segmented(0, &[]), "replacement.least_recently_used.segmented.levels"),
            (lru().segmented(2, &[1.0]), "replacement.least_recently_used.segmented.proportions"),
            (lru().segmented(2, &[0.2, 0.9]), "replacement.least_recently_used.segmented.proportions"),
            (lru().segmented(2, &[-0.1, 0.9]), "replacement.least_recently_used.segmented.proportions"),
            (lru().segmented(2, &[f64::NAN, 0.9]), "replacement.least_recently_used.segmented.proportions"),
            (
                lru().admission_window(window_segments, 0.1),
                "admission.window.least_recently_used.segmented.proportions",
            ),
            (Passivation::most_recently_used(1).segmented(2, &[]), "replacement.least_recently_used.segmented"),
            (lru().dynamic_aging(), "replacement.least_frequently_used.dynamic_aging"),
            (window(1.1), "admission.window.proportion"),
            (window(f64::NAN), "admission.window.proportion"),
            (window(0.1).window_bounds(-0.1, 1.0), "admission.window.minimum_proportion"),
            (window(0.1).window_bounds(0.0, 1.5), "admission.window.maximum_proportion"),
            (window(0.1).window_bounds(0.5, 0.4), "admission.window.minimum_proportion"),
            (lru().window_bounds(0.1, 0.2), "admission.window.minimum_proportion"),
            (lru().hill_climbing(HillClimbing::default()), "admission.window.optimizer"),
            (
                Passivation::none().admission_window(ReplacementPolicy::most_recently_used(), 0.1),
                "admission.window.policy",
            ),
            (climbing(|it| it.adjust_multiplier = 0.0), "admission.window.hill_climbing.adjust_multiplier"),
            (climbing(|it| it.initial_step = 1.5), "admission.window.hill_climbing.initial_step"),
            (climbing(|it| it.restart_threshold = -1.0), "admission.window.hill_climbing.restart_threshold"),
            (climbing(|it| it.step_decay = f64::NAN), "admission.window.hill_climbing.step_decay"),
            (Passivation::none().frequency_sketch(FrequencySketch::default()), "admission.filter"),
            (sketched(|it| it.depth = 0), "admission.frequency_sketch.depth"),
            (sketched(|it| it.counter_bits = 5), "admission.frequency_sketch.counter_bits"),
            (sketched(|it| it.counter_bits = 128), "admission.frequency_sketch.counter_bits"),
            (sketched(|it| it.width_multiplier = 0), "admission.frequency_sketch.width_multiplier"),
            (sketched(|it| it.width_multiplier = u32::MAX), "admission.frequency_sketch.width_multiplier"),
            (sketched(|_| ()).with_limit(usize::MAX), "admission.frequency_sketch.width_multiplier"),
            (sketched(|it| it.reset_multiplier = f64::INFINITY), "admission.frequency_sketch.reset_multiplier"),
        ];
        for (settings, key) in wrong {
            let found = settings.validate().unwrap_err().key;
            assert_eq!(found.strip_prefix("passivation.<s>."), Some(key), "{settings:?}");
        }
    }
}
