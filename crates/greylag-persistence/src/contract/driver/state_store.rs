//! The contract of state stores.
//!
//! `greylag_persistence::tck::states` (feature `tck`) checks a backend against it in one call.

use async_trait::async_trait;

use super::store_returns::StoreReturns;
use crate::contract::breaker::Breakers;
use crate::contract::error::{CloseError, QueryError, ReadError, StateWriteError};
use crate::contract::journal::Health;
use crate::contract::offset::Offset;
use crate::contract::records::codec::EncodedValue;
use crate::contract::records::persistence_id::PersistenceId;
use crate::contract::records::state::{ChangesOf, StateCaps, StateChange, StateWrite, StoredState};

/// Keeps one state for each of many ids, fenced by revisions.
///
/// All methods may be dropped at any await: a write that was begun is finished or not begun. Source:
/// persistence §3.
#[async_trait]
pub trait StateStore: Send + Sync + 'static {
    /// The store's capabilities and limits; the same at every call.
    fn caps(&self) -> StateCaps;

    /// The row of `id`; [`StoredState::absent`] if it was never written, a tombstone (no value, but
    /// a revision) if it was deleted.
    ///
    /// # Errors
    /// [`ReadError::Corrupt`] for a row that cannot be read: an error, never "absent".
    async fn get(&self, id: &PersistenceId) -> Result<StoredState, ReadError>;

    /// Stores `value` under `write.revision` if the stored revision is the previous one and the stored
    /// generation is not greater; Ok means durable and readable everywhere. A repeat of the stored
    /// revision by the same writer with the same content answers Ok and changes nothing, so a caller
    /// whose answer was lost can repeat the call.
    /// [`StateHead::judge`](crate::StateHead::judge) is this rule.
    ///
    /// # Errors
    /// [`StateWriteError`] says for each variant what is stored. Once a try of a write went
    /// unanswered, the only answers to it are Ok, `Unknown`, and a `RevisionMismatch` whose
    /// `current` is not beyond `write.revision`: a later revision hides whether ours was stored.
    async fn upsert(&self, write: StateWrite, value: EncodedValue, tag: Option<String>) -> Result<(), StateWriteError>;

    /// Deletes the value under the same rule, leaving a tombstone with `write.revision`, so that no
    /// stale writer can bring it back.
    ///
    /// # Errors
    /// As for [`StateStore::upsert`].
    async fn delete(&self, write: StateWrite) -> Result<(), StateWriteError>;

    /// Ids that were ever written, tombstones included, ascending, only those after `after`, at most
    /// `limit`.
    ///
    /// # Errors
    /// [`ReadError`] if they cannot be read.
    async fn ids(&self, after: Option<&PersistenceId>, limit: usize) -> Result<Vec<PersistenceId>, ReadError>;

    /// Changes after `offset`, in the order of their offsets, at most `limit`: at least the latest
    /// of each id; intermediate changes may be left out. Fewer than `limit` means that no more are
    /// visible yet.
    ///
    /// On a store that orders by time ([`OffsetKind::Timestamp`](crate::OffsetKind::Timestamp)) a change whose commit
    /// came late may lie before an offset that was given already. A caller that must not miss any change follows the
    /// query side of the store instead ([`ReadJournal`](crate::ReadJournal)), as projections do.
    ///
    /// # Errors
    /// [`QueryError`], also for a foreign offset.
    async fn changes(&self, of: &ChangesOf, offset: &Offset, limit: usize) -> Result<Vec<StateChange>, QueryError>;

    /// The store's health.
    fn health(&self) -> Health;

    /// State and counts of the store's breakers; `None` by default, since only [`Guarded`](crate::Guarded) has
    /// breakers.
    fn breakers(&self) -> Option<Breakers> {
        None
    }

    /// Counts the store's returns after outages. Default: none, and entities that back off because of the store wait
    /// until their back-off has passed.
    fn store_returns(&self) -> Option<&StoreReturns> {
        None
    }

    /// Finishes the calls under way; later calls answer unavailable.
    ///
    /// # Errors
    /// [`CloseError`] if it did not finish cleanly.
    async fn close(&self) -> Result<(), CloseError>;
}
