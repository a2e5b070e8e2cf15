//! Settings of the cluster, with the defaults of a production LAN.
//!
//! Source: cluster §6. Values that must fit each other are checked once, at start.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use greylag_core::NodeAddress;

use crate::detector::FailureDetectorSettings;
use crate::downing::CustomDowning;
use crate::driver::Clock;
use crate::driver::lease::{LeaseSettings, Leases};
use crate::error::{ConfigError, JoinError};
use crate::membership::app_version::AppVersion;
use crate::membership::shutdown::Phase;
use crate::testing::omissions::Omissions;

mod check;
mod downing;

pub use downing::{DownAllWhenUnstable, Downing, InvalidStrategy, ProofOfDeath, RemovalMargin, SbrSettings, Strategy};

/// All settings of a node's membership.
#[derive(Debug, Clone, PartialEq)]
pub struct ClusterSettings {
    /// The roles of this node. Roles beginning with `dc-` are refused. Default none.
    pub roles: BTreeSet<String>,
    /// The version of the application. Default `0.0.0`.
    pub app_version: AppVersion,
    /// The seed nodes: the program that starts the node may join through them, and a leader asks them
    /// whether they belong to another cluster. The list given when joining is added. Default none.
    pub seed_nodes: Vec<NodeAddress>,
    /// The data centre of this node. Only `default`, the default, for now: several data centres are reserved for later
    /// (cluster M1).
    pub data_center: String,
    /// How long to ask the seed nodes before the first of them may start alone. Default 5 s.
    pub seed_node_timeout: Duration,
    /// Joining starts over after this long without a Welcome. Default 10 s.
    pub retry_unsuccessful_join_after: Duration,
    /// How long to look for a seed node that lets this node in; then the join fails with the last outcome of each seed
    /// node, and this node ends. Default never.
    pub shutdown_after_unsuccessful_join_seed_nodes: Option<Duration>,
    /// Whether the first seed node joins itself after `seed_node_timeout` even when too few others answer, which makes
    /// two clusters from one list possible. Default off.
    pub self_join_alone: bool,
    /// No member becomes Up before this many members are known. Default 1.
    pub min_number_of_members: usize,
    /// Minimum per role before members become Up. Default none.
    pub role_min_number_of_members: BTreeMap<String, usize>,
    /// Joining members become WeaklyUp after this long without convergence; `None`: never. Default 7 s.
    pub weakly_up_after: Option<Duration>,
    /// The time before the first periodic task. Default 1 s.
    pub periodic_tasks_initial_delay: Duration,
    /// The time between gossips. Default 1 s.
    pub gossip_interval: Duration,
    /// Gossip that waited longer in the own inbox is dropped. Default 2 s.
    pub gossip_time_to_live: Duration,
    /// The probability that gossip goes to a member with another view. Default 0.8.
    pub gossip_different_view_probability: f64,
    /// The number of members from which that probability falls. Default 400.
    pub reduce_gossip_different_view_probability: usize,
    /// The time between the leader's actions. Default 1 s.
    pub leader_actions_interval: Duration,
    /// The interval of checking the failure detectors. Default 1 s.
    pub unreachable_nodes_reaper_interval: Duration,
    /// Tombstones older than this are dropped; no partition may last this long. Default 24 h.
    pub prune_gossip_tombstones_after: Duration,
    /// How long after its removal a member that left in order is quarantined. Default 5 s.
    pub quarantine_removed_node_after: Duration,
    /// Whether a node that is declared dead runs its orderly shutdown. If not, only its membership ends, and the
    /// program must end the node itself. Default true.
    pub shutdown_when_down: bool,
    /// The reaction to another cluster of the same name. Default warn.
    pub on_foreign_cluster: OnForeignCluster,
    /// How long a new leader asks the seed nodes every 10 s whether they belong to another cluster; then every minute.
    /// Default 10 min.
    pub island_probe_duration: Duration,
    /// Interval of publishing [`ClusterEvent::GossipStats`](crate::ClusterEvent::GossipStats). Default never.
    pub publish_stats_interval: Option<Duration>,
    /// Events buffered per subscriber. Default 10 000.
    pub event_buffer: usize,
    /// Whether to refuse to join a cluster whose downing settings differ. Default true.
    pub enforce_config_on_join: bool,
    /// Settings of other layers that must be the same on all nodes that know the key.
    pub checked_config: BTreeMap<String, String>,
    /// Prefixes of checked settings that are never sent: key material. Default that of the transport.
    pub sensitive_config_prefixes: Vec<String>,
    /// Settings of the failure detector.
    pub failure_detector: FailureDetectorSettings,
    /// The mechanism that may declare unreachable members dead. Default: only operators and proofs of death.
    pub downing: Downing,
    /// Which processes' deaths this node may prove. Default those of its own host.
    pub proof_of_death: ProofOfDeath,
    /// Refused dials in a row that make a proof, at least 100 ms apart. Default 3.
    pub proof_dials: u32,
    /// Interval of tries to prove an unreachable member dead. Default 1 s.
    pub proof_interval: Duration,
    /// How long after an unclean removal the duties of the removed member start elsewhere. Default derived.
    pub down_removal_margin: RemovalMargin,
    /// Timeouts of the shutdown's phases.
    pub coordinated_shutdown: CoordinatedShutdownSettings,
    /// How leases are kept alive.
    pub lease: LeaseSettings,
    /// The store of leases, for lease_majority and singletons with `use_lease`. Default none.
    pub leases: Option<Leases>,
    /// Threads of the runtime that carries the cluster's own tasks. Default 2.
    pub cluster_threads: usize,
    /// The clock of this node. Default the clock of this machine, which counts on while the machine is suspended.
    pub clock: Clock,
    /// Clauses to omit, in simulations.
    #[doc(hidden)]
    pub omissions: Omissions,
}

