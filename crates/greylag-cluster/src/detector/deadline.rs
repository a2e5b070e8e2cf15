//! The detector with a fixed limit.
//!
//! Source: cluster F7.

use std::time::{Duration, Instant};

use super::failure_detector::FailureDetector;
use super::settings::FailureDetectorSettings;

/// Counts a peer as alive until it was silent for a fixed time. Source: cluster F7.
#[derive(Debug, Clone)]
pub struct Deadline {
    patience: Duration,
    last: Option<Instant>,
}

impl Deadline {
    /// A detector that has heard nothing; its limit is one `heartbeat_interval` plus the `acceptable_heartbeat_pause`.
    pub fn new(settings: &FailureDetectorSettings) -> Self {
        Self { patience: settings.heartbeat_interval + settings.acceptable_heartbeat_pause, last: None }
    }
}

impl FailureDetector for Deadline {
    fn heartbeat(&mut self, now: Instant) {
        self.last = Some(now);
    }

    fn is_started(&self) -> bool {
        self.last.is_some()
    }

    fn is_available(&self, now: Instant) -> bool {
        self.last.is_none_or(|last| now < last + self.patience)
    }

    fn restart_after_pause(&mut self, now: Instant) {
        if self.last.is_some() {
            self.last = Some(now);
        }
    }
}
