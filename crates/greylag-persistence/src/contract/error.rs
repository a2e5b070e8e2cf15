//! Errors of stores, split by what the caller knows about the outcome.

use std::error::Error;
use std::fmt;
use std::sync::Arc;

use super::head::Head;
use super::offset::{OffsetKind, OwnerEpoch};
use super::records::event::SeqNr;
use super::records::persistence_id::PersistenceId;
use super::records::revision::StateHead;

/// A store could not be reached, or broke, or refused for a reason that the operation has no variant for.
///
/// Its `source()` is the store's own error; a store whose errors come as text, over the wire for example, has a text
/// error there. Two failures are equal if they show the same.
#[derive(Clone)]
pub struct StoreFailure {
    store: String,
    source: Arc<dyn Error + Send + Sync>,
    /// Shown in place of the source's text.
    text: Option<Box<str>>,
    is_answer: bool,
}

impl StoreFailure {
    /// A failure of `store`, named as operators know it: the store could not be reached, or broke.
    pub fn new(store: impl Into<String>, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self { store: store.into(), source: source.into().into(), text: None, is_answer: false }
    }

    /// A refusal by `store`, which can be reached: see [`StoreFailure::is_answer`].
    pub fn refusal(store: impl Into<String>, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self { is_answer: true, ..Self::new(store, source) }
    }

    /// The same failure, shown as `text` in place of the text of its source.
    #[must_use]
    pub fn with_text(self, text: impl Into<String>) -> Self {
        Self { text: Some(text.into().into()), ..self }
    }

    /// The store's name, as operators know it.
    pub fn store(&self) -> &str {
        &self.store
    }

    /// What went wrong, without the store's name.
    pub fn text(&self) -> String {
        self.text.as_ref().map_or_else(|| self.source.to_string(), ToString::to_string)
    }

    /// Whether the store itself answered and can be reached: storage is low, say, or the data that the call needs is
    /// damaged. Breakers do not count an answer as a failure ([`Guarded`](crate::Guarded)); otherwise both mean the
    /// same.
    pub fn is_answer(&self) -> bool {
        self.is_answer
    }
}

impl fmt::Display for StoreFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.text {
            Some(text) => write!(f, "{}: {text}", self.store),
            None => write!(f, "{}: {}", self.store, self.source),
        }
    }
}

impl Error for StoreFailure {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&*self.source)
    }
}

impl PartialEq for StoreFailure {
    fn eq(&self, other: &Self) -> bool {
        self.store == other.store && self.is_answer == other.is_answer && self.text() == other.text()
    }
}

impl Eq for StoreFailure {}

impl fmt::Debug for StoreFailure {
    /// Shows `is_answer` only where it is true, since logs and transcripts are full of failures that are not answers.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("StoreFailure");
        shown.field("store", &self.store).field("cause", &self.text());
        if self.is_answer {
            shown.field("is_answer", &self.is_answer);
        }
        shown.finish()
    }
}

/// The damage to stored data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CorruptKind {
    /// The checksum does not fit the content, or the record stands under another key.
    #[error("checksum mismatch")]
    Checksum,
    /// A record is missing between others.
    #[error("a record is missing")]
    Missing,
    /// The bytes cannot be decoded.
    #[error("unreadable record")]
    Unreadable,
}

/// Stored data is damaged; only reads of that data fail. Source: persistence J12.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("stored data of {id} is corrupt at {seq_nr}: {kind}")]
pub struct Corrupt {
    /// The id that the data belongs to.
    pub id: PersistenceId,
    /// The first damaged number; [`SeqNr::ZERO`] for the head; the revision of a durable state.
    pub seq_nr: SeqNr,
    /// The kind of damage.
    pub kind: CorruptKind,
}

/// Why a claim was not granted. Nothing changed, except possibly with `Unavailable`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ClaimError {
    /// A greater generation owns the id, or another epoch than the one seen is stored.
    #[error("claim refused: epoch {} is held by writer {}", current.epoch, current.writer_uuid)]
    Fenced {
        /// The stored head.
        current: Head,
    },
    /// No answer. The claim may be stored; claiming again with the same writer uuid is harmless.
    #[error("claim not answered by {0}")]
    Unavailable(#[source] StoreFailure),
    /// The head cannot be read.
    #[error(transparent)]
    Corrupt(Corrupt),
}

