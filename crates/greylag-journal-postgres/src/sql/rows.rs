//! Converts between the types of persistence and the columns of the tables; reading never panics.
//!
//! Numbers that SQL has no type for are kept in types that it has: `u32` by its bits in `integer`, `u64` up to
//! `i64::MAX` in `bigint`, 128 bits in `uuid`. Metadata is one value: the count of its entries, then name and content
//! of each, every length before it as four bytes, big-endian.

use std::error::Error;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use greylag_core::{CodecId, Generation};
use greylag_persistence::{
    Claim, Corrupt, CorruptKind, EncodedValue, EventKind, Head, Metadata, PersistenceId, Position, Processed,
    ReadError, Revision, SeqNr, Snapshot, StateHead, StoredEvent, StoredState, Tags, Timestamp, WriterEpoch,
    WriterUuid,
};
use tokio_postgres::Row;
use tokio_postgres::types::{FromSql, IsNull, ToSql, Type, accepts, to_sql_checked};

/// Separates the tags of one event in the parameter of an insert; no tag contains it.
const TAG_SEPARATOR: &str = "\u{1f}";

/// A `timestamptz`: microseconds since 2000. Its extremes stand for the infinities.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Micros(pub(crate) i64);

/// Microseconds from 1970 to 2000.
const EPOCH_MICROS: i64 = 946_684_800_000_000;

impl From<Timestamp> for Micros {
    fn from(timestamp: Timestamp) -> Self {
        let since_1970 = i64::try_from(timestamp.as_micros()).ok();
        Self(since_1970.map_or(i64::MAX, |micros| micros - EPOCH_MICROS))
    }
}

impl From<Micros> for Timestamp {
    fn from(micros: Micros) -> Self {
        Self::from_micros(u64::try_from(micros.0.saturating_add(EPOCH_MICROS)).unwrap_or(0))
    }
}

impl<'a> FromSql<'a> for Micros {
    fn from_sql(_: &Type, raw: &'a [u8]) -> Result<Self, Box<dyn Error + Sync + Send>> {
        Ok(Self(i64::from_be_bytes(raw.try_into()?)))
    }

    accepts!(TIMESTAMPTZ);
}

impl ToSql for Micros {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        out.put_i64(self.0);
        Ok(IsNull::No)
    }

    accepts!(TIMESTAMPTZ);
    to_sql_checked!();
}

/// A `uuid`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Uuid(pub(crate) WriterUuid);

impl<'a> FromSql<'a> for Uuid {
    fn from_sql(_: &Type, raw: &'a [u8]) -> Result<Self, Box<dyn Error + Sync + Send>> {
        Ok(Self(WriterUuid::from_u128(u128::from_be_bytes(raw.try_into()?))))
    }

    accepts!(UUID);
}

impl ToSql for Uuid {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        out.put_u128(self.0.as_u128());
        Ok(IsNull::No)
    }

    accepts!(UUID);
    to_sql_checked!();
}

/// The error for a column that is missing, or whose value is invalid.
#[derive(Debug)]
pub(crate) struct Unreadable;

/// One column of a row.
pub(crate) fn column<'a, T: FromSql<'a>>(row: &'a Row, name: &str) -> Result<T, Unreadable> {
    row.try_get(name).map_err(|_| Unreadable)
}

fn u64_of(row: &Row, name: &str) -> Result<u64, Unreadable> {
    u64::try_from(column::<i64>(row, name)?).map_err(|_| Unreadable)
}

/// `u32` as the `integer` of the same bits.
pub(crate) fn bits(number: u32) -> i32 {
    i32::from_ne_bytes(number.to_ne_bytes())
}

fn from_bits(number: i32) -> u32 {
    u32::from_ne_bytes(number.to_ne_bytes())
}

/// A sequence number as `bigint`; [`SeqNr`] guarantees that it fits.
pub(crate) fn number(seq_nr: SeqNr) -> i64 {
    i64::try_from(seq_nr.as_u64()).unwrap_or(i64::MAX)
}

/// An epoch as `bigint`. One past `i64::MAX` was never stored, and is turned into a number that equals no stored one.
pub(crate) fn epoch(epoch: WriterEpoch) -> i64 {
    i64::try_from(epoch.as_u64()).unwrap_or(-1)
}

/// A slice as `smallint`; there are 1024.
pub(crate) fn slice(slice: u16) -> i16 {
    i16::try_from(slice).unwrap_or(i16::MAX)
}

pub(crate) fn generation(generation: Generation) -> i64 {
    i64::try_from(generation.as_u64()).unwrap_or(i64::MAX)
}

