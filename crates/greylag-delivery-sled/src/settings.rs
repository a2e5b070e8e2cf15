//! Settings of the store.

use greylag_store_sled::{Disk, StoreSettings};

/// Settings of queues in an embedded store.
#[derive(Debug, Clone)]
pub struct SledQueueSettings {
    /// Size of the page cache in bytes. Default 32 MiB.
    pub cache_bytes: u64,
    /// Threshold of free bytes on the store's file system. Below it messages are refused until twice as many bytes are
    /// free; below half of it loads are refused, too. Confirmations always work, since they make room. Default 256 MiB;
    /// 0 switches the check off.
    pub min_free_bytes: u64,
    /// Size of a reserve file that is given up if a full disk would prevent the store from opening: the engine's
    /// [`StoreSettings::ballast_bytes`]. Default 64 MiB; 0 for none.
    pub ballast_bytes: u64,
    /// Maximum bytes of a message, and of the messages of one call together (encoded), since one call is one batch.
    /// Default 16 MiB.
    pub max_message_bytes: usize,
    /// How free bytes are measured for `min_free_bytes`. Default: asks the file system.
    pub disk: Disk,
    /// The engine's other settings.
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
    /// For tests: a small cache, short pauses, any disk, no ballast.
    pub fn test() -> Self {
        let (min_free_bytes, ballast_bytes) = (0, 0);
        Self { cache_bytes: 8 << 20, min_free_bytes, ballast_bytes, engine: StoreSettings::test(), ..Self::default() }
    }
}
