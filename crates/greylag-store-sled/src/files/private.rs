//! Makes stores private to their owner: directories `0700`, files `0600`.
//!
//! sled creates its files with the umask of the process, and a library does not change that. So the files are closed to
//! others when the store is opened, which is when sled creates them; in a directory of its own, others never see them.
//! Source: persistence scenario 74.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

const OF_OTHERS: u32 = 0o077;

/// Creates directories, with missing parents, that only the owner may enter.
pub(crate) fn directory() -> DirBuilder {
    let mut builder = DirBuilder::new();
    builder.recursive(true).mode(0o700);
    builder
}

/// Creates or truncates a file that only the owner may read.
pub(crate) fn create(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)
}

/// Revokes other users' rights on the files of a store. The rights of the directory stay as its owner chose them.
pub(crate) fn close_to_others(store: &Path) -> io::Result<()> {
    for entry in fs::read_dir(store)? {
        let entry = entry?;
        let metadata = match entry.metadata() {
            // The file is gone: sled removes an old index in the background.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            metadata => metadata?,
        };
        let mode = metadata.permissions().mode();
        if mode & OF_OTHERS == 0 || metadata.is_symlink() {
            continue;
        }
        match fs::set_permissions(entry.path(), Permissions::from_mode(mode & !OF_OTHERS)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            // The file is another user's, or the file system has no permissions: go on, the store works all the same.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                tracing::warn!(path = %entry.path().display(), %error, "other users can still read a file of a store");
            }
            changed => changed?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::batch::Batch;
    use crate::error::StoreError;
    use crate::planner::{Planner, Request};
    use crate::reader::Reader;
    use crate::settings::StoreSettings;
    use crate::store::Store;

    struct NumberedPlanner(u64);
    struct Put;

    impl Request for Put {
        fn bytes(&self) -> usize {
            1
        }
    }

    impl Planner for NumberedPlanner {
        type Request = Put;
        type Answer = ();

        fn recover(&mut self, _: &Reader, _: &mut Batch) -> Result<(), StoreError> {
            Ok(())
        }

        fn plan(&mut self, puts: Vec<Put>, _: &Reader, batch: &mut Batch) -> Result<Vec<()>, StoreError> {
            batch.put(b"key", b"value");
            self.0 += 1;
            Ok(vec![(); puts.len()])
        }

        fn tail(&self) -> Option<u64> {
            Some(self.0)
        }
    }

    fn modes(path: &Path) -> BTreeMap<String, u32> {
        let mode = |entry: io::Result<fs::DirEntry>| {
            let entry = entry.unwrap();
            let kind = if entry.path().is_dir() { "directory " } else { "" };
            (format!("{kind}{}", entry.file_name().display()), entry.metadata().unwrap().permissions().mode() & 0o777)
        };
        fs::read_dir(path).unwrap().map(mode).collect()
    }

    /// persistence 74: directories of stores, and all files in them, are private to their owner.
    #[test]
    fn scenario_74_a_store_is_for_its_owner_only() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("above").join("store");
        let settings = || StoreSettings { ballast_bytes: 4096, ..StoreSettings::test() };
        let work = |number: u64| {
            let store = Store::open(&path, settings(), NumberedPlanner(number)).unwrap();
            store.submit(Put).unwrap().wait().unwrap();
            store.close().unwrap();
        };
        work(0);
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&path), mode(path.parent().unwrap())), (0o700, 0o700));
        let check = || {
            let modes = modes(&path);
            for file in ["db", "conf", "greylag.guard", "greylag.ballast"] {
                assert_eq!(modes.get(file), Some(&0o600), "{file}: {modes:?}");
            }
            for (name, mode) in &modes {
                assert_eq!(mode & OF_OTHERS, 0, "{name}: {modes:?}");
            }
        };
        check();
        // A store made by a version that did not close its files.
        for name in ["db", "conf", "greylag.guard", "greylag.ballast"] {
            fs::set_permissions(path.join(name), Permissions::from_mode(0o644)).unwrap();
        }
        work(1);
        check();
    }
}