/// Why an append was not acknowledged; each variant says whether something is stored.
///
/// Source: persistence §2.6, J10.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AppendError {
    /// The store refuses these events. Nothing is stored, and never will be.
    #[error("append rejected: {0}")]
    Rejected(RejectReason),
    /// Nothing is stored, and no part of this call is under way.
    #[error("append not stored: {0}")]
    NotStored(#[source] StoreFailure),
    /// The events may or may not be stored; only recovery can tell.
    #[error("outcome of append unknown: {0}")]
    Unknown(#[source] StoreFailure),
    /// Another writer claimed the id. Nothing of this append is stored.
    #[error("append fenced: epoch {} is held by writer {}", current.epoch, current.writer_uuid)]
    Fenced {
        /// The stored head.
        current: Head,
    },
    /// The epoch is right, but the first number is not `highest + 1`. Nothing of this append is stored.
    #[error("append does not continue the history, whose highest number is {highest}")]
    Conflict {
        /// The last number stored.
        highest: SeqNr,
    },
}

/// Why a store refuses an append for its content.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RejectReason {
    /// An append holds at least one event.
    #[error("an append holds at least one event")]
    Empty,
    /// More events than [`crate::Caps::max_atomic_events`].
    #[error("{count} events in one append, at most {max} are stored atomically")]
    TooManyEvents {
        /// Number of events in the append.
        count: usize,
        /// Largest number allowed.
        max: usize,
    },
    /// A payload larger than [`crate::Caps::max_event_bytes`].
    #[error("event {seq_nr} has {bytes} bytes, at most {max} are stored")]
    EventTooLarge {
        /// The event's number.
        seq_nr: SeqNr,
        /// The payload's size in bytes.
        bytes: usize,
        /// The limit in bytes.
        max: usize,
    },
    /// A manifest that is empty or longer than 255 bytes.
    #[error("the manifest of event {seq_nr} must have 1 to 255 bytes")]
    InvalidManifest {
        /// The event's number.
        seq_nr: SeqNr,
    },
    /// Too many tags, or a tag that is empty, too long or has control characters.
    #[error("the tags of event {seq_nr} are out of limits: at most 16 of 1 to 128 bytes without control characters")]
    InvalidTags {
        /// The event's number.
        seq_nr: SeqNr,
    },
    /// A filtered event with a payload.
    #[error("filtered event {seq_nr} must not have a payload")]
    FilteredPayload {
        /// The event's number.
        seq_nr: SeqNr,
    },
    /// The numbers of this history are used up.
    #[error("the sequence numbers of this id are used up")]
    SeqNrOverflow,
    /// The disk is nearly full; reads and deletes still work.
    #[error("storage is low: {0}")]
    StorageLow(String),
    /// Another refusal; the text is the store's.
    #[error("{0}")]
    Other(String),
}

/// Why a read failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// The data asked for is damaged; other reads work.
    #[error(transparent)]
    Corrupt(Corrupt),
    /// The store cannot be reached; ask again.
    #[error("read failed: {0}")]
    Unavailable(#[source] StoreFailure),
}

/// Why a history could not be advanced. Source: persistence §2.5 (migration).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AdvanceError {
    /// Another writer claimed the id; nothing changed.
    #[error("advance fenced: epoch {} is held by writer {}", current.epoch, current.writer_uuid)]
    Fenced {
        /// The stored head.
        current: Head,
    },
    /// The history has events already, or the number is not above the highest; nothing changed.
    #[error("only an empty history advances, and only upwards; the highest number is {highest}")]
    NotEmpty {
        /// The last number stored.
        highest: SeqNr,
    },
    /// No answer; asking again is harmless.
    #[error("advance not answered by {0}")]
    Unavailable(#[source] StoreFailure),
}

/// Why events were not deleted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DeleteError {
    /// Another writer claimed the id; nothing changed.
    #[error("delete fenced: epoch {} is held by writer {}", current.epoch, current.writer_uuid)]
    Fenced {
        /// The stored head.
        current: Head,
    },
    /// No answer; asking again is harmless.
    #[error("delete not answered by {0}")]
    Unavailable(#[source] StoreFailure),
}

/// Why a snapshot operation failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SnapshotError {
    /// The snapshot found is damaged; the caller may ask for one below `seq_nr`.
    #[error(transparent)]
    Corrupt(Corrupt),
    /// The snapshot exceeds the store's limit; nothing was stored.
    #[error("a snapshot of {bytes} bytes is refused, at most {max} are stored")]
    TooLarge {
        /// The snapshot's size in bytes.
        bytes: usize,
        /// The limit in bytes.
        max: usize,
    },
    /// The store cannot be reached; saving or deleting again is harmless.
    #[error("snapshot store failed: {0}")]
    Unavailable(#[source] StoreFailure),
}

