//! The lines that nodes write, and the findings of a scenario.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use crate::lab::Failure;
use crate::scenario::Scenario;

/// Microseconds since boot, on the monotonic clock that all processes of this machine share.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct At(pub(crate) u64);

impl At {
    /// Earlier than every other time.
    pub(crate) const EPOCH: Self = Self(0);

    /// The current time.
    pub(crate) fn now() -> Self {
        let time = clock_gettime(ClockId::Boottime);
        let (seconds, nanos) = (u64::try_from(time.tv_sec), u64::try_from(time.tv_nsec));
        Self(seconds.unwrap_or_default().saturating_mul(1_000_000).saturating_add(nanos.unwrap_or_default() / 1_000))
    }

    /// The duration from `earlier` to this time.
    pub(crate) fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(self.0.saturating_sub(earlier.0))
    }
}

/// One line of a node.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Line {
    /// The time of writing.
    pub(crate) at: At,
    /// The reported event.
    #[serde(flatten)]
    pub(crate) what: NodeEvent,
}

/// The events that a node reports. Members are named by `host:port`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub(crate) enum NodeEvent {
    /// This node sees `count` Up members.
    Up { count: usize },
    /// A member is found unreachable, by this node or another.
    Unreachable { member: String },
    /// No node finds the member unreachable any more.
    Reachable { member: String },
    /// A member was declared dead.
    Downed { member: String },
    /// A member was removed.
    Removed { member: String, clean: bool },
    /// A member's death is proven.
    ProvenDead { member: String },
    /// Another process is heard at the address of a member.
    AddressHeld { member: String },
    /// The split brain resolver decided.
    Decision { text: String },
    /// This process did not run for so long.
    LocalPause { millis: u64 },
    /// This node was declared dead.
    SelfDowned,
    /// The singleton's instance begins here.
    SingletonStarted,
    /// The singleton's instance works; reported every 20 ms.
    SingletonWorks,
    /// The singleton's instance ended here.
    SingletonEnded,
    /// Every client of this node has been answered since this round began.
    Served { round: u64 },
    /// The clients of this node have ended.
    ClientsStopped,
    /// The log of every entity is in the node's record file.
    Surveyed,
    /// The node ended.
    Ended { reason: String },
    /// Anything else that helps to understand a failure.
    Note { text: String },
}

/// The results of a scenario: figures by name.
#[derive(Debug, Default)]
pub(crate) struct Findings(pub(crate) Vec<(String, String)>);

impl Findings {
    /// Adds one figure.
    pub(crate) fn add(&mut self, name: impl Into<String>, value: impl Into<String>) {
        self.0.push((name.into(), value.into()));
    }

    /// Adds a duration.
    pub(crate) fn took(&mut self, name: impl Into<String>, took: Duration) {
        self.add(name, format!("{:.2} s", took.as_secs_f64()));
    }
}

/// All outcomes as a table of Markdown.
pub(crate) fn table(outcomes: &[(&Scenario, Result<Findings, Failure>)]) -> String {
    let mut lines = vec!["| scenario | what | value |".to_owned(), "|---|---|---|".to_owned()];
    for (scenario, outcome) in outcomes {
        match outcome {
            Ok(findings) => {
                lines
                    .extend(findings.0.iter().map(|(what, value)| format!("| {} | {what} | {value} |", scenario.name)));
            }
            Err(failure) => lines.push(format!("| {} | FAILED | {failure} |", scenario.name)),
        }
    }
    lines.join("\n")
}
