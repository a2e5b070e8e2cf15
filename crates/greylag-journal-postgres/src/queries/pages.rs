//! Pages of events and of changes of durable states, in the order of the server's time.

use std::time::Duration;

use greylag_persistence::{
    Cursor, EventPage, FoundEvent, OffsetKind, PageQuery, PersistenceId, Position, QueryError, ReadError, StoreFailure,
    Timestamp, Visible,
};
use tokio_postgres::Row;

use crate::backend::Backend;
use crate::sql::rows::{self, Micros, Unreadable};

const CENTURY_MICROS: i64 = 100 * 365 * 24 * 60 * 60 * 1_000_000;

/// Bounds of a page, as columns.
pub(crate) struct Bounds {
    pub(crate) after: (Micros, String, i64),
    pub(crate) until: Micros,
    pub(crate) behind: i64,
    pub(crate) limit: i64,
}

pub(crate) fn unavailable(cause: StoreFailure) -> QueryError {
    QueryError::Read(ReadError::Unavailable(cause))
}

pub(crate) fn foreign_offset() -> QueryError {
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
            Cursor::Ordinal(_) => return Err(foreign_offset()),
        };
        let until = match query.until {
            None => Micros(i64::MAX),
            Some(Position::Timestamp(timestamp)) => Micros::from(timestamp),
            Some(Position::Ordinal(_)) => return Err(foreign_offset()),
        };
        let behind = match query.visible {
            // Events ahead of the present are included, too: a clock that was set back leaves events there.
            Visible::All => return Ok(Self { after, until, behind: -CENTURY_MICROS, limit: rows_limit(query.limit) }),
            Visible::Settled => settled,
            Visible::Older(age) => age.max(settled),
        };
        let behind = i64::try_from(behind.as_micros()).unwrap_or(i64::MAX);
        Ok(Self { after, until, behind, limit: rows_limit(query.limit) })
    }
}

fn rows_limit(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX)
}

/// Makes a page of these rows, up to the first unreadable one.
pub(crate) fn page(
    query: &PageQuery,
    rows: &[Row],
    found: impl Fn(&Row) -> Result<(Cursor, Option<FoundEvent>), QueryError>,
) -> Result<EventPage, QueryError> {
    let more = rows.len() >= query.limit;
    let mut page = EventPage { events: Vec::with_capacity(rows.len()), next: query.after.clone(), more };
    for row in rows {
        match found(row) {
            Ok((next, found)) => {
                page.next = next;
                page.events.extend(found);
            }
            Err(error) if page.events.is_empty() => return Err(error),
            // The next page begins with the unreadable row, and answers the error.
            Err(_) => return Ok(EventPage { more: true, ..page }),
        }
    }
    Ok(page)
}

impl Backend {
    /// Ids in order, by a statement whose parameters are the id before, the limit, and the entity type.
    pub(crate) async fn ids(
        &self,
        statement: &'static str,
        entity_type: Option<&str>,
        after: Option<&PersistenceId>,
        limit: usize,
    ) -> Result<Vec<PersistenceId>, ReadError> {
        let (after, limit) = (after.map_or("", PersistenceId::as_str), rows_limit(limit));
        let found = self.query.call(self.settings.call_timeout, |session| async move {
            let statement = session.prepare(statement).await?;
            session.client.query(&statement, &[&after, &limit, &entity_type]).await
        });
        let found = found.await.map_err(|failed| ReadError::Unavailable(failed.cause))?;
        let unreadable = |Unreadable| ReadError::Unavailable(self.unreadable());
        found.iter().map(|row| rows::id(row).map_err(unreadable)).collect()
    }

    /// The server's time, by a statement that answers null while nothing is stored.
    pub(crate) async fn newest(&self, statement: &'static str) -> Result<Option<Position>, ReadError> {
        let found = self.query.call(self.settings.call_timeout, |session| async move {
            let statement = session.prepare(statement).await?;
            session.client.query_one(&statement, &[]).await
        });
        let row = found.await.map_err(|failed| ReadError::Unavailable(failed.cause))?;
        let now: Option<Micros> =
            rows::column(&row, "now").map_err(|Unreadable| ReadError::Unavailable(self.unreadable()))?;
        Ok(now.map(|now| Position::Timestamp(now.into())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use greylag_persistence::{EventsOf, SeqNr};

    fn query(after: Cursor, until: Option<Position>, visible: Visible) -> PageQuery {
        PageQuery { of: EventsOf::Tag("red".to_owned()), after, until, visible, limit: 9, load: true }
    }

    #[test]
    fn pages_hold_back_young_events_as_the_query_says() {
        let settled = Duration::from_millis(100);
        for (visible, micros) in [
            (Visible::Settled, 100_000),
            (Visible::Older(Duration::from_secs(10)), 10_000_000),
            // An event that is not settled is never older than an age, however small the age.
            (Visible::Older(Duration::from_millis(1)), 100_000),
        ] {
            let bounds = Bounds::new(&query(Cursor::Start, None, visible), settled).unwrap();
            assert_eq!((bounds.behind, bounds.until), (micros, Micros(i64::MAX)));
        }
        let ordinal = Some(Position::Ordinal(3));
        assert_eq!(Bounds::new(&query(Cursor::Start, ordinal, Visible::All), settled).err(), Some(foreign_offset()));
        let cursor = Cursor::Row { timestamp: Timestamp::from_micros(7), id: None, seq_nr: SeqNr::ZERO };
        let bounds = Bounds::new(&query(cursor, None, Visible::All), settled).unwrap();
        assert_eq!(bounds.after.1, "");
        assert!(bounds.behind < 0);
    }
}
