//! The inputs and effects of a projection, and its end.

use crate::contract::error::{OffsetError, QueryError, ReadError};
use crate::contract::journal::{Page, ReadRange};
use crate::contract::offset::{OwnedSlices, Position, Processed};
use crate::contract::query::{EventPage, PageQuery};
use crate::contract::records::event::{SeqNr, Timestamp};
use crate::reading::query::envelope::Envelope;
use crate::reading::query::shared_reader::SharedAnswer;

/// An input to a projection: answers of stores and handler, commands of its user, and the passing of time. Answers to
/// an earlier run are dropped.
#[derive(Debug, Clone, PartialEq)]
pub enum ProjectionInput {
    /// An answer to the run of this number.
    Answer(u64, ProjectionAnswer),
    /// New events were written; query at once.
    Hint,
    /// Handle no more events until [`ProjectionInput::Resume`].
    Pause,
    /// Continue after a pause.
    Resume,
    /// Delete the saved progress, and start over.
    Reset,
    /// End, after the group in the handler is handled and saved.
    Stop,
    /// The time is [`Projection::next_deadline`](crate::Projection::next_deadline).
    Tick,
}

/// Answers of stores and handler.
#[derive(Debug, Clone, PartialEq)]
pub enum ProjectionAnswer {
    /// To [`ProjectionEffect::Claim`].
    Claimed(Result<OwnedSlices, OffsetError>),
    /// To [`ProjectionEffect::Load`].
    Loaded(Result<Vec<Processed>, OffsetError>),
    /// To [`ProjectionEffect::Query`].
    Page(Result<EventPage, QueryError>),
    /// To [`ProjectionEffect::Join`] and [`ProjectionEffect::Pull`].
    Shared(SharedAnswer),
    /// To [`ProjectionEffect::Read`].
    Read(Result<Page, ReadError>),
    /// To [`ProjectionEffect::Handle`] and [`ProjectionEffect::Commit`].
    Handled(Result<(), HandleError>),
    /// To [`ProjectionEffect::Save`].
    Saved(Result<(), OffsetError>),
    /// To [`ProjectionEffect::Reset`].
    WasReset(Result<(), OffsetError>),
}

/// Why a group was not handled, or not saved.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum HandleError {
    /// The handler failed; nothing of the group was committed.
    #[error("{0}")]
    Handler(String),
    /// The group's offsets were refused; nothing of the group was committed.
    #[error(transparent)]
    Offsets(OffsetError),
    /// The group may be committed or not; the saved offsets show which.
    #[error("outcome unknown: {0}")]
    Unknown(String),
}

/// An action that a projection asks of its driver. The leading number is the run, which the answer carries.
#[derive(Debug, Clone, PartialEq)]
pub enum ProjectionEffect {
    /// Claim the slices.
    Claim(u64),
    /// Load the saved progress of all slices of the projection.
    Load(u64),
    /// Query a page.
    Query(u64, PageQuery),
    /// Join the reader that the projections of the node share; its answers carry the number of the run.
    Join(u64),
    /// Ask the shared reader for more.
    Pull,
    /// Leave the shared reader.
    Leave,
    /// Read one history.
    Read(u64, crate::PersistenceId, ReadRange),
    /// Give these envelopes to the handler.
    Handle(u64, Vec<Envelope>),
    /// Give these envelopes to the handler, which saves the progress in the same transaction.
    Commit(u64, Vec<Envelope>, OwnedSlices, Vec<Processed>),
    /// Save this progress.
    Save(u64, OwnedSlices, Vec<Processed>),
    /// Delete the progress before this position; the machine does not wait for the answer.
    Forget(OwnedSlices, Position),
    /// Delete all saved progress.
    Reset(u64, OwnedSlices),
    /// Log for the operator that an envelope was skipped, and why.
    Skipped(Box<Envelope>, String),
    /// Log for the operator that an operation failed and is tried again.
    Trouble(String),
    /// The projection has ended. Finish the effects requested before, and drop their answers.
    Ended(ProjectionEnd),
}

/// The end of a projection.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ProjectionEnd {
    /// The projection was stopped.
    #[error("stopped")]
    Stopped,
    /// Another owner claimed a slice.
    #[error(transparent)]
    Fenced(OffsetError),
    /// The handler cannot process this event.
    #[error("event {seq_nr} of {id} cannot be processed: {cause}")]
    Poisoned {
        /// The id that the event belongs to.
        id: crate::PersistenceId,
        /// The event's number.
        seq_nr: SeqNr,
        /// The handler's error.
        cause: String,
    },
    /// The projection can never work: a foreign offset, an invalid name.
    #[error("{0}")]
    Impossible(String),
}

/// Counts and state of a projection.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ProjectionStats {
    /// Envelopes that the handler has processed.
    pub handled: u64,
    /// Envelopes dropped because their events were processed before.
    pub duplicates: u64,
    /// Envelopes left to backtracking, because earlier events of their id are missing.
    pub left: u64,
    /// Events read by their id, to fill a gap or because backtracking found them.
    pub fetched: u64,
    /// Poisoned envelopes that were skipped.
    pub skipped: u64,
    /// Runs that ended because a store failed.
    pub restarts: u64,
    /// Saves of offsets.
    pub saves: u64,
    /// Ids in memory with their last processed number.
    pub remembered: usize,
    /// Ids with events left to backtracking.
    pub waiting: usize,
    /// Commit time of the oldest event that is read and not yet processed; `None` if there is none.
    pub oldest_in_hand: Option<Timestamp>,
    /// Whether the projection reads: it is not claiming, loading, backing off or paused.
    pub is_running: bool,
}
