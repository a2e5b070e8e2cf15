//! Errors of a store, split by what the caller can do.

use std::path::PathBuf;
use std::sync::Arc;

/// The engine failed while reading or committing.
///
/// An error while committing poisons the store: waiting requests have an unknown outcome, and the handle is never used
/// again. Cheap to clone, because every waiting request gets the same cause.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StoreError {
    /// Reading or writing failed; the medium or the file system is at fault.
    #[error("i/o error: {0}")]
    Io(#[source] Arc<std::io::Error>),
    /// The engine found its file damaged, or refused an operation for another reason of its own.
    #[error("engine error: {0}")]
    Engine(Arc<str>),
    /// A value does not match its checksum: it was damaged, or lies under a key that it was not written for.
    #[error("checksum mismatch in the record under key {}", Hex(.key))]
    Checksum {
        /// The key whose value is damaged.
        key: Vec<u8>,
    },
    /// The engine cannot read a part of its log.
    #[error("the log is damaged: {0}")]
    Damaged(Arc<str>),
    /// The records contradict each other.
    #[error("corrupt store: {0}")]
    Corrupt(Arc<str>),
    /// A commit in the middle is missing, though later ones are there.
    #[error("commit {missing} is missing, though commit {found} is there: a part of the log is lost")]
    CommitGap {
        /// The first missing commit.
        missing: u64,
        /// The next commit that is there.
        found: u64,
    },
    /// Acknowledged commits are missing at the end.
    #[error("commits up to {guard} were acknowledged, but the last one there is {found}: the tail of the log is lost")]
    TailLost {
        /// The last acknowledged commit.
        guard: u64,
        /// The last commit that is there; 0 if there is none.
        found: u64,
    },
    /// There are commits, but the guard file, which names the last one, is missing or unreadable.
    #[error(
        "the tail guard {} is missing or unreadable, so commits after {found} may be lost without a trace",
        crate::files::guard::FILE_NAME
    )]
    GuardLost {
        /// The last commit that is there.
        found: u64,
    },
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

    /// Whether stored data is damaged, as opposed to unreachable for now.
    pub fn is_corruption(&self) -> bool {
        match self {
            Self::Checksum { .. } | Self::Damaged(_) | Self::Corrupt(_) => true,
            Self::CommitGap { .. } | Self::TailLost { .. } | Self::GuardLost { .. } => true,
            Self::Io(_) | Self::Engine(_) | Self::Panicked(_) | Self::Stalled(_) | Self::Down(_) => false,
        }
    }

    /// Whether the medium has no room.
    pub(crate) fn is_storage_full(&self) -> bool {
        use std::io::ErrorKind::{QuotaExceeded, StorageFull};
        matches!(self, Self::Io(error) if matches!(error.kind(), StorageFull | QuotaExceeded))
    }

    pub(crate) fn from_sled(error: sled::Error) -> Self {
        match error {
            sled::Error::Io(error) => error.into(),
            sled::Error::Corruption { .. } => Self::Damaged(error.to_string().into()),
            other => Self::Engine(other.to_string().into()),
        }
    }

    pub(crate) fn from_panic(payload: &(dyn std::any::Any + Send)) -> Self {
        Self::Panicked(Self::panic_text(payload).into())
    }

    /// The message of a panic.
    pub(crate) fn panic_text(payload: &(dyn std::any::Any + Send)) -> String {
        let text = payload.downcast_ref::<&str>().map(ToString::to_string);
        let text = text.or_else(|| payload.downcast_ref::<String>().cloned());
        text.unwrap_or_else(|| "no message".into())
    }
}

impl From<std::io::Error> for StoreError {
    fn from(error: std::io::Error) -> Self {
        Self::Io(Arc::new(error))
    }
}

pub(crate) struct Hex<'a>(pub(crate) &'a [u8]);

impl std::fmt::Display for Hex<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// A store could not be opened. No record was changed; but sled blanks the end of a torn log as it reads the log, so
/// copy a damaged directory before you try anything.
#[derive(thiserror::Error)]
pub enum OpenError {
    /// Another process has the store open and did not release it within `lock_retry`.
    #[error("store {} is in use by another process; stop that process or choose another directory", path.display())]
    Locked {
        /// Directory of the store.
        path: PathBuf,
    },
    /// The store is damaged and was not opened, because its answers would be wrong or incomplete.
    #[error("store {} is damaged and stays closed: {source}; {repair}", path.display())]
    Corrupt {
        /// Directory of the store.
        path: PathBuf,
        /// The damage.
        source: StoreError,
        /// The advice to the operator.
        repair: &'static str,
    },
    /// The directory or the file could not be read or written.
    #[error("cannot open store {}: {source}", path.display())]
    Failed {
        /// Directory of the store.
        path: PathBuf,
        /// The error of the engine, or of the crate built on it.
        source: StoreError,
    },
}

greylag_core::debug_is_sentence!(OpenError);

impl OpenError {
    pub(crate) fn of(path: &std::path::Path, source: StoreError, repair: &'static str) -> Self {
        let path = path.to_owned();
        if source.is_corruption() { Self::Corrupt { path, source, repair } } else { Self::Failed { path, source } }
    }

    /// Whether opening failed because the disk is full.
    pub(crate) fn is_storage_full(&self) -> bool {
        matches!(self, Self::Failed { source, .. } if source.is_storage_full())
    }
}

/// A request was not accepted: it was not stored and will not be. Safe to send again.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Refused {
    /// More than `max_pending_bytes` wait for the committer; try again later.
    #[error("{pending_bytes} bytes wait for the committer of the store already")]
    Busy {
        /// The bytes that wait.
        pending_bytes: usize,
    },
    /// The store is closed or failed; see its health.
    #[error("store is down: {0}")]
    Down(Arc<str>),
}

/// A request was accepted, but the store failed before answering: the request may or may not be stored.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the store failed before the request was known to be durable; it may be stored")]
pub struct Unanswered;
