//! What an event-sourced behaviour is told besides its commands.

use super::failure::{DeleteFailure, RecoveryFailure};
use crate::contract::error::{AppendError, RejectReason, SnapshotError};
use crate::contract::records::event::SeqNr;
use crate::contract::records::snapshot::SnapshotCriteria;
use crate::entities::tracker::UnconfirmedWarning;

/// An occurrence in the life of an entity. Source: persistence §2.8 (signals).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Signal {
    /// The state is complete; commands follow.
    RecoveryCompleted,
    /// The state could not be built.
    RecoveryFailed(RecoveryFailure),
    /// The events of the last command are not stored. If the events were applied already, the entity
    /// restarts, unless it has a copy of the state to return to.
    PersistRejected(RejectReason),
    /// The append failed; if its outcome is unknown, only the coming recovery can tell what is stored.
    PersistFailed(AppendError),
    /// Another writer owns this history now; the entity ends.
    Fenced,
    /// A snapshot was saved.
    SnapshotCompleted(SeqNr),
    /// A snapshot was not saved; nothing is lost.
    SnapshotFailed(SeqNr, String),
    /// The events up to here are deleted.
    DeleteEventsCompleted(SeqNr),
    /// The events up to here were not deleted.
    DeleteEventsFailed(SeqNr, DeleteFailure),
    /// The snapshots that match are deleted.
    DeleteSnapshotsCompleted(SnapshotCriteria),
    /// The snapshots that match were not deleted.
    DeleteSnapshotsFailed(SnapshotCriteria, SnapshotError),
    /// Deliveries of the entity's tracker are unconfirmed for a long time; the tracker goes on sending them.
    Unconfirmed(UnconfirmedWarning),
    /// The entity is about to start anew. If the entity ran until now, the handler gets its last state and that state's
    /// number; if it did not run yet, or its state holds events that may not be stored, the default state and the
    /// number 0. Source: persistence 76.
    PreRestart,
    /// The entity has ended. After a graceful stop the handler gets the last state and that state's number; of an
    /// entity that did not run yet, that failed, that was stopped in the midst of an append or lost its history to
    /// another writer, the default state and the number 0. Source: persistence 76.
    PostStop,
}

impl Signal {
    /// Whether the signal is logged as a warning.
    pub(crate) fn is_failure(&self) -> bool {
        matches!(
            self,
            Self::RecoveryFailed(_)
                | Self::PersistRejected(_)
                | Self::PersistFailed(_)
                | Self::Fenced
                | Self::SnapshotFailed(..)
                | Self::DeleteEventsFailed(..)
                | Self::DeleteSnapshotsFailed(..)
                | Self::Unconfirmed(_)
        )
    }
}
