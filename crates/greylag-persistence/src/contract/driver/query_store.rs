//! The contract of the query side of a journal.
//!
//! `greylag_persistence::tck::queries` (feature `tck`) checks a backend against it in one call.

use std::time::Duration;

use async_trait::async_trait;

use crate::contract::error::{QueryError, ReadError};
use crate::contract::journal::{Page, ReadRange};
use crate::contract::offset::Position;
use crate::contract::query::{EventPage, PageQuery, QueryCaps};
use crate::contract::records::event::{SeqNr, StoredEvent};
use crate::contract::records::persistence_id::PersistenceId;

/// Finds events across the histories of a journal, page by page.
///
/// A state store has a query side over the changes of its states ([`Shows::Newest`](crate::Shows::Newest)): there an
/// event is a change, its number the revision, and a replaced revision counts as deleted. The kit
/// `greylag_persistence::tck::changes` checks this.
///
/// Queries show durable events only, and no deleted ones; an id that was only claimed does not show.
/// All methods only read, and may be dropped at any await. Source: persistence §5.
#[async_trait]
pub trait EventQueries: Send + Sync + 'static {
    /// The store's capabilities and limits; the same at every call.
    fn caps(&self) -> QueryCaps;

    /// Age from which an event shows in a page of settled events, so that a reader that gets a hint
    /// does not query too early. Default: zero.
    fn settles_after(&self) -> Duration {
        Duration::ZERO
    }

    /// Ids with at least one event ever, ascending by their bytes, only those after `after`, of one
    /// entity type if one is given, at most `limit`. Deleted events count: their numbers are used.
    ///
    /// # Errors
    /// [`ReadError`] if they cannot be read.
    async fn persistence_ids(
        &self,
        entity_type: Option<&str>,
        after: Option<&PersistenceId>,
        limit: usize,
    ) -> Result<Vec<PersistenceId>, ReadError>;

    /// The last position at present; `None` if no event was ever stored.
    ///
    /// # Errors
    /// [`ReadError`] if it cannot be read.
    async fn newest(&self) -> Result<Option<Position>, ReadError>;

    /// One page, in the order of positions; events of one id always in the order of its history. A page ends before a
    /// damaged event; a page that begins with one fails.
    ///
    /// # Errors
    /// [`QueryError`], also for a cursor of another kind of store.
    async fn events(&self, query: &PageQuery) -> Result<EventPage, QueryError>;

    /// One page of one history, as [`Journal::read`](crate::Journal::read).
    ///
    /// # Errors
    /// [`ReadError::Corrupt`] instead of wrong or partial data.
    async fn read(&self, id: &PersistenceId, range: ReadRange) -> Result<Page, ReadError>;

    /// One event; `None` if it was deleted, or never written.
    ///
    /// # Errors
    /// As [`EventQueries::read`].
    async fn load(&self, id: &PersistenceId, seq_nr: SeqNr) -> Result<Option<StoredEvent>, ReadError> {
        let page = self.read(id, ReadRange { max_events: 1, ..ReadRange::new(seq_nr, seq_nr) }).await?;
        Ok(page.records.into_iter().next())
    }

    /// The number of the last event of one history; zero if no event was ever stored. Deleted events at the end count
    /// or not, as the store likes. A current stream of a history longer than one page ends at this number. Default: a
    /// search by a few dozen reads of one event; a store that keeps the number overrides this.
    ///
    /// # Errors
    /// [`ReadError`] if it cannot be read.
    async fn highest(&self, id: &PersistenceId) -> Result<SeqNr, ReadError> {
        let Some(mut last) = first_from(self, id, SeqNr::FIRST).await? else { return Ok(SeqNr::ZERO) };
        // Find an absent number by doubling steps, then bisect.
        let (mut step, mut beyond) = (FIRST_STEP, SeqNr::MAX);
        while last.plus(1).is_some_and(|next| next < beyond) {
            let half = (beyond.as_u64() - last.as_u64()) / 2;
            let probe = SeqNr::saturating(last.as_u64() + half.min(step));
            match first_from(self, id, probe).await? {
                Some(found) => (last, step) = (found, step.saturating_mul(2)),
                None => beyond = probe,
            }
        }
        Ok(last)
    }
}

/// First step of the search: most histories longer than one page are not much longer.
const FIRST_STEP: u64 = 1024;

/// The first used number from `from` on; a damaged event counts as used.
async fn first_from<Q: EventQueries + ?Sized>(
    queries: &Q,
    id: &PersistenceId,
    from: SeqNr,
) -> Result<Option<SeqNr>, ReadError> {
    match queries.read(id, ReadRange { max_events: 1, ..ReadRange::new(from, SeqNr::MAX) }).await {
        Ok(page) => Ok(page.records.first().map(|record| record.seq_nr).or(page.next)),
        Err(ReadError::Corrupt(corrupt)) if corrupt.seq_nr >= from => Ok(Some(corrupt.seq_nr)),
        Err(error) => Err(error),
    }
}
