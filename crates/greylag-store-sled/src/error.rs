//! What can go wrong with a store, split by what the caller can do.

use std::path::PathBuf;
use std::sync::Arc;

/// The engine failed while reading or committing.
///
/// An error while committing poisons the store: what waited has an unknown outcome, and the handle
/// is never used again. Cheap to clone, because everything that waits is told the same cause.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StoreError {
    /// Reading or writing failed; the medium or the file system is at fault.
    #[error("i/o error: {0}")]
    Io(Arc<std::io::Error>),
    /// The engine found its file damaged, or refused an operation for another reason of its own.
    #[error("engine error: {0}")]
    Engine(Arc<str>),
    /// A value does not match its checksum: it was damaged, or it sits under a key it was not written for.
    #[error("checksum mismatch in the record under key {}", Hex(.key))]
    Checksum {
        /// The key whose value is damaged.
        key: Vec<u8>,
    },
    /// What the records say contradicts itself.
    #[error("corrupt store: {0}")]
    Corrupt(Arc<str>),
    /// A thread of the store panicked; its state is not used again.
    #[error("the committer panicked: {0}")]
    Panicked(Arc<str>),
    /// A group commit exceeded `commit_stall_timeout`.
    #[error("a group commit stalled for more than {0:?}")]
    Stalled(std::time::Duration),
    /// The store is closed, or is being opened again after a failure. Nothing was stored.
    #[error("store is down: {0}")]
    Down(Arc<str>),
}

impl StoreError {
    /// A contradiction among records.
    pub fn corrupt(what: impl Into<String>) -> Self {
        Self::Corrupt(what.into().into())
    }

    /// Whether stored data is damaged, as opposed to out of reach for now.
    pub fn is_corruption(&self) -> bool {
        matches!(self, Self::Checksum { .. } | Self::Corrupt(_))
    }

    pub(crate) fn from_sled(error: sled::Error) -> Self {
        match error {
            sled::Error::Io(error) => error.into(),
            other => Self::Engine(other.to_string().into()),
        }
    }

    pub(crate) fn from_panic(payload: &(dyn std::any::Any + Send)) -> Self {
        let text = payload.downcast_ref::<&str>().map(ToString::to_string);
        let text = text.or_else(|| payload.downcast_ref::<String>().cloned());
        Self::Panicked(text.unwrap_or_else(|| "no message".into()).into())
    }
}

impl From<std::io::Error> for StoreError {
    fn from(error: std::io::Error) -> Self {
        Self::Io(Arc::new(error))
    }
}

struct Hex<'a>(&'a [u8]);

impl std::fmt::Display for Hex<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// A store could not be opened. Nothing of it was changed.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process has the store open and did not let go of it within `lock_retry`.
    #[error("store {} is in use by another process; stop that process or choose another directory", path.display())]
    Locked {
        /// Directory of the store.
        path: PathBuf,
    },
    /// The directory or the file could not be read or written.
    #[error("cannot open store {}: {source}", path.display())]
    Failed {
        /// Directory of the store.
        path: PathBuf,
        /// What the engine, or the crate built on it, said.
        source: StoreError,
    },
}

/// A request was not taken: it was not stored and will not be. Safe to send again.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Refused {
    /// More than `max_pending_bytes` wait for the committer; try again later.
    #[error("{pending_bytes} bytes wait for the committer of the store already")]
    Busy {
        /// Bytes that wait.
        pending_bytes: usize,
    },
    /// The store is closed or failed; see its health.
    #[error("store is down: {0}")]
    Down(Arc<str>),
}

/// A request was taken, but the store failed before it answered: it may or may not be stored.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the store failed before the request was known to be durable; it may be stored")]
pub struct Unanswered;
