//! Encodes the records of durable entries. docs/formats/ddata-store.md describes the format.
//!
//! A value of the engine holds at most 64 KiB, so longer records lie in pieces; the first piece begins with the length
//! of the whole. Every piece has its own checksum, which the engine adds and checks.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::{Buf, BufMut, Bytes};
use greylag_crdt::{Decoder, Encoder, Markers, ReplicaId};
use greylag_ddata::{Start, Starts, StoreMeta};

/// The version that this code writes, except the replicator's own record.
const VERSION: u8 = 1;
/// The version of the replicator's own record; version 1 had no starts.
const META_VERSION: u8 = 2;
/// Bytes of one piece; the rest of a value is room for what the engine adds.
pub(crate) const PIECE_BYTES: usize = 60 * 1024;

/// An upper bound of the bytes before tag, markers and value.
pub(crate) const PREAMBLE_BYTES: usize = 32;

const VALUE: u8 = 1;
const TOMBSTONE: u8 = 2;
const NOTHING: u8 = 3;

/// The decoded head of an entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Head {
    Value {
        tag: Arc<str>,
        bytes: Bytes,
        markers: Markers,
    },
    Tombstone {
        deleted_at: i64,
    },
    /// The entry counts as absent, as if there were no head.
    Nothing,
}

/// Why bytes are not a record.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unreadable {
    #[error("the record ends too early")]
    Short,
    #[error("the record's format is {0}, which is unknown here")]
    Version(u8),
    #[error("{0}")]
    Malformed(String),
}

/// Decodes fields from the front of bytes.
struct Taking<'a>(&'a [u8]);

impl<'a> Taking<'a> {
    fn bytes(&mut self, count: usize) -> Result<&'a [u8], Unreadable> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or(Unreadable::Short)?;
        self.0 = rest;
        Ok(taken)
    }

    fn byte(&mut self) -> Result<u8, Unreadable> {
        self.0.try_get_u8().map_err(|_| Unreadable::Short)
    }

    fn u16(&mut self) -> Result<usize, Unreadable> {
        self.0.try_get_u16().map(usize::from).map_err(|_| Unreadable::Short)
    }

    fn u32(&mut self) -> Result<usize, Unreadable> {
        self.0.try_get_u32().map(|found| found as usize).map_err(|_| Unreadable::Short)
    }

    fn u64(&mut self) -> Result<u64, Unreadable> {
        self.0.try_get_u64().map_err(|_| Unreadable::Short)
    }

    fn i64(&mut self) -> Result<i64, Unreadable> {
        self.0.try_get_i64().map_err(|_| Unreadable::Short)
    }

    fn time(&mut self) -> Result<Option<i64>, Unreadable> {
        match self.byte()? {
            0 => Ok(None),
            1 => self.i64().map(Some),
            other => Err(Unreadable::Malformed(format!("{other} is neither a time nor none"))),
        }
    }

    /// Reads the version and the wall time, with which every record begins.
    fn preamble(&mut self) -> Result<i64, Unreadable> {
        match self.byte()? {
            VERSION => self.i64(),
            other => Err(Unreadable::Version(other)),
        }
    }

    fn end(&self) -> Result<(), Unreadable> {
        let is_over = self.0.is_empty();
        is_over.then_some(()).ok_or_else(|| Unreadable::Malformed("there is more than belongs to it".into()))
    }
}

fn preamble(wall_ms: i64) -> Vec<u8> {
    let mut out = Vec::with_capacity(64);
    out.put_u8(VERSION);
    out.put_i64(wall_ms);
    out
}

/// Encodes markers; no markers, the usual case, take no byte.
pub(crate) fn encoded(markers: &Markers) -> Vec<u8> {
    let mut out = Encoder::new();
    if !markers.is_empty() {
        markers.encode(&mut out);
    }
    out.finish()
}

pub(crate) fn value(wall_ms: i64, tag: &str, bytes: &[u8], markers: &Markers) -> Vec<u8> {
    let markers = encoded(markers);
    let mut out = preamble(wall_ms);
    out.reserve(tag.len() + markers.len() + bytes.len() + 8);
    out.put_u8(VALUE);
    out.put_u16(u16::try_from(tag.len()).unwrap_or(u16::MAX));
    out.extend_from_slice(tag.as_bytes());
    out.put_u32(u32::try_from(markers.len()).unwrap_or(u32::MAX));
    out.extend_from_slice(&markers);
    out.extend_from_slice(bytes);
    out
}

pub(crate) fn tombstone(wall_ms: i64, deleted_at: i64) -> Vec<u8> {
    let mut out = preamble(wall_ms);
    out.put_u8(TOMBSTONE);
    out.put_i64(deleted_at);
    out
}

/// The content of a head that was removed but had to stay.
pub(crate) fn nothing(wall_ms: i64) -> Vec<u8> {
    let mut out = preamble(wall_ms);
    out.put_u8(NOTHING);
    out
}

