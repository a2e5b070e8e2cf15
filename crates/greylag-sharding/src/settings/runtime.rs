//! Settings of running entities. Source: sharding §4, §7.

use std::time::Duration;

use super::Dispatcher;
use crate::error::InvalidSetting;

/// The action for a shard that cannot stop because a handler of it does not return.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum StuckShardAction {
    /// The shard is reported only. The default.
    #[default]
    Report,
    /// 10 s after its handoff should have ended, the process ends, so that the cluster can go on without it.
    AbortProcess,
}

/// The blocking pool of a node, used by `Ctx::blocking`; only the settings given to sharding at its start count. Keys:
/// `sharding.blocking_pool.*`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockingPoolSettings {
    /// Blocking jobs that run at the same time. Default 64.
    pub threads: usize,
    /// Blocking jobs that wait for a thread; further ones are refused. Default 10,000.
    pub queue: usize,
}

impl Default for BlockingPoolSettings {
    fn default() -> Self {
        Self { threads: 64, queue: 10_000 }
    }
}

/// How entities of a type run. Keys: `sharding.*`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuntimeSettings {
    /// Resolution of timers and receive timeouts: none is early, and each is late by up to this time. Default 10 ms.
    pub timer_tick: Duration,
    /// Time after which a suspended entity is reported in an event. Default 10 s.
    pub suspend_warn_after: Duration,
    /// Run time from which on a handler is counted, and logged now and then. Default 10 ms.
    pub slow_handler_threshold: Duration,
    /// Run time after which a handler that has not returned is reported in an event. Default 10 s.
    pub stuck_handler_threshold: Duration,
    /// The action if such a handler keeps its shard from stopping. Default: nothing more.
    pub stuck_shard_action: StuckShardAction,
    /// The threads on which shards run. Default: those of sharding.
    pub entity_dispatcher: Dispatcher,
    /// The runtime on which the tasks of regions and coordinators run. Default: that of sharding.
    pub use_dispatcher: Dispatcher,
    /// The pool for blocking work of entities.
    pub blocking_pool: BlockingPoolSettings,
    /// A test aid: each message is encoded and decoded even if it stays on its node, so that a codec that loses data is
    /// found without a second node. Default false.
    pub serialize_messages: bool,
    /// Whether to log, at debug, each message for an entity, and each entity that starts or ends. Default false.
    pub verbose_debug_logging: bool,
    /// Prefix of the names of threads that sharding starts. Default "sharding".
    pub guardian_name: String,
}

impl Default for RuntimeSettings {
    fn default() -> Self {
        Self {
            timer_tick: Duration::from_millis(10),
            suspend_warn_after: Duration::from_secs(10),
            slow_handler_threshold: Duration::from_millis(10),
            stuck_handler_threshold: Duration::from_secs(10),
            stuck_shard_action: StuckShardAction::default(),
            entity_dispatcher: Dispatcher::default(),
            use_dispatcher: Dispatcher::default(),
            blocking_pool: BlockingPoolSettings::default(),
            serialize_messages: false,
            verbose_debug_logging: false,
            guardian_name: "sharding".to_owned(),
        }
    }
}

impl RuntimeSettings {
    /// Checks the values.
    ///
    /// # Errors
    /// [`InvalidSetting`] names the first key found wrong.
    pub fn validate(&self) -> Result<(), InvalidSetting> {
        let durations = [
            ("timer_tick", self.timer_tick),
            ("suspend_warn_after", self.suspend_warn_after),
            ("slow_handler_threshold", self.slow_handler_threshold),
            ("stuck_handler_threshold", self.stuck_handler_threshold),
        ];
        let zero = durations.into_iter().find(|(_, value)| value.is_zero());
        let zero = zero.map(|(key, value)| (key, format!("{value:?}")));
        let no_thread = Some(("blocking_pool.threads", "0".to_owned())).filter(|_| self.blocking_pool.threads == 0);
        if let Some((key, value)) = zero.or(no_thread) {
            return Err(InvalidSetting { key, value, reason: "it must not be zero" });
        }
        if self.guardian_name.is_empty() || self.guardian_name.contains('\0') {
            let value = format!("{:?}", self.guardian_name);
            return Err(InvalidSetting { key: "guardian_name", value, reason: "it must be a name" });
        }
        if let Dispatcher::Dedicated(_) = self.use_dispatcher {
            let value = format!("{:?}", self.use_dispatcher.to_string());
            return Err(InvalidSetting {
                key: "use_dispatcher",
                value,
                reason: "it must name a runtime added by Sharding::add_dispatcher",
            });
        }
        Ok(())
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
            RuntimeSettings { slow_handler_threshold: Duration::ZERO, ..RuntimeSettings::default() },
            RuntimeSettings { stuck_handler_threshold: Duration::ZERO, ..RuntimeSettings::default() },
            RuntimeSettings {
                blocking_pool: BlockingPoolSettings { threads: 0, queue: 1 },
                ..RuntimeSettings::default()
            },
            RuntimeSettings { guardian_name: String::new(), ..RuntimeSettings::default() },
            RuntimeSettings {
                use_dispatcher: Dispatcher::Dedicated(1.try_into().unwrap()),
                ..RuntimeSettings::default()
            },
        ];
        let keys = wrong.map(|wrong| wrong.validate().unwrap_err().key);
        let expected = ["timer_tick", "suspend_warn_after", "slow_handler_threshold", "stuck_handler_threshold"];
        assert_eq!(
            (&keys[..4], &keys[4..]),
            (&expected[..], &["blocking_pool.threads", "guardian_name", "use_dispatcher"][..])
        );
    }
}
