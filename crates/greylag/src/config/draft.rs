//! Settings while they are read: keys that form one setting together are combined at the end.

use std::collections::BTreeMap;
use std::time::Duration;

use greylag_cluster::{DownAllWhenUnstable, Downing, Phase, SbrSettings, Strategy};

use greylag_transport::{Tls, TlsSettings};

use super::given::{Bytes, words};
use crate::settings::NodeSettings;

/// `cluster.downing`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DowningName {
    None,
    SplitBrainResolver,
}

words!(DowningName { "none" => Self::None, "split_brain_resolver" => Self::SplitBrainResolver });

/// `cluster.sbr.active_strategy`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StrategyName {
    KeepMajority,
    StaticQuorum,
    KeepOldest,
    DownAll,
    LeaseMajority,
}

words!(StrategyName {
    "keep_majority" => Self::KeepMajority,
    "static_quorum" => Self::StaticQuorum,
    "keep_oldest" => Self::KeepOldest,
    "down_all" => Self::DownAll,
    "lease_majority" => Self::LeaseMajority,
});

/// `transport.tls`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TlsName {
    LoopbackOnly,
    None,
    On,
}

words!(TlsName { "loopback_only" => Self::LoopbackOnly, "none" => Self::None, "on" => Self::On });

impl TlsName {
    /// The setting of the transport; `files` are used only if TLS is on.
    fn with(self, files: TlsSettings) -> Tls {
        match self {
            Self::LoopbackOnly => Tls::LoopbackOnly,
            Self::None => Tls::None,
            Self::On => Tls::Files(files),
        }
    }
}

/// The keys of all strategies; only those of the active one are used.
#[derive(Debug, Clone)]
pub(super) struct Strategies {
    pub(super) majority_role: String,
    pub(super) oldest_role: String,
    pub(super) down_if_alone: bool,
    pub(super) quorum_role: String,
    pub(super) quorum_size: usize,
    pub(super) lease_role: String,
    pub(super) lease_name: String,
    pub(super) lease_delay: Duration,
    pub(super) lease_release_after: Duration,
}

/// The reaction to a failure of an entity: `persistence.on_failure`.
#[cfg(feature = "persistence")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OnFailureName {
    Stop,
    Restart,
}

#[cfg(feature = "persistence")]
words!(OnFailureName { "stop" => Self::Stop, "restart" => Self::Restart });

/// Settings that event-sourced entities and those with a durable state share.
#[cfg(feature = "persistence")]
#[derive(Debug, Clone, Copy)]
pub(super) struct PersistenceDraft {
    pub(super) on_failure: OnFailureName,
    /// Used only with [`OnFailureName::Restart`].
    pub(super) backoff: greylag_persistence::Backoff,
}

#[cfg(feature = "persistence")]
impl Default for PersistenceDraft {
    fn default() -> Self {
        Self { on_failure: OnFailureName::Restart, backoff: greylag_persistence::Backoff::default() }
    }
}

#[cfg(feature = "persistence")]
impl PersistenceDraft {
    fn finish(self, settings: &mut NodeSettings) {
        use greylag_persistence::OnFailure;

        let events = &mut settings.persistence;
        events.on_failure = match self.on_failure {
            OnFailureName::Stop => OnFailure::Stop,
            OnFailureName::Restart => OnFailure::RestartBackoff(self.backoff),
        };
        settings.durable_state.on_failure = events.on_failure;
        settings.durable_state.stash_capacity = events.stash_capacity;
        settings.durable_state.stash_overflow = events.stash_overflow;
        settings.durable_state.unstash_budget = events.unstash_budget;
    }
}

