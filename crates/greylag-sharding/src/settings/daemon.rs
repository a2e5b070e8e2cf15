//! Settings of daemon processes.
//!
//! Keys: `sharding.sharded_daemon_process.*`. Source: sharding §6.2, §7.

use std::time::Duration;

use crate::error::InvalidSetting;

/// How the manager of a daemon process keeps its workers alive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DaemonProcessSettings {
    /// Time between two rounds in which each worker is asked to start. A worker that has ended is missing for at most
    /// this long. Default 10 s. Key: `keep_alive_interval`.
    pub keep_alive_interval: Duration,
    /// Time between two workers of a round, so that many workers do not start at the same moment. Default 100 ms. Key:
    /// `keep_alive_throttle_interval`.
    pub keep_alive_throttle_interval: Duration,
    /// Accepted and ignored: only the manager's node sends requests. Default 3. Key: `keep_alive_from_number_of_nodes`.
    pub keep_alive_from_number_of_nodes: usize,
}

impl Default for DaemonProcessSettings {
    fn default() -> Self {
        Self {
            keep_alive_interval: Duration::from_secs(10),
            keep_alive_throttle_interval: Duration::from_millis(100),
            keep_alive_from_number_of_nodes: 3,
        }
    }
}

impl DaemonProcessSettings {
    /// Checks the values.
    ///
    /// # Errors
    /// [`InvalidSetting`] names the first key found wrong.
    pub fn validate(&self) -> Result<(), InvalidSetting> {
        let durations = [
            ("sharded_daemon_process.keep_alive_interval", self.keep_alive_interval),
            ("sharded_daemon_process.keep_alive_throttle_interval", self.keep_alive_throttle_interval),
        ];
        match durations.into_iter().find(|(_, value)| value.is_zero()) {
            Some((key, value)) => {
                Err(InvalidSetting { key, value: format!("{value:?}"), reason: "it must not be zero" })
            }
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_those_of_the_specification_and_no_pause_is_refused() {
        let settings = DaemonProcessSettings::default();
        assert_eq!(settings.validate(), Ok(()));
        let times = (settings.keep_alive_interval, settings.keep_alive_throttle_interval);
        assert_eq!(times, (Duration::from_secs(10), Duration::from_millis(100)));
        assert_eq!(settings.keep_alive_from_number_of_nodes, 3);
        let wrong = DaemonProcessSettings { keep_alive_throttle_interval: Duration::ZERO, ..settings };
        assert_eq!(wrong.validate().unwrap_err().key, "sharded_daemon_process.keep_alive_throttle_interval");
    }
}
