//! Words of downing: what a resolver may decide, and the record of a decision.
//!
//! Source: cluster S5, S17.

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use greylag_core::UniqueAddress;

/// Whom a decision downs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Verdict {
    /// The other side.
    DownUnreachable,
    /// The own side, self last.
    DownReachable,
    /// Everybody.
    DownAll,
    /// Those that some reach and others do not, and then by the strategy.
    DownIndirectlyConnected,
    /// This node.
    DownSelf,
    /// Ask for the lease after `delay`: who gets it downs the other side, who does not its own.
    AcquireLeaseAndDownUnreachable {
        /// How long this side lets the other one go first.
        delay: Duration,
    },
    /// Ask for the lease at once: who gets it downs those that some reach and others do not.
    AcquireLeaseAndDownIndirectlyConnected,
    /// The lease was not to be had: down those that some reach and others do not, and the own side.
    ReverseDownIndirectlyConnected,
}

impl Verdict {
    /// How long to wait before the lease is asked for; `None` if no lease is needed. Source: cluster S10.
    pub fn lease_delay(self) -> Option<Duration> {
        match self {
            Self::AcquireLeaseAndDownUnreachable { delay } => Some(delay),
            Self::AcquireLeaseAndDownIndirectlyConnected => Some(Duration::ZERO),
            _ => None,
        }
    }

    /// What is done once the lease was granted; the verdict itself if it needs none.
    #[must_use]
    pub fn granted(self) -> Self {
        match self {
            Self::AcquireLeaseAndDownUnreachable { .. } => Self::DownUnreachable,
            Self::AcquireLeaseAndDownIndirectlyConnected => Self::DownIndirectlyConnected,
            other => other,
        }
    }

    /// What is done when the lease was denied, or asking for it failed: the reverse. The verdict
    /// itself if it needs none.
    #[must_use]
    pub fn denied(self) -> Self {
        match self {
            Self::AcquireLeaseAndDownUnreachable { .. } => Self::DownReachable,
            Self::AcquireLeaseAndDownIndirectlyConnected => Self::ReverseDownIndirectlyConnected,
            other => other,
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AcquireLeaseAndDownUnreachable { delay } => {
                write!(f, "AcquireLeaseAndDownUnreachable after {delay:?}")
            }
            other => fmt::Debug::fmt(other, f),
        }
    }
}

/// A decision, with what it rests on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DowningDecision {
    /// The strategy asked.
    pub strategy: String,
    /// What it says.
    pub verdict: Verdict,
    /// Whom that downs, in the order in which they are downed.
    pub downed: Vec<UniqueAddress>,
    /// Who was unreachable.
    pub unreachable: BTreeSet<UniqueAddress>,
    /// Who counted.
    pub counted: BTreeSet<UniqueAddress>,
    /// Whom some reach and others do not.
    pub indirectly_connected: BTreeSet<UniqueAddress>,
    /// Why, and why now: a sentence with the numbers, for whoever reads it at night.
    pub reason: String,
}

/// The log line of a decision: it explains itself.
impl fmt::Display for DowningDecision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |f: &mut fmt::Formatter<'_>, name: &str, nodes: &mut dyn Iterator<Item = &UniqueAddress>| {
            let nodes: Vec<String> = nodes.map(ToString::to_string).collect();
            match nodes.len() {
                0 => write!(f, "; {name}: none"),
                count => write!(f, "; {name} ({count}): {}", nodes.join(", ")),
            }
        };
        write!(f, "{} decides {}: {}", self.strategy, self.verdict, self.reason)?;
        list(f, "downed", &mut self.downed.iter())?;
        list(f, "unreachable", &mut self.unreachable.iter())?;
        list(f, "counted", &mut self.counted.iter())?;
        list(f, "indirectly connected", &mut self.indirectly_connected.iter())
    }
}
