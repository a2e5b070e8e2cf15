//! Opens and commits sled so that an acknowledged group survives power loss.
//!
//! sled 0.34's `flush` ends in `sync_file_range`, which writes no metadata and empties no device cache. So a commit is
//! `apply_batch`, the blocking `flush`, then `sync_data` on a handle of our own of the data file (a sync belongs to the
//! inode, not to the handle). `flush_async` is never called: each call occupies one of sled's seven I/O threads and
//! needs another to finish, so eight callers wait for ever. Source: persistence §4.3.

use std::fs::{self, File, OpenOptions};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;

use crate::batch::{Batch, unseal};
use crate::error::{OpenError, StoreError};
use crate::files::conf::{self, SEGMENT_BYTES};
use crate::files::directory::sync_directory;
use crate::files::{index, private};
use crate::retry::{RetryingIter, retry_corruption};
use crate::settings::StoreSettings;

/// sled merges a page with fewer records into the page before.
const LEAST_OF_A_PAGE: usize = 4;
/// How often a batch is applied at most: no page has more pieces in the log.
const MOST_PIECES: usize = 1000;
/// The interval of sled's background flush, which is also the period of its garbage collection: do not switch it off.
const BACKGROUND_FLUSH_MS: u64 = 500;
const LOCK_POLL: Duration = Duration::from_millis(20);

/// One open store: sled's handle, and our own handle of the same data file.
pub(crate) struct Engine {
    db: sled::Db,
    data_file: File,
    blobs: PathBuf,
}

impl Engine {
    /// Opens or creates the store; waits for a dying process to release the lock.
    pub(crate) fn open(path: &Path, settings: &StoreSettings, repair: &'static str) -> Result<Self, OpenError> {
        let failed = |source: StoreError| OpenError::of(path, source, repair);
        create_directory(path).map_err(|error| failed(error.into()))?;
        let give_up_at = Instant::now() + settings.lock_retry;
        let db = loop {
            match open_sled(path, settings) {
                Err(error) if is_lock_conflict(&error) => {
                    if Instant::now() >= give_up_at {
                        return Err(OpenError::Locked { path: path.to_owned() });
                    }
                    thread::sleep(LOCK_POLL);
                }
                outcome => break outcome.map_err(failed)?,
            }
        };
        let engine = Self::around(db, path).map_err(|error| failed(error.into()))?;
        tracing::debug!(path = %path.display(), recovered = engine.db.was_recovered(), "opened store");
        Ok(engine)
    }

    fn around(db: sled::Db, path: &Path) -> std::io::Result<Self> {
        let data_file = OpenOptions::new().read(true).write(true).open(path.join("db"))?;
        private::close_to_others(path)?;
        // Sync what sled just created: neither the files nor their names are durable by themselves.
        conf::sync(path)?;
        sync_directory(path)?;
        Ok(Self { db, data_file, blobs: path.join("blobs") })
    }

    /// Makes a batch durable. The engine must not be used after any error: sled still shows data that it could not
    /// write.
    pub(crate) fn commit(&self, batch: Batch) -> Result<(), StoreError> {
        self.fetch(&batch)?;
        self.apply(&batch)?;
        self.sync()?;
        self.merge_nearly_empty_pages(&batch)
    }

    /// Reads every page that a batch changes.
    ///
    /// sled changes the pages one after the other, in no order, and stops at the first that it cannot read. Its earlier
    /// changes stay and reach the disk: a part of a batch, which no request asked for. So nothing is applied before
    /// every page was read.
    pub(crate) fn fetch(&self, batch: &Batch) -> Result<(), StoreError> {
        batch.writes().iter().try_for_each(|(key, _)| self.fetch_page(key))
    }

    /// Reads the page on which `key` lies, or would lie; the value under `key` is not checked.
    pub(crate) fn fetch_page(&self, key: &[u8]) -> Result<(), StoreError> {
        retry_corruption(|| self.db.get(key)).map(drop)
    }

    /// Reads the pages that a removal of `key` may change: its own page, and the one before.
    ///
    /// sled merges a page with fewer records than [`LEAST_OF_A_PAGE`] into the page before. If sled cannot read that
    /// page, it stops there for good, and everything below the common index page, hundreds of pages, is lost with it.
    pub(crate) fn fetch_for_removal(&self, key: &[u8]) -> Result<(), StoreError> {
        self.fetch_page(key)?;
        // Read `LEAST_OF_A_PAGE` records before `key`: fewer of them lie on its own page if that may be merged, so the
        // last one lies on the page before.
        let mut before = RetryingIter(self.db.range(..key));
        (0..LEAST_OF_A_PAGE).try_for_each(|_| before.next_back().transpose().map(drop))
    }

