//! The rows of a queue in a store, and how they change: little enough for any database or embedded store.
//!
//! A queue is one *head* row, one row for each unconfirmed message and one for each qualifier with a
//! confirmation. A controller becomes the writer by a [`QueueClaim`], which raises the epoch and leaves all else.
//! Everything that it then writes is a [`QueueChange`]: rows that are written and removed together, on the condition that
//! the head row still has that epoch. The head row stays when no message is left, so that numbers are never given
//! twice.
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

/// By which a controller becomes the writer of a queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueueClaim {
    /// The epoch that the stored head row must have for the claim to be made; `None`: there must be no head row.
    pub expected: Option<Epoch>,
    /// The epoch that the head row gets.
    pub epoch: Epoch,
    /// The controller that the head row gets.
    pub controller: ControllerRef,
    /// The numbering space of a head row that is made anew; one that is there keeps its own.
    pub stream_id: StreamId,
}

/// Rows that are written and removed together, or not at all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueueChange {
    /// The epoch that the stored head row must have for the change to be made.
    pub epoch: Epoch,
    /// What becomes of the number of the next message.
    pub current: SeqNr,
    /// What becomes of the highest number that was ever confirmed.
    pub highest_confirmed: SeqNr,
    /// Messages to add. No row of their numbers is there.
    pub messages: Vec<MessageSent<Encoded>>,
    /// Numbers of messages to remove; a row that is not there is removed already.
    pub removed: Vec<SeqNr>,
    /// Rows of qualifiers to write, over those that are there.
    pub confirmed: Vec<(Qualifier, SeqNr, TimestampMillis)>,
    /// Qualifiers whose rows are to be removed.
    pub forgotten: Vec<Qualifier>,
}

impl QueueHead {
    /// The head row that a claim leaves in place of `stored`: numbers stay as they are, whatever was written since the
    /// claimant looked. `None` if the claim expects another one.
    pub fn claimed(stored: Option<Self>, claim: &QueueClaim) -> Option<Self> {
        if stored.as_ref().map(|head| head.epoch) != claim.expected {
            return None;
        }
        let (stream_id, current, highest_confirmed) = (claim.stream_id, SeqNr(1), SeqNr::NONE);
        let (epoch, controller) = (claim.epoch, claim.controller.clone());
        Some(match stored {
            Some(head) => Self { epoch, controller, ..head },
            None => Self { stream_id, epoch, controller, current, highest_confirmed },
        })
    }

    /// The head row that a change leaves in place of `stored`. `None` if the change expects another one.
    pub fn changed(stored: Option<Self>, change: &QueueChange) -> Option<Self> {
        let head = stored.filter(|head| head.epoch == change.epoch)?;
        Some(Self { current: change.current, highest_confirmed: change.highest_confirmed, ..head })
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
