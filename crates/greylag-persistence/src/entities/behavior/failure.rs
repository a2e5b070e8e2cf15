//! Why an entity failed, was fenced, or could not recover or delete.

use std::fmt;

use greylag_core::Generation;

use crate::contract::error::{
    AdvanceError, AppendError, ClaimError, DeleteError, ReadError, SnapshotError, StateWriteError,
};
use crate::contract::head::Head;
use crate::contract::records::codec::UnreadableRecord;
use crate::contract::records::event::SeqNr;
use crate::contract::records::revision::StateHead;
use crate::entities::entity::replay_filter::WritersOverlap;

/// Why events were not deleted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DeleteFailure {
    /// There are no events up to this number yet; the store was not asked.
    #[error("the last event is {last}")]
    InvalidRange {
        /// The number of the last event.
        last: SeqNr,
    },
    /// The entity is read-only; the store was not asked.
    #[error("the entity is read-only")]
    ReadOnly,
    /// The store refused.
    #[error(transparent)]
    Store(DeleteError),
}

/// A step of recovery, for error texts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecoveryStep {
    /// Reading the head, claiming, advancing.
    Claim,
    /// Loading a snapshot.
    Snapshot,
    /// Waiting for a page of events.
    Replay,
    /// Reading a durable state.
    State,
}

impl fmt::Display for RecoveryStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Claim => "claim",
            Self::Snapshot => "snapshot",
            Self::Replay => "replay",
            Self::State => "state",
        })
    }
}

/// Why a state could not be built. Source: persistence §2.5.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RecoveryFailure {
    /// A step was not answered in time.
    #[error("no answer to the {0} within its timeout")]
    Timeout(RecoveryStep),
    /// The claim failed.
    #[error(transparent)]
    Claim(ClaimError),
    /// The head or a page could not be read.
    #[error(transparent)]
    Read(ReadError),
    /// The snapshot store could not be reached. Recovery never replays the whole history instead, which would
    /// multiply the load of an outage.
    #[error(transparent)]
    Snapshot(SnapshotError),
    /// None of the snapshots that were tried could be used.
    #[error("none of {attempts} snapshots can be used, and the events alone do not give the state: {last}")]
    SnapshotsUnusable {
        /// Number of snapshots tried.
        attempts: u32,
        /// Reason why the last one could not be used.
        last: String,
    },
    /// The history could not be advanced to its snapshot.
    #[error(transparent)]
    Advance(AdvanceError),
    /// The snapshot needs events of before its own number, and those are deleted.
    #[error("the snapshot of {snapshot} needs the events from {replay_from} on, and those up to {deleted_to} are gone")]
    RefillMissing {
        /// The number of the snapshot.
        snapshot: SeqNr,
        /// The first event that it needs.
        replay_from: SeqNr,
        /// The last number deleted.
        deleted_to: SeqNr,
    },
    /// Events behind the snapshot are deleted, so the snapshot and the remaining events leave a gap.
    #[error("events up to {deleted_to} are deleted, but the snapshot is of {snapshot}")]
    EventsDeletedBeyondSnapshot {
        /// The number of the snapshot.
        snapshot: SeqNr,
        /// The last number deleted.
        deleted_to: SeqNr,
    },
    /// The beginning of the history is deleted, and there is no snapshot in its place.
    #[error("events up to {deleted_to} are deleted, and there is no snapshot")]
    MissingSnapshot {
        /// The last number deleted.
        deleted_to: SeqNr,
    },
    /// The snapshot is newer than the journal: the journal lost events, or belongs to another entity.
    #[error("the snapshot is of {snapshot}, but the journal ends at {highest}")]
    SnapshotAheadOfJournal {
        /// The number of the snapshot.
        snapshot: SeqNr,
        /// The last number in the journal.
        highest: SeqNr,
    },
    /// Two writers ran at the same time, and the settings say to fail then.
    #[error(transparent)]
    Overlap(WritersOverlap),
    /// A gap or a repeated number in the history.
    #[error("corrupt history: event {expected} was expected, {} came", got.map_or("none".to_owned(), |got| got.to_string()))]
    CorruptHistory {
        /// The sequence number that had to follow.
        expected: SeqNr,
        /// The sequence number that came; `None` if the history ended.
        got: Option<SeqNr>,
    },
    /// A record could not be decoded.
    #[error(transparent)]
    Unreadable(UnreadableRecord),
    /// A record's marks of delivery could not be decoded.
    #[error("malformed delivery marks at {0}")]
    Marks(SeqNr),
    /// A handler panicked.
    #[error("{handler} panicked at {seq_nr}: {message}")]
    Panicked {
        /// Name of the handler.
        handler: &'static str,
        /// The event's number, or the last number before.
        seq_nr: SeqNr,
        /// The panic's message.
        message: String,
    },
}

/// Why an entity ended without a request to stop.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// The entity's state could not be built.
    #[error("recovery failed: {0}")]
    Recovery(#[source] RecoveryFailure),
    /// An append failed, or was rejected too often.
    #[error("persist failed: {0}")]
    Persist(#[source] AppendError),
    /// A durable state was not written.
    #[error("persist failed: {0}")]
    Write(#[source] StateWriteError),
    /// A handler panicked.
    #[error("{handler} panicked: {message}")]
    Handler {
        /// Name of the handler.
        handler: &'static str,
        /// The panic's message.
        message: String,
    },
    /// Too many commands wait, and the settings say to fail in that case.
    #[error("the stash is full")]
    StashFull,
    /// A store call ended without an answer, so that its outcome is unknown.
    #[error("a store call panicked; what it did is unknown")]
    StoreLost,
}

/// The writer to which an entity lost its history, as far as the store told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FencedBy {
    /// Another writer claimed the history: the head after its claim.
    Head(Head),
    /// Another append under the same epoch took the number that this entity was about to use.
    Conflict {
        /// The last number stored.
        highest: SeqNr,
    },
    /// Another writer wrote the durable state, or owns it under a greater generation.
    Revision(StateHead),
}

impl FencedBy {
    /// The stored generation, if any; a shard compares its own generation with it.
    pub fn generation(&self) -> Option<Generation> {
        match self {
            Self::Head(head) => head.generation,
            Self::Revision(head) => head.generation,
            Self::Conflict { .. } => None,
        }
    }
}
