//! Which deliveries an entity has applied, told by its own history.
//!
//! Every event that an entity persists while it handles a delivery carries a [`Mark`] in its
//! metadata under [`MARK_NAME`], in the same atomic write. Folding the marks of the stored records
//! gives [`Marks`]; they travel in snapshots too. So "was this delivery applied?" is answered by
//! the same bytes that hold its effect. Source: delivery §7, persistence §2.5, §2.8.

use std::collections::BTreeMap;
use std::fmt;

use bytes::{Buf, BufMut, Bytes, BytesMut};

use crate::event::{Metadata, Timestamp};

/// The metadata name of the marks, in events and in snapshots.
pub const MARK_NAME: &str = "gl.delivery";

const FORMAT: u8 = 1;

/// 128 bits that name one stream of deliveries: a producer, and for in-memory producers one start.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(u128);

impl StreamId {
    /// From its bits.
    pub const fn from_u128(bits: u128) -> Self {
        Self(bits)
    }

    /// The stream id's bits.
    pub const fn as_u128(self) -> u128 {
        self.0
    }
}

impl fmt::Display for StreamId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for StreamId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}", self.0)
    }
}

/// One delivery, as the events that it caused name it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mark {
    /// The producer's name, for people.
    pub producer_id: String,
    /// Which stream it belongs to.
    pub stream_id: StreamId,
    /// The delivery's number in the stream, counted over all entities.
    pub total_seq_nr: u64,
}

impl Mark {
    /// The bytes under [`MARK_NAME`] of an event: format 1, stream u128, number u64 (both
    /// big-endian), producer id.
    pub fn encode(&self) -> Bytes {
        let mut bytes = BytesMut::with_capacity(25 + self.producer_id.len());
        bytes.put_u8(FORMAT);
        bytes.put_u128(self.stream_id.0);
        bytes.put_u64(self.total_seq_nr);
        bytes.put_slice(self.producer_id.as_bytes());
        bytes.freeze()
    }

    /// Reads what [`Mark::encode`] wrote.
    ///
    /// # Errors
    /// [`MalformedMarks`].
    pub fn decode(mut bytes: Bytes) -> Result<Self, MalformedMarks> {
        if bytes.len() < 25 || bytes.get_u8() != FORMAT {
            return Err(MalformedMarks);
        }
        let (stream_id, total_seq_nr) = (StreamId(bytes.get_u128()), bytes.get_u64());
        let producer_id = String::from_utf8(bytes.to_vec()).map_err(|_| MalformedMarks)?;
        Ok(Self { producer_id, stream_id, total_seq_nr })
    }
}

/// The last delivery of one stream that an entity applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Applied {
    /// The highest number. Numbers of one stream to one entity rise strictly.
    pub total_seq_nr: u64,
    /// When its events were appended.
    pub timestamp: Timestamp,
}

/// What an entity has applied, for each stream.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Marks(BTreeMap<StreamId, Applied>);

impl Marks {
    /// Whether the delivery `total_seq_nr` of `stream_id` was applied, or one after it.
    pub fn covers(&self, stream_id: StreamId, total_seq_nr: u64) -> bool {
        self.0.get(&stream_id).is_some_and(|applied| applied.total_seq_nr >= total_seq_nr)
    }

    /// The last delivery of `stream_id` that was applied.
    pub fn of(&self, stream_id: StreamId) -> Option<Applied> {
        self.0.get(&stream_id).copied()
    }