fn seq_nr(row: &Row, name: &str) -> Result<SeqNr, Unreadable> {
    SeqNr::new(u64_of(row, name)?).ok_or(Unreadable)
}

/// The head in a row of `entity`.
pub(crate) fn head(row: &Row) -> Result<Head, Unreadable> {
    let generation = u64_of(row, "generation")?;
    Ok(Head {
        epoch: WriterEpoch::from_u64(u64_of(row, "writer_epoch")?),
        writer_uuid: column::<Uuid>(row, "writer_uuid")?.0,
        // 0 is the column's "none". No writer is refused by it, since it is also the least generation.
        generation: if generation == 0 { None } else { Some(Generation::from_u64(generation).ok_or(Unreadable)?) },
        highest: seq_nr(row, "highest_seq_nr")?,
        deleted_to: seq_nr(row, "deleted_to")?,
    })
}

pub(crate) fn claim(row: &Row) -> Result<Claim, Unreadable> {
    Ok(Claim {
        epoch: WriterEpoch::from_u64(u64_of(row, "writer_epoch")?),
        highest: seq_nr(row, "highest_seq_nr")?,
        deleted_to: seq_nr(row, "deleted_to")?,
    })
}

/// Decodes a row of `event`; the caller checks whether it is intact.
pub(crate) fn event(id: &PersistenceId, row: &Row) -> Result<StoredEvent, Unreadable> {
    let metadata: Option<&[u8]> = column(row, "metadata")?;
    let tags: Option<Vec<String>> = column(row, "tags")?;
    Ok(StoredEvent {
        id: id.clone(),
        seq_nr: seq_nr(row, "seq_nr")?,
        timestamp: column::<Micros>(row, "db_timestamp")?.into(),
        writer_uuid: column::<Uuid>(row, "writer_uuid")?.0,
        writer_epoch: WriterEpoch::from_u64(u64_of(row, "writer_epoch")?),
        codec_id: CodecId::from_u32(from_bits(column(row, "codec_id")?)),
        manifest: column(row, "manifest")?,
        schema_version: from_bits(column(row, "schema_version")?),
        kind: if column(row, "filtered")? { EventKind::Filtered } else { EventKind::Event },
        payload: Bytes::copy_from_slice(column(row, "payload")?),
        metadata: metadata.map_or_else(|| Some(Metadata::new()), read_metadata).ok_or(Unreadable)?,
        tags: tags.unwrap_or_default().into_iter().collect(),
        crc32c: crc32c(row)?,
    })
}

/// Decodes a row of `snapshot`; the caller checks whether it is intact.
pub(crate) fn snapshot(id: &PersistenceId, row: &Row) -> Result<Snapshot, Unreadable> {
    let metadata: Option<&[u8]> = column(row, "metadata")?;
    Ok(Snapshot {
        id: id.clone(),
        seq_nr: seq_nr(row, "seq_nr")?,
        timestamp: column::<Micros>(row, "taken_at")?.into(),
        codec_id: CodecId::from_u32(from_bits(column(row, "codec_id")?)),
        manifest: column(row, "manifest")?,
        schema_version: from_bits(column(row, "schema_version")?),
        payload: Bytes::copy_from_slice(column(row, "payload")?),
        metadata: metadata.map_or_else(|| Some(Metadata::new()), read_metadata).ok_or(Unreadable)?,
        crc32c: crc32c(row)?,
    })
}

/// The head of a durable state.
pub(crate) fn state_head(row: &Row) -> Result<StateHead, Unreadable> {
    let generation = u64_of(row, "generation")?;
    let crc32c: Option<i64> = column(row, "crc32c")?;
    Ok(StateHead {
        revision: Revision::new(u64_of(row, "revision")?).ok_or(Unreadable)?,
        generation: if generation == 0 { None } else { Some(Generation::from_u64(generation).ok_or(Unreadable)?) },
        writer_uuid: column::<Uuid>(row, "writer_uuid")?.0,
        crc32c: crc32c.map(u32::try_from).transpose().map_err(|_| Unreadable)?,
    })
}

/// Decodes a row of `durable_state`, without a check that it is intact.
fn state(id: &PersistenceId, row: &Row) -> Result<StoredState, Unreadable> {
    let StateHead { revision, generation, writer_uuid, crc32c } = state_head(row)?;
    let payload: Option<&[u8]> = column(row, "payload")?;
    let value = payload.map(|payload| -> Result<EncodedValue, Unreadable> {
        Ok(EncodedValue {
            codec_id: CodecId::from_u32(from_bits(column(row, "codec_id")?)),
            manifest: column(row, "manifest")?,
            schema_version: from_bits(column(row, "schema_version")?),
            payload: Bytes::copy_from_slice(payload),
        })
    });
    Ok(StoredState {
        id: id.clone(),
        revision,
        generation,
        writer_uuid,
        timestamp: column::<Micros>(row, "db_timestamp")?.into(),
        value: value.transpose()?,
        tag: column(row, "tag")?,
        crc32c,
    })
}

