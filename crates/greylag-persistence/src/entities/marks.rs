//! The deliveries that an entity has applied, as its own history records them.
//!
//! Every event that an entity persists while it handles a delivery carries a [`Mark`] in its
//! metadata under [`MARK_NAME`], in the same atomic write. Folding the marks of the stored records
//! gives [`Marks`]; they travel in snapshots too. So "was this delivery applied?" is answered by
//! the same bytes that hold its effect. Source: delivery §7, persistence §2.5, §2.8.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, BufMut, Bytes, BytesMut};

use crate::contract::records::event::{Metadata, Timestamp};

/// The metadata name of the marks, in events and in snapshots.
pub const MARK_NAME: &str = "gl.delivery";

const FORMAT: u8 = 1;
/// Format of snapshots that name the producers.
const FORMAT_WITH_PRODUCERS: u8 = 2;

/// 128 bits that identify one stream of deliveries: a producer, and for in-memory producers one start.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(u128);

impl StreamId {
    /// A stream id from its bits.
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

/// The identity of one delivery, attached to the events that it caused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mark {
    /// The producer's name, for people.
    pub producer_id: String,
    /// The delivery's stream.
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

    /// Decodes the bytes of [`Mark::encode`].
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
    /// The highest applied number. Numbers of one stream to one entity rise strictly.
    pub total_seq_nr: u64,
    /// Time of the append of its events.
    pub timestamp: Timestamp,
}

/// The deliveries that an entity has applied, by stream.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Marks(BTreeMap<StreamId, Stream>);

/// The last applied delivery and the producer of a stream. One map for both, since every persistent entity holds
/// the map, used or not.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Stream {
    applied: Applied,
    /// The stream's producer, if known.
    producer: Option<Arc<str>>,
}

/// Limits on the marks that are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MarkLimits {
    /// Number of marks that are kept however old they are.
    pub max_streams: usize,
    /// Time for which marks beyond that number are kept.
    pub retention: Duration,
}

impl Marks {
    /// Whether the delivery `total_seq_nr` of `stream_id` was applied, or one after it.
    pub fn covers(&self, stream_id: StreamId, total_seq_nr: u64) -> bool {
        self.0.get(&stream_id).is_some_and(|stream| stream.applied.total_seq_nr >= total_seq_nr)
    }

    /// The last delivery of `stream_id` that was applied.
    pub fn of(&self, stream_id: StreamId) -> Option<Applied> {
        self.0.get(&stream_id).map(|stream| stream.applied)
    }

