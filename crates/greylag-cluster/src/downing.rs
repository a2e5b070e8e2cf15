//! Words of downing: what a resolver may decide, and the record of a decision.
//!
//! Source: cluster S5, S17.

use std::collections::BTreeSet;
use std::fmt;

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
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
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
    /// Why the decision was taken now.
    pub reason: &'static str,
}
