//! Makes detectors of the kind that the settings name.

use super::deadline::Deadline;
use super::failure_detector::FailureDetector;
use super::phi::PhiAccrual;
use super::settings::{DetectorKind, FailureDetectorSettings};

impl DetectorKind {
    /// Makes a detector that has heard nothing.
    pub(crate) fn make(&self, settings: &FailureDetectorSettings) -> Box<dyn FailureDetector> {
        match self {
            Self::Phi => Box::new(PhiAccrual::new(settings)),
            Self::Deadline => Box::new(Deadline::new(settings)),
            Self::Custom(custom) => custom.make(settings),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use crate::detector::CustomDetector;

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
