//! The low-disk watermark: a store that checks it before writing refuses changes that only add before the disk is full,
//! because sled does not survive a full disk. Small and needed changes go on for a while. Source: persistence §4.3.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::files::ballast::free_bytes;

/// Measures how many bytes are free on the file system of a store.
#[derive(Clone)]
pub struct Disk(Arc<dyn Fn(&Path) -> io::Result<u64> + Send + Sync>);

impl Disk {
    /// Asks the file system.
    pub fn system() -> Self {
        Self::new(free_bytes)
    }

    /// Measures with a function of the caller.
    pub fn new(free_bytes: impl Fn(&Path) -> io::Result<u64> + Send + Sync + 'static) -> Self {
        Self(Arc::new(free_bytes))
    }
}

impl fmt::Debug for Disk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Disk")
    }
}

/// How much room the disk has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Room {
    /// Everything may be written.
    Enough,
    /// Changes that only add are refused, with this reason.
    Low(String),
    /// Everything except deleting is refused, with this reason.
    Exhausted(String),
}

impl Room {
    /// The reason why nothing may be added; `None` if there is room.
    pub fn is_low(&self) -> Option<&str> {
        match self {
            Self::Enough => None,
            Self::Low(why) | Self::Exhausted(why) => Some(why),
        }
    }

    /// The reason why not even small and needed changes may be stored; `None` if they may.
    pub fn is_exhausted(&self) -> Option<&str> {
        match self {
            Self::Exhausted(why) => Some(why),
            Self::Enough | Self::Low(_) => None,
        }
    }
}

/// The low-disk watermark of one store. After the room was low, it is enough again only at twice the mark, so that a
/// writer is not refused and admitted in turns.
#[derive(Debug)]
pub struct Watermark {
    path: PathBuf,
    disk: Disk,
    min_free_bytes: u64,
    was_low: AtomicBool,
}

impl Watermark {
    /// The watermark of the store in the directory `path`: below `min_free_bytes` the room is low, below half of that
    /// it is exhausted; 0 switches the watermark off.
    pub fn new(path: &Path, disk: Disk, min_free_bytes: u64) -> Self {
        Self { path: path.to_owned(), disk, min_free_bytes, was_low: AtomicBool::new(false) }
    }

    /// Measures how much room there is now. Asks the disk.
    pub fn room(&self) -> Room {
        let min = self.min_free_bytes;
        // Treat a disk that cannot tell its room as having enough; 0 switches the watermark off.
        let Some(free) = (min > 0).then(|| (self.disk.0)(&self.path).ok()).flatten() else { return Room::Enough };
        let was_low = self.was_low.load(Ordering::Relaxed);
        let is_low = free < if was_low { min.saturating_mul(2) } else { min };
        if is_low != was_low && self.was_low.swap(is_low, Ordering::Relaxed) != is_low {
            let path = self.path.display();
            if is_low {
                tracing::warn!(%path, free, min, "the disk is nearly full; changes that only add are refused");
            } else {
                tracing::info!(%path, free, "the disk has room again");
            }
        }
        let why = || format!("{free} bytes are free at {}, min_free_bytes is {min}", self.path.display());
        match is_low {
            false => Room::Enough,
            true if free < min / 2 => Room::Exhausted(why()),
            true => Room::Low(why()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;

    use super::*;

    #[test]
    fn the_disk_is_low_until_there_is_twice_the_watermark() {
        let free = Arc::new(AtomicU64::new(100));
        let read = free.clone();
        let disk = Disk::new(move |_| Ok(read.load(Ordering::Relaxed)));
        let watermark = Watermark::new(Path::new("."), disk, 100);
        let seen = [100, 99, 100, 199, 50, 49, 199, 200, 100, 99].map(|now| {
            free.store(now, Ordering::Relaxed);
            let room = watermark.room();
            (room.is_low().is_some(), room.is_exhausted().is_some())
        });
        let (enough, low, exhausted) = ((false, false), (true, false), (true, true));
        assert_eq!(seen, [enough, low, low, low, low, exhausted, low, enough, enough, low]);
    }

    #[test]
    fn a_watermark_that_is_off_or_unknown_lets_everything_pass() {
        let broken = Disk::new(|_| Err(io::ErrorKind::Unsupported.into()));
        assert_eq!(Watermark::new(Path::new("."), broken, 100).room(), Room::Enough);
        assert_eq!(Watermark::new(Path::new("."), Disk::new(|_| Ok(0)), 0).room(), Room::Enough);
    }
}