/// Settings that are being read.
#[derive(Debug, Clone)]
pub(super) struct Draft {
    pub(super) settings: NodeSettings,
    pub(super) downing: DowningName,
    pub(super) strategy: StrategyName,
    pub(super) strategies: Strategies,
    pub(super) stable_after: Duration,
    pub(super) unstable: DownAllWhenUnstable,
    pub(super) indirectly: Option<f64>,
    pub(super) largest_logged: Option<Bytes>,
    pub(super) tls: TlsName,
    /// Used only with [`TlsName::On`].
    pub(super) tls_files: TlsSettings,
    #[cfg(feature = "management")]
    pub(super) management_tls: TlsName,
    #[cfg(feature = "management")]
    pub(super) management_tls_files: TlsSettings,
    #[cfg(feature = "persistence")]
    pub(super) persistence: PersistenceDraft,
    /// Timeouts of phases, as far as given.
    pub(super) phase_timeouts: BTreeMap<Phase, Option<Duration>>,
}

impl Default for Draft {
    /// The defaults of the facade: the resolver is on (cluster S1).
    fn default() -> Self {
        let sbr = SbrSettings::default();
        Self {
            settings: NodeSettings::default(),
            downing: DowningName::SplitBrainResolver,
            strategy: StrategyName::KeepMajority,
            strategies: Strategies {
                majority_role: String::new(),
                oldest_role: String::new(),
                down_if_alone: true,
                quorum_role: String::new(),
                quorum_size: 0,
                lease_role: String::new(),
                lease_name: String::new(),
                lease_delay: Duration::from_secs(2),
                lease_release_after: Duration::from_secs(40),
            },
            stable_after: sbr.stable_after,
            unstable: sbr.down_all_when_unstable,
            indirectly: sbr.down_all_when_indirectly_connected,
            largest_logged: None,
            tls: TlsName::LoopbackOnly,
            tls_files: TlsSettings::new("", "", ""),
            #[cfg(feature = "management")]
            management_tls: TlsName::LoopbackOnly,
            #[cfg(feature = "management")]
            management_tls_files: TlsSettings::new("", "", ""),
            #[cfg(feature = "persistence")]
            persistence: PersistenceDraft::default(),
            phase_timeouts: BTreeMap::new(),
        }
    }
}

impl Draft {
    /// Combines the keys into the settings.
    pub(super) fn finish(self) -> NodeSettings {
        let mut settings = self.settings;
        let given = self.phase_timeouts.into_iter().filter_map(|(phase, timeout)| Some((phase, timeout?)));
        settings.cluster.coordinated_shutdown.phase_timeouts.extend(given);
        settings.transport.log_frame_size_exceeding = self.largest_logged.map(|Bytes(bytes)| bytes);
        settings.transport.tls = self.tls.with(self.tls_files);
        #[cfg(feature = "management")]
        {
            settings.management.tls = self.management_tls.with(self.management_tls_files);
        }
        #[cfg(feature = "persistence")]
        self.persistence.finish(&mut settings);
        settings.cluster.downing = match self.downing {
            DowningName::None => Downing::None,
            DowningName::SplitBrainResolver => Downing::SplitBrainResolver(SbrSettings {
                strategy: self.strategies.active(self.strategy),
                stable_after: self.stable_after,
                down_all_when_unstable: self.unstable,
                down_all_when_indirectly_connected: self.indirectly,
            }),
        };
        settings
    }
}

impl Strategies {
    fn active(self, name: StrategyName) -> Strategy {
        let some = |text: String| (!text.is_empty()).then_some(text);
        match name {
            StrategyName::KeepMajority => Strategy::KeepMajority { role: some(self.majority_role) },
            StrategyName::StaticQuorum => {
                Strategy::StaticQuorum { role: some(self.quorum_role), quorum_size: self.quorum_size }
            }
            StrategyName::KeepOldest => {
                Strategy::KeepOldest { role: some(self.oldest_role), down_if_alone: self.down_if_alone }
            }
            StrategyName::DownAll => Strategy::DownAll,
            StrategyName::LeaseMajority => Strategy::LeaseMajority {
                lease_name: some(self.lease_name),
                acquire_lease_delay_for_minority: self.lease_delay,
                release_after: self.lease_release_after,
                role: some(self.lease_role),
            },
        }
    }
}
