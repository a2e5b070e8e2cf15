//! Settings of the embedded journal.

use std::fmt;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use greylag_persistence::Timestamp;
use greylag_store_sled::{Disk, StoreSettings};

/// Settings of one journal on disk.
#[derive(Debug, Clone)]
pub struct SledJournalSettings {
    /// Settings of the engine: cache, group sizes, waits. `max_pending_bytes` is 64 MiB by default here, and a request
    /// that would exceed it waits for room instead of being refused.
    pub store: StoreSettings,
    /// Ids whose heads are kept in memory; an append to another id reads its head first, about
    /// 200 bytes each. Default 100 000.
    pub heads_cached: usize,
    /// Latest commits whose digests are verified when the journal opens. Default 256.
    pub verify_commits: u64,
    /// Keys of deleted events that one group commit removes at most; 0 counts as 1. Default 1000.
    pub sweep_keys: usize,
    /// Largest sum of payloads, metadata and tags of one append; it is stored in one batch.
    /// Default 16 MiB.
    pub max_append_bytes: usize,
    /// With fewer bytes free where the journal lies, appends, snapshots and states are refused as `StorageLow`,
    /// until there are twice as many; with fewer than half, so are claims and offsets. Reads and deletions
    /// always work. Default 256 MiB; 0 switches it off.
    pub min_free_bytes: u64,
    /// A file of this size is kept and given up when a full disk would not let the journal open. Default
    /// 64 MiB; 0 for none.
    pub ballast_bytes: u64,
    /// How `min_free_bytes` is measured. Default: the file system is asked.
    pub disk: Disk,
    /// The source of timestamps. Default: the system clock.
    pub clock: Clock,
}

impl Default for SledJournalSettings {
    fn default() -> Self {
        Self {
            store: StoreSettings { max_pending_bytes: 64 << 20, ..StoreSettings::default() },
            heads_cached: 100_000,
            verify_commits: 256,
            sweep_keys: 1000,
            max_append_bytes: 16 << 20,
            min_free_bytes: 256 << 20,
            ballast_bytes: 64 << 20,
            disk: Disk::system(),
            clock: Clock::system(),
        }
    }
}

impl SledJournalSettings {
    /// For tests: a small cache, short waits, few heads in memory, any disk.
    pub fn test() -> Self {
        let (min_free_bytes, ballast_bytes) = (0, 0);
        let store = StoreSettings::test();
        Self { store, heads_cached: 64, sweep_keys: 10, min_free_bytes, ballast_bytes, ..Self::default() }
    }
}

/// Source of the timestamps of events and snapshots. It may stand still or go back: the timestamps of one id rise
/// all the same.
#[derive(Clone)]
pub struct Clock(Arc<dyn Fn() -> Timestamp + Send + Sync>);

impl Clock {
    /// The wall clock of the machine.
    pub fn system() -> Self {
        Self::new(|| {
            let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            Timestamp::from_micros(u64::try_from(since_epoch.as_micros()).unwrap_or(u64::MAX))
        })
    }

    /// A clock that calls `now`.
    pub fn new(now: impl Fn() -> Timestamp + Send + Sync + 'static) -> Self {
        Self(Arc::new(now))
    }

    pub(crate) fn now(&self) -> Timestamp {
        (self.0)()
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Clock")
    }
}
