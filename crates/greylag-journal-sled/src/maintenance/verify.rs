//! Verifies a journal on a copy beside it.

use std::path::Path;

use super::copy::open_copy;
use super::failure::Failure;
use super::findings::Verification;
use super::look::{Looked, guarded, look};
use super::rows::close;
use super::survey::Found;

/// Verifies everything: all commits and their digests, every event, snapshot, state and offset, and the guard.
///
/// Works on a copy beside the directory and removes the copy again, because the engine blanks the torn end of a log
/// that it opens. If the copy is not sound, its log is read without the engine: the counts are then those of what
/// [`salvage`](super::salvage()) can save, and what is missing is lost for good.
///
/// # Errors
/// [`Failure::Open`] if another process has the journal open, [`Failure::File`] if a file cannot be read or copied.
pub fn verify(path: &Path) -> Result<Verification, Failure> {
    Ok(look_beside(path, &mut |_| ())?.found)
}

pub(super) fn look_beside(path: &Path, visit: &mut dyn FnMut(&Found<'_>)) -> Result<Looked, Failure> {
    let guard = guarded(path)?;
    // The path is made absolute, since a directory named `.` has no file name.
    let path = &path.canonicalize().map_err(|source| Failure::File { path: path.to_owned(), source })?;
    let beside = path.with_file_name(format!("{}.verifying", path.file_name().unwrap_or_default().display()));
    let failed = |source| Failure::File { path: beside.clone(), source };
    if beside.exists() {
        std::fs::remove_dir_all(&beside).map_err(failed)?;
    }
    let looked = look_at_copy(path, &beside, guard, visit);
    match std::fs::remove_dir_all(&beside) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => looked.and(Err(failed(error))),
        _ => looked,
    }
}

fn look_at_copy(
    path: &Path,
    copy: &Path,
    guard: Option<u64>,
    visit: &mut dyn FnMut(&Found<'_>),
) -> Result<Looked, Failure> {
    let (store, mut damage) = open_copy(path, copy, guard)?;
    let reader = store.reader().map_err(|source| Failure::Store { path: copy.to_owned(), source })?;
    let mut looked = look(reader, guard, visit);
    close(store, copy)?;
    std::mem::swap(&mut damage, &mut looked.found.damage);
    looked.found.tell(damage);
    Ok(looked)
}

/// Writes the lost tail guard of a journal anew, if everything else in the journal is sound.
///
/// # Errors
/// [`Failure::Unsound`] if more is damaged than the guard; as [`verify`] otherwise.
pub fn renew_guard(path: &Path) -> Result<Verification, Failure> {
    let guard = guarded(path)?;
    let Looked { mut found, verified, .. } = look_beside(path, &mut |_| ())?;
    // A lost guard itself counts as one damage.
    let Some(verified) = verified.filter(|_| found.damage.len() <= usize::from(guard.is_none())) else {
        return Err(Failure::Unsound(found.damage));
    };
    greylag_store_sled::renew_guard(path, verified.commit_no)
        .map_err(|source| Failure::File { path: path.join(greylag_store_sled::GUARD_FILE), source })?;
    found.damage.clear();
    Ok(found)
}
