//! The verdicts of the resolver and of providers, and the record of a decision.
//!
//! Source: cluster S5, S17.

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use greylag_core::UniqueAddress;

/// The members that a decision downs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Verdict {
    /// The other side.
    DownUnreachable,
    /// The own side, self last.
    DownReachable,
    /// All members.
    DownAll,
    /// The members that are indirectly connected (some reach them and others do not), and of the rest those that the
    /// strategy selects.
    DownIndirectlyConnected,
    /// This node.
    DownSelf,
    /// Acquire the lease after `delay`: the lease holder downs the other side; a side that is denied downs itself.
    AcquireLeaseAndDownUnreachable {
        /// How long this side waits to let the other one go first.
        delay: Duration,
    },
    /// Acquire the lease at once: a node that gets it downs the indirectly connected members.
    AcquireLeaseAndDownIndirectlyConnected,
    /// The members that the user's own provider named.
    Custom,
    /// The lease was denied: down the indirectly connected members and the own side.
    ReverseDownIndirectlyConnected,
}

impl Verdict {
    /// How long to wait before requesting the lease; `None` if no lease is needed. Source: cluster S10.
    pub fn lease_delay(self) -> Option<Duration> {
        match self {
            Self::AcquireLeaseAndDownUnreachable { delay } => Some(delay),
            Self::AcquireLeaseAndDownIndirectlyConnected => Some(Duration::ZERO),
            _ => None,
        }
    }

    /// The verdict to carry out once the lease was granted; the verdict itself if it needs none.
    #[must_use]
    pub fn granted(self) -> Self {
        match self {
            Self::AcquireLeaseAndDownUnreachable { .. } => Self::DownUnreachable,
            Self::AcquireLeaseAndDownIndirectlyConnected => Self::DownIndirectlyConnected,
            other => other,
        }
    }

    /// The verdict to carry out when the lease was denied, or the request failed: the reverse. The verdict itself if it
    /// needs none.
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

/// A decision, with its grounds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DowningDecision {
    /// The strategy that decided.
    pub strategy: String,
    /// Its verdict.
    pub verdict: Verdict,
    /// The members that the verdict downs, in this order.
    pub downed: Vec<UniqueAddress>,
    /// The members that were unreachable.
    pub unreachable: BTreeSet<UniqueAddress>,
    /// The members that the strategy counted.
    pub counted: BTreeSet<UniqueAddress>,
    /// The members that are indirectly connected: some members reach them and others do not.
    pub indirectly_connected: BTreeSet<UniqueAddress>,
    /// Why, and why now: a sentence with the numbers, for the operator.
    pub reason: String,
}

/// Writes the log line of a decision, with its grounds.
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
