//! The rows of a queue in a store, and how they change: little enough for any database or embedded store.
//!
//! A queue is one *head* row, one row for each unconfirmed message and one for each qualifier with a
//! confirmation. Everything that happens to a queue is a [`QueueChange`]: rows that are written and removed together,
//! on the condition that the head row still has the epoch under which the writer loaded. The head row stays when no
//! message is left, so that numbers are never given twice.
//!
//! ```text
//! head        stream id, epoch, controller, next number, highest confirmed
//! message     number ──▶ qualifier, ack, time, codec, manifest, bytes      removed when it is confirmed
//! confirmed   qualifier ──▶ number, time                                   removed when it is of no use any more
//! ```
//!
//! Source: delivery §4.1, §4.4.

use greylag_core::Encoded;

use super::{MessageSent, Qualifier, TimestampMillis};
use crate::ids::{ControllerRef, Epoch, SeqNr, StreamId};

/// The head row of a queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueueHead {
    /// The numbering space: given with the first head, and never changed.
    pub stream_id: StreamId,
    /// Raised by every load. A change is made only under the epoch that is stored.
    pub epoch: Epoch,
    /// The controller that loaded the queue last.
    pub controller: ControllerRef,
    /// The number of the next message.
    pub current: SeqNr,
    /// The highest number that was ever confirmed, of any qualifier.
    pub highest_confirmed: SeqNr,
}

/// All rows of a queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueueRows {
    /// The head row.
    pub head: QueueHead,
    /// For each qualifier the highest number confirmed, and when; in any order.
    pub confirmed: Vec<(Qualifier, SeqNr, TimestampMillis)>,
    /// The messages, by rising numbers.
    pub messages: Vec<MessageSent<Encoded>>,
}

/// Rows that are written and removed together, or not at all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueueChange {
    /// The epoch that the stored head row must have for the change to be made; `None`: there must be no head row.
    pub expected: Option<Epoch>,
    /// What the head row becomes.
    pub head: QueueHead,
    /// Messages to add. No row of their numbers is there.
    pub messages: Vec<MessageSent<Encoded>>,
    /// Numbers of messages to remove; a row that is not there is removed already.
    pub removed: Vec<SeqNr>,
    /// Rows of qualifiers to write, over those that are there.
    pub confirmed: Vec<(Qualifier, SeqNr, TimestampMillis)>,
    /// Qualifiers whose rows are to be removed.
    pub forgotten: Vec<Qualifier>,
}

impl QueueChange {
    /// A change of the head row alone.
    pub(crate) fn of_head(expected: Option<Epoch>, head: QueueHead) -> Self {
        let (messages, removed, confirmed, forgotten) = Default::default();
        Self { expected, head, messages, removed, confirmed, forgotten }
    }

    /// Whether it is the claim of a load: it raises the epoch.
    pub fn is_claim(&self) -> bool {
        self.expected != Some(self.head.epoch)
    }
}

/// Why a store did not do what it was asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum QueueStoreError {
    /// The head row is not as the change expects it. Nothing was written.
    #[error("another writer changed the queue")]
    Changed,
    /// The store refuses this change as such. Nothing was written, nor will be if it is tried again.
    #[error("the store refuses this: {0}")]
    Rejected(String),
    /// The store could not be reached, and certainly wrote nothing. Try again later.
    #[error("the store is not available: {0}")]
    Unavailable(String),
    /// The change may be written or not: the answer was lost.
    #[error("it is unknown whether the store wrote this: {0}")]
    Unknown(String),
    /// What is stored cannot be read. Nothing was written.
    #[error("what is stored cannot be read: {0}")]
    Damaged(String),
}
