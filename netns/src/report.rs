//! The lines that nodes write, and the findings of a scenario.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use crate::lab::Failure;
use crate::scenario::Scenario;

/// Microseconds on the clock that all processes of this machine share and that is never set: since it started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct At(pub(crate) u64);

impl At {
    /// Before everything.
    pub(crate) const EPOCH: Self = Self(0);

    /// This moment.
    pub(crate) fn now() -> Self {
        let time = clock_gettime(ClockId::Boottime);
        let (seconds, nanos) = (u64::try_from(time.tv_sec), u64::try_from(time.tv_nsec));
        Self(seconds.unwrap_or_default().saturating_mul(1_000_000).saturating_add(nanos.unwrap_or_default() / 1_000))
    }

    /// How long after `earlier` this was.
    pub(crate) fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(self.0.saturating_sub(earlier.0))
    }
}

/// One line of a node.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Line {
    /// When it was written.
    pub(crate) at: At,
    /// What happened.
    #[serde(flatten)]
    pub(crate) what: What,
}

/// What a node tells of. Members are named by `host:port`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub(crate) enum What {
    /// So many members are Up, as this node sees it.
    Up { count: usize },
    /// A member is found unreachable, by this node or another.
    Unreachable { member: String },
    /// No node finds the member unreachable any more.
    Reachable { member: String },
    /// A member was declared dead.
    Downed { member: String },
    /// A member is gone.
    Removed { member: String, clean: bool },
    /// Its death is proven.
    ProvenDead { member: String },
    /// Another process is heard at the address of a member.
    AddressHeld { member: String },
    /// The resolver decided.
    Decision { text: String },
    /// This process stood still.
    LocalPause { millis: u64 },
    /// This node was declared dead.
    SelfDowned,
    /// The singleton's instance begins here.
    SingletonStarted,
    /// The singleton's instance works; said every 20 ms.
    SingletonWorks,
    /// The singleton's instance ended here.
    SingletonEnded,
    /// Since this round began, every client of this node has been answered.
    Served { round: u64 },
    /// The clients of this node have ended.
    ClientsStopped,
    /// What is written to every entity is in the node's file.
    Surveyed,
    /// The node ended.
    Ended { reason: String },
    /// Anything else of interest.
    Note { text: String },
}

/// What a scenario found: figures, each with its name.
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
