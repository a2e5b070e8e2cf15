//! Queries across histories, in the order of the server's time.
//!
//! A timestamp is given when a statement begins and shows when it commits, so a later one may show
//! first. Live pages hold back what is younger than `behind_current_time`; what took longer to commit is
//! found by the passes backwards of a [`Feed`](greylag_persistence::Feed), which read the index alone.
//! Source: persistence §5 (PostgreSQL).

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use greylag_persistence::{
    Corrupt, CorruptKind, Cursor, EventPage, EventQueries, EventsOf, FoundEvent, OffsetKind, Page, PageQuery,
    PersistenceId, Position, QueryCaps, QueryError, ReadError, ReadRange, Scope, Shows, StoreFailure, Timestamp,
    Visible,
};
use tokio_postgres::Row;

use crate::journal::{Inner, read_page};
use crate::rows::{self, Micros, Unreadable};
use crate::statements::{EVENTS_BY_SLICES, EVENTS_BY_TAG, IDS, NEWEST, PLACES_BY_SLICES, PLACES_BY_TAG};

/// Queries over the events of a [`PostgresJournal`](crate::PostgresJournal), over connections of their own.
#[derive(Debug, Clone)]
pub struct PostgresQueries {
    inner: Arc<Inner>,
}

const CENTURY_MICROS: i64 = 100 * 365 * 24 * 60 * 60 * 1_000_000;

/// Where a page begins and ends, as columns.
pub(crate) struct Bounds {
    pub(crate) after: (Micros, String, i64),
    pub(crate) until: Micros,
    pub(crate) behind: i64,
    pub(crate) limit: i64,
}

pub(crate) fn unavailable(cause: StoreFailure) -> QueryError {
    QueryError::Read(ReadError::Unavailable(cause))
}

pub(crate) fn foreign() -> QueryError {
    QueryError::ForeignOffset { expected: OffsetKind::Timestamp, found: OffsetKind::Ordinal }
}

impl Bounds {
    pub(crate) fn new(query: &PageQuery, settled: Duration) -> Result<Self, QueryError> {
        let after = match &query.after {
            Cursor::Start => (Micros::from(Timestamp::default()), String::new(), 0),
            Cursor::Row { timestamp, id, seq_nr } => {
                let id = id.as_ref().map_or("", PersistenceId::as_str).to_owned();
                (Micros::from(*timestamp), id, rows::number(*seq_nr))
            }
            Cursor::Ordinal(_) => return Err(foreign()),
        };
        let until = match query.until {
            None => Micros(i64::MAX),
            Some(Position::Timestamp(timestamp)) => Micros::from(timestamp),
            Some(Position::Ordinal(_)) => return Err(foreign()),
        };
        let behind = match query.visible {
            // Ahead of the present too: a clock that was set back leaves events there.
            Visible::All => return Ok(Self { after, until, behind: -CENTURY_MICROS, limit: limit(query.limit) }),
            Visible::Settled => settled,
            Visible::Older(age) => age.max(settled),
        };
        let behind = i64::try_from(behind.as_micros()).unwrap_or(i64::MAX);
        Ok(Self { after, until, behind, limit: limit(query.limit) })
    }
}

pub(crate) fn limit(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX)
}

impl PostgresQueries {
    pub(crate) fn new(inner: Arc<Inner>) -> Self {
        Self { inner }
    }

    async fn rows(&self, query: &PageQuery) -> Result<Vec<Row>, QueryError> {
        let Bounds { after: (time, id, number), until, behind, limit } =
            &Bounds::new(query, self.inner.settings.behind_current_time)?;
        let found = self.inner.query.call(self.inner.settings.call_timeout, |session| async move {
            match &query.of {
                EventsOf::Tag(tag) => {
                    let sql = if query.load { EVENTS_BY_TAG } else { PLACES_BY_TAG };
                    let statement = session.prepare(sql).await?;
                    session.client.query(&statement, &[tag, time, id, number, until, behind, limit]).await
                }
                EventsOf::Slices { entity_type, slices } => {
                    let sql = if query.load { EVENTS_BY_SLICES } else { PLACES_BY_SLICES };
                    let statement = session.prepare(sql).await?;
                    let slice = |slice: u16| i16::try_from(slice).unwrap_or(i16::MAX);
                    let (first, last) = (slice(*slices.start()), slice(*slices.end()));
                    let values: [&(dyn tokio_postgres::types::ToSql + Sync); 9] =
                        [entity_type, time, id, number, until, behind, limit, &first, &last];
                    session.client.query(&statement, &values).await
                }
            }
        });
        found.await.map_err(|failed| unavailable(failed.cause))
    }

