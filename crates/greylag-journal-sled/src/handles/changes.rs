//! Changes of durable states as projections query them: in the order of commits, each change at most once.

use std::sync::Arc;

use async_trait::async_trait;
use greylag_persistence::{
    ChangesOf, Cursor, EventPage, EventQueries, FoundEvent, OffsetKind, Page, PageQuery, PersistenceId, Position,
    QueryCaps, QueryError, ReadError, ReadRange, Scope, Shows, StateChange,
};

use super::inner::Inner;
use crate::lookup::LookupError;
use crate::reading::Reads;
use crate::rows::keys;

/// A page ends after passing over this many changes, so that no page takes long.
const MAX_PASSED: usize = 100_000;

/// Queries over the changes of [`SledStates`](crate::SledStates): gap-free up to the newest durable change, and of
/// each id only the newest change.
#[derive(Debug, Clone)]
pub struct SledChanges {
    inner: Arc<Inner>,
}

impl SledChanges {
    pub(crate) fn new(inner: Arc<Inner>) -> Self {
        Self { inner }
    }
}

#[async_trait]
impl EventQueries for SledChanges {
    fn caps(&self) -> QueryCaps {
        QueryCaps { scope: Scope::Node, kind: OffsetKind::Ordinal, shows: Shows::Newest }
    }

    async fn persistence_ids(
        &self,
        entity_type: Option<&str>,
        after: Option<&PersistenceId>,
        limit: usize,
    ) -> Result<Vec<PersistenceId>, ReadError> {
        let (entity_type, after) = (entity_type.map(str::to_owned), after.cloned());
        let reading = self.inner.read(move |reads| {
            let ids = reads.state_ids(entity_type.as_deref(), after.as_ref(), limit);
            ids.map_err(|error| reads.read_error(LookupError::Store(error)))
        });
        reading.await.map_err(ReadError::Unavailable)?
    }

    async fn newest(&self) -> Result<Option<Position>, ReadError> {
        self.inner.read(|reads| reads.newest().map(Position::Ordinal)).await.map_err(ReadError::Unavailable)
    }

    async fn events(&self, query: &PageQuery) -> Result<EventPage, QueryError> {
        let query = query.clone();
        let reading = self.inner.read(move |reads| page_of_changes(reads, &query));
        reading.await.map_err(|failure| QueryError::Read(ReadError::Unavailable(failure)))?
    }

    async fn read(&self, id: &PersistenceId, range: ReadRange) -> Result<Page, ReadError> {
        let id = id.clone();
        let reading = self.inner.read(move |reads| reads.state_or_absent(id).map(|state| state.into_page(range)));
        reading.await.map_err(ReadError::Unavailable)?
    }
}

/// One page of changes.
fn page_of_changes(reads: &Reads<'_>, query: &PageQuery) -> Result<EventPage, QueryError> {
    let from = query.after_ordinal()?.map_or(0, |after| after.saturating_add(1));
    let until = query.until_ordinal()?;
    let mut page = EventPage { events: Vec::new(), next: query.after.clone(), more: false };
    // The end is taken before anything is read, as in `Reads::changes`.
    let Some(newest) = reads.newest().map(|newest| newest.min(until)).filter(|newest| *newest >= from) else {
        return Ok(page);
    };
    let (first, end) = (keys::change(from), keys::change(newest.saturating_add(1)));
    let of = ChangesOf::from(query.of.clone());
    for (passed, record) in reads.reader().range(&first, &end).enumerate() {
        if page.events.len() >= query.limit || passed >= MAX_PASSED {
            page.more = true;
            return Ok(page);
        }
        match reads.change_at(&of, record) {
            Ok((ordinal, change)) => {
                page.next = Cursor::Ordinal(ordinal);
                page.events.extend(change.map(|change| found(ordinal, change)));
            }
            // A page ends before damage; the next page begins with the damage and answers the error.
            Err(LookupError::Corrupt(_)) if !page.events.is_empty() => return Ok(EventPage { more: true, ..page }),
            Err(error) => return Err(QueryError::Read(reads.read_error(error))),
        }
    }
    // No changes are left up to the newest ordinal, so the next page starts after it.
    page.next = Cursor::Ordinal(newest);
    Ok(page)
}

fn found(ordinal: u64, change: StateChange) -> FoundEvent {
    let record = change.state.into_record();
    let (id, position) = (record.id.clone(), Position::Ordinal(ordinal));
    FoundEvent { id, seq_nr: record.seq_nr, position, event: Some(record) }
}
