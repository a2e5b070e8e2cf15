//! Settings of downing: the mechanism that may declare members dead, the side that survives, and proofs of death.
//!
//! Source: cluster §4, §6.

use std::fmt;
use std::time::Duration;

use crate::downing::CustomDowning;

/// The mechanism that may declare unreachable members dead. Source: cluster S1.
///
/// There is no mere timeout: with one, both sides of a partition would remove each other, and two writers would run for
/// everything that must have one.
#[derive(Debug, Clone, PartialEq, Default)]
pub enum Downing {
    /// Only an operator, and proofs of death.
    #[default]
    None,
    /// The split brain resolver.
    SplitBrainResolver(SbrSettings),
    /// A provider of your own. Source: cluster S18.
    Custom(CustomDowning),
}

/// The split brain resolver. Source: cluster §4.
#[derive(Debug, Clone, PartialEq)]
pub struct SbrSettings {
    /// Which side survives. Default keep-majority.
    pub strategy: Strategy,
    /// How long nothing must change before a decision. Default 20 s; see [`SbrSettings::suggested_stable_after`] for
    /// other sizes.
    pub stable_after: Duration,
    /// The reaction when reachability goes on changing. Default on.
    pub down_all_when_unstable: DownAllWhenUnstable,
    /// If more than this fraction of the members would be downed as indirectly connected (some members reach them and
    /// others do not), all members are. Above 0 and at most 1; 0.5 is recommended above five nodes. Default off.
    /// Source: cluster S12.
    pub down_all_when_indirectly_connected: Option<f64>,
}

impl Default for SbrSettings {
    fn default() -> Self {
        Self {
            strategy: Strategy::KeepMajority { role: None },
            stable_after: Duration::from_secs(20),
            down_all_when_unstable: DownAllWhenUnstable::On,
            down_all_when_indirectly_connected: None,
        }
    }
}

impl SbrSettings {
    /// The resolver with this strategy and default settings.
    pub fn with_strategy(strategy: Strategy) -> Self {
        Self { strategy, ..Self::default() }
    }

    /// How long a cluster of this many nodes should wait before a decision: the time in which the loss of many is
    /// detected, and the news of it spread. Source: cluster S4.
    pub fn suggested_stable_after(members: usize) -> Duration {
        let seconds = match members {
            0..=5 => 7,
            6..=10 => 10,
            11..=20 => 13,
            21..=50 => 17,
            51..=100 => 20,
            _ => 30,
        };
        Duration::from_secs(seconds)
    }
}

/// The rule by which one side survives a partition. Must be the same on all nodes (cluster S15).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Strategy {
    /// The side with most members, counted among those with the role. Source: cluster S6.
    KeepMajority {
        /// Only members with this role count; `None`: all.
        role: Option<String>,
    },
    /// The side with at least `quorum_size` members. Source: cluster S7.
    StaticQuorum {
        /// Only members with this role count; `None`: all.
        role: Option<String>,
        /// At least 1. A cluster of `2 * quorum_size` counted members or more is ended by its first
        /// partition, since both sides could reach the quorum.
        quorum_size: usize,
    },
    /// The side with the oldest member. Source: cluster S8.
    KeepOldest {
        /// Only members with this role count, also as the oldest; `None`: all.
        role: Option<String>,
        /// Whether the oldest is downed if it is all alone against two or more. Default true.
        down_if_alone: bool,
    },
    /// No side: every partition ends the whole cluster. Source: cluster S9.
    DownAll,
    /// The side that gets a lease; the bigger one asks first. Source: cluster S10.
    LeaseMajority {
        /// Name of the lease; `None`: `<cluster>-greylag-sbr`.
        lease_name: Option<String>,
        /// How much later the smaller side requests the lease. Default 2 s. The side that requests first survives: the
        /// smaller one, if the bigger one has detected the last of the other side by more than this later, which
        /// happens now and then (detection on the two sides may end up to three seconds apart).
        acquire_lease_delay_for_minority: Duration,
        /// How long the winner keeps the lease after all members that it downed are removed. Default 40 s.
        release_after: Duration,
        /// Only members with this role count for the size of a side; `None`: all.
        role: Option<String>,
    },
}

/// Not the name of a strategy.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no downing strategy; valid are {names}", names = Strategy::NAMES.join(", "))]
pub struct InvalidStrategy(pub String);

greylag_core::debug_is_sentence!(InvalidStrategy);

