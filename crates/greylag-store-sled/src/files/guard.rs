//! The tail guard: remembers the last acknowledged commit outside of the log.
//!
//! sled takes any damage near the end of its log for a torn write and opens without what follows. So after the sync of
//! each group, and before its answers, the number of its last commit is written to the guard file and synced. Two slots
//! take turns: a torn write leaves the other slot, which is one group older, and the group of the torn write was not
//! acknowledged. Source: persistence §4.3.
//!
//! ```text
//! offset 0     slot: `glguard1`, number u64, CRC-32C over both u32 (big-endian)
//! offset 2048  the other slot
//! ```

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::Path;

use crate::error::StoreError;
use crate::files::directory::sync_directory;
use crate::files::private;

/// The file of the guard, in the directory of the store.
pub const FILE_NAME: &str = "greylag.guard";

const MAGIC: &[u8; 8] = b"glguard1";
const FILE_BYTES: usize = 4096;
const SLOT_AT: [usize; 2] = [0, FILE_BYTES / 2];
const SLOT_BYTES: usize = 20;

/// The open guard of one store.
#[derive(Debug)]
pub(crate) struct TailGuard {
    file: File,
    /// The slot to write next; the other slot holds the greater number.
    next_slot: usize,
    number: u64,
    /// Whether `number` is known to be on the disk. A number that was read may be in memory only, left by a failed
    /// sync, and a second sync would not report that.
    is_synced: bool,
}

impl TailGuard {
    /// Opens the guard of a store whose last commit is `found`, and refuses a store that lost acknowledged commits. A
    /// store without commits gets a new guard.
    pub(crate) fn open(directory: &Path, found: u64) -> Result<Self, StoreError> {
        let path = directory.join(FILE_NAME);
        let bytes = match File::open(&path).and_then(|mut file| read(&mut file)) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(error.into()),
        };
        let slots = slots(&bytes);
        let Some(guard) = slots.into_iter().flatten().max() else {
            if found > 0 {
                return Err(StoreError::GuardLost { found });
            }
            renew(directory, 0)?;
            return Self::open(directory, 0);
        };
        if found < guard {
            return Err(StoreError::TailLost { guard, found });
        }
        let file = OpenOptions::new().read(true).write(true).open(&path)?;
        Ok(Self { file, next_slot: usize::from(slots[0] == Some(guard)), number: guard, is_synced: false })
    }

    /// Records that commits up to `number` are synced; they may be acknowledged when this returns.
    pub(crate) fn raise_to(&mut self, number: u64) -> Result<(), StoreError> {
        if self.is_synced && number == self.number {
            return Ok(());
        }
        self.file.seek(SeekFrom::Start(SLOT_AT[self.next_slot] as u64))?;
        self.file.write_all(&slot(number))?;
        self.file.sync_data()?;
        self.is_synced = true;
        self.next_slot = 1 - self.next_slot;
        self.number = number;
        Ok(())
    }

    #[cfg(test)]
    pub(crate) fn set_file(&mut self, file: File) {
        self.file = file;
    }
}

/// Judges a store in `directory` whose last commit is `found`, as opening does.
#[cfg(test)]
pub(crate) fn check(directory: &Path, found: u64) -> Result<(), StoreError> {
    TailGuard::open(directory, found).map(drop)
}

/// The last acknowledged commit, as the guard of a store in `directory` says; `None` if the guard is missing or cannot
/// be read.
///
/// # Errors
/// If the file exists but cannot be read.
pub fn guarded(directory: &Path) -> io::Result<Option<u64>> {
    let bytes = match File::open(directory.join(FILE_NAME)).and_then(|mut file| read(&mut file)) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        read => read?,
    };
    Ok(slots(&bytes).into_iter().flatten().max())
}

fn slots(bytes: &[u8]) -> [Option<u64>; 2] {
    SLOT_AT.map(|at| bytes.get(at..at + SLOT_BYTES).and_then(number_of))
}

/// Overwrites the guard of a store in `directory` for the last commit `number`. Only for repair: the former number is
/// lost.
///
/// # Errors
/// If the file cannot be written.
pub fn renew(directory: &Path, number: u64) -> io::Result<()> {
    let mut bytes = vec![0; FILE_BYTES];
    SLOT_AT.iter().for_each(|at| bytes[*at..*at + SLOT_BYTES].copy_from_slice(&slot(number)));
    let mut file = private::create(&directory.join(FILE_NAME))?;
    file.write_all(&bytes)?;
    file.sync_all()?;
    sync_directory(directory)
}

