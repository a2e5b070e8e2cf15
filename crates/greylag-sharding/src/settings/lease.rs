//! Settings of the leases of shards. Source: sharding §4.12, §7.

use std::time::Duration;

use crate::error::InvalidSetting;

/// Keys: `sharding.use_lease`, `sharding.lease_retry_interval`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShardLeaseSettings {
    /// The store of leases, one of which each shard holds while it runs; empty, the default, for shards without leases.
    /// Must name the only store of leases of the node's cluster.
    pub use_lease: String,
    /// Time between two requests for a lease that is refused or fails. Default 5 s.
    pub retry_interval: Duration,
}

impl Default for ShardLeaseSettings {
    fn default() -> Self {
        Self { use_lease: String::new(), retry_interval: Duration::from_secs(5) }
    }
}

impl ShardLeaseSettings {
    /// Whether shards hold leases.
    pub fn is_used(&self) -> bool {
        !self.use_lease.is_empty()
    }

    /// Checks the values.
    ///
    /// # Errors
    /// [`InvalidSetting`] names the first key found wrong.
    pub fn validate(&self) -> Result<(), InvalidSetting> {
        if self.retry_interval.is_zero() {
            let value = format!("{:?}", self.retry_interval);
            return Err(InvalidSetting { key: "lease_retry_interval", value, reason: "it must not be zero" });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leases_are_off_and_an_interval_of_zero_is_refused() {
        let settings = ShardLeaseSettings::default();
        assert!(settings.validate().is_ok() && !settings.is_used());
        let wrong = ShardLeaseSettings { retry_interval: Duration::ZERO, ..settings };
        assert_eq!(wrong.validate().unwrap_err().key, "lease_retry_interval");
    }
}
