//! The phi-accrual failure detector: rates how surprising the present silence of a peer is.
//!
//! From the intervals between a peer's responses the detector estimates how likely a response is still to come; phi is
//! the negative logarithm of that probability. Intervals that ended a silence are not learned, so a long gap does not
//! make the next one look normal.
//!
//! Source: cluster F5; Hayashibara et al. 2004; the logistic approximation of the normal
//! distribution's tail as in the reference.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::failure_detector::FailureDetector;
use super::settings::FailureDetectorSettings;

/// Watches one peer.
#[derive(Debug, Clone)]
pub struct PhiAccrual {
    threshold: f64,
    max_samples: usize,
    min_deviation: f64,
    pause: f64,
    interval_ms: u64,
    /// Intervals in milliseconds; the exact sums follow.
    samples: VecDeque<u64>,
    sum: u64,
    sum_of_squares: u128,
    last: Option<Instant>,
    /// Whether the next interval began with a pause of this process, and so says nothing about the peer.
    skip_sample: bool,
}

impl PhiAccrual {
    /// A detector that has heard nothing.
    pub fn new(settings: &FailureDetectorSettings) -> Self {
        Self {
            threshold: settings.threshold,
            max_samples: settings.max_sample_size,
            min_deviation: ms(settings.min_std_deviation) as f64,
            pause: ms(settings.acceptable_heartbeat_pause) as f64,
            interval_ms: ms(settings.heartbeat_interval),
            samples: VecDeque::new(),
            sum: 0,
            sum_of_squares: 0,
            last: None,
            skip_sample: false,
        }
    }

    /// The suspicion: 1 means a chance of one in ten that the silence is ordinary, 2 of one in a hundred. May be
    /// infinite.
    pub fn phi(&self, now: Instant) -> f64 {
        let Some(last) = self.last else { return 0.0 };
        let silence = ms(now.saturating_duration_since(last)) as f64;
        let count = self.samples.len() as f64;
        let mean = self.sum as f64 / count;
        let variance = (self.sum_of_squares as f64 / count - mean * mean).max(0.0);
        phi(silence, mean + self.pause, variance.sqrt().max(self.min_deviation))
    }

    fn push(&mut self, sample: u64) {
        if self.samples.len() >= self.max_samples.max(2)
            && let Some(oldest) = self.samples.pop_front()
        {
            self.sum -= oldest;
            self.sum_of_squares -= u128::from(oldest) * u128::from(oldest);
        }
        self.samples.push_back(sample);
        self.sum += sample;
        self.sum_of_squares += u128::from(sample) * u128::from(sample);
    }
}

impl FailureDetector for PhiAccrual {
    fn is_started(&self) -> bool {
        self.last.is_some()
    }

    fn heartbeat(&mut self, now: Instant) {
        match self.last {
            None => {
                let quarter = self.interval_ms / 4;
                self.push(self.interval_ms - quarter);
                self.push(self.interval_ms + quarter);
            }
            Some(last) if !self.skip_sample && self.is_available(now) => self.push(ms(now - last)),
            Some(_) => {}
        }
        self.skip_sample = false;
        self.last = Some(now);
    }

    fn restart_after_pause(&mut self, now: Instant) {
        if self.last.is_some() {
            self.last = Some(now);
            self.skip_sample = true;
        }
    }

    fn is_available(&self, now: Instant) -> bool {
        self.phi(now) < self.threshold
    }
}

fn ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn phi(silence: f64, mean: f64, deviation: f64) -> f64 {
    let y = (silence - mean) / deviation;
    let e = (-y * (1.5976 + 0.070_566 * y * y)).exp();
    if silence > mean { -(e / (1.0 + e)).log10() } else { -(1.0 - 1.0 / (1.0 + e)).log10() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(value: f64, expected: f64) -> bool {
        (value - expected).abs() < 0.1
    }

    /// cluster F5.
    #[test]
    fn scenario_39_check_values() {
        for (silence, expected) in [
            (500.0, 0.0),
            (1000.0, 0.301),
            (1100.0, 0.80),
            (1200.0, 1.64),
            (1400.0, 4.74),
            (1600.0, 10.8),
            (1700.0, 15.4),
        ] {
            let value = phi(silence, 1000.0, 100.0);
            assert!(close(value, expected), "phi({silence}) = {value}, not {expected}");
        }
        assert!(!phi(1e9, 1000.0, 100.0).is_nan());
    }

    #[test]
    fn scenario_39_nothing_heard_is_no_suspicion_and_one_heartbeat_starts_it() {
        let settings = FailureDetectorSettings {
            acceptable_heartbeat_pause: Duration::ZERO,
            ..FailureDetectorSettings::default()
        };
        let start = Instant::now();
        let mut detector = PhiAccrual::new(&settings);
        assert_eq!(detector.phi(start + Duration::from_secs(1000)), 0.0);
        detector.heartbeat(start);
        let at = |seconds| detector.phi(start + Duration::from_secs(seconds));
        assert!(close(at(1), 0.3) && close(at(2), 4.74) && at(3) > 15.0, "{} {} {}", at(1), at(2), at(3));
    }

    /// cluster F5.
    #[test]
    fn scenario_40_a_long_gap_is_not_learned() {
        let start = Instant::now();
        let mut detector = PhiAccrual::new(&FailureDetectorSettings::default());
        let mut now = start;
        for _ in 0..1000 {
            detector.heartbeat(now);
            now += Duration::from_secs(1);
        }
        now += Duration::from_secs(300);
        assert!(!detector.is_available(now));
        detector.heartbeat(now);
        assert!(detector.is_available(now));
        assert!(!detector.is_available(now + Duration::from_secs(7)));
    }

    /// cluster F5.
    #[test]
    fn the_settled_and_the_fresh_peer_become_unavailable_when_the_specification_says() {
        let start = Instant::now();
        let first_unavailable = |detector: &PhiAccrual, last: Instant| {
            (4000..6000).find(|ms| !detector.is_available(last + Duration::from_millis(*ms))).unwrap()
        };
        let mut detector = PhiAccrual::new(&FailureDetectorSettings::default());
        detector.heartbeat(start);
        assert!(first_unavailable(&detector, start).abs_diff(5307) <= 1);
        let mut now = start;
        for _ in 0..1000 {
            now += Duration::from_secs(1);
            detector.heartbeat(now);
        }
        assert!(first_unavailable(&detector, now).abs_diff(4523) <= 1);
    }

    /// cluster F9, G4.
    #[test]
    fn a_pause_of_this_process_is_not_held_against_the_peer() {
        let start = Instant::now();
        let mut detector = PhiAccrual::new(&FailureDetectorSettings::default());
        detector.heartbeat(start);
        let woke = start + Duration::from_secs(60);
        detector.restart_after_pause(woke);
        assert!(detector.is_available(woke + Duration::from_secs(3)));
        detector.heartbeat(woke + Duration::from_millis(10));
        assert_eq!(detector.samples.len(), 2, "the shortened interval is not recorded");
    }
}
