//! Opens a copy of a journal, whose directory is only read.

use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use greylag_store_sled::{OpenError, Store, StoreSettings};

use super::failure::Failure;
use super::look::look;
use super::rows::{Rows, close, open};

const LOCK_POLL: Duration = Duration::from_millis(20);

/// Opens a copy of a journal. If the copy is not sound, opens a store of everything in the log that is whole instead,
/// and answers the damage of the copy, too.
pub(super) fn open_copy(from: &Path, copy: &Path, guard: Option<u64>) -> Result<(Store<Rows>, Vec<String>), Failure> {
    let _lock = lock(from)?;
    copy_files(from, copy)?;
    let damage = match open(copy) {
        Ok(store) => {
            let reader = store.reader().map_err(|source| Failure::Store { path: copy.to_owned(), source })?;
            let found = look(reader, guard, &mut |_| ()).found;
            if found.is_sound() {
                return Ok((store, Vec::new()));
            }
            close(store, copy)?;
            found.damage
        }
        Err(Failure::Open(error @ (OpenError::Corrupt { .. } | OpenError::Failed { .. }))) => {
            tracing::warn!(%error, "the engine does not open a copy; its log is read without it");
            vec![error.to_string()]
        }
        Err(failure) => return Err(failure),
    };
    fs::remove_dir_all(copy).map_err(|source| Failure::File { path: copy.to_owned(), source })?;
    greylag_store_sled::rebuild(from, copy)?;
    Ok((open(copy)?, damage))
}

/// Locks the journal for as long as the file is held. Retries for a moment, since a process that ends may still hold
/// it.
fn lock(store: &Path) -> Result<File, Failure> {
    let data = store.join("db");
    let failed = |source| Failure::File { path: data.clone(), source };
    let lock = File::open(&data).map_err(failed)?;
    let give_up_at = Instant::now() + StoreSettings::default().lock_retry;
    loop {
        match lock.try_lock() {
            Ok(()) => return Ok(lock),
            Err(TryLockError::Error(source)) => return Err(failed(source)),
            Err(TryLockError::WouldBlock) if Instant::now() < give_up_at => thread::sleep(LOCK_POLL),
            Err(TryLockError::WouldBlock) => return Err(OpenError::Locked { path: store.to_owned() }.into()),
        }
    }
}

fn copy_files(from: &Path, to: &Path) -> Result<(), Failure> {
    let file = |path: PathBuf| move |source| Failure::File { path, source };
    fs::create_dir_all(to.join("blobs")).map_err(file(to.to_owned()))?;
    for entry in fs::read_dir(from).map_err(file(from.to_owned()))? {
        let entry = entry.map_err(file(from.to_owned()))?;
        let name = entry.file_name();
        let is_ours = name.to_string_lossy().starts_with("greylag.");
        if entry.path().is_file() && !is_ours {
            fs::copy(entry.path(), to.join(&name)).map_err(file(entry.path()))?;
        }
    }
    Ok(())
}