/// Decodes a row of `durable_state`, and checks that it is intact.
pub(crate) fn intact_state(id: &PersistenceId, row: &Row) -> Result<StoredState, ReadError> {
    let revision = column::<i64>(row, "revision").ok().and_then(|revision| u64::try_from(revision).ok());
    let seq_nr = revision.map_or(SeqNr::ZERO, SeqNr::saturating);
    let corrupt = |kind| ReadError::Corrupt(Corrupt { id: id.clone(), seq_nr, kind });
    let state = state(id, row).map_err(|Unreadable| corrupt(CorruptKind::Unreadable))?;
    if state.is_intact() { Ok(state) } else { Err(corrupt(CorruptKind::Checksum)) }
}

/// A row of `projection_offset`.
pub(crate) fn processed(row: &Row) -> Result<Processed, Unreadable> {
    Ok(Processed {
        id: id(row)?,
        seq_nr: seq_nr(row, "seq_nr")?,
        position: Position::Timestamp(column::<Micros>(row, "db_timestamp")?.into()),
    })
}

/// The `persistence_id` of a row.
pub(crate) fn id(row: &Row) -> Result<PersistenceId, Unreadable> {
    PersistenceId::unique(column(row, "persistence_id")?).map_err(|_| Unreadable)
}

fn crc32c(row: &Row) -> Result<u32, Unreadable> {
    u32::try_from(column::<i64>(row, "crc32c")?).map_err(|_| Unreadable)
}

/// Tags as one text; `None` if there are none.
pub(crate) fn join_tags(tags: &Tags) -> Option<String> {
    (!tags.is_empty()).then(|| tags.iter().map(String::as_str).collect::<Vec<_>>().join(TAG_SEPARATOR))
}

/// Metadata as one value; `None` if there is none.
pub(crate) fn write_metadata(metadata: &Metadata) -> Option<Vec<u8>> {
    let len = |length: usize| u32::try_from(length).expect("a stored field is below 4 GiB");
    if metadata.is_empty() {
        return None;
    }
    let mut out = Vec::new();
    out.put_u32(len(metadata.len()));
    for (name, value) in metadata {
        for field in [name.as_bytes(), value] {
            out.put_u32(len(field.len()));
            out.put_slice(field);
        }
    }
    Some(out)
}

fn read_metadata(mut bytes: &[u8]) -> Option<Metadata> {
    fn field(bytes: &mut &[u8]) -> Option<Bytes> {
        let length = usize::try_from(bytes.try_get_u32().ok()?).ok()?;
        let (field, rest) = bytes.split_at_checked(length)?;
        *bytes = rest;
        Some(Bytes::copy_from_slice(field))
    }
    let count = bytes.try_get_u32().ok()?;
    let mut metadata = Metadata::new();
    for _ in 0..count {
        let name = String::from_utf8(field(&mut bytes)?.to_vec()).ok()?;
        metadata.insert(name, field(&mut bytes)?);
    }
    bytes.is_empty().then_some(metadata)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_round_trips_and_cut_bytes_are_refused() {
        let metadata: Metadata =
            [("gl.delivery".to_owned(), Bytes::from_static(b"\0\xff")), (String::new(), Bytes::new())].into();
        let written = write_metadata(&metadata).unwrap();
        assert_eq!(read_metadata(&written), Some(metadata));
        assert_eq!(write_metadata(&Metadata::new()), None);
        for cut in 0..written.len() {
            assert_eq!(read_metadata(&written[..cut]), None, "cut at {cut}");
        }
        assert_eq!(read_metadata(&[0xff; 12]), None);
    }

    #[test]
    fn numbers_and_times_round_trip_within_their_columns() {
        for number in [0, 1, u32::MAX] {
            assert_eq!(from_bits(bits(number)), number);
        }
        for micros in [0, 1, 1_800_000_000_000_000] {
            let timestamp = Timestamp::from_micros(micros);
            assert_eq!(Timestamp::from(Micros::from(timestamp)), timestamp);
        }
        assert_eq!(Micros::from(Timestamp::from_micros(u64::MAX)), Micros(i64::MAX));
        assert_eq!(Timestamp::from(Micros(i64::MIN)), Timestamp::from_micros(0));
        assert_eq!(epoch(WriterEpoch::from_u64(u64::MAX)), -1);
    }
}
