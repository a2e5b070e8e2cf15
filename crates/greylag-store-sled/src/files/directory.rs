//! Makes the names of new files durable.

use std::fs::File;
use std::path::Path;

pub(crate) fn sync_directory(path: &Path) -> std::io::Result<()> {
    File::open(path)?.sync_all()
}
