//! The types that a node waits for before it is ready. Keys `sharding.healthcheck.*`.

use std::time::Duration;

use crate::error::InvalidSetting;
use crate::ids::EntityTypeName;

/// The types that a node waits for before it is ready, and for how long. Source: sharding §6.4, §7.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HealthCheckSettings {
    /// Entity types whose regions must have registered once. Default: none, so that readiness waits for no type.
    pub names: Vec<String>,
    /// How long a region may take to answer a liveness question. Default 5 s.
    pub timeout: Duration,
    /// How long after the first check of a node that is `Up` the types are awaited: a first deployment must not keep a
    /// node from being ready for ever. Default 10 s.
    pub disabled_after: Duration,
}

impl Default for HealthCheckSettings {
    fn default() -> Self {
        Self { names: Vec::new(), timeout: Duration::from_secs(5), disabled_after: Duration::from_secs(10) }
    }
}

impl HealthCheckSettings {
    /// Checks names and times.
    ///
    /// # Errors
    /// [`InvalidSetting`].
    pub fn validate(&self) -> Result<(), InvalidSetting> {
        let times = [("healthcheck.timeout", self.timeout), ("healthcheck.disabled_after", self.disabled_after)];
        if let Some((key, value)) = times.into_iter().find(|(_, value)| value.is_zero()) {
            return Err(InvalidSetting { key, value: format!("{value:?}"), reason: "it must not be zero" });
        }
        match self.names.iter().find(|name| EntityTypeName::new(name).is_err()) {
            Some(name) => {
                let (key, reason) = ("healthcheck.names", "it is not a valid entity type name");
                Err(InvalidSetting { key, value: format!("{name:?}"), reason })
            }
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_times_that_make_no_sense_are_refused() {
        let good = HealthCheckSettings { names: vec!["Cart".to_owned()], ..HealthCheckSettings::default() };
        assert_eq!(good.validate(), Ok(()));
        for (wrong, key) in [
            (HealthCheckSettings { names: vec![String::new()], ..good.clone() }, "healthcheck.names"),
            (HealthCheckSettings { timeout: Duration::ZERO, ..good.clone() }, "healthcheck.timeout"),
            (HealthCheckSettings { disabled_after: Duration::ZERO, ..good }, "healthcheck.disabled_after"),
        ] {
            assert_eq!(wrong.validate().unwrap_err().key, key);
        }
    }
}