    /// All of them, by stream.
    pub fn iter(&self) -> impl Iterator<Item = (StreamId, Applied)> + '_ {
        self.0.iter().map(|(stream_id, applied)| (*stream_id, *applied))
    }

    /// How many streams there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is no mark.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Takes in that a delivery was applied; never goes back.
    pub fn advance(&mut self, stream_id: StreamId, total_seq_nr: u64, timestamp: Timestamp) {
        let applied = self.0.entry(stream_id).or_insert(Applied { total_seq_nr, timestamp });
        if total_seq_nr > applied.total_seq_nr {
            *applied = Applied { total_seq_nr, timestamp };
        }
    }

    /// Drops the mark of a stream; for callers that know that no message of the stream can come again.
    /// Source: delivery §7 (`dedupe_retention`).
    pub fn forget(&mut self, stream_id: StreamId) {
        self.0.remove(&stream_id);
    }

    /// Takes in the mark of a stored event, if it has one.
    ///
    /// # Errors
    /// [`MalformedMarks`]; a mark is never skipped, since that would apply a delivery twice.
    pub fn fold(&mut self, metadata: &Metadata, timestamp: Timestamp) -> Result<(), MalformedMarks> {
        if let Some(bytes) = metadata.get(MARK_NAME) {
            let mark = Mark::decode(bytes.clone())?;
            self.advance(mark.stream_id, mark.total_seq_nr, timestamp);
        }
        Ok(())
    }

    /// Takes in the whole map that a snapshot carries, if it carries one.
    ///
    /// # Errors
    /// [`MalformedMarks`].
    pub fn fold_snapshot(&mut self, metadata: &Metadata) -> Result<(), MalformedMarks> {
        if let Some(bytes) = metadata.get(MARK_NAME) {
            for (stream_id, applied) in Self::decode(bytes.clone())?.iter() {
                self.advance(stream_id, applied.total_seq_nr, applied.timestamp);
            }
        }
        Ok(())
    }

    /// The bytes under [`MARK_NAME`] of a snapshot: format 1, then for each stream its id u128, its
    /// number u64 and its timestamp u64, all big-endian.
    pub fn encode(&self) -> Bytes {
        let mut bytes = BytesMut::with_capacity(1 + 32 * self.0.len());
        bytes.put_u8(FORMAT);
        for (stream_id, applied) in self.iter() {
            bytes.put_u128(stream_id.0);
            bytes.put_u64(applied.total_seq_nr);
            bytes.put_u64(applied.timestamp.as_micros());
        }
        bytes.freeze()
    }

    /// Reads what [`Marks::encode`] wrote.
    ///
    /// # Errors
    /// [`MalformedMarks`].
    pub fn decode(mut bytes: Bytes) -> Result<Self, MalformedMarks> {
        if bytes.len() % 32 != 1 || bytes.get_u8() != FORMAT {
            return Err(MalformedMarks);
        }
        let mut marks = Self::default();
        while bytes.has_remaining() {
            let (stream_id, total_seq_nr) = (StreamId(bytes.get_u128()), bytes.get_u64());
            marks.advance(stream_id, total_seq_nr, Timestamp::from_micros(bytes.get_u64()));
        }
        Ok(marks)
    }
}

/// The metadata under [`MARK_NAME`] cannot be read; the entity must not go on without it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("malformed delivery marks under {MARK_NAME:?}")]
pub struct MalformedMarks;

#[cfg(test)]
mod tests {
    use super::*;

    fn mark(stream: u128, total_seq_nr: u64) -> Metadata {
        let mark = Mark { producer_id: "shop".into(), stream_id: StreamId(stream), total_seq_nr };
        [(MARK_NAME.to_owned(), mark.encode())].into()
    }

    #[test]
    fn marks_fold_to_the_highest_of_each_stream_and_never_fall() {
        let mut marks = Marks::default();
        for (stream, total, micros) in [(1, 5, 10), (1, 7, 20), (1, 6, 30), (2, 1, 40)] {
            marks.fold(&mark(stream, total), Timestamp::from_micros(micros)).unwrap();
        }
        marks.fold(&Metadata::new(), Timestamp::from_micros(50)).unwrap();
        let applied = Applied { total_seq_nr: 7, timestamp: Timestamp::from_micros(20) };
        assert_eq!(marks.of(StreamId(1)), Some(applied));
        assert!(marks.covers(StreamId(1), 7) && marks.covers(StreamId(1), 1) && !marks.covers(StreamId(1), 8));
        assert!(marks.covers(StreamId(2), 1) && !marks.covers(StreamId(3), 0));

        let mut restored = Marks::default();
        restored.fold_snapshot(&[(MARK_NAME.to_owned(), marks.encode())].into()).unwrap();
        assert_eq!(restored, marks);
    }

    #[test]
    fn malformed_bytes_are_refused() {
        for bytes in [&b""[..], b"\x02", b"\x01abc"] {
            assert_eq!(Marks::decode(Bytes::copy_from_slice(bytes)), Err(MalformedMarks));
            assert_eq!(Mark::decode(Bytes::copy_from_slice(bytes)), Err(MalformedMarks));
        }
        assert_eq!(Marks::decode(Marks::default().encode()), Ok(Marks::default()));
    }
}
