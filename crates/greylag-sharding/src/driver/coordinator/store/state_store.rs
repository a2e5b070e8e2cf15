//! The state of an entity type's coordinators, whatever stores it.

use async_trait::async_trait;

use crate::machine::coordinator::{StateEvent, StoredState};

/// Reads and writes the state of one incarnation.
#[async_trait]
pub(crate) trait StateStore: Send + Sync + 'static {
    /// Most events that are written atomically.
    fn max_batch(&self) -> usize;

    /// Reads all durable state; repeated until the store answers.
    ///
    /// # Errors
    /// [`Unreadable`]: the store answers, and trying again would not help.
    async fn read(&self) -> Result<StoredState, Unreadable>;

    /// Makes events durable, all or none. They count only if no other incarnation has written since the last read.
    ///
    /// # Errors
    /// [`NotCommitted`] tells whether events are stored.
    async fn commit(&self, events: Vec<StateEvent>) -> Result<(), NotCommitted>;
}

/// Why events are not durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NotCommitted {
    /// Nothing was written, and the same events may be committed again.
    NotStored,
    /// Another incarnation writes, or the outcome is unknown: only another read can tell.
    Lost,
}

/// The stored state is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what} under {id} cannot be read: {cause}; {advice}")]
pub(crate) struct Unreadable {
    /// The kind of data, for the error's text.
    pub(super) what: &'static str,
    /// The persistence id.
    pub(super) id: String,
    /// The fault, and its place.
    pub(super) cause: String,
    /// The step by which an operator makes the store readable again, for the error's text.
    pub(super) advice: &'static str,
}