    /// Lets sled merge the pages that this batch left nearly empty, now that the pages before them can be read.
    /// Otherwise the next read of such a page would merge it, and the page before may be damaged by then.
    pub(crate) fn merge_nearly_empty_pages(&self, batch: &Batch) -> Result<(), StoreError> {
        let removed = batch.writes().iter().filter(|(_, value)| value.is_none());
        for (key, _) in removed {
            match self.fetch_page(key) {
                Err(error) if error.is_corruption() => {
                    tracing::warn!(%error, "nearly empty pages are not merged: a page before them is damaged");
                }
                fetched => fetched?,
            }
        }
        Ok(())
    }

    /// The first half of a commit, once its pages were [fetched](Self::fetch): readers see the batch; the disk may not
    /// have it yet.
    pub(crate) fn apply(&self, batch: &Batch) -> Result<(), StoreError> {
        // Apply until it succeeds: stopping halfway would leave a part of the batch. It fails on another, damaged page,
        // which sled moves meanwhile and meets once for each piece of that page.
        for _ in 0..MOST_PIECES {
            match self.db.apply_batch(sled_batch(batch)) {
                Err(error @ sled::Error::Corruption { .. }) if self.fetch(batch).is_ok() => {
                    tracing::debug!(%error, "sled met a damaged page while it moved it; the batch is applied again");
                }
                applied => return applied.map_err(StoreError::from_sled),
            }
        }
        self.db.apply_batch(sled_batch(batch)).map_err(StoreError::from_sled)
    }

    /// The second half of a commit: when it returns, the disk has everything that was applied before the call.
    pub(crate) fn sync(&self) -> Result<(), StoreError> {
        self.db.flush().map_err(StoreError::from_sled)?;
        self.data_file.sync_data()?;
        Ok(())
    }

    pub(crate) fn get(&self, key: &[u8]) -> Result<Option<Bytes>, StoreError> {
        let found = retry_corruption(|| self.db.get(key))?;
        found.map(|sealed| unseal(key, &sealed)).transpose()
    }

    /// The value under a key with its checksum, which is not verified.
    pub(crate) fn raw(&self, key: &[u8]) -> Result<Option<Bytes>, StoreError> {
        let found = retry_corruption(|| self.db.get(key))?;
        Ok(found.map(|sealed| Bytes::copy_from_slice(&sealed)))
    }

    /// Keys in order, `from` included, `to` excluded, with their values, which end in a checksum that is not verified.
    pub(crate) fn raw_range(&self, from: &[u8], to: &[u8]) -> impl Iterator<Item = Record> + use<> {
        let to = if to < from { from } else { to };
        RetryingIter(self.db.range(from..to)).map(|item| {
            let (key, sealed) = item?;
            Ok((Bytes::copy_from_slice(&key), Bytes::copy_from_slice(&sealed)))
        })
    }

    /// Keys in order, `from` included, `to` excluded, whatever their values.
    pub(crate) fn keys(&self, from: &[u8], to: &[u8]) -> impl Iterator<Item = Result<Bytes, StoreError>> + use<> {
        let to = if to < from { from } else { to };
        RetryingIter(self.db.range(from..to)).map(|item| Ok(Bytes::copy_from_slice(&item?.0)))
    }

    /// Records in key order, `from` included, `to` excluded.
    pub(crate) fn range(&self, from: &[u8], to: &[u8]) -> impl DoubleEndedIterator<Item = Record> + use<> {
        // Make an inverted range empty: it is legal here, but sled would panic.
        let to = if to < from { from } else { to };
        RetryingIter(self.db.range(from..to)).map(|item| {
            let (key, sealed) = item?;
            let value = unseal(&key, &sealed)?;
            Ok((Bytes::copy_from_slice(&key), value))
        })
    }

    /// The bytes that the files of the store take.
    pub(crate) fn size_on_disk(&self) -> Result<u64, StoreError> {
        self.db.size_on_disk().map_err(StoreError::from_sled)
    }

    /// Whether values lie outside the log, in files that sled never syncs. Must stay `false`.
    pub(crate) fn has_blobs(&self) -> bool {
        fs::read_dir(&self.blobs).is_ok_and(|mut entries| entries.next().is_some())
    }

    #[cfg(test)]
    pub(crate) fn set_data_file(&mut self, file: File) {
        self.data_file = file;
    }
}

