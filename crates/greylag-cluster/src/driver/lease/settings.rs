//! Settings of leases.

use std::time::Duration;

use crate::error::ConfigError;

/// How leases are kept alive, and how long to wait for their store. Source: cluster S16.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaseSettings {
    /// A lease that was not renewed for this long is free. Default 120 s.
    pub heartbeat_timeout: Duration,
    /// The time between renewals. Default 12 s.
    pub heartbeat_interval: Duration,
    /// How long one request to the store may take before its outcome counts as unknown. Default 5 s.
    pub operation_timeout: Duration,
}

impl Default for LeaseSettings {
    fn default() -> Self {
        Self {
            heartbeat_timeout: Duration::from_secs(120),
            heartbeat_interval: Duration::from_secs(12),
            operation_timeout: Duration::from_secs(5),
        }
    }
}

impl LeaseSettings {
    /// Short times, for tests on one machine.
    pub fn test() -> Self {
        Self {
            heartbeat_timeout: Duration::from_secs(6),
            heartbeat_interval: Duration::from_millis(500),
            operation_timeout: Duration::from_secs(2),
        }
    }

    /// Checks every value, and that the values fit each other.
    ///
    /// # Errors
    /// All problems together.
    pub fn validate(&self) -> Result<(), Vec<ConfigError>> {
        let mut problems = Vec::new();
        let mut check = |ok: bool, setting: &'static str, value: Duration, why: &'static str| {
            if !ok {
                problems.push(ConfigError { setting: setting.into(), value: format!("{value:?}"), why });
            }
        };
        let (interval, operation) = (self.heartbeat_interval, self.operation_timeout);
        check(!interval.is_zero(), "lease.heartbeat_interval", interval, "must be longer than 0");
        check(!operation.is_zero(), "lease.operation_timeout", operation, "must be longer than 0");
        check(
            self.heartbeat_timeout >= 2 * (interval + operation),
            "lease.heartbeat_timeout",
            self.heartbeat_timeout,
            "must be at least twice heartbeat_interval + operation_timeout, so that one lost renewal loses no lease",
        );
        if problems.is_empty() { Ok(()) } else { Err(problems) }
    }
}
