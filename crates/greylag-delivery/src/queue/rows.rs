//! The rows of a queue in a store, and their changes: simple enough for any database or embedded store.
//!
//! A queue is one *head* row, one row per unconfirmed message, and one per qualifier with a confirmation. A controller
//! becomes the writer by a [`QueueClaim`], which raises the epoch and keeps everything else. Each of its writes is a
//! [`QueueChange`]: rows that are written and removed together, if the head row still has that epoch. The head row
//! stays when no message is left, so that numbers are never assigned twice.
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
    /// The stream (numbering space); never changes.
    pub stream_id: StreamId,
    /// Raised by every load. A change is made only if it has the stored epoch.
    pub epoch: Epoch,
    /// The controller that loaded the queue last.
    pub controller: ControllerRef,
    /// The number of the next message.
    pub current: SeqNr,
    /// The highest confirmed number of any qualifier.
    pub highest_confirmed: SeqNr,
}

/// All rows of a queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueueRows {
    /// The head row.
    pub head: QueueHead,
    /// For each qualifier the highest confirmed number, and when it was confirmed; in any order.
    pub confirmed: Vec<(Qualifier, SeqNr, TimestampMillis)>,
    /// The messages, by rising numbers.
    pub messages: Vec<MessageSent<Encoded>>,
}

/// A claim, by which a controller becomes the writer of a queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueueClaim {
    /// The epoch that the stored head row must have; `None`: there must be no head row.
    pub expected: Option<Epoch>,
    /// The new epoch of the head row.
    pub epoch: Epoch,
    /// The new controller of the head row.
    pub controller: ControllerRef,
    /// The stream of a new head row; an existing head row keeps its own.
    pub stream_id: StreamId,
}

/// A change: rows that are written and removed together, or not at all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueueChange {
    /// The epoch that the stored head row must have.
    pub epoch: Epoch,
    /// The new number of the next message.
    pub current: SeqNr,
    /// The new highest confirmed number.
    pub highest_confirmed: SeqNr,
    /// Messages to add. There are no rows of their numbers.
    pub messages: Vec<MessageSent<Encoded>>,
    /// Numbers of messages to remove; missing rows are ignored.
    pub removed: Vec<SeqNr>,
    /// Rows of qualifiers to write; existing ones are overwritten.
    pub confirmed: Vec<(Qualifier, SeqNr, TimestampMillis)>,
    /// Qualifiers whose rows to remove.
    pub forgotten: Vec<Qualifier>,
}

impl QueueHead {
    /// The head row after a claim on `stored`: numbers are kept, even if they changed since the claimant read the row.
    /// `None` if the claim expects another epoch.
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

    /// The head row after a change of `stored`. `None` if the change expects another epoch.
    pub fn changed(stored: Option<Self>, change: &QueueChange) -> Option<Self> {
        let head = stored.filter(|head| head.epoch == change.epoch)?;
        Some(Self { current: change.current, highest_confirmed: change.highest_confirmed, ..head })
    }
}

/// Why a call of a store failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum QueueStoreError {
    /// The head row is not the expected one. Nothing was written.
    #[error("another writer changed the queue")]
    Changed,
    /// The store refuses this change for its content. Nothing was written, nor would a repeat be.
    #[error("the store refuses the change: {0}")]
    Rejected(String),
    /// The store could not be reached, and certainly wrote nothing. Try again later.
    #[error("the store is not available: {0}")]
    Unavailable(String),
    /// The answer was lost: the change may be written or not.
    #[error("it is unknown whether the store wrote this: {0}")]
    Unknown(String),
    /// The stored rows cannot be decoded. Nothing was written.
    #[error("stored rows cannot be decoded: {0}")]
    Damaged(String),
}