impl Default for ClusterSettings {
    fn default() -> Self {
        let second = Duration::from_secs(1);
        Self {
            roles: BTreeSet::new(),
            app_version: AppVersion::default(),
            seed_nodes: Vec::new(),
            data_center: "default".to_owned(),
            seed_node_timeout: 5 * second,
            retry_unsuccessful_join_after: 10 * second,
            shutdown_after_unsuccessful_join_seed_nodes: None,
            self_join_alone: false,
            min_number_of_members: 1,
            role_min_number_of_members: BTreeMap::new(),
            weakly_up_after: Some(7 * second),
            periodic_tasks_initial_delay: second,
            gossip_interval: second,
            gossip_time_to_live: 2 * second,
            gossip_different_view_probability: 0.8,
            reduce_gossip_different_view_probability: 400,
            leader_actions_interval: second,
            unreachable_nodes_reaper_interval: second,
            prune_gossip_tombstones_after: 24 * 3600 * second,
            quarantine_removed_node_after: 5 * second,
            shutdown_when_down: true,
            on_foreign_cluster: OnForeignCluster::Warn,
            island_probe_duration: 600 * second,
            publish_stats_interval: None,
            event_buffer: 10_000,
            enforce_config_on_join: true,
            checked_config: BTreeMap::new(),
            sensitive_config_prefixes: vec!["transport.tls".to_owned()],
            failure_detector: FailureDetectorSettings::default(),
            downing: Downing::None,
            proof_of_death: ProofOfDeath::Local,
            proof_dials: 3,
            proof_interval: second,
            down_removal_margin: RemovalMargin::Derive,
            coordinated_shutdown: CoordinatedShutdownSettings::default(),
            cluster_threads: 2,
            clock: Clock::system(),
            lease: LeaseSettings::default(),
            leases: None,
            omissions: Omissions::default(),
        }
    }
}

impl ClusterSettings {
    /// Whether a node with these settings has this role; that of its data centre counts (`dc-default`).
    pub fn has_role(&self, role: &str) -> bool {
        let data_center = role.strip_prefix("dc-");
        self.roles.contains(role) || data_center.is_some_and(|name| name == self.data_center.as_str())
    }

    /// Settings ten times as fast, for tests on one machine.
    pub fn test() -> Self {
        let tenth = Duration::from_millis(100);
        Self {
            seed_node_timeout: 5 * tenth,
            retry_unsuccessful_join_after: 10 * tenth,
            weakly_up_after: Some(7 * tenth),
            periodic_tasks_initial_delay: tenth,
            gossip_interval: tenth,
            leader_actions_interval: tenth,
            unreachable_nodes_reaper_interval: tenth,
            quarantine_removed_node_after: 5 * tenth,
            failure_detector: FailureDetectorSettings::test(),
            proof_interval: tenth,
            down_removal_margin: RemovalMargin::Fixed(20 * tenth),
            ..Self::default()
        }
    }

    /// Sets the roles.
    #[must_use]
    pub fn with_roles<R: Into<String>>(mut self, roles: impl IntoIterator<Item = R>) -> Self {
        self.roles = roles.into_iter().map(Into::into).collect();
        self
    }

    /// Sets the split brain resolver.
    #[must_use]
    pub fn with_resolver(mut self, settings: SbrSettings) -> Self {
        self.downing = Downing::SplitBrainResolver(settings);
        self
    }