impl Strategy {
    /// The names of all strategies, as in configuration files, in the order of [`Strategy::name`]. The facade's config
    /// file has the same words (`greylag/src/config/draft.rs`).
    pub const NAMES: [&'static str; 5] =
        ["keep_majority", "static_quorum", "keep_oldest", "down_all", "lease_majority"];

    /// The strategy of that name with its defaults, among members with the role. The quorum size has
    /// no default: 0 is refused by [`validate`](crate::ClusterSettings::validate). A value that has no invalid value either
    /// is an `Option`, whose `None` is refused in the same way.
    ///
    /// # Errors
    /// [`InvalidStrategy`], which lists the valid names.
    pub fn named(name: &str, role: Option<String>) -> Result<Self, InvalidStrategy> {
        match name {
            "keep_majority" => Ok(Self::KeepMajority { role }),
            "static_quorum" => Ok(Self::StaticQuorum { role, quorum_size: 0 }),
            "keep_oldest" => Ok(Self::KeepOldest { role, down_if_alone: true }),
            "down_all" => Ok(Self::DownAll),
            "lease_majority" => Ok(Self::LeaseMajority {
                lease_name: None,
                acquire_lease_delay_for_minority: Duration::from_secs(2),
                release_after: Duration::from_secs(40),
                role,
            }),
            _ => Err(InvalidStrategy(name.to_owned())),
        }
    }

    /// The strategy's name in configuration files and decisions.
    pub fn name(&self) -> &'static str {
        match self {
            Self::KeepMajority { .. } => Self::NAMES[0],
            Self::StaticQuorum { .. } => Self::NAMES[1],
            Self::KeepOldest { .. } => Self::NAMES[2],
            Self::DownAll => Self::NAMES[3],
            Self::LeaseMajority { .. } => Self::NAMES[4],
        }
    }

    /// The role whose members count.
    pub fn role(&self) -> Option<&str> {
        match self {
            Self::KeepMajority { role }
            | Self::StaticQuorum { role, .. }
            | Self::KeepOldest { role, .. }
            | Self::LeaseMajority { role, .. } => role.as_deref(),
            Self::DownAll => None,
        }
    }
}

/// Writes name, role and sizes, which must be the same on all nodes. Source: cluster S15, M25a.
impl fmt::Display for Strategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = Vec::new();
        match self {
            Self::StaticQuorum { quorum_size, .. } => parts.push(format!("quorum_size = {quorum_size}")),
            Self::KeepOldest { down_if_alone, .. } => parts.push(format!("down_if_alone = {down_if_alone}")),
            Self::LeaseMajority { lease_name: Some(name), .. } => parts.push(format!("lease_name = {name}")),
            Self::KeepMajority { .. } | Self::DownAll | Self::LeaseMajority { .. } => {}
        }
        parts.extend(self.role().map(|role| format!("role = {role}")));
        f.write_str(self.name())?;
        if parts.is_empty() { Ok(()) } else { write!(f, "({})", parts.join(", ")) }
    }
}

/// When to give up on a reachability that goes on changing. Source: cluster S13.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DownAllWhenUnstable {
    /// After `stable_after` plus the longer of 4 s and three quarters of `stable_after`.
    #[default]
    On,
    /// Never. Gives up the guarantee of one side for partitions that follow an indirect connection within
    /// `stable_after`.
    Off,
    /// After `stable_after` plus this.
    After(Duration),
}

/// Which processes' deaths a node may prove by refused dials. Source: cluster S20.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ProofOfDeath {
    /// Of no process.
    Off,
    /// Of processes on its own host and in its own network namespace.
    #[default]
    Local,
    /// Of all processes: the operator vouches that no other machine answers in a member's place.
    On,
}