/// Frees memory that batches of `keys` keys left behind.
///
/// sled leaves the pages that it replaced to the collector of `crossbeam-epoch`, which takes some hundred objects for
/// every 128 times that a thread pins it. A batch pins it once, however much it replaces, so without help the dead
/// pages of a busy store pile up by the gigabyte, and a clean close, which writes only living pages, takes long.
pub(crate) fn collect_garbage(keys: usize) {
    /// Each round frees some hundred objects; each key leaves a few.
    const KEYS_PER_ROUND: usize = 50;
    /// Objects are freed at the earliest two rounds after they were left.
    const MIN_ROUNDS: usize = 8;
    for _ in 0..MIN_ROUNDS + keys / KEYS_PER_ROUND {
        crossbeam_epoch::pin().flush();
    }
}

/// One record of an iteration: its key and its checked value.
pub(crate) type Record = Result<(Bytes, Bytes), StoreError>;

fn open_sled(path: &Path, settings: &StoreSettings) -> Result<sled::Db, StoreError> {
    conf::remove_if_torn(path)?;
    index::remove_unfinished(path)?;
    let config = sled::Config::default()
        .path(path)
        .cache_capacity(settings.cache_bytes)
        .segment_size(SEGMENT_BYTES)
        .flush_every_ms(Some(BACKGROUND_FLUSH_MS));
    // Catch panics: a damaged log can make sled panic instead of returning an error.
    catch_unwind(AssertUnwindSafe(|| config.open()))
        .map_err(|panic| StoreError::Damaged(StoreError::panic_text(&*panic).into()))?
        .map_err(StoreError::from_sled)
}

/// sled reports a held lock as an I/O error of kind `Other`; only its text tells.
fn is_lock_conflict(error: &StoreError) -> bool {
    matches!(error, StoreError::Io(error) if error.to_string().contains("could not acquire lock"))
}

/// Asks the kernel to read the data file from the disk again: after a failed sync the page cache holds pages that the
/// disk does not have. Best effort; changes lost with those pages were never acknowledged.
pub(crate) fn drop_page_cache(path: &Path) {
    if let Ok(file) = File::open(path.join("db")) {
        let _unsupported = rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed);
    }
}

fn create_directory(path: &Path) -> std::io::Result<()> {
    if !path.is_dir() {
        private::directory().create(path)?;
        // Sync the parent, which holds the new name; `canonicalize` finds one for relative paths too.
        if let Some(parent) = path.canonicalize()?.parent() {
            sync_directory(parent)?;
        }
    }
    Ok(())
}

