//! Queries across histories, in the order of the server's time.
//!
//! An event gets its timestamp when its statement begins and becomes visible at the commit, so an event with a later
//! timestamp may become visible first. Live pages hold back events younger than `behind_current_time`; an event that
//! took longer to commit is found by the backward passes of a [`Feed`](greylag_persistence::Feed), which read the index
//! alone. Source: persistence §5 (PostgreSQL).

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use greylag_persistence::{
    Corrupt, CorruptKind, Cursor, EventPage, EventQueries, EventsOf, FoundEvent, OffsetKind, Page, PageQuery,
    PersistenceId, Position, QueryCaps, QueryError, ReadError, ReadRange, Scope, Shows,
};
use tokio_postgres::Row;

use crate::backend::Backend;
use crate::sql::rows::{self, Unreadable};
use crate::sql::statements::{EVENTS_BY_SLICES, EVENTS_BY_TAG, IDS, NEWEST, PLACES_BY_SLICES, PLACES_BY_TAG};

use super::history;
use super::pages::{self, Bounds, foreign_offset, unavailable};

/// Queries over the events of a [`PostgresJournal`](crate::PostgresJournal), over connections of their own.
#[derive(Debug, Clone)]
pub struct PostgresQueries {
    backend: Arc<Backend>,
}

impl PostgresQueries {
    pub(crate) fn new(backend: Arc<Backend>) -> Self {
        Self { backend }
    }

    async fn rows(&self, query: &PageQuery) -> Result<Vec<Row>, QueryError> {
        let Bounds { after: (time, id, number), until, behind, limit } =
            &Bounds::new(query, self.backend.settings.behind_current_time)?;
        let found = self.backend.query.call(self.backend.settings.call_timeout, |session| async move {
            match &query.of {
                EventsOf::Tag(tag) => {
                    let sql = if query.load { EVENTS_BY_TAG } else { PLACES_BY_TAG };
                    let statement = session.prepare(sql).await?;
                    session.client.query(&statement, &[tag, time, id, number, until, behind, limit]).await
                }
                EventsOf::Slices { entity_type, slices } => {
                    let sql = if query.load { EVENTS_BY_SLICES } else { PLACES_BY_SLICES };
                    let statement = session.prepare(sql).await?;
                    let (first, last) = (rows::slice(*slices.start()), rows::slice(*slices.end()));
                    let values: [&(dyn tokio_postgres::types::ToSql + Sync); 9] =
                        [entity_type, time, id, number, until, behind, limit, &first, &last];
                    session.client.query(&statement, &values).await
                }
            }
        });
        found.await.map_err(|failed| unavailable(failed.cause))
    }

    /// Decodes one row of a page; the event is `None` if it is deleted.
    fn found(&self, row: &Row, load: bool) -> Result<(Cursor, Option<FoundEvent>), QueryError> {
        let unreadable = |Unreadable| unavailable(self.backend.unreadable());
        let place = rows::processed(row).map_err(unreadable)?;
        let (id, seq_nr, position) = (place.id, place.seq_nr, place.position);
        let Position::Timestamp(timestamp) = position else { return Err(foreign_offset()) };
        let next = Cursor::Row { timestamp, id: Some(id.clone()), seq_nr };
        if !load {
            return Ok((next, Some(FoundEvent { id, seq_nr, position, event: None })));
        }
        let deleted_to: Option<i64> = rows::column(row, "deleted_to").map_err(unreadable)?;
        if deleted_to.is_some_and(|deleted_to| rows::number(seq_nr) <= deleted_to) {
            return Ok((next, None));
        }
        let corrupt = |kind| QueryError::Read(ReadError::Corrupt(Corrupt { id: id.clone(), seq_nr, kind }));
        let is_there = rows::column::<Option<i64>>(row, "crc32c").map_err(unreadable)?.is_some();
        if !is_there {
            return Err(corrupt(CorruptKind::Missing));
        }
        let event = rows::event(&id, row).map_err(|Unreadable| corrupt(CorruptKind::Unreadable))?;
        if !event.is_intact() {
            return Err(corrupt(CorruptKind::Checksum));
        }
        Ok((next, Some(FoundEvent { id, seq_nr, position, event: Some(event) })))
    }
}

#[async_trait]
impl EventQueries for PostgresQueries {
    fn caps(&self) -> QueryCaps {
        QueryCaps { scope: Scope::Shared, kind: OffsetKind::Timestamp, shows: Shows::Every }
    }

    fn settles_after(&self) -> Duration {
        self.backend.settings.behind_current_time
    }

    async fn persistence_ids(
        &self,
        entity_type: Option<&str>,
        after: Option<&PersistenceId>,
        limit: usize,
    ) -> Result<Vec<PersistenceId>, ReadError> {
        self.backend.ids(IDS, entity_type, after, limit).await
    }

    async fn newest(&self) -> Result<Option<Position>, ReadError> {
        self.backend.newest(NEWEST).await
    }

    async fn events(&self, query: &PageQuery) -> Result<EventPage, QueryError> {
        pages::page(query, &self.rows(query).await?, |row| self.found(row, query.load))
    }

    async fn read(&self, id: &PersistenceId, range: ReadRange) -> Result<Page, ReadError> {
        history::read_page(&self.backend, &self.backend.query, id, range).await
    }
}