/// How long the duties of an uncleanly removed member wait. Source: cluster S14.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RemovalMargin {
    /// The custom provider's margin, else the resolver's `stable_after`, or its default without a resolver.
    #[default]
    Derive,
    /// No wait. Gives up the guarantee of one writer.
    Off,
    /// This long.
    Fixed(Duration),
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ClusterSettings, InMemoryLeases, Leases};

    fn problems(strategy: Strategy) -> Vec<String> {
        let leases = Leases::new("test", InMemoryLeases::new());
        let settings = ClusterSettings { leases: Some(leases), ..ClusterSettings::default() };
        let settings = settings.with_resolver(SbrSettings::with_strategy(strategy));
        settings.validate().err().into_iter().flatten().map(|problem| problem.setting.into_owned()).collect()
    }

    /// cluster S15, §6: every strategy has a name; its role and sizes are part of the compared text.
    #[test]
    fn strategies_are_named_and_say_what_must_be_the_same_everywhere() {
        let texts: Vec<String> = Strategy::NAMES
            .iter()
            .map(|name| Strategy::named(name, Some("r".to_owned())).unwrap().to_string())
            .collect();
        let expected = [
            "keep_majority(role = r)",
            "static_quorum(quorum_size = 0, role = r)",
            "keep_oldest(down_if_alone = true, role = r)",
            "down_all",
            "lease_majority(role = r)",
        ];
        assert_eq!(texts, expected);
        let error = Strategy::named("auto_down", None).unwrap_err().to_string();
        assert!(Strategy::NAMES.iter().all(|name| error.contains(name)), "{error}");
    }

    /// cluster S1: without an explicit choice by the operator or the program no member is declared dead, least of all
    /// by a timeout; deaths on the own host are proven all the same.
    #[test]
    fn the_default_is_none() {
        let settings = ClusterSettings::default();
        assert_eq!((settings.downing, settings.proof_of_death), (Downing::None, ProofOfDeath::Local));
    }

    /// cluster S7, §6.
    #[test]
    fn sizes_and_durations_that_cannot_work_are_refused() {
        assert_eq!(problems(Strategy::StaticQuorum { role: None, quorum_size: 0 }), ["sbr.static_quorum.quorum_size"]);
        assert!(problems(Strategy::StaticQuorum { role: None, quorum_size: 1 }).is_empty());
        for name in ["keep_majority", "keep_oldest", "down_all", "lease_majority"] {
            assert!(problems(Strategy::named(name, None).unwrap()).is_empty(), "{name}");
        }
        let at_once = |delay, release| Strategy::LeaseMajority {
            lease_name: None,
            acquire_lease_delay_for_minority: delay,
            release_after: release,
            role: None,
        };
        let (some, none) = (Duration::from_secs(1), Duration::ZERO);
        assert_eq!(problems(at_once(none, some)), ["sbr.lease_majority.acquire_lease_delay_for_minority"]);
        assert_eq!(problems(at_once(some, none)), ["sbr.lease_majority.release_after"]);
        let nowhere = SbrSettings::with_strategy(Strategy::named("lease_majority", None).unwrap());
        let problems = ClusterSettings::default().with_resolver(nowhere).validate().unwrap_err();
        assert_eq!(problems[0].setting, "sbr.lease_majority.lease", "a lease must be kept somewhere");
        let sbr = SbrSettings {
            down_all_when_unstable: DownAllWhenUnstable::After(Duration::ZERO),
            down_all_when_indirectly_connected: Some(1.5),
            ..SbrSettings::with_strategy(Strategy::KeepMajority { role: Some(String::new()) })
        };
        let settings =
            ClusterSettings { down_removal_margin: RemovalMargin::Fixed(Duration::ZERO), ..Default::default() };
        let problems = settings.with_resolver(sbr).validate().unwrap_err();
        let names: Vec<&str> = problems.iter().map(|problem| &*problem.setting).collect();
        let expected =
            ["down_removal_margin", "sbr.down_all_when_unstable", "sbr.down_all_when_indirectly_connected", "sbr.role"];
        assert_eq!(names, expected);
    }

    /// cluster F9: a pause that this node does not notice is shorter than any takeover.
    #[test]
    fn a_pause_as_long_as_a_takeover_must_be_noticed() {
        let with = |threshold: u64| {
            let mut settings = ClusterSettings::default();
            settings.failure_detector.local_pause_threshold = Duration::from_secs(threshold);
            settings.validate()
        };
        assert_eq!(with(19), Ok(()));
        let problems = with(20).unwrap_err();
        assert_eq!(problems.len(), 1);
        assert_eq!(problems[0].setting, "failure_detector.local_pause_threshold");
    }

    /// cluster F10: a node that is late by more than an interval, and by less than a pause, doubts itself first. The
    /// settings must leave room for such a lag.
    #[test]
    fn a_pause_is_longer_than_a_heartbeat_interval() {
        let with = |interval: u64| {
            let mut settings = ClusterSettings::default();
            settings.failure_detector.heartbeat_interval = Duration::from_millis(interval);
            settings.validate()
        };
        assert_eq!(with(1_999), Ok(()));
        let problems = with(2_000).unwrap_err();
        assert_eq!(problems[0].setting, "failure_detector.local_pause_threshold");
    }

    /// cluster S4: the node refuses a `stable_after` that the detector could not keep up with.
    #[test]
    fn stable_after_must_cover_the_detection() {
        for (seconds, ok) in [(6, false), (7, true)] {
            let sbr = SbrSettings { stable_after: Duration::from_secs(seconds), ..SbrSettings::default() };
            assert_eq!(ClusterSettings::default().with_resolver(sbr).validate().is_ok(), ok, "{seconds} s");
        }
        for (members, seconds) in [(1, 7), (5, 7), (10, 10), (20, 13), (50, 17), (100, 20), (1000, 30)] {
            assert_eq!(SbrSettings::suggested_stable_after(members), Duration::from_secs(seconds));
        }
    }

    /// cluster S14.
    #[test]
    fn the_margin_is_derived_fixed_or_off() {
        let sbr = SbrSettings { stable_after: Duration::from_secs(10), ..SbrSettings::default() };
        let settings = |margin| {
            let settings = ClusterSettings { down_removal_margin: margin, ..ClusterSettings::default() };
            settings.with_resolver(sbr.clone()).removal_margin()
        };
        assert_eq!(settings(RemovalMargin::Derive), Duration::from_secs(10));
        assert_eq!(settings(RemovalMargin::Off), Duration::ZERO);
        assert_eq!(settings(RemovalMargin::Fixed(Duration::from_secs(3))), Duration::from_secs(3));
        assert_eq!(ClusterSettings::default().removal_margin(), Duration::from_secs(20), "also under none");
    }
}