    /// Sets a downing provider of your own in place of the resolver. Source: cluster S18.
    #[must_use]
    pub fn with_custom_downing(mut self, custom: CustomDowning) -> Self {
        self.downing = Downing::Custom(custom);
        self
    }

    /// How long nothing must change before a decision, and how long a leaving node hears no member before it gives up.
    /// The resolver's setting; without a resolver the default of that setting.
    pub fn stable_after(&self) -> Duration {
        match &self.downing {
            Downing::None => SbrSettings::default().stable_after,
            Downing::SplitBrainResolver(settings) => settings.stable_after,
            // A leaving member that is cut off must have ended when its margin has passed.
            Downing::Custom(custom) => custom.removal_margin().max(self.failure_detector.detection()),
        }
    }

    /// How long after an unclean removal the duties of the removed member wait. Source: cluster S14.
    pub fn removal_margin(&self) -> Duration {
        match self.down_removal_margin {
            RemovalMargin::Derive => match &self.downing {
                Downing::Custom(custom) => custom.removal_margin(),
                Downing::None | Downing::SplitBrainResolver(_) => self.stable_after(),
            },
            RemovalMargin::Off => Duration::ZERO,
            RemovalMargin::Fixed(margin) => margin,
        }
    }
}

/// The reaction to another cluster of the same name. Source: cluster M25b.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnForeignCluster {
    /// Report it in the log, as an event, and in the node's health.
    #[default]
    Warn,
    /// End the smaller of the two clusters; of equal ones, the one with the higher id.
    LeaveIfSmaller,
}

/// Timeouts of the phases of an orderly shutdown. Source: cluster M35.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CoordinatedShutdownSettings {
    /// Timeout of phases without their own. Default 5 s.
    pub default_phase_timeout: Duration,
    /// Timeouts of single phases; those with another default are filled in.
    pub phase_timeouts: BTreeMap<Phase, Duration>,
    /// Whether the shutdown continues with the next phase when a task of this one fails or is late; with `false` the
    /// node ends there and then. Default true for all.
    pub phase_recover: BTreeMap<Phase, bool>,
}

impl Default for CoordinatedShutdownSettings {
    fn default() -> Self {
        let ten = Duration::from_secs(10);
        let phases = [Phase::ClusterShardingShutdownRegion, Phase::ClusterExiting, Phase::NodeTerminate];
        Self {
            default_phase_timeout: Duration::from_secs(5),
            phase_timeouts: phases.into_iter().map(|phase| (phase, ten)).collect(),
            phase_recover: BTreeMap::new(),
        }
    }
}

/// Settings of one cluster-wide singleton. Source: cluster §5.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SingletonSettings {
    /// The singleton runs on the oldest member with this role; `None`: the oldest of all.
    pub role: Option<String>,
    /// The interval of requests to hand over. Default 1 s.
    pub hand_over_retry_interval: Duration,
    /// The least number of requests before trouble is reported. Default 15.
    pub min_number_of_hand_over_retries: u32,
    /// The wait after unclean removals; `None`: [`ClusterSettings::removal_margin`].
    pub removal_margin: Option<Duration>,
    /// Whether an instance runs only while this node holds the lease `<cluster>-singleton-<name>`, which closes the gap
    /// that a long pause opens (cluster P7). Needs a lease provider. Default false.
    pub use_lease: bool,
    /// The time between requests for a lease that is denied or fails. Default 5 s.
    pub lease_retry_interval: Duration,
    /// Settings of the proxy, which routes messages to the instance.
    pub proxy: SingletonProxySettings,
}

/// Settings of a node's proxy to a singleton. Source: cluster P8.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SingletonProxySettings {
    /// The time between questions to the oldest member whether it runs the instance. Default 1 s.
    pub identification_interval: Duration,
    /// Messages that the proxy keeps while it does not know where the instance runs; 0 keeps none, 10 000 is the most.
    /// When the buffer is full, the oldest message is dropped. If the buffer holds more messages than a lane's queue
    /// takes, that queue may overflow when they leave at once. Default 1 000.
    pub buffer_size: usize,
    /// The role whose oldest member hosts the singleton, on a node that only sends to it. `None`:
    /// [`SingletonSettings::role`]; where both are set they must be the same.
    pub role: Option<String>,
}

impl Default for SingletonProxySettings {
    fn default() -> Self {
        Self { identification_interval: Duration::from_secs(1), buffer_size: 1000, role: None }
    }
}

impl Default for SingletonSettings {
    fn default() -> Self {
        Self {
            role: None,
            hand_over_retry_interval: Duration::from_secs(1),
            min_number_of_hand_over_retries: 15,
            removal_margin: None,
            use_lease: false,
            lease_retry_interval: Duration::from_secs(5),
            proxy: SingletonProxySettings::default(),
        }
    }
}

