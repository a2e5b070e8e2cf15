//! Settings of types that remember their entities.
//!
//! Source: sharding §4.7 to §4.9, §7.

use std::num::NonZeroU32;
use std::time::Duration;

use crate::error::InvalidSetting;
use crate::remember::RememberStore;

/// The order in which remembered entities start again with their shard. Source: sharding §4.9.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum EntityRecovery {
    /// All entities, as fast as they start. The default.
    #[default]
    All,
    /// A number at a time, set by [`RememberSettings::number_of_entities`] and [`RememberSettings::frequency`]: one
    /// limit for all shards of a region.
    Constant,
}

/// The handling of a remembered entity that has failed to start [`RememberSettings::max_start_failures`] times in a
/// row. Source: sharding §4.7.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum OnPermanentFailure {
    /// The entity stays remembered, and only a message or the next start of its shard tries again. The default.
    #[default]
    Keep,
    /// The entity is forgotten, and messages that wait for it are dead letters.
    Forget,
}

/// Settings of remembered entities: whether, where, and how they start again.
#[derive(Debug, Clone, PartialEq)]
pub struct RememberSettings {
    /// Whether entities start again with their shard, for types without their own setting. Default false. Key:
    /// `remember_entities`.
    pub enabled: bool,
    /// The store, for types without their own. Default: replicated data. Key: `remember_entities_store`.
    pub store: RememberStore,
    /// Which replicated data are stored on disk, by nodes that have a place for them: ids, or prefixes and `*`.
    /// Default: all of them, `shard-*`. Key: `distributed_data.durable.keys`.
    pub durable_keys: Vec<String>,
    /// The order in which entities start again. Default: all at once. Key: `entity_recovery_strategy`.
    pub recovery: EntityRecovery,
    /// Time between two lots of starts. Default 100 ms. Key: `entity_recovery_constant_rate_strategy.frequency`.
    pub frequency: Duration,
    /// Starts in one lot. Default 5. Key: `entity_recovery_constant_rate_strategy.number_of_entities`.
    pub number_of_entities: NonZeroU32,
    /// Most ids in one event of a journal. Default 100. Key:
    /// `event_sourced_remember_entities_store.max_updates_per_write`.
    pub max_updates_per_write: NonZeroU32,
    /// Time before a remembered entity that stopped without passivating starts again; doubles with each failure.
    /// Default 10 s. Key: `entity_restart_backoff`.
    pub entity_restart_backoff: Duration,
    /// The longest such wait. Default 5 min. Key: `entity_restart_backoff_max`.
    pub entity_restart_backoff_max: Duration,
    /// Starts in a row that may fail before a remembered entity is given up; 0: it never is. Default 0.
    /// Key: `max_start_failures`.
    pub max_start_failures: u32,
    /// The handling of an entity that is given up. Default: the entity stays remembered. Key: `on_permanent_failure`.
    pub on_permanent_failure: OnPermanentFailure,
    /// Whether a shard that finds a remembered entity in a state that no rule allows fails, instead of going on with an
    /// error event. Default false. Key: `fail_on_invalid_entity_state_transition`.
    pub fail_on_invalid_transition: bool,
}

impl Default for RememberSettings {
    fn default() -> Self {
        Self {
            enabled: false,
            store: RememberStore::Ddata,
            durable_keys: vec!["shard-*".to_owned()],
            recovery: EntityRecovery::All,
            frequency: Duration::from_millis(100),
            number_of_entities: NonZeroU32::new(5).expect("not zero"),
            max_updates_per_write: NonZeroU32::new(100).expect("not zero"),
            entity_restart_backoff: Duration::from_secs(10),
            entity_restart_backoff_max: Duration::from_secs(300),
            max_start_failures: 0,
            on_permanent_failure: OnPermanentFailure::Keep,
            fail_on_invalid_transition: false,
        }
    }
}

impl RememberSettings {
    /// Short waits, and a shard that fails on an invalid transition.
    pub(super) fn test() -> Self {
        Self {
            entity_restart_backoff: Duration::from_millis(250),
            entity_restart_backoff_max: Duration::from_secs(2),
            fail_on_invalid_transition: true,
            ..Self::default()
        }
    }

    /// Checks the values, single and in combination.
    ///
    /// # Errors
    /// [`InvalidSetting`] names the first key found wrong.
    pub fn validate(&self) -> Result<(), InvalidSetting> {
        let durations = [
            ("entity_recovery_constant_rate_strategy.frequency", self.frequency),
            ("entity_restart_backoff", self.entity_restart_backoff),
            ("entity_restart_backoff_max", self.entity_restart_backoff_max),
        ];
        if let Some((key, value)) = durations.into_iter().find(|(_, value)| value.is_zero()) {
            return Err(InvalidSetting { key, value: format!("{value:?}"), reason: "it must not be zero" });
        }
        if self.entity_restart_backoff_max < self.entity_restart_backoff {
            let value = format!("{:?}", self.entity_restart_backoff_max);
            let reason = "it must not be less than entity_restart_backoff";
            return Err(InvalidSetting { key: "entity_restart_backoff_max", value, reason });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_of_nothing_and_a_longest_wait_below_the_first_are_refused() {
        let second = Duration::from_secs(1);
        let wrong = [
            (
                "entity_recovery_constant_rate_strategy.frequency",
                RememberSettings { frequency: Duration::ZERO, ..RememberSettings::default() },
            ),
            (
                "entity_restart_backoff",
                RememberSettings { entity_restart_backoff: Duration::ZERO, ..RememberSettings::default() },
            ),
            (
                "entity_restart_backoff_max",
                RememberSettings { entity_restart_backoff_max: second, ..RememberSettings::default() },
            ),
        ];
        for (key, settings) in wrong {
            assert_eq!(settings.validate().unwrap_err().key, key);
        }
        assert_eq!((RememberSettings::default().validate(), RememberSettings::test().validate()), (Ok(()), Ok(())));
    }
}
