//! Reads that the committer and the readers share. Damage to one id is told apart from damage to the
//! store, so that damage to one record stops only callers that need that record (J11, J12).

use bytes::Bytes;
use greylag_persistence::{Corrupt, CorruptKind, OffsetError, PersistenceId, SeqNr, StoreFailure};
use greylag_store_sled::{Reader, StoreError};
pub(crate) use greylag_store_sled::{remove_all_unneeded, remove_next_unneeded, remove_unneeded};

use crate::rows::keys::{self, PidNo};
use crate::rows::records::{EventRow, Row, StoredHead};
use crate::rows::state_row::StateRow;

/// Why a record was not read.
#[derive(Debug)]
pub(crate) enum LookupError {
    /// Only the record that was asked for is damaged.
    Corrupt(Corrupt),
    /// The store itself failed.
    Store(StoreError),
}

impl LookupError {
    /// `error` met while reading a record of `id` near `seq_nr`.
    pub(crate) fn of(id: &PersistenceId, seq_nr: SeqNr, error: StoreError) -> Self {
        if error.is_corruption() { Self::corrupt(id, seq_nr, CorruptKind::Checksum) } else { Self::Store(error) }
    }

    pub(crate) fn corrupt(id: &PersistenceId, seq_nr: SeqNr, kind: CorruptKind) -> Self {
        Self::Corrupt(Corrupt { id: id.clone(), seq_nr, kind })
    }
}

/// The head of `id` as the store shows it, durable or not.
pub(crate) fn head(reader: &Reader, id: &PersistenceId) -> Result<Option<StoredHead>, LookupError> {
    let value = reader.get(&keys::head(id)).map_err(|error| LookupError::of(id, SeqNr::ZERO, error))?;
    let unreadable = || LookupError::corrupt(id, SeqNr::ZERO, CorruptKind::Unreadable);
    value.map(|value| StoredHead::decode(value).ok_or_else(unreadable)).transpose()
}

/// The row of a state as the store shows it, durable or not: its value, the row split into its parts, and the
/// decoded state, whose payload lacks what lies in chunks.
pub(crate) fn state_row(reader: &Reader, id: &PersistenceId) -> Result<Option<(Bytes, Row, StateRow)>, LookupError> {
    let value = reader.get(&keys::state(id)).map_err(|error| LookupError::of(id, SeqNr::ZERO, error))?;
    let Some(value) = value else { return Ok(None) };
    let unreadable = || LookupError::corrupt(id, SeqNr::ZERO, CorruptKind::Unreadable);
    let row = Row::decode(value.clone()).ok_or_else(unreadable)?;
    let stored = StateRow::decode(id, row.content.clone()).ok_or_else(unreadable)?;
    Ok(Some((value, row, stored)))
}

/// One event; `None` if there is no row under its key.
pub(crate) fn event(
    reader: &Reader,
    id: &PersistenceId,
    pid: PidNo,
    seq_nr: SeqNr,
) -> Result<Option<EventRow>, LookupError> {
    let value = reader.get(&keys::event(pid, seq_nr)).map_err(|error| LookupError::of(id, seq_nr, error))?;
    value.map(|value| event_from_row(reader, id, pid, seq_nr, value)).transpose()
}

/// The event whose row is `value`, with its chunks, checked.
pub(crate) fn event_from_row(
    reader: &Reader,
    id: &PersistenceId,
    pid: PidNo,
    seq_nr: SeqNr,
    value: Bytes,
) -> Result<EventRow, LookupError> {
    let unreadable = || LookupError::corrupt(id, seq_nr, CorruptKind::Unreadable);
    let row = Row::decode(value).ok_or_else(unreadable)?;
    let chunk = |at| {
        let value = reader.get(&keys::event_chunk(pid, seq_nr, at));
        value.map_err(|error| LookupError::of(id, seq_nr, error))
    };
    let missing = || LookupError::corrupt(id, seq_nr, CorruptKind::Missing);
    let body = row.join(chunk)?.ok_or_else(missing)?;
    let row = EventRow::decode(id, seq_nr, body).ok_or_else(unreadable)?;
    if !row.event.is_intact() {
        return Err(LookupError::corrupt(id, seq_nr, CorruptKind::Checksum));
    }
    Ok(row)
}

/// Whether the pages of these keys, all of `id` near `seq_nr`, can be read, and so be changed.
pub(crate) fn check_pages(
    reader: &Reader,
    id: &PersistenceId,
    seq_nr: SeqNr,
    keys: impl IntoIterator<Item = Vec<u8>>,
) -> Result<(), LookupError> {
    let mut keys = keys.into_iter();
    keys.try_for_each(|key| reader.check_page(&key)).map_err(|error| LookupError::of(id, seq_nr, error))
}

/// The key of a record, also if its value is damaged.
pub(crate) fn key_of(record: Result<(Bytes, Bytes), StoreError>) -> Result<Bytes, StoreError> {
    match record {
        Ok((key, _)) => Ok(key),
        Err(StoreError::Checksum { key }) => Ok(key.into()),
        Err(error) => Err(error),
    }
}

/// Why the row of a slice was not read.
pub(crate) fn offset_error(store: &str, projection: &str, error: StoreError) -> OffsetError {
    if error.is_corruption() {
        return OffsetError::Corrupt { projection: projection.to_owned(), kind: CorruptKind::Checksum };
    }
    OffsetError::Unavailable(StoreFailure::new(store, error))
}

/// The error for a row whose checksum is right but whose bytes do not decode.
pub(crate) fn unreadable_offsets(projection: &str) -> OffsetError {
    OffsetError::Corrupt { projection: projection.to_owned(), kind: CorruptKind::Unreadable }
}

/// Splits errors: damage to one id is the answer to its caller; any other error fails the whole store.
pub(crate) fn local<T>(found: Result<T, LookupError>) -> Result<Result<T, Corrupt>, StoreError> {
    match found {
        Ok(found) => Ok(Ok(found)),
        Err(LookupError::Corrupt(corrupt)) => Ok(Err(corrupt)),
        Err(LookupError::Store(error)) => Err(error),
    }
}
