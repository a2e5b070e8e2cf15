//! Settings of what runs entities. Source: sharding §4, §7.

use std::time::Duration;

use crate::error::InvalidSetting;

/// How entities of a type run. Keys: `sharding.*`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuntimeSettings {
    /// Resolution of timers and receive timeouts: none is early, and each is late by up to so much. Default 10 ms.
    pub timer_tick: Duration,
    /// An entity that has been suspended for so long is told of in an event. Default 10 s.
    pub suspend_warn_after: Duration,
}

impl Default for RuntimeSettings {
    fn default() -> Self {
        Self { timer_tick: Duration::from_millis(10), suspend_warn_after: Duration::from_secs(10) }
    }
}

impl RuntimeSettings {
    /// Checks the values that could be wrong.
    ///
    /// # Errors
    /// [`InvalidSetting`] names the first key found wrong.
    pub fn validate(&self) -> Result<(), InvalidSetting> {
        let durations = [("timer_tick", self.timer_tick), ("suspend_warn_after", self.suspend_warn_after)];
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
    fn times_of_zero_are_refused_by_name() {
        assert_eq!(RuntimeSettings::default().validate(), Ok(()));
        let wrong = [
            RuntimeSettings { timer_tick: Duration::ZERO, ..RuntimeSettings::default() },
            RuntimeSettings { suspend_warn_after: Duration::ZERO, ..RuntimeSettings::default() },
        ];
        let keys = wrong.map(|wrong| wrong.validate().unwrap_err().key);
        assert_eq!(keys, ["timer_tick", "suspend_warn_after"]);
    }
}