    /// All marks, by stream.
    pub fn iter(&self) -> impl Iterator<Item = (StreamId, Applied)> + '_ {
        self.0.iter().map(|(stream_id, stream)| (*stream_id, stream.applied))
    }

    /// Number of streams.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is no mark.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Records an applied delivery; never goes back to a smaller number.
    pub fn advance(&mut self, stream_id: StreamId, total_seq_nr: u64, timestamp: Timestamp) {
        self.advance_stream(stream_id, Applied { total_seq_nr, timestamp });
    }

    fn advance_stream(&mut self, stream_id: StreamId, applied: Applied) -> &mut Stream {
        let stream = self.0.entry(stream_id).or_insert(Stream { applied, producer: None });
        if applied.total_seq_nr > stream.applied.total_seq_nr {
            stream.applied = applied;
        }
        stream
    }

    /// Records a mark that was stored at `timestamp`.
    pub fn advance_by(&mut self, mark: &Mark, timestamp: Timestamp) {
        let stream = self.advance_stream(mark.stream_id, Applied { total_seq_nr: mark.total_seq_nr, timestamp });
        stream.producer.get_or_insert_with(|| mark.producer_id.as_str().into());
    }

    /// Drops the mark of a stream; for callers that know that no message of the stream can come again.
    /// Source: delivery §7 (`dedupe_retention`).
    pub fn forget(&mut self, stream_id: StreamId) {
        self.0.remove(&stream_id);
    }

    /// Drops the oldest marks beyond `max_streams`, but none of a stream that `is_heard`, and none that is younger
    /// than the retention unless its producer has begun another stream since: a producer that began anew does not send
    /// its earlier messages again. Source: delivery §7 (`dedupe_streams_max`, `dedupe_retention`), delivery 98.
    pub fn prune(&mut self, limits: MarkLimits, now: Timestamp, is_heard: impl Fn(StreamId) -> bool) {
        let excess = self.len().saturating_sub(limits.max_streams);
        if excess == 0 {
            return;
        }
        let mut newest: BTreeMap<&str, Timestamp> = BTreeMap::new();
        for Stream { applied, producer } in self.0.values() {
            let Some(producer) = producer else { continue };
            let latest = newest.entry(producer).or_insert(applied.timestamp);
            *latest = (*latest).max(applied.timestamp);
        }
        let retention = u64::try_from(limits.retention.as_micros()).unwrap_or(u64::MAX);
        let is_over = |Stream { applied, producer }: &Stream| {
            let latest = producer.as_ref().and_then(|producer| newest.get(&**producer));
            now.as_micros().saturating_sub(applied.timestamp.as_micros()) > retention
                || latest.is_some_and(|latest| *latest > applied.timestamp)
        };
        let mut over: Vec<(Timestamp, StreamId)> = (self.0.iter())
            .filter(|(stream_id, stream)| is_over(stream) && !is_heard(**stream_id))
            .map(|(stream_id, stream)| (stream.applied.timestamp, *stream_id))
            .collect();
        over.sort();
        over.into_iter().take(excess).for_each(|(_, stream_id)| self.forget(stream_id));
    }

    /// Records the mark of a stored event, if it has one.
    ///
    /// # Errors
    /// [`MalformedMarks`]; a mark is never skipped, since that would apply a delivery twice.
    pub fn fold(&mut self, metadata: &Metadata, timestamp: Timestamp) -> Result<(), MalformedMarks> {
        if let Some(bytes) = metadata.get(MARK_NAME) {
            self.advance_by(&Mark::decode(bytes.clone())?, timestamp);
        }
        Ok(())
    }

    /// Records the whole map of a snapshot, if it carries one.
    ///
    /// # Errors
    /// [`MalformedMarks`].
    pub fn fold_snapshot(&mut self, metadata: &Metadata) -> Result<(), MalformedMarks> {
        if let Some(bytes) = metadata.get(MARK_NAME) {
            for (stream_id, Stream { applied, producer }) in Self::decode(bytes.clone())?.0 {
                let stream = self.advance_stream(stream_id, applied);
                stream.producer = producer.or(stream.producer.take());
            }
        }
        Ok(())
    }

    /// The bytes under [`MARK_NAME`] of a snapshot: format 2, then for each stream its id u128, its
    /// number u64, its timestamp u64, the length u16 of its producer id and that id, all big-endian. An unknown
    /// producer has length 0; if no producer is known, format 1, which has neither length nor id.
    pub fn encode(&self) -> Bytes {
        let with_producers = self.0.values().any(|stream| stream.producer.is_some());
        let mut bytes = BytesMut::with_capacity(1 + 64 * self.len());
        bytes.put_u8(if with_producers { FORMAT_WITH_PRODUCERS } else { FORMAT });
        for (stream_id, Stream { applied, producer }) in &self.0 {
            bytes.put_u128(stream_id.0);
            bytes.put_u64(applied.total_seq_nr);
            bytes.put_u64(applied.timestamp.as_micros());
            if with_producers {
                let producer = producer.as_deref().unwrap_or_default();
                let length = u16::try_from(producer.len()).unwrap_or(0);
                bytes.put_u16(length);
                bytes.put_slice(&producer.as_bytes()[..usize::from(length)]);
            }
        }
        bytes.freeze()
    }

    /// Decodes the bytes of [`Marks::encode`], also of format 1, which names no producers.
    ///
    /// # Errors
    /// [`MalformedMarks`].
    pub fn decode(mut bytes: Bytes) -> Result<Self, MalformedMarks> {
        let format = bytes.try_get_u8().map_err(|_| MalformedMarks)?;
        let mut marks = Self::default();
        if !matches!(format, FORMAT | FORMAT_WITH_PRODUCERS) {
            return Err(MalformedMarks);
        }
        while bytes.has_remaining() {
            let mark = Self::decode_one(&mut bytes, format == FORMAT_WITH_PRODUCERS);
            let (mark, timestamp) = mark.ok_or(MalformedMarks)?;
            if mark.producer_id.is_empty() {
                marks.advance(mark.stream_id, mark.total_seq_nr, timestamp);
            } else {
                marks.advance_by(&mark, timestamp);
            }
        }
        Ok(marks)
    }

    fn decode_one(bytes: &mut Bytes, with_producer: bool) -> Option<(Mark, Timestamp)> {
        let stream_id = StreamId(bytes.try_get_u128().ok()?);
        let total_seq_nr = bytes.try_get_u64().ok()?;
        let timestamp = Timestamp::from_micros(bytes.try_get_u64().ok()?);
        let length = if with_producer { usize::from(bytes.try_get_u16().ok()?) } else { 0 };
        let producer = (bytes.len() >= length).then(|| bytes.split_to(length))?;
        let producer_id = String::from_utf8(producer.to_vec()).ok()?;
        Some((Mark { producer_id, stream_id, total_seq_nr }, timestamp))
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

    /// Reads snapshots of before the producers were stored.
    #[test]
    fn marks_without_producers_are_read() {
        let mut bytes = BytesMut::from(&[FORMAT][..]);
        for (stream, number, micros) in [(1, 7, 20), (2, 1, 40)] {
            bytes.put_u128(stream);
            bytes.put_u64(number);
            bytes.put_u64(micros);
        }
        let marks = Marks::decode(bytes.freeze()).unwrap();
        assert!(marks.covers(StreamId(1), 7) && marks.covers(StreamId(2), 1));
        assert_eq!(marks.len(), 2);
        assert_eq!(Marks::decode(marks.encode()), Ok(marks));
    }

    /// delivery 98: a producer that begins anew again and again leaves a bounded number of marks, also in snapshots.
    #[test]
    fn marks_of_producers_that_began_anew_end() {
        let limits = MarkLimits { max_streams: 10, retention: Duration::from_secs(3600) };
        let mut marks = Marks::default();
        let fold = |marks: &mut Marks, producer: &str, stream, at| {
            let mark = Mark { producer_id: producer.into(), stream_id: StreamId(stream), total_seq_nr: 1 };
            marks.advance_by(&mark, Timestamp::from_micros(at));
            marks.prune(limits, Timestamp::from_micros(at), |stream_id| stream_id == StreamId(3));
        };
        fold(&mut marks, "other", 1_000_000, 0);
        for start in 1..=10_000 {
            fold(&mut marks, "shop", u128::from(start), start);
        }
        assert_eq!(marks.len(), 10);
        assert!(marks.covers(StreamId(10_000), 1), "the latest");
        assert!(marks.covers(StreamId(3), 1), "one that is still heard");
        assert!(marks.covers(StreamId(1_000_000), 1), "of another producer, and young");
        let restored = Marks::decode(marks.encode()).unwrap();
        assert_eq!(restored, marks);
        // Marks of producers that never began anew: kept while young, dropped once old and too many.
        for stream in 0..20 {
            fold(&mut marks, &format!("p{stream}"), 2_000_000 + stream, 10_001);
        }
        assert_eq!(marks.len(), 23, "all but those that began anew: 20, the latest, the heard one, the other one");
        fold(&mut marks, "late", 3_000_000, 2 * 3_600_000_000);
        assert_eq!(marks.len(), 10);
        assert!(marks.covers(StreamId(3), 1) && marks.covers(StreamId(3_000_000), 1));
    }

    #[test]
    fn malformed_bytes_are_refused() {
        let cut = [&[FORMAT_WITH_PRODUCERS][..], &[0; 33], &[9, b'x']].concat();
        for bytes in [&b""[..], b"\x03", b"\x01abc", &cut] {
            assert_eq!(Marks::decode(Bytes::copy_from_slice(bytes)), Err(MalformedMarks));
            assert_eq!(Mark::decode(Bytes::copy_from_slice(bytes)), Err(MalformedMarks));
        }
        assert_eq!(Marks::decode(Marks::default().encode()), Ok(Marks::default()));
    }
}