fn sled_batch(batch: &Batch) -> sled::Batch {
    let mut writes = sled::Batch::default();
    for (key, value) in batch.writes() {
        match value {
            Some(value) => writes.insert(key.clone(), value.clone()),
            None => writes.remove(key.clone()),
        }
    }
    writes
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;

    fn open(path: &Path) -> Result<Engine, OpenError> {
        Engine::open(path, &StoreSettings::test(), "repair it")
    }

    #[test]
    fn a_commit_whose_sync_fails_is_no_commit() {
        let directory = tempfile::tempdir().unwrap();
        let mut engine = open(directory.path()).unwrap();
        let mut batch = Batch::default();
        batch.put(b"key", b"value");
        engine.commit(batch).unwrap();
        // `/dev/null` answers a sync with EINVAL: the commit must sync, and must return the error.
        engine.set_data_file(File::open("/dev/null").unwrap());
        let mut batch = Batch::default();
        batch.put(b"key", b"other");
        assert!(matches!(engine.commit(batch), Err(StoreError::Io(_))));
    }

    fn removal(numbers: impl IntoIterator<Item = u32>) -> Batch {
        let mut batch = Batch::default();
        numbers.into_iter().for_each(|number| batch.remove(&number.to_be_bytes()));
        batch
    }

    /// Writes so much that the first records lie in another segment of the log than the last one, of which sled reads
    /// everything when it opens. Calls `halfway` in the middle, and in the end flips a bit of record 100.
    fn damaged(path: &Path, halfway: impl FnOnce(&Engine)) -> Result<Engine, OpenError> {
        let engine = open(path).unwrap();
        let write = |number: u32| {
            let mut batch = Batch::default();
            batch.put(&number.to_be_bytes(), format!("record {number}, {}", "x".repeat(60 << 10)).as_bytes());
            engine.commit(batch).unwrap();
        };
        (0..200).for_each(write);
        halfway(&engine);
        (200..400).for_each(write);
        drop(engine);
        drop(open(path).unwrap());
        let log = fs::read(path.join("db")).unwrap();
        let file = File::options().write(true).open(path.join("db")).unwrap();
        for at in (0..log.len()).filter(|at| log[*at..].starts_with(b"record 100,")) {
            file.write_all_at(b"R", at as u64).unwrap();
        }
        open(path)
    }

    fn unreadable(engine: &Engine) -> Vec<u32> {
        (0..400).filter(|number: &u32| engine.get(&number.to_be_bytes()).is_err()).collect()
    }

    #[test]
    fn a_removal_beside_a_damaged_page_is_told_so_before_it_makes_others_unreadable() {
        let directory = tempfile::tempdir().unwrap();
        let engine = damaged(directory.path(), |_| ()).unwrap();
        let damaged = unreadable(&engine);
        let behind = damaged.last().unwrap() + 1;
        for number in behind..behind + 4 {
            let fetched = engine.fetch_for_removal(&number.to_be_bytes());
            assert!(fetched.unwrap_err().is_corruption(), "{number} of those behind {damaged:?}");
        }
        for number in [damaged[0] - 1, behind + 4] {
            engine.fetch_for_removal(&number.to_be_bytes()).unwrap();
        }
        // Remove as many records as `check_removal` allows; every page is as readable as before.
        engine.commit(removal((0..damaged[0]).chain(behind + 4..behind + 20))).unwrap();
        assert_eq!(unreadable(&engine), damaged);
        // Removing without the check makes many more pages unreadable.
        engine.commit(removal([behind])).unwrap();
        assert!(unreadable(&engine).len() > 10 * damaged.len());
    }

    #[test]
    fn pages_that_were_left_nearly_empty_ask_for_no_other_later() {
        let directory = tempfile::tempdir().unwrap();
        let behind = unreadable(&damaged(directory.path(), |_| ()).unwrap()).last().unwrap() + 1;
        // Nine records lie on the page; the removal leaves three.
        let removal = || removal(behind..behind + 6);
        let directory = tempfile::tempdir().unwrap();
        let settled = damaged(directory.path(), |engine| engine.commit(removal()).unwrap());
        let lost = unreadable(&settled.unwrap());
        assert!(lost.contains(&100) && lost.len() <= 30, "{lost:?}");
        let directory = tempfile::tempdir().unwrap();
        let unsettled = damaged(directory.path(), |engine| {
            engine.apply(&removal()).unwrap();
            engine.sync().unwrap();
        });
        // Without settling, the store does not even open, or most of it is unreadable.
        assert!(unsettled.is_err() || unreadable(&unsettled.unwrap()).len() > 200, "this shows nothing");
    }

    #[test]
    fn a_batch_that_cannot_change_one_of_its_pages_changes_none() {
        let directory = tempfile::tempdir().unwrap();
        let mut engine = damaged(directory.path(), |_| ()).unwrap();
        for round in 0..4 {
            let mut batch = Batch::default();
            for number in (0..400_u32).step_by(20) {
                batch.put(&number.to_be_bytes(), b"changed");
            }
            assert!(engine.commit(batch).unwrap_err().is_corruption());
            drop(engine);
            engine = open(directory.path()).unwrap();
            for number in (0..400_u32).step_by(20).filter(|number| number.abs_diff(100) > 32) {
                let found = engine.get(&number.to_be_bytes()).unwrap().unwrap();
                assert!(found.starts_with(b"record"), "round {round} changed {number}");
            }
        }
    }

    #[test]
    fn ranges_include_the_start_and_exclude_the_end() {
        let directory = tempfile::tempdir().unwrap();
        let engine = open(directory.path()).unwrap();
        let mut batch = Batch::default();
        for key in [b"a", b"b", b"c"] {
            batch.put(key, key);
        }
        engine.commit(batch).unwrap();
        let keys = |from: &[u8], to: &[u8]| -> Vec<_> { engine.range(from, to).map(|r| r.unwrap().0).collect() };
        assert_eq!(keys(b"a", b"c"), ["a", "b"]);
        assert_eq!(keys(b"c", b"a"), [""; 0]);
        assert_eq!(engine.range(b"a", b"z").next_back().unwrap().unwrap().0, "c");
    }

    #[test]
    fn an_unreadable_store_is_an_error() {
        let directory = tempfile::tempdir().unwrap();
        drop(open(directory.path()).unwrap());
        fs::write(directory.path().join("conf"), "segment_size: 1\nuse_compression: false\nversion: 0.34\nxxxx")
            .unwrap();
        assert!(matches!(open(directory.path()), Err(OpenError::Failed { .. })));
    }
}
