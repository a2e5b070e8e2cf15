//! One page of a history, read by a recovery or a query.

use greylag_persistence::{Corrupt, CorruptKind, Page, PersistenceId, ReadError, ReadRange, SeqNr};
use tokio_postgres::Row;

use crate::backend::Backend;
use crate::driver::pool::Pool;
use crate::sql::rows::{self, Unreadable};
use crate::sql::statements::READ;

/// One page of a history, over a connection of `pool`, which is given back before the page is decoded.
pub(crate) async fn read_page(
    backend: &Backend,
    pool: &Pool,
    id: &PersistenceId,
    range: ReadRange,
) -> Result<Page, ReadError> {
    let (text, from, to) = (id.as_str(), rows::number(range.from), rows::number(range.to));
    let saturated = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
    let (limit, max_bytes) = (saturated(range.max_events), saturated(range.max_bytes));
    let found = pool.call(backend.settings.call_timeout, |session| async move {
        let statement = session.prepare(READ).await?;
        session.client.query(&statement, &[&text, &from, &to, &limit, &max_bytes]).await
    });
    let rows = found.await.map_err(|failed| ReadError::Unavailable(failed.cause))?;
    page(id, range, &rows).map_err(ReadError::Corrupt)
}

/// Makes a page of the rows that [`READ`] found: checks that none is missing or damaged, and cuts at `max_bytes`.
fn page(id: &PersistenceId, range: ReadRange, found: &[Row]) -> Result<Page, Corrupt> {
    let corrupt = |seq_nr, kind| Corrupt { id: id.clone(), seq_nr, kind };
    let mut page = Page::default();
    let Some(first) = found.first() else { return Ok(page) };
    let bound = |name| {
        let number = rows::column::<i64>(first, name).ok().and_then(|number| u64::try_from(number).ok());
        number.and_then(SeqNr::new).ok_or_else(|| corrupt(SeqNr::ZERO, CorruptKind::Unreadable))
    };
    let (deleted_to, highest) = (bound("deleted_to")?, bound("highest_seq_nr")?);
    let (from, to) = (range.from.max(deleted_to.next().unwrap_or(SeqNr::MAX)), range.to.min(highest));
    if range.max_events == 0 || range.from > range.to || from > to || to <= deleted_to {
        return Ok(page);
    }
    let (mut expected, mut bytes) = (from, 0);
    for row in found {
        let is_there = rows::column::<Option<i64>>(row, "seq_nr").ok().flatten() == Some(rows::number(expected));
        if !is_there {
            return Err(corrupt(expected, CorruptKind::Missing));
        }
        let record = rows::event(id, row).map_err(|Unreadable| corrupt(expected, CorruptKind::Unreadable))?;
        if !record.is_intact() {
            return Err(corrupt(expected, CorruptKind::Checksum));
        }
        bytes += record.size_bytes();
        if bytes > range.max_bytes && !page.records.is_empty() {
            break;
        }
        page.records.push(record);
        if expected == to {
            return Ok(page);
        }
        expected = expected.next().unwrap_or(SeqNr::MAX);
    }
    page.next = Some(expected);
    Ok(page)
}
