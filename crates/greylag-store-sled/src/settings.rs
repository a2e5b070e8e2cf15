//! How a store is opened and how large its groups may grow.

use std::time::Duration;

/// Settings of one store. The defaults suit a server with an SSD.
///
/// What sled itself is given is fixed, not set: segments of 8 MiB (they cannot change in the life of
/// a store), its flusher thread at 500 ms (it also collects garbage), no compression.
/// Source: persistence §4.3.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreSettings {
    /// Page cache of the engine, a hint: plan for 1.3 times as much, and 35 bytes for each record.
    /// Default 128 MiB.
    pub cache_bytes: u64,
    /// How long opening waits for another process to let go of the store; a killed process holds
    /// its lock for a moment. Default 5 s.
    pub lock_retry: Duration,
    /// A group commit that takes longer has failed: all that wait are told that the outcome is
    /// unknown. Default 30 s.
    pub commit_stall_timeout: Duration,
    /// First wait before a failed store is opened again; doubles up to [`Self::reopen_max_backoff`].
    /// Default 1 s.
    pub reopen_min_backoff: Duration,
    /// Longest wait before a failed store is opened again. Default 30 s.
    pub reopen_max_backoff: Duration,
    /// Ends the process when a commit still hangs as long again after it was given up: no other process
    /// can open the store while the hung one holds it. Default `false`: the store stays down.
    pub abort_when_stuck: bool,
    /// Size of a file that does nothing but take space, so that a store on a full disk can be opened again:
    /// it is removed when it is in the way, and comes back when there is room for four of it. Default 0:
    /// there is none.
    pub ballast_bytes: u64,
    /// Requests that one group commit takes at most. Default 2048.
    pub max_group_requests: usize,
    /// Bytes of requests that one group commit takes at most; a larger single request goes alone.
    /// Default 4 MiB.
    pub max_group_bytes: usize,
    /// Bytes of requests that may wait for the committer; more are refused at once. Default 256 MiB.
    pub max_pending_bytes: usize,
}

impl Default for StoreSettings {
    fn default() -> Self {
        Self {
            cache_bytes: 128 << 20,
            lock_retry: Duration::from_secs(5),
            commit_stall_timeout: Duration::from_secs(30),
            reopen_min_backoff: Duration::from_secs(1),
            reopen_max_backoff: Duration::from_secs(30),
            abort_when_stuck: false,
            ballast_bytes: 0,
            max_group_requests: 2048,
            max_group_bytes: 4 << 20,
            max_pending_bytes: 256 << 20,
        }
    }
}

impl StoreSettings {
    /// For tests: a small cache and short waits.
    pub fn test() -> Self {
        Self {
            cache_bytes: 16 << 20,
            reopen_min_backoff: Duration::from_millis(5),
            reopen_max_backoff: Duration::from_millis(50),
            ..Self::default()
        }
    }
}
