//! The settings of failure detection, with the kind of the detectors.
//!
//! Source: cluster F1, F5, F7, §6.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::failure_detector::FailureDetector;

/// Settings of the failure detector. Source: cluster F1 to F9.
#[derive(Debug, Clone, PartialEq)]
pub struct FailureDetectorSettings {
    /// The kind of detector that judges the silence of a peer. Default phi-accrual.
    pub kind: DetectorKind,
    /// The time between heartbeats. Default 1 s.
    pub heartbeat_interval: Duration,
    /// The suspicion from which a peer counts as unavailable. Default 8.
    pub threshold: f64,
    /// Intervals remembered per peer. Default 1 000.
    pub max_sample_size: usize,
    /// The least deviation assumed. Default 100 ms.
    pub min_std_deviation: Duration,
    /// Silence added to the expected arrival before suspicion rises, to tolerate short delays. Default 3 s.
    pub acceptable_heartbeat_pause: Duration,
    /// A peer that never answered counts as heard once after this long, so that its silence is detected. Default 1 s.
    pub expected_response_after: Duration,
    /// How many peers each node watches. Default 9.
    pub monitored_by_nr_of_members: usize,
    /// A tick that is later than this means that this process stood still; the node then accuses no peer. Default 2 s.
    pub local_pause_threshold: Duration,
}

impl Default for FailureDetectorSettings {
    fn default() -> Self {
        Self {
            kind: DetectorKind::Phi,
            heartbeat_interval: Duration::from_secs(1),
            threshold: 8.0,
            max_sample_size: 1000,
            min_std_deviation: Duration::from_millis(100),
            acceptable_heartbeat_pause: Duration::from_secs(3),
            expected_response_after: Duration::from_secs(1),
            monitored_by_nr_of_members: 9,
            local_pause_threshold: Duration::from_secs(2),
        }
    }
}

impl FailureDetectorSettings {
    /// The time that any wait for a stable picture must cover: detecting a silent peer and spreading the news of it.
    /// Source: cluster S4.
    pub fn detection(&self) -> Duration {
        self.acceptable_heartbeat_pause + self.expected_response_after + 3 * self.heartbeat_interval
    }

    /// How long a tick of this node permits running user code.
    /// Source: cluster F9.
    pub fn tick_counts_for(&self) -> Duration {
        self.local_pause_threshold + self.heartbeat_interval
    }

    /// Faster settings, for tests on one machine; the acceptable pause stays long enough for a loaded machine.
    pub fn test() -> Self {
        Self {
            heartbeat_interval: Duration::from_millis(100),
            acceptable_heartbeat_pause: Duration::from_secs(2),
            expected_response_after: Duration::from_millis(200),
            ..Self::default()
        }
    }
}

/// The kind of detector that watches each peer.
#[derive(Debug, Clone, PartialEq, Default)]
pub enum DetectorKind {
    /// [`PhiAccrual`](crate::PhiAccrual): learns the rhythm of each peer.
    #[default]
    Phi,
    /// [`Deadline`](crate::Deadline): a fixed time.
    Deadline,
    /// The program's own.
    Custom(CustomDetector),
}

type Make = dyn Fn(&FailureDetectorSettings) -> Box<dyn FailureDetector> + Send + Sync;

/// A program's own factory of detectors. Equal only to its clones.
#[derive(Clone)]
pub struct CustomDetector {
    make: Arc<Make>,
}

impl CustomDetector {
    /// Wraps `make`, which is called once per watched peer, and again when a peer is watched anew.
    pub fn new(make: impl Fn(&FailureDetectorSettings) -> Box<dyn FailureDetector> + Send + Sync + 'static) -> Self {
        Self { make: Arc::new(make) }
    }

    /// Makes a detector that has heard nothing.
    pub(super) fn make(&self, settings: &FailureDetectorSettings) -> Box<dyn FailureDetector> {
        (self.make)(settings)
    }
}

impl fmt::Debug for CustomDetector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CustomDetector")
    }
}

impl PartialEq for CustomDetector {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.make, &other.make)
    }
}
