//! What a store tells of itself: its health and its counters.

use std::time::Duration;

/// The state of a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Health {
    /// The store takes requests.
    Up,
    /// The store takes requests, but an operator should look at these problems.
    Degraded(Vec<String>),
    /// The store refuses everything, for this reason. Unless it was closed, it reopens itself.
    Down(String),
}

/// Counters of one store since it was opened.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StoreStats {
    /// Group commits, each with one sync of the data file.
    pub groups: u64,
    /// Requests answered.
    pub requests: u64,
    /// Keys written or removed.
    pub keys: u64,
    /// Bytes of those keys and their values.
    pub bytes: u64,
    /// Longest group commit, planning included.
    pub longest_commit: Duration,
    /// How often the store failed and was opened again.
    pub poisoned: u64,
}
