//! Changes of durable states in memory: in the order of commits, so that no backtracking is needed.

use async_trait::async_trait;

use super::states::{InMemoryStates, checked};
use crate::contract::driver::query_store::EventQueries;
use crate::contract::error::{QueryError, ReadError};
use crate::contract::journal::{Page, ReadRange};
use crate::contract::offset::{OffsetKind, Position};
use crate::contract::query::{Cursor, EventPage, FoundEvent, PageQuery, QueryCaps, Shows};
use crate::contract::records::persistence_id::PersistenceId;
use crate::contract::records::state::{ChangesOf, StoredState};

/// The query side of an [`InMemoryStates`]: a change that a later one of its id replaced is not shown.
#[derive(Debug, Clone)]
pub struct InMemoryChanges {
    states: InMemoryStates,
}

impl InMemoryStates {
    /// The query side, which shows every change once.
    pub fn queries(&self) -> InMemoryChanges {
        InMemoryChanges::new(self.clone())
    }
}

impl InMemoryChanges {
    fn new(states: InMemoryStates) -> Self {
        Self { states }
    }
}

fn found(ordinal: u64, row: &StoredState) -> Result<FoundEvent, ReadError> {
    let record = checked(row)?.into_record();
    let (id, position) = (record.id.clone(), Position::Ordinal(ordinal));
    Ok(FoundEvent { id, seq_nr: record.seq_nr, position, event: Some(record) })
}

#[async_trait]
impl EventQueries for InMemoryChanges {
    fn caps(&self) -> QueryCaps {
        QueryCaps { scope: self.states.scope(), kind: OffsetKind::Ordinal, shows: Shows::Newest }
    }

    async fn persistence_ids(
        &self,
        entity_type: Option<&str>,
        after: Option<&PersistenceId>,
        limit: usize,
    ) -> Result<Vec<PersistenceId>, ReadError> {
        let rows = self.states.open(ReadError::Unavailable)?;
        let later = rows.by_id.keys().filter(|id| after.is_none_or(|after| *id > after));
        let meant = later.filter(|id| entity_type.is_none_or(|meant| id.entity_type() == meant));
        Ok(meant.take(limit).cloned().collect())
    }

    async fn newest(&self) -> Result<Option<Position>, ReadError> {
        let last = self.states.open(ReadError::Unavailable)?.last_ordinal;
        Ok((last > 0).then_some(Position::Ordinal(last)))
    }

    async fn events(&self, query: &PageQuery) -> Result<EventPage, QueryError> {
        let after = query.after_ordinal()?.unwrap_or(0);
        let until = query.until_ordinal()?;
        let of = ChangesOf::from(query.of.clone());
        let rows = self.states.open(|failure| QueryError::Read(ReadError::Unavailable(failure)))?;
        let is_meant = |(at, row): &&(u64, StoredState)| *at > after && *at <= until && of.matches(row);
        let mut meant: Vec<_> = rows.by_id.values().filter(is_meant).collect();
        meant.sort_by_key(|(ordinal, _)| *ordinal);
        let more = meant.len() >= query.limit;
        let mut page = EventPage { events: Vec::new(), next: query.after.clone(), more };
        for (ordinal, row) in meant.into_iter().take(query.limit) {
            match found(*ordinal, row) {
                Ok(found) => page.events.push(found),
                Err(error) if page.events.is_empty() => return Err(QueryError::Read(error)),
                // End the page here; the next page begins with the damaged row, and reports it.
                Err(_) => return Ok(EventPage { more: true, ..page }),
            }
            page.next = Cursor::Ordinal(*ordinal);
        }
        Ok(page)
    }

    async fn read(&self, id: &PersistenceId, range: ReadRange) -> Result<Page, ReadError> {
        let rows = self.states.open(ReadError::Unavailable)?;
        let row = rows.by_id.get(id).map(|(_, row)| checked(row)).transpose()?;
        Ok(row.map(|row| row.into_page(range)).unwrap_or_default())
    }
}
