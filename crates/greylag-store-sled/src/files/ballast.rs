//! The ballast: a file that only takes space. On a full disk a store cannot be opened, not even to read it or to delete
//! from it; the ballast is then removed to make room. Source: persistence §4.3.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crate::files::private;

const FILE_NAME: &str = "greylag.ballast";
/// A ballast is made only where so many times its size is free: it must not fill the disk itself.
const ROOM: u64 = 4;

/// Bytes that a process without privileges may still write to the file system of `path`.
///
/// # Errors
/// If the file system does not tell its free space.
pub fn free_bytes(path: &Path) -> io::Result<u64> {
    let status = rustix::fs::statvfs(path)?;
    Ok(status.f_bavail.saturating_mul(status.f_frsize))
}

/// The ballast of one store.
#[derive(Debug, Clone)]
pub(crate) struct Ballast {
    path: PathBuf,
    bytes: u64,
}

impl Ballast {
    pub(crate) fn new(directory: &Path, bytes: u64) -> Self {
        Self { path: directory.join(FILE_NAME), bytes }
    }

    /// Makes the ballast, unless it exists or there is no room. A store works without one, too.
    pub(crate) fn restore(&self) {
        let there = fs::metadata(&self.path).is_ok_and(|metadata| metadata.len() == self.bytes);
        if self.bytes == 0 || there {
            return;
        }
        let directory = self.path.parent().unwrap_or(Path::new("."));
        if free_bytes(directory).is_ok_and(|free| free / ROOM < self.bytes) {
            return;
        }
        if let Err(error) = self.write() {
            tracing::warn!(path = %self.path.display(), %error, "no ballast could be made: a full disk will need an operator");
            self.release();
        }
    }

    /// Removes the ballast. Returns whether there was one.
    pub(crate) fn release(&self) -> bool {
        fs::remove_file(&self.path).is_ok()
    }

    /// Writes real blocks: a hole in a file takes no space.
    fn write(&self) -> io::Result<()> {
        let mut file = private::create(&self.path)?;
        let piece = vec![0; 1 << 20];
        let mut left = self.bytes;
        while left > 0 {
            let now = left.min(piece.len() as u64);
            file.write_all(&piece[..usize::try_from(now).unwrap_or(piece.len())])?;
            left -= now;
        }
        file.sync_all()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ballast_is_made_once_and_only_where_there_is_room() {
        let directory = tempfile::tempdir().unwrap();
        let ballast = Ballast::new(directory.path(), 3 << 19);
        ballast.restore();
        assert_eq!(fs::metadata(directory.path().join(FILE_NAME)).unwrap().len(), 3 << 19);
        assert!(ballast.release() && !ballast.release());
        let too_large = free_bytes(directory.path()).unwrap() / 2;
        Ballast::new(directory.path(), too_large).restore();
        Ballast::new(directory.path(), 0).restore();
        assert!(!ballast.release(), "none was made");
    }
}
