//! sled's own settings file, `conf`.
//!
//! sled writes the file when it creates a store, in two steps and before it locks anything, and takes a file without
//! the second step for damage. So a process killed in between would leave a store that cannot be opened although it
//! never held anything. The text of the file is known, so a file that is cut off anywhere is written anew.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::Path;

/// The size of a segment of the log.
pub(crate) const SEGMENT_BYTES: usize = 8 << 20;
/// The length of the checksum that sled appends to its text.
const CRC_BYTES: usize = 4;

/// Removes the file if its end is missing; sled then makes a new one.
pub(crate) fn remove_if_torn(store: &Path) -> std::io::Result<()> {
    let path = store.join("conf");
    let found = match fs::read(&path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        found => found?,
    };
    if is_torn(&found) {
        tracing::warn!(path = %path.display(), "the settings file of sled is cut off and is written again");
        fs::remove_file(path)?;
    }
    Ok(())
}

/// Syncs the file, so that it is as durable as later writes to the store.
pub(crate) fn sync(store: &Path) -> std::io::Result<()> {
    File::open(store.join("conf"))?.sync_all()
}

fn is_torn(found: &[u8]) -> bool {
    let text = text();
    let known = found.len().min(text.len());
    found.len() < text.len() + CRC_BYTES && found[..known] == text.as_bytes()[..known]
}

/// The text that sled 0.34 writes for our settings.
fn text() -> String {
    format!("segment_size: {SEGMENT_BYTES}\nuse_compression: false\nversion: 0.34\n")
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

    #[test]
    fn a_store_whose_making_was_cut_off_anywhere_opens() {
        let whole = tempfile::tempdir().unwrap();
        drop(open(whole.path()).unwrap());
        let conf = fs::read(whole.path().join("conf")).unwrap();
        assert_eq!(String::from_utf8_lossy(&conf[..conf.len() - CRC_BYTES]), text(), "what sled writes");
        for end in 0..conf.len() {
            let made = tempfile::tempdir().unwrap();
            fs::write(made.path().join("conf"), &conf[..end]).unwrap();
            open(made.path()).unwrap_or_else(|error| panic!("cut off at {end}: {error}"));
            assert_eq!(fs::read(made.path().join("conf")).unwrap(), conf, "cut off at {end}");
        }
    }

    /// Cuts the file off, as a loss of power may.
    #[test]
    fn records_are_there_without_the_end_of_the_settings_file() {
        let directory = tempfile::tempdir().unwrap();
        let mut batch = Batch::default();
        batch.put(b"key", b"value");
        open(directory.path()).unwrap().commit(batch).unwrap();
        let conf = directory.path().join("conf");
        let text = text();
        fs::write(&conf, &text[..text.len() - 1]).unwrap();
        assert_eq!(open(directory.path()).unwrap().get(b"key").unwrap().unwrap(), "value");
    }

    #[test]
    fn a_settings_file_that_is_not_just_cut_off_is_not_removed() {
        let text = text();
        let whole = format!("{text}crcs");
        assert!(is_torn(text.as_bytes()) && is_torn(format!("{text}crc").as_bytes()));
        assert!(!is_torn(whole.as_bytes()), "it has its end");
        assert!(!is_torn(b"segment_size: 1"), "settings of another program");
        assert!(!is_torn(&text.as_bytes()[1..]));
    }
}
