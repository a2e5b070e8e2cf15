//! Settings of the store of durable entries.

use crate::{Disk, StoreSettings};

/// Settings of the store of durable entries.
#[derive(Debug, Clone)]
pub struct DdataStoreSettings {
    /// Page cache. Default 64 MiB. Source: ddata §8, `durable.cache_bytes`.
    pub cache_bytes: u64,
    /// With fewer bytes free on the file system of the store, values and deltas are refused, so updates end with
    /// `StoreFailed`, until twice as many are free; with fewer than half, tombstones and the replicator's own records
    /// are refused too. Reads and removals always work. Default 256 MiB; 0 switches the limit off. Source: ddata U2,
    /// persistence §4.3.
    pub min_free_bytes: u64,
    /// The size of a file that is given up when a full disk would not let the store open: the engine's
    /// [`StoreSettings::ballast_bytes`]. Default 64 MiB; 0 for none. Source: ddata U2, persistence §4.3.
    pub ballast_bytes: u64,
    /// How the free bytes are measured. Default: by asking the file system.
    pub disk: Disk,
    /// All other settings of the engine.
    pub engine: StoreSettings,
}

impl Default for DdataStoreSettings {
    fn default() -> Self {
        let (min_free_bytes, ballast_bytes) = (256 << 20, 64 << 20);
        Self {
            cache_bytes: 64 << 20,
            min_free_bytes,
            ballast_bytes,
            disk: Disk::system(),
            engine: StoreSettings::default(),
        }
    }
}

impl DdataStoreSettings {
    /// Settings for tests: a small cache, short waits, a disk of any fullness.
    pub fn test() -> Self {
        let (min_free_bytes, ballast_bytes) = (0, 0);
        let engine = StoreSettings::test();
        Self { cache_bytes: 8 << 20, min_free_bytes, ballast_bytes, engine, ..Self::default() }
    }
}
