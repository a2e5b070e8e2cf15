//! Checked reads of a store, from any thread.

use std::sync::Arc;

use bytes::Bytes;

use crate::engine::Engine;
use crate::error::StoreError;

/// Reads records. Every value read was checked against its checksum.
///
/// A reader sees what the committer applied, also what is not durable yet; a crate that must hide such data
/// (persistence J6) keeps the durable bound itself. Iterations are not isolated from batches.
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
    /// [`StoreError::Checksum`] if the value is damaged, other errors if it cannot be read.
    pub fn get(&self, key: &[u8]) -> Result<Option<Bytes>, StoreError> {
        self.engine.get(key)
    }

    /// Checks that the page on which `key` lies, or would lie, can be read, and so changed. The value under `key` is
    /// not checked: it may be damaged or absent.
    ///
    /// A batch that changes an unreadable page fails the store, and every request that waits for the batch. So a
    /// planner checks here before it adds a change that only one of those requests wants.
    ///
    /// # Errors
    /// [`StoreError::Damaged`] if the page is damaged, other errors if it cannot be read.
    pub fn check_page(&self, key: &[u8]) -> Result<(), StoreError> {
        self.engine.fetch_page(key)
    }

    /// Checks that `key` can be removed without harm to others: the engine merges a nearly empty page into the page
    /// before, and if that page cannot be read, hundreds of sound pages become unreadable too.
    ///
    /// Of keys in a row that one batch removes only the first needs this check; [`check_page`](Self::check_page) is
    /// enough for the others.
    ///
    /// # Errors
    /// [`StoreError::Damaged`] if one of these pages is damaged, other errors if one cannot be read.
    pub fn check_removal(&self, key: &[u8]) -> Result<(), StoreError> {
        self.engine.fetch_for_removal(key)
    }

    /// Records in ascending key order, `from` included, `to` excluded; empty if `to` is not above `from`. The iteration
    /// can also be walked from its end.
    pub fn range(
        &self,
        from: &[u8],
        to: &[u8],
    ) -> impl DoubleEndedIterator<Item = Result<(Bytes, Bytes), StoreError>> + use<> {
        self.engine.range(from, to)
    }

    /// The value under `key` as it is on disk, for moving damage aside: not verified, with the checksum at its end.
    ///
    /// # Errors
    /// [`StoreError`] if the value cannot be read.
    pub fn raw(&self, key: &[u8]) -> Result<Option<Bytes>, StoreError> {
        self.engine.raw(key)
    }

    /// Keys in ascending order, `from` included, `to` excluded; their values are not checked.
    pub fn keys(&self, from: &[u8], to: &[u8]) -> impl Iterator<Item = Result<Bytes, StoreError>> + use<> {
        self.engine.keys(from, to)
    }

    /// The records of a range as they are on disk: not verified, checksums included.
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

    /// The bytes that the files of the store take on disk.
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