pub(crate) fn read_head(record: &Bytes) -> Result<Head, Unreadable> {
    let mut taking = Taking(record);
    taking.preamble()?;
    match taking.byte()? {
        VALUE => {}
        TOMBSTONE => {
            let deleted_at = taking.i64()?;
            return taking.end().map(|()| Head::Tombstone { deleted_at });
        }
        NOTHING => return taking.end().map(|()| Head::Nothing),
        other => return Err(Unreadable::Malformed(format!("{other} is no kind of record"))),
    }
    let tag_bytes = taking.u16()?;
    let tag = std::str::from_utf8(taking.bytes(tag_bytes)?)
        .map_err(|_| Unreadable::Malformed("its tag is no text".into()))?;
    let marker_bytes = taking.u32()?;
    let markers = read_markers(taking.bytes(marker_bytes)?)?;
    Ok(Head::Value { tag: tag.into(), bytes: record.slice(record.len() - taking.0.len()..), markers })
}

fn read_markers(bytes: &[u8]) -> Result<Markers, Unreadable> {
    if bytes.is_empty() {
        return Ok(Markers::new());
    }
    let mut inp = Decoder::new(bytes);
    let markers = Markers::decode(&mut inp).and_then(|markers| inp.finish().map(|()| markers));
    markers.map_err(|error| Unreadable::Malformed(format!("its markers cannot be read: {error}")))
}

pub(crate) fn delta(wall_ms: i64, bytes: &[u8]) -> Vec<u8> {
    let mut out = preamble(wall_ms);
    out.extend_from_slice(bytes);
    out
}

pub(crate) fn read_delta(record: &Bytes) -> Result<Bytes, Unreadable> {
    let mut taking = Taking(record);
    taking.preamble()?;
    Ok(record.slice(record.len() - taking.0.len()..))
}

pub(crate) fn meta(meta: &StoreMeta) -> Vec<u8> {
    let mut out = preamble(meta.written_at);
    out[0] = META_VERSION;
    for time in [meta.synced_at, meta.forget_horizon] {
        put_time(&mut out, time);
    }
    out.put_u8(u8::from(meta.has_met_others));
    out.put_u32(u32::try_from(meta.removed.len()).unwrap_or(u32::MAX));
    meta.removed.iter().for_each(|removed| out.put_u64(removed.0));
    // A list of starts has at most eight.
    out.put_u8(u8::try_from(meta.starts.iter().count()).unwrap_or(u8::MAX));
    for start in meta.starts.iter() {
        out.put_u64(start.maker.0);
        put_time(&mut out, start.base);
    }
    out
}

fn put_time(out: &mut Vec<u8>, time: Option<i64>) {
    out.put_u8(u8::from(time.is_some()));
    time.into_iter().for_each(|time| out.put_i64(time));
}

pub(crate) fn read_meta(record: &[u8]) -> Result<StoreMeta, Unreadable> {
    let mut taking = Taking(record);
    let version = taking.byte()?;
    if ![VERSION, META_VERSION].contains(&version) {
        return Err(Unreadable::Version(version));
    }
    let written_at = taking.i64()?;
    let (synced_at, forget_horizon) = (taking.time()?, taking.time()?);
    let has_met_others = match taking.byte()? {
        0 => false,
        1 => true,
        other => return Err(Unreadable::Malformed(format!("{other} is neither yes nor no"))),
    };
    let mut removed = BTreeSet::new();
    for _ in 0..taking.u32()? {
        removed.insert(ReplicaId(taking.u64()?));
    }
    let mut starts = Vec::new();
    for _ in 0..if version == META_VERSION { taking.byte()? } else { 0 } {
        starts.push(Start { maker: ReplicaId(taking.u64()?), base: taking.time()? });
    }
    taking.end()?;
    let starts = Starts::of(starts);
    Ok(StoreMeta { written_at, synced_at, has_met_others, forget_horizon, starts, removed })
}

/// Splits a record into pieces; the first begins with the length of the whole.
pub(crate) fn pieces(record: &[u8]) -> Vec<Vec<u8>> {
    let mut whole = Vec::with_capacity(record.len() + 4);
    whole.put_u32(u32::try_from(record.len()).unwrap_or(u32::MAX));
    whole.extend_from_slice(record);
    whole.chunks(PIECE_BYTES).map(<[u8]>::to_vec).collect()
}

/// Joins the pieces of a record, in order.
pub(crate) fn whole<'a>(pieces: impl IntoIterator<Item = &'a Bytes>) -> Result<Bytes, Unreadable> {
    let mut pieces = pieces.into_iter();
    let mut first = pieces.next().cloned().unwrap_or_default();
    let length = first.try_get_u32().map_err(|_| Unreadable::Short)? as usize;
    let mut rest = pieces.peekable();
    let record = if rest.peek().is_none() {
        first
    } else {
        let mut joined = first.to_vec();
        rest.for_each(|piece| joined.extend_from_slice(piece));
        joined.into()
    };
    match record.len().cmp(&length) {
        std::cmp::Ordering::Equal => Ok(record),
        std::cmp::Ordering::Less => Err(Unreadable::Short),
        std::cmp::Ordering::Greater => Err(Unreadable::Malformed("it has too many pieces".into())),
    }
}

