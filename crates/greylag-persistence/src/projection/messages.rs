//! What a projection is told, what it asks for, and how it ends.

use crate::error::{OffsetError, QueryError, ReadError};
use crate::event::{SeqNr, Timestamp};
use crate::journal::{Page, ReadRange};
use crate::offset::{OwnedSlices, Position, Processed};
use crate::query::{Envelope, EventPage, PageQuery, SharedAnswer};

/// An input to a projection: answers of stores and handler, commands of its user, and that time passed. Answers to what
/// an earlier run asked are dropped.
#[derive(Debug, Clone, PartialEq)]
pub enum ProjectionInput {
    /// An answer to what the run of this number asked.
    Answer(u64, ProjectionAnswer),
    /// Something was written somewhere; no need to rest.
    Hint,
    /// Handle no more until [`ProjectionInput::Resume`].
    Pause,
    /// Go on.
    Resume,
    /// Forget what was saved, and start over.
    Reset,
    /// End, after what is in hand is handled and saved.
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

/// Why a group was not handled.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum HandleError {
    /// The handler refused it; nothing of the group was committed.
    #[error("{0}")]
    Handler(String),
    /// The group's offsets were refused; nothing of the group was committed.
    #[error(transparent)]
    Offsets(OffsetError),
    /// The group may be committed or not; the saved offsets tell.
    #[error("outcome unknown: {0}")]
    Unknown(String),
}

/// What the driver is asked to do. Where a number comes first, the answer carries it.
#[derive(Debug, Clone, PartialEq)]
pub enum ProjectionEffect {
    /// Claim the slices.
    Claim(u64),
    /// Load what was saved of all slices of the projection.
    Load(u64),
    /// Ask for a page.
    Query(u64, PageQuery),
    /// Join the reader that the projections of the node share; its answers carry the number.
    Join(u64),
    /// Ask the shared reader for more.
    Pull,
    /// Leave the shared reader.
    Leave,
    /// Read one history.
    Read(u64, crate::PersistenceId, ReadRange),
    /// Hand these to the handler.
    Handle(u64, Vec<Envelope>),
    /// Hand these to the handler, and save in the same transaction.
    Commit(u64, Vec<Envelope>, OwnedSlices, Vec<Processed>),
    /// Save these.
    Save(u64, OwnedSlices, Vec<Processed>),
    /// Forget what stands before this position; the machine does not wait for the answer.
    Forget(OwnedSlices, Position),
    /// Forget everything saved.
    Reset(u64, OwnedSlices),
    /// Tell the operator: an envelope was skipped, and why.
    Skipped(Box<Envelope>, String),
    /// Tell the operator: something fails, and is tried again.
    Trouble(String),
    /// The projection has ended. Finish what was asked before, and drop the answers.
    Ended(ProjectionEnd),
}

/// How a projection ended.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ProjectionEnd {
    /// The projection was stopped.
    #[error("stopped")]
    Stopped,
    /// Another owner has a slice now.
    #[error(transparent)]
    Fenced(OffsetError),
    /// The handler cannot process this event.
    #[error("event {seq_nr} of {id} cannot be processed: {cause}")]
    Poisoned {
        /// The id that the event belongs to.
        id: crate::PersistenceId,
        /// The event's number.
        seq_nr: SeqNr,
        /// What the handler said.
        cause: String,
    },
    /// The projection can never work: a foreign offset, a name that is none.
    #[error("{0}")]
    Impossible(String),
}

/// What a projection has done and where it is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ProjectionStats {
    /// Envelopes that the handler has processed.
    pub handled: u64,
    /// Envelopes that were processed before.
    pub duplicates: u64,
    /// Envelopes that were left to backtracking.
    pub left: u64,
    /// Events that were read by their id, to fill a gap or because backtracking found them.
    pub fetched: u64,
    /// Envelopes that were skipped.
    pub skipped: u64,
    /// How often it started over because a store failed.
    pub restarts: u64,
    /// How often offsets were saved.
    pub saves: u64,
    /// Ids that are remembered.
    pub remembered: usize,
    /// Ids that wait for backtracking.
    pub waiting: usize,
    /// When the oldest event in hand was committed; none if there is none in hand.
    pub oldest_in_hand: Option<Timestamp>,
    /// Whether it is reading: not claiming, loading, backing off or paused.
    pub is_running: bool,
}
