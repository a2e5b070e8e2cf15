//! How the store is opened, and when it refuses.

use greylag_store_sled::{Disk, StoreSettings};

/// Settings of queues in an embedded store.
#[derive(Debug, Clone)]
pub struct SledQueueSettings {
    /// Page cache. Default 32 MiB.
    pub cache_bytes: u64,
    /// With fewer bytes free where the store lies, messages are refused until there are twice as many; with fewer than
    /// half, so are loads. Confirmations always work: they make room. Default 256 MiB; 0 switches it off.
    pub min_free_bytes: u64,
    /// A file of this size is kept and given up when a full disk would not let the store open; it is the engine's
    /// [`StoreSettings::ballast_bytes`]. Default 64 MiB; 0 for none.
    pub ballast_bytes: u64,
    /// Largest message, and largest sum of the messages of one call, in encoded bytes: they are stored in one batch.
    /// Default 16 MiB.
    pub max_message_bytes: usize,
    /// How `min_free_bytes` is measured. Default: the file system is asked.
    pub disk: Disk,
    /// Everything else about the engine.
    pub engine: StoreSettings,
}

impl Default for SledQueueSettings {
    fn default() -> Self {
        Self {
            cache_bytes: 32 << 20,
            min_free_bytes: 256 << 20,
            ballast_bytes: 64 << 20,
            max_message_bytes: 16 << 20,
            disk: Disk::system(),
            engine: StoreSettings::default(),
        }
    }
}

impl SledQueueSettings {
    /// For tests: a small cache, short waits, any disk, no ballast.
    pub fn test() -> Self {
        let (min_free_bytes, ballast_bytes) = (0, 0);
        Self { cache_bytes: 8 << 20, min_free_bytes, ballast_bytes, engine: StoreSettings::test(), ..Self::default() }
    }
}