    /// One row of a page; none if the event is deleted.
    fn found(&self, row: &Row, load: bool) -> Result<(Cursor, Option<FoundEvent>), QueryError> {
        let unreadable = |Unreadable| unavailable(self.inner.unreadable());
        let place = rows::processed(row).map_err(unreadable)?;
        let (id, seq_nr, position) = (place.id, place.seq_nr, place.position);
        let Position::Timestamp(timestamp) = position else { return Err(foreign()) };
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
        self.inner.settings.behind_current_time
    }

    async fn persistence_ids(
        &self,
        entity_type: Option<&str>,
        after: Option<&PersistenceId>,
        limit: usize,
    ) -> Result<Vec<PersistenceId>, ReadError> {
        let (after, limit) = (after.map_or("", PersistenceId::as_str), self::limit(limit));
        let found = self.inner.query.call(self.inner.settings.call_timeout, |session| async move {
            let statement = session.prepare(IDS).await?;
            session.client.query(&statement, &[&after, &limit, &entity_type]).await
        });
        let found = found.await.map_err(|failed| ReadError::Unavailable(failed.cause))?;
        let unreadable = |Unreadable| ReadError::Unavailable(self.inner.unreadable());
        found.iter().map(|row| rows::id(row).map_err(unreadable)).collect()
    }

    async fn newest(&self) -> Result<Option<Position>, ReadError> {
        let found = self.inner.query.call(self.inner.settings.call_timeout, |session| async move {
            let statement = session.prepare(NEWEST).await?;
            session.client.query_one(&statement, &[]).await
        });
        let row = found.await.map_err(|failed| ReadError::Unavailable(failed.cause))?;
        let now: Option<Micros> =
            rows::column(&row, "now").map_err(|Unreadable| ReadError::Unavailable(self.inner.unreadable()))?;
        Ok(now.map(|now| Position::Timestamp(now.into())))
    }

    async fn events(&self, query: &PageQuery) -> Result<EventPage, QueryError> {
        let found = self.rows(query).await?;
        let more = found.len() >= query.limit;
        let mut page = EventPage { events: Vec::with_capacity(found.len()), next: query.after.clone(), more };
        for row in &found {
            match self.found(row, query.load) {
                Ok((next, found)) => {
                    page.next = next;
                    page.events.extend(found);
                }
                Err(error) if page.events.is_empty() => return Err(error),
                // The next page begins with it, and says so.
                Err(_) => return Ok(EventPage { more: true, ..page }),
            }
        }
        Ok(page)
    }

    async fn read(&self, id: &PersistenceId, range: ReadRange) -> Result<Page, ReadError> {
        read_page(&self.inner, &self.inner.query, id, range).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use greylag_persistence::SeqNr;

    fn query(after: Cursor, until: Option<Position>, visible: Visible) -> PageQuery {
        PageQuery { of: EventsOf::Tag("red".to_owned()), after, until, visible, limit: 9, load: true }
    }

    #[test]
    fn pages_keep_away_from_the_present_as_asked() {
        let settled = Duration::from_millis(100);
        for (visible, micros) in [
            (Visible::Settled, 100_000),
            (Visible::Older(Duration::from_secs(10)), 10_000_000),
            // What is not settled is not old either.
            (Visible::Older(Duration::from_millis(1)), 100_000),
        ] {
            let bounds = Bounds::new(&query(Cursor::Start, None, visible), settled).unwrap();
            assert_eq!((bounds.behind, bounds.until), (micros, Micros(i64::MAX)));
        }
        let ordinal = Some(Position::Ordinal(3));
        assert_eq!(Bounds::new(&query(Cursor::Start, ordinal, Visible::All), settled).err(), Some(foreign()));
        let cursor = Cursor::Row { timestamp: Timestamp::from_micros(7), id: None, seq_nr: SeqNr::ZERO };
        let bounds = Bounds::new(&query(cursor, None, Visible::All), settled).unwrap();
        assert_eq!(bounds.after.1, "");
        assert!(bounds.behind < 0);
    }
}