/// Decodes bytes as every kind of record, for the fuzz target. A record that can be read must be encoded the same
/// again.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn read_anything(bytes: &[u8]) {
    let wall_ms = Taking(bytes).preamble().unwrap_or_default();
    let record = Bytes::copy_from_slice(bytes);
    match read_head(&record) {
        Ok(Head::Tombstone { deleted_at }) => assert_eq!(tombstone(wall_ms, deleted_at), bytes),
        Ok(Head::Nothing) => assert_eq!(nothing(wall_ms), bytes),
        Ok(Head::Value { tag, bytes: held, markers }) => {
            let again = Bytes::from(value(wall_ms, &tag, &held, &markers));
            assert_eq!(read_head(&again), Ok(Head::Value { tag, bytes: held, markers }));
        }
        Err(_) => {}
    }
    if let Ok(held) = read_delta(&record) {
        assert_eq!(delta(wall_ms, &held), bytes);
    }
    if let Ok(read) = read_meta(bytes) {
        assert_eq!(read_meta(&meta(&read)), Ok(read));
    }
    if let Ok(joined) = whole([&record]) {
        assert!(joined.len() + 4 == bytes.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use greylag_crdt::{Performed, Range};

    fn markers() -> Markers {
        let mut marker = Performed::new(ReplicaId(3), ReplicaId(4));
        marker.add_ranges(&[Range { lo: 1, hi: 9, offset: 70 }]);
        let mut markers = Markers::new();
        markers.add(&marker);
        markers
    }

    /// The bytes of docs/formats/ddata-store.md.
    #[test]
    fn records_have_these_bytes() {
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        assert_eq!(hex(&tombstone(1, -2)), "01000000000000000102fffffffffffffffe");
        assert_eq!(hex(&value(1, "t", b"v", &Markers::new())), "0100000000000000010100017400000000".to_owned() + "76");
        assert_eq!(hex(&nothing(1)), "01000000000000000103");
        assert_eq!(hex(&delta(1, b"d")), "01000000000000000164");
        let removed = [ReplicaId(9)].into();
        let starts = Starts::of([(3, None), (4, Some(5))].map(|(maker, base)| Start { maker: ReplicaId(maker), base }));
        let read = StoreMeta {
            written_at: 1,
            synced_at: Some(2),
            has_met_others: true,
            removed,
            starts,
            ..StoreMeta::default()
        };
        let before_starts = "0000000000000001010000000000000002000100000001".to_owned() + "0000000000000009";
        let of_starts = "02000000000000000300000000000000000401".to_owned() + "0000000000000005";
        assert_eq!(hex(&meta(&read)), format!("02{before_starts}{of_starts}"));
        assert_eq!(read_meta(&meta(&read)), Ok(read.clone()));
        // Version 1 had no starts.
        let bytes: Vec<u8> = [vec![1], meta(&read)[1..32].to_vec()].concat();
        assert_eq!(hex(&bytes), format!("01{before_starts}"));
        assert_eq!(read_meta(&bytes), Ok(StoreMeta { starts: Starts::default(), ..read }));
    }

    #[test]
    fn written_records_are_read() {
        for length in [0, 1, PIECE_BYTES - 30, PIECE_BYTES, PIECE_BYTES * 3 + 7] {
            let bytes = vec![7; length];
            let record = value(5, "gl.x/1", &bytes, &markers());
            let pieces: Vec<Bytes> = pieces(&record).into_iter().map(Bytes::from).collect();
            let head = Head::Value { tag: "gl.x/1".into(), bytes: bytes.into(), markers: markers() };
            assert_eq!(read_head(&whole(&pieces).unwrap()), Ok(head));
            assert_eq!(whole(&pieces[..pieces.len() - 1]), Err(Unreadable::Short));
            assert!(whole(pieces.iter().chain(&pieces[..1])).is_err());
        }
    }

    /// ddata U5: no bytes make the reader panic, and truncation is noticed.
    #[test]
    fn cuts_and_flips_are_no_panic() {
        let record = value(5, "gl.x/1", b"value", &markers());
        let starts = Starts::of([Start { maker: ReplicaId(1), base: Some(2) }]);
        let meta = meta(&StoreMeta { removed: [ReplicaId(9)].into(), starts, ..StoreMeta::default() });
        for record in [record, tombstone(1, 2), nothing(1), meta] {
            for at in 0..record.len() {
                read_anything(&record[..at]);
                let mut flipped = record.clone();
                flipped[at] ^= 0x81;
                read_anything(&flipped);
            }
            assert!(read_meta(&record[..record.len() - 1]).is_err());
        }
    }
}
