//! All settings of a delivery tracker, with their defaults.

use std::num::{NonZeroU32, NonZeroUsize};
use std::time::Duration;

use crate::contract::settings::SettingsError;

/// Settings of the repetition of one behaviour's deliveries. Source: persistence §6, §9 (`delivery_tracker.*`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeliveryTrackerSettings {
    /// Time from one attempt to the next; checked twice in this time. Default 5 s.
    pub redeliver_interval: Duration,
    /// Most deliveries sent again in one tick. Default 10,000.
    pub redelivery_burst_limit: NonZeroUsize,
    /// Number of attempts after which an unconfirmed delivery is reported. Default 5.
    pub warn_after_attempts: NonZeroU32,
    /// The limit that [`DeliveryTracker::has_room`](crate::DeliveryTracker::has_room) checks. Default
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
    /// Time between two ticks.
    pub(super) fn tick_interval(&self) -> Duration {
        self.redeliver_interval / 2
    }

    pub(crate) fn validate(&self) -> Result<(), SettingsError> {
        if self.tick_interval().is_zero() {
            return Err(SettingsError::ZeroDuration { key: "delivery_tracker.redeliver_interval" });
        }
        Ok(())
    }
}
