//! Changes of durable states, in the order of the server's time: pages like those of events, but one row for each id.
//!
//! A change that commits after a later one was shown is found by the backward passes of a
//! [`Feed`](greylag_persistence::Feed), unless a further change of the same id has replaced it by then; the further
//! change has a later time of its own. Source: persistence §5 (PostgreSQL).

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use greylag_persistence::{
    Cursor, EventPage, EventQueries, EventsOf, FoundEvent, OffsetKind, Page, PageQuery, PersistenceId, Position,
    QueryCaps, QueryError, ReadError, ReadRange, Scope, Shows,
};
use tokio_postgres::Row;

use crate::backend::Backend;
use crate::sql::rows::{self, Unreadable};
use crate::sql::statements::{
    CHANGE_PLACES_BY_SLICES, CHANGE_PLACES_BY_TAG, CHANGES_BY_SLICES, CHANGES_BY_TAG, NEWEST_CHANGE, STATE_IDS_OF_TYPE,
};

use super::pages::{self, Bounds, foreign_offset, unavailable};

/// Queries over the changes of [`PostgresStates`](crate::PostgresStates), over the connections of a journal's queries.
#[derive(Debug, Clone)]
pub struct PostgresChanges {
    backend: Arc<Backend>,
}

impl PostgresChanges {
    pub(crate) fn new(backend: Arc<Backend>) -> Self {
        Self { backend }
    }

    async fn rows(&self, query: &PageQuery) -> Result<Vec<Row>, QueryError> {
        let Bounds { after: (time, id, _), until, behind, limit } =
            &Bounds::new(query, self.backend.settings.behind_current_time)?;
        let found = self.backend.query.call(self.backend.settings.call_timeout, |session| async move {
            match &query.of {
                EventsOf::Tag(tag) => {
                    let sql = if query.load { CHANGES_BY_TAG } else { CHANGE_PLACES_BY_TAG };
                    let statement = session.prepare(sql).await?;
                    session.client.query(&statement, &[tag, time, id, until, behind, limit]).await
                }
                EventsOf::Slices { entity_type, slices } => {
                    let sql = if query.load { CHANGES_BY_SLICES } else { CHANGE_PLACES_BY_SLICES };
                    let statement = session.prepare(sql).await?;
                    let (first, last) = (rows::slice(*slices.start()), rows::slice(*slices.end()));
                    let values: [&(dyn tokio_postgres::types::ToSql + Sync); 8] =
                        [entity_type, time, id, until, behind, limit, &first, &last];
                    session.client.query(&statement, &values).await
                }
            }
        });
        found.await.map_err(|failed| unavailable(failed.cause))
    }

    fn found(&self, row: &Row, load: bool) -> Result<(Cursor, Option<FoundEvent>), QueryError> {
        let found = self.change(row, load)?;
        let Position::Timestamp(timestamp) = found.position else { return Err(foreign_offset()) };
        let next = Cursor::Row { timestamp, id: Some(found.id.clone()), seq_nr: found.seq_nr };
        Ok((next, Some(found)))
    }

    fn change(&self, row: &Row, load: bool) -> Result<FoundEvent, QueryError> {
        let unreadable = |Unreadable| unavailable(self.backend.unreadable());
        if !load {
            let place = rows::processed(row).map_err(unreadable)?;
            return Ok(FoundEvent { id: place.id, seq_nr: place.seq_nr, position: place.position, event: None });
        }
        let id = rows::id(row).map_err(unreadable)?;
        let record = rows::intact_state(&id, row).map_err(QueryError::Read)?.into_record();
        let position = Position::Timestamp(record.timestamp);
        Ok(FoundEvent { id, seq_nr: record.seq_nr, position, event: Some(record) })
    }
}

#[async_trait]
impl EventQueries for PostgresChanges {
    fn caps(&self) -> QueryCaps {
        QueryCaps { scope: Scope::Shared, kind: OffsetKind::Timestamp, shows: Shows::Newest }
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
        self.backend.ids(STATE_IDS_OF_TYPE, entity_type, after, limit).await
    }

    async fn newest(&self) -> Result<Option<Position>, ReadError> {
        self.backend.newest(NEWEST_CHANGE).await
    }

    async fn events(&self, query: &PageQuery) -> Result<EventPage, QueryError> {
        pages::page(query, &self.rows(query).await?, |row| self.found(row, query.load))
    }

    async fn read(&self, id: &PersistenceId, range: ReadRange) -> Result<Page, ReadError> {
        let row = self.backend.state(id).await?;
        Ok(row.into_page(range))
    }
}
