//! sled's index of its log: a file named `snap.` and a number.
//!
//! While sled opens a store, it writes a new index to a file with an additional ending and then renames it. If the
//! process is killed in between, the unfinished file stays, and sled takes it for the index at the next opening, since
//! its name sorts behind all others: the store can never be opened again, although nothing is missing. An unfinished
//! index is never needed: the former index is removed only once the new one has its name, and without any index the
//! whole log is read.

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

const PREFIX: &str = "snap.";
const UNFINISHED: &str = ".generating";

/// Removes unfinished index files, unless the store is locked: a process that has it open may be writing one, and
/// opening fails then in any case.
pub(crate) fn remove_unfinished(store: &Path) -> io::Result<()> {
    if unfinished(store)?.is_empty() {
        return Ok(());
    }
    // Lock the same file as sled does.
    let log = File::options().read(true).write(true).open(store.join("db"))?;
    match log.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Ok(()),
        Err(TryLockError::Error(error)) => return Err(error),
    }
    // List the files again: the former holder of the lock may have finished its index.
    for path in unfinished(store)? {
        tracing::warn!(path = %path.display(), "an unfinished index of a stopped process is removed and rebuilt");
        fs::remove_file(path)?;
    }
    Ok(())
}

fn unfinished(store: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(store)? {
        let entry = entry?;
        let name = entry.file_name();
        if name.to_str().is_some_and(|name| name.starts_with(PREFIX) && name.ends_with(UNFINISHED)) {
            found.push(entry.path());
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::Batch;
    use crate::engine::Engine;
    use crate::error::OpenError;
    use crate::settings::StoreSettings;

    fn open(path: &Path) -> Result<Engine, OpenError> {
        Engine::open(path, &StoreSettings::test(), "repair it")
    }

    fn commit(engine: &Engine, key: &[u8]) {
        let mut batch = Batch::default();
        batch.put(key, b"value");
        engine.commit(batch).unwrap();
    }

    /// A store with an index, and a commit after it in the log.
    fn store() -> (tempfile::TempDir, PathBuf) {
        let directory = tempfile::tempdir().unwrap();
        commit(&open(directory.path()).unwrap(), b"first");
        commit(&open(directory.path()).unwrap(), b"second");
        drop(open(directory.path()).unwrap());
        let index = |entry: io::Result<fs::DirEntry>| entry.unwrap().path();
        let is_index = |path: &PathBuf| path.file_name().unwrap().to_str().unwrap().starts_with(PREFIX);
        let mut found = fs::read_dir(directory.path()).unwrap().map(index).filter(is_index);
        let index = found.next().expect("sled has written an index");
        assert_eq!(found.next(), None, "and keeps one");
        (directory, index)
    }

    fn unfinished_of(index: &Path) -> PathBuf {
        index.with_file_name(format!("{}{UNFINISHED}", index.file_name().unwrap().to_str().unwrap()))
    }

    /// An index is cut off after any byte, with a former index and without one.
    #[test]
    fn a_store_opens_whose_index_was_cut_off_anywhere() {
        let (directory, index) = store();
        let whole = fs::read(&index).unwrap();
        for end in 0..=whole.len() {
            fs::write(unfinished_of(&index), &whole[..end]).unwrap();
            if end % 2 == 0 {
                fs::remove_file(&index).unwrap();
            }
            let engine = open(directory.path()).unwrap_or_else(|error| panic!("cut off at {end}: {error}"));
            for key in [&b"first"[..], b"second"] {
                assert_eq!(engine.get(key).unwrap().unwrap(), "value", "cut off at {end}");
            }
            drop(engine);
            assert_eq!(unfinished(directory.path()).unwrap(), Vec::<PathBuf>::new());
            fs::write(&index, &whole).unwrap();
        }
    }

    #[test]
    fn an_index_that_another_process_writes_is_not_removed() {
        let (directory, index) = store();
        let owner = open(directory.path()).unwrap();
        fs::write(unfinished_of(&index), "half of it").unwrap();
        remove_unfinished(directory.path()).unwrap();
        assert!(unfinished_of(&index).exists(), "the store is open");
        drop(owner);
        remove_unfinished(directory.path()).unwrap();
        assert!(!unfinished_of(&index).exists());
        assert!(index.exists(), "a finished one stays");
    }
}