fn read(file: &mut File) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(FILE_BYTES);
    file.take(FILE_BYTES as u64).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn slot(number: u64) -> [u8; SLOT_BYTES] {
    let mut slot = [0; SLOT_BYTES];
    slot[..8].copy_from_slice(MAGIC);
    slot[8..16].copy_from_slice(&number.to_be_bytes());
    let crc = crc32c::crc32c(&slot[..16]);
    slot[16..].copy_from_slice(&crc.to_be_bytes());
    slot
}

fn number_of(slot: &[u8]) -> Option<u64> {
    let number = u64::from_be_bytes(slot.get(8..16)?.try_into().ok()?);
    (slot == self::slot(number)).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_back(directory: &Path, found: u64) -> Result<u64, StoreError> {
        TailGuard::open(directory, found).map(|guard| guard.number)
    }

    #[test]
    fn the_bytes_of_a_slot_are_fixed() {
        assert_eq!(slot(258), *b"glguard1\0\0\0\0\0\0\x01\x02\xee\xe4\x09\x7d");
    }

    #[test]
    fn the_guard_remembers_the_greatest_number_and_refuses_less() {
        let directory = tempfile::tempdir().unwrap();
        let mut guard = TailGuard::open(directory.path(), 0).unwrap();
        for number in [1, 2, 2, 5] {
            guard.raise_to(number).unwrap();
            assert_eq!(read_back(directory.path(), 9).unwrap(), number);
        }
        let lost = read_back(directory.path(), 4);
        assert!(matches!(lost, Err(StoreError::TailLost { guard: 5, found: 4 })), "{lost:?}");
        // The last commit lies above the guard: it was written, but never acknowledged.
        let mut guard = TailGuard::open(directory.path(), 7).unwrap();
        guard.raise_to(7).unwrap();
        assert_eq!(read_back(directory.path(), 7).unwrap(), 7);
    }

    /// A write is torn at every byte: the other slot still counts.
    #[test]
    fn a_torn_write_leaves_the_number_before() {
        let directory = tempfile::tempdir().unwrap();
        let mut guard = TailGuard::open(directory.path(), 0).unwrap();
        guard.raise_to(1).unwrap();
        guard.raise_to(2).unwrap();
        let at = SLOT_AT[guard.next_slot];
        let whole = std::fs::read(directory.path().join(FILE_NAME)).unwrap();
        for cut in 0..SLOT_BYTES {
            let mut torn = whole.clone();
            torn[at..at + cut].copy_from_slice(&slot(3)[..cut]);
            std::fs::write(directory.path().join(FILE_NAME), torn).unwrap();
            assert!(matches!(read_back(directory.path(), 9).unwrap(), 2), "cut at {cut}");
        }
    }

    #[test]
    fn without_the_guard_a_store_with_commits_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        assert!(matches!(read_back(directory.path(), 3), Err(StoreError::GuardLost { found: 3 })));
        std::fs::write(directory.path().join(FILE_NAME), [0; FILE_BYTES]).unwrap();
        assert!(matches!(read_back(directory.path(), 3), Err(StoreError::GuardLost { found: 3 })));
        // The file was created but not written: the process was killed before the first commit.
        std::fs::write(directory.path().join(FILE_NAME), []).unwrap();
        assert_eq!(read_back(directory.path(), 0).unwrap(), 0);
        renew(directory.path(), 3).unwrap();
        assert_eq!(read_back(directory.path(), 3).unwrap(), 3);
    }

    #[test]
    fn a_sync_that_fails_is_an_error() {
        let directory = tempfile::tempdir().unwrap();
        let mut guard = TailGuard::open(directory.path(), 0).unwrap();
        // `/dev/null` answers a sync with EINVAL.
        guard.set_file(OpenOptions::new().write(true).open("/dev/null").unwrap());
        assert!(matches!(guard.raise_to(1), Err(StoreError::Io(_))));
    }

    /// §8: pages that a failed sync left in memory are read as if they were on the disk.
    #[test]
    fn a_number_that_was_read_is_written_again() {
        let directory = tempfile::tempdir().unwrap();
        TailGuard::open(directory.path(), 0).unwrap().raise_to(7).unwrap();
        let mut guard = TailGuard::open(directory.path(), 7).unwrap();
        guard.raise_to(7).unwrap();
        let bytes = std::fs::read(directory.path().join(FILE_NAME)).unwrap();
        assert_eq!(slots(&bytes), [Some(7); 2]);
        assert_eq!(guarded(directory.path()).unwrap(), Some(7));
        assert_eq!(guarded(&directory.path().join("none")).unwrap(), None);
        // A synced number is not written a second time.
        guard.set_file(OpenOptions::new().write(true).open("/dev/null").unwrap());
        guard.raise_to(7).unwrap();
    }
}
