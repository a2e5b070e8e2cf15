//! How a store is opened and how large its groups may grow.

use std::time::Duration;

/// Settings of one store. The defaults suit a server with an SSD.
///
/// sled's own settings are fixed: segments of 8 MiB (they cannot change in the life of a store), its flusher thread at
/// 500 ms (it also collects garbage), no compression. Source: persistence §4.3.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreSettings {
    /// The page cache of the engine, a hint: plan for 1.3 times as much, and 35 bytes for each record. Default 128 MiB.
    pub cache_bytes: u64,
    /// How long opening waits for another process to release the store; a killed process holds its lock for a moment.
    /// Default 5 s.
    pub lock_retry: Duration,
    /// A group commit that takes longer has failed: all waiting requests get an unknown outcome. Default 30 s.
    pub commit_stall_timeout: Duration,
    /// The first wait before a failed store is reopened; doubles up to [`Self::reopen_max_backoff`]. Default 1 s.
    pub reopen_min_backoff: Duration,
    /// The longest wait before a failed store is reopened. Default 30 s.
    pub reopen_max_backoff: Duration,
    /// Ends the process when a commit that was given up still hangs after the same time again: no other process can
    /// open the store while the hung one holds it. Default `false`: the store stays down.
    pub abort_when_stuck: bool,
    /// The size of a file that only takes space, so that a store on a full disk can be opened again: the file is
    /// removed when the disk is full, and made again when there is room for four of its size. Default 0: no such file.
    pub ballast_bytes: u64,
    /// The most requests of one group commit. Default 2048.
    pub max_group_requests: usize,
    /// The most bytes of requests in one group commit; a larger single request goes alone. Default 4 MiB.
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
    /// Settings for tests: a small cache and short waits.
    pub fn test() -> Self {
        Self {
            cache_bytes: 16 << 20,
            reopen_min_backoff: Duration::from_millis(5),
            reopen_max_backoff: Duration::from_millis(50),
            ..Self::default()
        }
    }
}
