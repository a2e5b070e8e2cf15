//! Failures of maintenance.

use std::path::PathBuf;

use greylag_store_sled::{OpenError, StoreError};

/// Why maintenance of a journal failed.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The engine does not open the journal. [`salvage`](super::salvage()) may work all the same.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The open store cannot be read or written.
    #[error("{}: {source}", path.display())]
    Store {
        /// Directory of the journal.
        path: PathBuf,
        /// Error of the engine.
        source: StoreError,
    },
    /// A file cannot be read or written.
    #[error("{}: {source}", path.display())]
    File {
        /// Path of the file.
        path: PathBuf,
        /// Error of the system.
        source: std::io::Error,
    },
    /// The directory for a salvaged journal is not empty.
    #[error("{} is not empty: name a directory that does not exist yet", .0.display())]
    NotEmpty(PathBuf),
    /// The guard was not renewed, since other damage was found.
    #[error("the guard is not renewed, because more is damaged: {}", .0.join("; "))]
    Unsound(Vec<String>),
}
