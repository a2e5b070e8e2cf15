//! Every number of a delivery tracker, with its default.

use std::num::{NonZeroU32, NonZeroUsize};
use std::time::Duration;

use crate::settings::SettingsError;

/// How one behaviour's deliveries are repeated. Source: persistence §6, §9 (`delivery_tracker.*`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeliveryTrackerSettings {
    /// How old the last attempt is when the next one follows; looked at twice as often. Default 5 s.
    pub redeliver_interval: Duration,
    /// Most deliveries sent again at a time. Default 10,000.
    pub redelivery_burst_limit: NonZeroUsize,
    /// After how many attempts a delivery that is not confirmed is told of. Default 5.
    pub warn_after_attempts: NonZeroU32,
    /// What [`DeliveryTracker::has_room`](crate::DeliveryTracker::has_room) measures by. Default
    /// 100,000.
    pub max_unconfirmed: NonZeroUsize,
}

impl Default for DeliveryTrackerSettings {
    fn default() -> Self {
        Self {
            redeliver_interval: Duration::from_secs(5),
            redelivery_burst_limit: NonZeroUsize::new(10_000).expect("not zero"),
            warn_after_attempts: NonZeroU32::new(5).expect("not zero"),
            max_unconfirmed: NonZeroUsize::new(100_000).expect("not zero"),
        }
    }
}

impl DeliveryTrackerSettings {
    /// Between two looks at what is due.
    pub(super) fn tick_interval(&self) -> Duration {
        self.redeliver_interval / 2
    }

    pub(crate) fn check(&self) -> Result<(), SettingsError> {
        if self.tick_interval().is_zero() {
            return Err(SettingsError::ZeroDuration { key: "delivery_tracker.redeliver_interval" });
        }
        Ok(())
    }
}
