//! What the settings of stores, readers and entities have in common: a back-off, and the error of settings that cannot
//! work.

use std::time::Duration;

/// A wait that doubles from failure to failure, and starts over after twice `max` without a failure.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Backoff {
    /// The first wait. Default 1 s.
    pub min: Duration,
    /// Longest wait before `jitter`; the real wait reaches `max` × (1 + `jitter`). Default 30 s.
    pub max: Duration,
    /// Largest random share of the wait that is added to it, from 0 to 1. Default 0.2.
    pub jitter: f64,
}

impl Default for Backoff {
    fn default() -> Self {
        Self { min: Duration::from_secs(1), max: Duration::from_secs(30), jitter: 0.2 }
    }
}

impl Backoff {
    pub(crate) fn validate(self) -> Result<(), SettingsError> {
        if self.min.is_zero() {
            return Err(SettingsError::ZeroDuration { key: "backoff_min" });
        }
        if self.max < self.min {
            return Err(SettingsError::BackoffOrder { min: self.min, max: self.max });
        }
        if !(0.0..=1.0).contains(&self.jitter) {
            return Err(SettingsError::Jitter { jitter: self.jitter });
        }
        Ok(())
    }

    /// The wait after `failures` failures in a row, with `draw` in `0.0..1.0`.
    pub(crate) fn wait(self, failures: u32, draw: f64) -> Duration {
        let doubled = self.min.saturating_mul(1 << failures.saturating_sub(1).min(20));
        doubled.min(self.max).mul_f64(1.0 + self.jitter * draw)
    }

    /// Time without a failure after which the waits start over.
    pub(crate) fn reset_after(self) -> Duration {
        self.max.saturating_mul(2)
    }
}

/// Settings that cannot work, alone or together.
#[derive(Clone, PartialEq, thiserror::Error)]
pub enum SettingsError {
    /// A duration of zero.
    #[error("{key} must be longer than zero")]
    ZeroDuration {
        /// Key of the setting.
        key: &'static str,
    },
    /// The longest wait is below the shortest.
    #[error("backoff_max ({max:?}) must not be below backoff_min ({min:?})")]
    BackoffOrder {
        /// The shortest wait.
        min: Duration,
        /// The longest wait.
        max: Duration,
    },
    /// The jitter is not between 0 and 1.
    #[error("backoff_jitter must be between 0 and 1, not {jitter}")]
    Jitter {
        /// The jitter given.
        jitter: f64,
    },
    /// A projection would forget processed events before backtracking reads them again.
    #[error("projection.remember ({remember:?}) must not be below query.backtracking.window + behind ({reach:?})")]
    RememberTooShort {
        /// How long the projection remembers processed events.
        remember: Duration,
        /// How far backtracking reaches into the past.
        reach: Duration,
    },
    /// Entities under delivery would lack marks, since they do not read their whole history.
    #[error("under_delivery needs the whole history; it does not go with skip_replay or allow_partial_history")]
    MarksMissing,
    /// Deliveries would be lost, and their ids given a second time, since the tracker lacks events.
    #[error(
        "a delivery tracker needs the whole history; it does not go with skip_replay, allow_partial_history or \
         on_unknown_event = skip"
    )]
    DeliveriesMissing,
    /// A behaviour selects a store that its node does not have.
    #[error("{key} is {plugin:?}, and there is no store of that name; besides the default there are: {known}")]
    UnknownPlugin {
        /// Key of the setting that selects the store.
        key: &'static str,
        /// The selected name.
        plugin: String,
        /// The names that the node has.
        known: String,
    },
    /// A behaviour with a durable state selects stores that keep none.
    #[error("state_plugin_id is {plugin:?}, and the stores of that name keep no durable states; add `with_states`")]
    NoStates {
        /// The selected name.
        plugin: String,
    },
    /// The journal keeps no metadata, so marks of delivery could not be stored.
    #[error("under_delivery needs a journal that keeps metadata, and this one does not")]
    MetadataMissing,
}

greylag_core::debug_is_sentence!(SettingsError);

impl SettingsError {
    /// Key of the setting to change, as in its section of a config file.
    pub fn key(&self) -> &'static str {
        match self {
            Self::ZeroDuration { key } | Self::UnknownPlugin { key, .. } => key,
            Self::NoStates { .. } => "state_plugin_id",
            Self::BackoffOrder { .. } => "backoff_max",
            Self::Jitter { .. } => "backoff_jitter",
            Self::RememberTooShort { .. } => "projection.remember",
            Self::MarksMissing | Self::DeliveriesMissing => "allow_partial_history",
            Self::MetadataMissing => "under_delivery",
        }
    }
}
