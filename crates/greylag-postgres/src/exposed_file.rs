//! Warns of files with secrets that others can read.

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

/// Warns of a file that others can read: with its password or key they can connect in this program's name. Source:
/// persistence scenario 74.
pub(crate) fn warn_if_exposed(file: &Path) {
    // If the file cannot be inspected, reading it will fail, too, and that error is reported.
    if std::fs::metadata(file).is_ok_and(|file| greylag_transport::others_can_read(file.mode(), file.uid())) {
        tracing::warn!(file = %file.display(), "others can read this file with a secret; `chmod 600` closes it to them");
    }
}
