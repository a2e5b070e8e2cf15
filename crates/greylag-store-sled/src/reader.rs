//! Checked reads of a store, from any thread.

use std::sync::Arc;

use bytes::Bytes;

use crate::engine::Engine;
use crate::error::StoreError;

/// Reads records. Every value read was checked against its checksum.
///
/// A reader sees what the committer applied, also what is not durable yet; a crate that must hide
/// that (persistence J6) keeps the durable bound itself. Iterations are not isolated from batches.
#[derive(Clone)]
pub struct Reader {
    engine: Arc<Engine>,
}

impl Reader {
    pub(crate) fn new(engine: Arc<Engine>) -> Self {
        Self { engine }
    }

    /// The value under `key`.
    ///
    /// # Errors
    /// [`StoreError::Checksum`] if the value is damaged, others if it cannot be read.
    pub fn get(&self, key: &[u8]) -> Result<Option<Bytes>, StoreError> {
        self.engine.get(key)
    }

    /// Whether the page on which `key` lies, or would lie, can be read, and so changed. What lies under `key`
    /// is not looked at: it may be damaged by itself, or not be there.
    ///
    /// A batch that changes a page that cannot be read fails the store, and every request that waits for that batch; so
    /// a planner asks here before it adds what only one of those requests wants.
    ///
    /// # Errors
    /// [`StoreError::Damaged`] if the page is damaged, others if it cannot be read.
    pub fn check_page(&self, key: &[u8]) -> Result<(), StoreError> {
        self.engine.fetch_page(key)
    }

    /// Whether `key` can be removed without harm to others: the engine lets pages that have become nearly empty be taken
    /// in by those before them, and if such a one cannot be read, hundreds of sound pages cannot be read any more either.
    ///
    /// Of keys in a row that one batch removes only the first need be asked for, the others by
    /// [`check_page`](Self::check_page).
    ///
    /// # Errors
    /// [`StoreError::Damaged`] if one of these pages is damaged, others if it cannot be read.
    pub fn check_removal(&self, key: &[u8]) -> Result<(), StoreError> {
        self.engine.fetch_for_removal(key)
    }

    /// Records in ascending key order, `from` included, `to` not; empty if `to` is not above `from`.
    /// The iteration can be walked from its end too.
    pub fn range(
        &self,
        from: &[u8],
        to: &[u8],
    ) -> impl DoubleEndedIterator<Item = Result<(Bytes, Bytes), StoreError>> + use<> {
        self.engine.range(from, to)
    }

    /// What lies under `key` as it is on disk, for moving damage aside: unchecked, the checksum at its end.
    ///
    /// # Errors
    /// [`StoreError`] if it cannot be read.
    pub fn raw(&self, key: &[u8]) -> Result<Option<Bytes>, StoreError> {
        self.engine.raw(key)
    }

    /// Keys in ascending order, `from` included, `to` not; their values are not looked at.
    pub fn keys(&self, from: &[u8], to: &[u8]) -> impl Iterator<Item = Result<Bytes, StoreError>> + use<> {
        self.engine.keys(from, to)
    }

    /// What lies in a range as it is on disk: unchecked, checksums included.
    pub(crate) fn raw_range(
        &self,
        from: &[u8],
        to: &[u8],
    ) -> impl Iterator<Item = Result<(Bytes, Bytes), StoreError>> + use<> {
        self.engine.raw_range(from, to)
    }

    pub(crate) fn has_blobs(&self) -> bool {
        self.engine.has_blobs()
    }

    /// Bytes that the files of the store take on disk.
    ///
    /// # Errors
    /// [`StoreError`] if the directory cannot be read.
    pub fn size_on_disk(&self) -> Result<u64, StoreError> {
        self.engine.size_on_disk()
    }
}

impl std::fmt::Debug for Reader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Reader")
    }
}
