//! Settings of automatic passivation, for types without their own. Source: sharding §4.10, §7.

use std::time::Duration;

use crate::passivation::Passivation;

/// The prepared strategy to use.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum PassivationStrategy {
    /// Passivates no entity automatically.
    None,
    /// Passivates an entity without messages for some time. The default.
    #[default]
    DefaultIdle,
    /// Limits the number of active entities: [`Passivation::recommended`].
    Default,
}

/// Keys: `sharding.passivation.*`. A type can set more with
/// [`EntityType::passivation`](crate::EntityType::passivation).
#[derive(Debug, Clone, PartialEq)]
pub struct PassivationSettings {
    /// The strategy. Default: the idle one. Key: `strategy`.
    pub strategy: PassivationStrategy,
    /// For the idle strategy: time without use after which an entity ends; `None` ends none. Default 120 s. Key:
    /// `default_idle_strategy.idle_entity.timeout`.
    pub idle_timeout: Option<Duration>,
    /// For the idle strategy: how often idle entities are looked for. Default: often enough that an entity ends within
    /// a twentieth of its idle time. Key: `default_idle_strategy.idle_entity.interval`.
    pub idle_interval: Option<Duration>,
    /// For the strategy with a limit: most active entities of a region. Default 100,000. Key:
    /// `default_strategy.active_entity_limit`.
    pub active_entity_limit: usize,
    /// Whether messages of an entity's timers, and of its receive timeout, count as activity: if so an entity that only
    /// has timers is never idle. Default false. Key: `count_internal`. Source: sharding §4.4.
    pub count_internal: bool,
}

impl Default for PassivationSettings {
    fn default() -> Self {
        Self {
            strategy: PassivationStrategy::default(),
            idle_timeout: Some(Duration::from_secs(120)),
            idle_interval: None,
            active_entity_limit: 100_000,
            count_internal: false,
        }
    }
}

impl PassivationSettings {
    /// Ends no entity.
    pub fn none() -> Self {
        Self { strategy: PassivationStrategy::None, ..Self::default() }
    }

    /// Ends an entity without messages for this long.
    pub fn idle_after(idle: Duration) -> Self {
        Self { idle_timeout: Some(idle), ..Self::default() }
    }

    /// The settings as the passivation of a type.
    pub fn chosen(&self) -> Passivation {
        match (self.strategy, self.idle_timeout) {
            (PassivationStrategy::None, _) | (PassivationStrategy::DefaultIdle, None) => Passivation::none(),
            (PassivationStrategy::DefaultIdle, Some(idle)) => {
                let passivation = Passivation::idle_after(idle);
                match self.idle_interval {
                    Some(interval) => passivation.idle_interval(interval),
                    None => passivation,
                }
            }
            (PassivationStrategy::Default, _) => Passivation::recommended().with_limit(self.active_entity_limit),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sharding scenario 69: `none`, and an idle time of zero or none, never end an entity.
    #[test]
    fn scenario_69_no_strategy_and_no_idle_time_end_no_entity() {
        assert!(PassivationSettings::none().chosen().is_none());
        assert!(PassivationSettings { idle_timeout: None, ..PassivationSettings::default() }.chosen().is_none());
        assert!(PassivationSettings::idle_after(Duration::ZERO).chosen().is_none());
        let idle = PassivationSettings::default().chosen();
        assert_eq!((idle.idle_timeout(), idle.active_entity_limit()), (Some(Duration::from_secs(120)), None));
        let limited = PassivationSettings { strategy: PassivationStrategy::Default, ..PassivationSettings::default() };
        assert_eq!((limited.chosen().idle_timeout(), limited.chosen().active_entity_limit()), (None, Some(100_000)));
    }
}
