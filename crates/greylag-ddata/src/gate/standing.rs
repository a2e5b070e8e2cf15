//! What a replicator says of itself whenever a round begins. Source: ddata Z11.

use super::starts::Starts;

/// Whether a replicator exchanges data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum GateState {
    /// It exchanges data.
    #[default]
    Open,
    /// It loaded a store, and nobody has judged that so far.
    Closed,
    /// It loaded a store that is too old, and exchanges nothing any more.
    Refused,
}

/// The starts that somebody knows, as they are told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ToldStarts {
    /// All of them.
    Listed(Starts),
    /// Their digest: whoever is told so has told the same ones.
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
    /// Greater than in everything that the sender said before: messages overtake each other.
    pub number: u64,
    /// Up to when it, or somebody whose data it has, forgot markers and tombstones: wall clock in milliseconds.
    pub forget_horizon: Option<i64>,
    /// Until when it was in touch with others; now, if it never exchanged anything.
    pub synced_at: Option<i64>,
    /// The starts that it knows.
    pub starts: ToldStarts,
    /// Whether it exchanges data.
    pub state: GateState,
    /// Whether others' stores are judged by what it holds.
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
