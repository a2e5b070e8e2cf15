//! Settings of producer queues.

use std::time::Duration;

use crate::settings::SettingsError;

/// Snapshots, cleanup and restarts of an event-sourced producer queue; section `delivery.event_sourced_queue.*` of a
/// configuration. Source: delivery §8.
///
/// The stores are passed when the queue is opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventSourcedQueueSettings {
    /// Number of events between two snapshots; at least 1. Default 1000.
    pub snapshot_every: u64,
    /// Number of snapshots kept; at least 1. More snapshots survive more damage. Default 2.
    pub keep_n_snapshots: u64,
    /// Whether events that no snapshot needs are deleted. Default true; otherwise the queue's history grows for ever.
    pub delete_events: bool,
    /// A larger snapshot leaves the messages out, and recovery reads them from their events, which are then kept until
    /// the messages are confirmed. Default 4 MiB.
    pub snapshot_max_bytes: usize,
    /// How long the last confirmation of a qualifier is kept once no message of the qualifier is unconfirmed; checked
    /// at every load, and twice per such time. Default one hour.
    pub cleanup_unused_after: Duration,
    /// First pause after a failure of the store. Default 1 s.
    pub restart_min_backoff: Duration,
    /// Longest pause after a failure of the store; pauses double up to it, with up to a tenth added at random. Default
    /// 10 s.
    pub restart_max_backoff: Duration,
}

impl Default for EventSourcedQueueSettings {
    fn default() -> Self {
        Self {
            snapshot_every: 1000,
            keep_n_snapshots: 2,
            delete_events: true,
            snapshot_max_bytes: 4 << 20,
            cleanup_unused_after: Duration::from_secs(3600),
            restart_min_backoff: Duration::from_secs(1),
            restart_max_backoff: Duration::from_secs(10),
        }
    }
}

impl EventSourcedQueueSettings {
    /// Short pauses, so that tests of failures end soon.
    pub fn test() -> Self {
        Self {
            restart_min_backoff: Duration::from_millis(10),
            restart_max_backoff: Duration::from_millis(100),
            ..Self::default()
        }
    }

    /// Checks the values.
    ///
    /// # Errors
    /// [`SettingsError`] names the first invalid setting.
    pub fn validate(&self) -> Result<(), SettingsError> {
        let checks = [
            (self.snapshot_every >= 1, "event_sourced_queue.snapshot_every", "must be at least 1"),
            (self.keep_n_snapshots >= 1, "event_sourced_queue.keep_n_snapshots", "must be at least 1"),
            (self.snapshot_max_bytes >= 1, "event_sourced_queue.snapshot_max_bytes", "must be at least 1"),
            (
                self.cleanup_unused_after >= Duration::from_millis(2),
                "event_sourced_queue.cleanup_unused_after",
                "must be at least 2 ms",
            ),
            (!self.restart_min_backoff.is_zero(), "event_sourced_queue.restart_min_backoff", "must not be zero"),
            (
                self.restart_max_backoff >= self.restart_min_backoff,
                "event_sourced_queue.restart_max_backoff",
                "must be at least restart_min_backoff",
            ),
        ];
        match checks.into_iter().find(|(holds, ..)| !holds) {
            Some((_, field, why)) => Err(SettingsError { field, why }),
            None => Ok(()),
        }
    }
}

/// Settings of a queue in a store of rows, which takes no snapshots and never restarts by itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KvQueueSettings {
    /// How long the last confirmation of a qualifier is kept once no message of the qualifier is unconfirmed; checked
    /// at every load, and with later writes twice per such time. Default one hour.
    pub cleanup_unused_after: Duration,
}

impl Default for KvQueueSettings {
    fn default() -> Self {
        Self { cleanup_unused_after: Duration::from_secs(3600) }
    }
}

impl KvQueueSettings {
    /// Checks the values.
    ///
    /// # Errors
    /// [`SettingsError`] names the invalid setting.
    pub fn validate(&self) -> Result<(), SettingsError> {
        if self.cleanup_unused_after < Duration::from_millis(2) {
            return Err(SettingsError { field: "kv_queue.cleanup_unused_after", why: "must be at least 2 ms" });
        }
        Ok(())
    }
}

/// Settings of an outbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutboxSettings {
    /// As [`KvQueueSettings::cleanup_unused_after`]. Default one hour.
    pub cleanup_unused_after: Duration,
    /// How often a producer polls for new messages while there are none: the longest time that a message waits in the
    /// table before it is sent. Default 200 ms.
    pub poll_interval: Duration,
}

impl Default for OutboxSettings {
    fn default() -> Self {
        Self { cleanup_unused_after: Duration::from_secs(3600), poll_interval: Duration::from_millis(200) }
    }
}

impl OutboxSettings {
    /// Checks the values.
    ///
    /// # Errors
    /// [`SettingsError`] names the invalid setting.
    pub fn validate(&self) -> Result<(), SettingsError> {
        if self.cleanup_unused_after < Duration::from_millis(2) {
            return Err(SettingsError { field: "outbox.cleanup_unused_after", why: "must be at least 2 ms" });
        }
        if self.poll_interval.is_zero() {
            return Err(SettingsError { field: "outbox.poll_interval", why: "must not be zero" });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of delivery §8: every setting is validated, and the error names the field.
    #[test]
    fn settings_that_cannot_work_are_named() {
        assert_eq!(EventSourcedQueueSettings::default().validate(), Ok(()));
        assert_eq!(EventSourcedQueueSettings::test().validate(), Ok(()));
        let refused = |change: fn(&mut EventSourcedQueueSettings)| {
            let mut settings = EventSourcedQueueSettings::default();
            change(&mut settings);
            settings.validate().unwrap_err().field.strip_prefix("event_sourced_queue.").unwrap()
        };
        assert_eq!(refused(|s| s.snapshot_every = 0), "snapshot_every");
        assert_eq!(refused(|s| s.keep_n_snapshots = 0), "keep_n_snapshots");
        assert_eq!(refused(|s| s.snapshot_max_bytes = 0), "snapshot_max_bytes");
        assert_eq!(refused(|s| s.cleanup_unused_after = Duration::ZERO), "cleanup_unused_after");
        assert_eq!(refused(|s| s.restart_min_backoff = Duration::ZERO), "restart_min_backoff");
        assert_eq!(refused(|s| s.restart_max_backoff = Duration::from_millis(1)), "restart_max_backoff");
        assert_eq!(KvQueueSettings::default().validate(), Ok(()));
        let zero = KvQueueSettings { cleanup_unused_after: Duration::ZERO };
        assert_eq!(zero.validate().unwrap_err().field, "kv_queue.cleanup_unused_after");
        let outbox = OutboxSettings::default;
        assert_eq!(outbox().validate(), Ok(()));
        let zero = OutboxSettings { cleanup_unused_after: Duration::ZERO, ..outbox() };
        assert_eq!(zero.validate().unwrap_err().field, "outbox.cleanup_unused_after");
        let zero = OutboxSettings { poll_interval: Duration::ZERO, ..outbox() };
        assert_eq!(zero.validate().unwrap_err().field, "outbox.poll_interval");
    }
}
