//! Failure detectors: one per watched peer, of a kind that can be chosen.
//!
//! A detector is told of each sign of life and decides whether the present silence is still ordinary. [`PhiAccrual`]
//! learns the peer's rhythm; [`Deadline`] has a fixed limit; a program may bring a kind of its own.
//!
//! Source: cluster F5, F7.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::phi::PhiAccrual;
use crate::settings::FailureDetectorSettings;

/// Judges the silence of one peer. Source: cluster F7.
pub trait FailureDetector: fmt::Debug + Send {
    /// Notes an answer of the peer.
    fn heartbeat(&mut self, now: Instant);

    /// Whether any sign of life was noted, real or assumed.
    fn is_started(&self) -> bool;

    /// Whether the peer counts as alive. A peer that was never heard does.
    fn is_available(&self, now: Instant) -> bool;

    /// Restarts after a pause of this process, which ended at `now`: neither the silence before nor the interval that
    /// begins now says anything about the peer. Source: cluster F9.
    fn restart_after_pause(&mut self, now: Instant);
}

/// The kind of detector that watches each peer.
#[derive(Debug, Clone, PartialEq, Default)]
pub enum DetectorKind {
    /// [`PhiAccrual`]: learns the rhythm of each peer.
    #[default]
    Phi,
    /// [`Deadline`]: a fixed time.
    Deadline,
    /// The program's own.
    Custom(CustomDetector),
}

impl DetectorKind {
    /// Makes a detector that has heard nothing.
    pub(crate) fn make(&self, settings: &FailureDetectorSettings) -> Box<dyn FailureDetector> {
        match self {
            Self::Phi => Box::new(PhiAccrual::new(settings)),
            Self::Deadline => Box::new(Deadline::new(settings)),
            Self::Custom(custom) => (custom.make)(settings),
        }
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    /// cluster F7.
    #[test]
    fn scenario_40_the_deadline_detector() {
        let settings = FailureDetectorSettings {
            kind: DetectorKind::Deadline,
            heartbeat_interval: Duration::from_secs(1),
            acceptable_heartbeat_pause: Duration::from_secs(4),
            ..FailureDetectorSettings::default()
        };
        let start = Instant::now();
        let mut detector = settings.kind.make(&settings);
        assert!(detector.is_available(start + Duration::from_secs(100)), "never heard");
        detector.heartbeat(start);
        assert!(detector.is_available(start + Duration::from_millis(100)));
        assert!(!detector.is_available(start + Duration::from_secs(7)));
        let later = start + Duration::from_secs(8);
        detector.heartbeat(later);
        assert!(detector.is_available(later));
        detector.restart_after_pause(later + Duration::from_secs(60));
        assert!(detector.is_available(later + Duration::from_secs(64)), "silence counts from the end of the pause");
    }

    /// cluster F7.
    #[test]
    fn a_program_may_bring_its_own_detector() {
        #[derive(Debug)]
        struct Paranoid;
        impl FailureDetector for Paranoid {
            fn heartbeat(&mut self, _: Instant) {}
            fn is_started(&self) -> bool {
                true
            }
            fn is_available(&self, _: Instant) -> bool {
                false
            }
            fn restart_after_pause(&mut self, _: Instant) {}
        }
        let custom = CustomDetector::new(|_| Box::new(Paranoid));
        let kind = DetectorKind::Custom(custom.clone());
        assert_eq!(kind, DetectorKind::Custom(custom));
        let settings = FailureDetectorSettings { kind, ..FailureDetectorSettings::default() };
        assert!(!settings.kind.make(&settings).is_available(Instant::now()));
    }
}
