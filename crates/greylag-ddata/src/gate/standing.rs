//! Standings: what a replicator says of itself whenever a round begins. Source: ddata Z11.

use super::starts::Starts;

/// The state of a gate: whether the replicator exchanges data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum GateState {
    /// The replicator exchanges data.
    #[default]
    Open,
    /// The replicator loaded a store that no current member has judged yet.
    Closed,
    /// The replicator loaded a store that is too old, and exchanges nothing.
    Refused,
}

/// The starts that a replicator knows, as it tells them to a peer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StartsOrDigest {
    /// All of them.
    Listed(Starts),
    /// Their digest, for a peer that has told the same starts.
    Known(u64),
}

impl Default for StartsOrDigest {
    fn default() -> Self {
        Self::Listed(Starts::default())
    }
}

/// What a replicator says of itself to a member.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Standing {
    /// A number greater than that of every former standing of the sender: messages overtake each other.
    pub number: u64,
    /// The time up to which the sender, or a replicator whose data it has, forgot markers and tombstones: wall clock in
    /// milliseconds.
    pub forget_horizon: Option<i64>,
    /// The time until which the sender was in touch with others; now, if it never exchanged anything.
    pub synced_at: Option<i64>,
    /// The starts that the sender knows.
    pub starts: StartsOrDigest,
    /// The state of the sender's gate.
    pub state: GateState,
    /// Whether the sender is current, and so judges the stores of others.
    pub is_current: bool,
}

impl Standing {
    /// How many starts are listed.
    pub(crate) fn listed(&self) -> usize {
        match &self.starts {
            StartsOrDigest::Listed(starts) => starts.iter().count(),
            StartsOrDigest::Known(_) => 0,
        }
    }
}