impl SingletonSettings {
    /// Quick retries, for tests on one machine.
    pub fn test() -> Self {
        let tenth = Duration::from_millis(100);
        let proxy = SingletonProxySettings { identification_interval: tenth, ..SingletonProxySettings::default() };
        Self { hand_over_retry_interval: tenth, lease_retry_interval: 5 * tenth, proxy, ..Self::default() }
    }

    /// Sets the use of the lease.
    #[must_use]
    pub fn with_lease(mut self) -> Self {
        self.use_lease = true;
        self
    }

    /// Checks every value.
    ///
    /// # Errors
    /// All problems together.
    pub fn validate(&self) -> Result<(), Vec<ConfigError>> {
        let mut problems = Vec::new();
        let mut check = |ok: bool, setting: &'static str, value: String, why: &'static str| {
            if !ok {
                problems.push(ConfigError { setting: setting.into(), value, why });
            }
        };
        for (setting, duration) in [
            ("singleton.hand_over_retry_interval", self.hand_over_retry_interval),
            ("singleton.lease_retry_interval", self.lease_retry_interval),
            ("singleton_proxy.singleton_identification_interval", self.proxy.identification_interval),
        ] {
            check(!duration.is_zero(), setting, format!("{duration:?}"), "must be longer than 0");
        }
        if let Some(margin) = self.removal_margin {
            check(!margin.is_zero(), "singleton.removal_margin", "0s".to_owned(), "must be longer than 0");
        }
        let size = self.proxy.buffer_size;
        check(size <= 10_000, "singleton_proxy.buffer_size", size.to_string(), "must be at most 10 000");
        let retries = self.min_number_of_hand_over_retries;
        let setting = "singleton.min_number_of_hand_over_retries";
        check(retries >= 1, setting, retries.to_string(), "must be at least 1");
        if let (Some(role), Some(proxy)) = (&self.role, &self.proxy.role) {
            let value = format!("{proxy} (singleton.role = {role})");
            check(role == proxy, "singleton_proxy.role", value, "must be singleton.role, or not set");
        }
        if problems.is_empty() { Ok(()) } else { Err(problems) }
    }

    /// Sets the role whose oldest member hosts the singleton.
    #[must_use]
    pub fn with_role(mut self, role: impl Into<String>) -> Self {
        self.role = Some(role.into());
        self
    }
}

/// Parses addresses given as text.
///
/// # Errors
/// [`JoinError::InvalidAddress`] for the first one that is not.
pub fn parse_seed_nodes<'a>(seeds: impl IntoIterator<Item = &'a str>) -> Result<Vec<NodeAddress>, JoinError> {
    seeds.into_iter().map(|seed| seed.parse().map_err(JoinError::from)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_margin_follows_stable_after_also_without_a_resolver() {
        assert_eq!(ClusterSettings::default().removal_margin(), Duration::from_secs(20));
        let sbr = SbrSettings { stable_after: Duration::from_secs(10), ..SbrSettings::default() };
        assert_eq!(ClusterSettings::default().with_resolver(sbr).removal_margin(), Duration::from_secs(10));
    }
    /// cluster §6, "Validation at start", for singletons: all problems together.
    #[test]
    fn invalid_singleton_settings_are_named() {
        let none = Duration::ZERO;
        let settings = SingletonSettings {
            role: Some("a".to_owned()),
            hand_over_retry_interval: none,
            min_number_of_hand_over_retries: 0,
            removal_margin: Some(none),
            use_lease: true,
            lease_retry_interval: none,
            proxy: SingletonProxySettings {
                identification_interval: none,
                buffer_size: 10_001,
                role: Some("b".to_owned()),
            },
        };
        let problems = settings.validate().unwrap_err();
        let named: Vec<&str> = problems.iter().map(|problem| &*problem.setting).collect();
        let expected = [
            "singleton.hand_over_retry_interval",
            "singleton.lease_retry_interval",
            "singleton_proxy.singleton_identification_interval",
            "singleton.removal_margin",
            "singleton_proxy.buffer_size",
            "singleton.min_number_of_hand_over_retries",
            "singleton_proxy.role",
        ];
        assert_eq!(named, expected);
        let nothing_kept = SingletonProxySettings { buffer_size: 0, ..SingletonProxySettings::default() };
        let settings = SingletonSettings { proxy: nothing_kept, ..SingletonSettings::default() };
        assert_eq!(settings.validate(), Ok(()), "a proxy may keep nothing");
    }
}
