//! What a replicator says of itself whenever a round begins. Source: ddata Z11.

use super::starts::Starts;

/// Whether a replicator exchanges data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum GateState {
    /// The replicator exchanges data.
    #[default]
    Open,
    /// The replicator loaded a store that no current member has judged so far.
    Closed,
    /// The replicator loaded a store that is too old, and exchanges nothing any more.
    Refused,
}

/// The starts that a replicator knows, as it tells them to a peer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ToldStarts {
    /// All of them.
    Listed(Starts),
    /// Their digest, for a peer that has told the same starts.
    Known(u64),
}

impl Default for ToldStarts {
    fn default() -> Self {
        Self::Listed(Starts::default())
    }
}

/// What a replicator says of itself.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Standing {
    /// A number greater than in every standing that the sender told before: messages overtake each other.
    pub number: u64,
    /// Up to when the sender, or a replicator whose data it has, forgot markers and tombstones: wall clock in
    /// milliseconds.
    pub forget_horizon: Option<i64>,
    /// Until when the sender was in touch with others; now, if it never exchanged anything.
    pub synced_at: Option<i64>,
    /// The starts that the sender knows.
    pub starts: ToldStarts,
    /// Whether the sender exchanges data.
    pub state: GateState,
    /// Whether others' stores are judged by what the sender holds.
    pub is_current: bool,
}

impl Standing {
    /// How many starts are listed.
    pub(crate) fn listed(&self) -> usize {
        match &self.starts {
            ToldStarts::Listed(starts) => starts.iter().count(),
            ToldStarts::Known(_) => 0,
        }
    }
}