/// Closing failed; acknowledged writes are safe all the same.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("closing did not finish: {0}")]
pub struct CloseError(#[source] pub StoreFailure);

/// Why a state was not written; each variant says whether something is stored.
///
/// Source: persistence §3.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StateWriteError {
    /// The store refuses this write. Nothing is stored, and never will be.
    #[error("write rejected: {0}")]
    Rejected(StateRejectReason),
    /// Nothing is stored, and no part of this call is under way.
    #[error("write not stored: {0}")]
    NotStored(#[source] StoreFailure),
    /// The state may or may not be stored; only reading again can tell.
    #[error("outcome of write unknown: {0}")]
    Unknown(#[source] StoreFailure),
    /// The stored revision is not the one before this write's, or a greater generation owns the state. Nothing of
    /// this write is stored.
    #[error("write does not follow revision {} of writer {}", current.revision, current.writer_uuid)]
    RevisionMismatch {
        /// The stored head.
        current: StateHead,
    },
}

/// Why a store refuses a state write for its content.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StateRejectReason {
    /// The write names revision 0; the first write makes revision 1.
    #[error("revision 0 cannot be written")]
    RevisionZero,
    /// A payload larger than [`crate::StateCaps::max_state_bytes`].
    #[error("a state of {bytes} bytes is refused, at most {max} are stored")]
    TooLarge {
        /// The payload's size in bytes.
        bytes: usize,
        /// The limit in bytes.
        max: usize,
    },
    /// A manifest that is empty or longer than 255 bytes.
    #[error("the manifest of a state must have 1 to 255 bytes")]
    InvalidManifest,
    /// A tag that is empty, too long or has control characters.
    #[error("the tag of a state must have 1 to 128 bytes without control characters")]
    InvalidTag,
    /// The revisions of this state are used up.
    #[error("the revisions of this id are used up")]
    RevisionOverflow,
    /// The disk is nearly full; reads still work.
    #[error("storage is low: {0}")]
    StorageLow(String),
    /// Another refusal; the text is the store's.
    #[error("{0}")]
    Other(String),
}

/// Why a query for events or changes failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum QueryError {
    /// The offset is of a store that orders otherwise; start from the beginning, or convert the offset.
    #[error("this store orders by {expected:?}, and the offset is {found:?}")]
    ForeignOffset {
        /// The kind of offset that the store orders by.
        expected: OffsetKind,
        /// The kind of the offset given.
        found: OffsetKind,
    },
    /// The store does not support such queries.
    #[error("{0}")]
    Unsupported(String),
    /// The data asked for could not be read.
    #[error(transparent)]
    Read(ReadError),
}

/// Why offsets were not claimed, loaded or saved.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OffsetError {
    /// Another owner has claimed the slice since; nothing was saved. The projection stops here.
    #[error("slice {slice} of projection {projection:?} was claimed at epoch {own}, and is owned at {current} now")]
    StaleOwner {
        /// The projection.
        projection: String,
        /// The first slice lost.
        slice: u16,
        /// The epoch that the call named.
        own: OwnerEpoch,
        /// The stored epoch.
        current: OwnerEpoch,
    },
    /// The change belongs to a slice that was not claimed; nothing was saved.
    #[error("slice {slice} of projection {projection:?} is not among those claimed")]
    NotOwned {
        /// The projection.
        projection: String,
        /// The slice of the change.
        slice: u16,
    },
    /// The position is of another kind of store; nothing was saved.
    #[error("this store keeps positions by {expected:?}, and one is {found:?}")]
    ForeignOffset {
        /// The kind of position that the store keeps.
        expected: OffsetKind,
        /// The kind of the position given.
        found: OffsetKind,
    },
    /// The name is empty, longer than 255 bytes, or has control characters.
    #[error("a projection has a name of 1 to 255 bytes without control characters")]
    InvalidName,
    /// The saved data is damaged.
    #[error("offsets of projection {projection:?} are corrupt: {kind}")]
    Corrupt {
        /// The projection.
        projection: String,
        /// The kind of damage.
        kind: CorruptKind,
    },
    /// No answer; asking again is harmless.
    #[error("offset store failed: {0}")]
    Unavailable(#[source] StoreFailure),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_keeps_its_source_and_is_compared_by_what_it_shows() {
        let gone = || std::io::Error::other("no such device");
        let failure = StoreFailure::new("journal", gone());
        assert_eq!(failure.to_string(), "journal: no such device");
        let read = ReadError::Unavailable(failure.clone());
        assert_eq!(read.to_string(), "read failed: journal: no such device");
        let of_read = read.source().and_then(Error::source);
        assert!(of_read.is_some_and(<dyn Error>::is::<std::io::Error>), "{of_read:?}");

        assert_eq!(failure, StoreFailure::new("journal", "no such device"));
        assert_ne!(failure, StoreFailure::refusal("journal", gone()));
        assert_ne!(failure, StoreFailure::new("snapshots", gone()));
        assert_eq!(format!("{failure:?}"), r#"StoreFailure { store: "journal", cause: "no such device" }"#);

        let worded = failure.clone().with_text("it was unplugged");
        assert_eq!(
            (worded.to_string(), worded.text()),
            ("journal: it was unplugged".into(), "it was unplugged".into())
        );
        assert!(worded.source().is_some_and(<dyn Error>::is::<std::io::Error>));
        assert_ne!(worded, failure);
    }
}
