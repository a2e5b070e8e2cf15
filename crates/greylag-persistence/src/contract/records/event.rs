//! Events as a journal keeps them, and the checksum that ties each to its place.
//!
//! An entity hands over [`NewEvent`]s; the journal numbers them, stamps all events of one append
//! with one [`Timestamp`] of its own clock and keeps [`StoredEvent`]s. The checksum covers the id
//! and the number as well, so a record under another key than its own is detected.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use bytes::Bytes;
use greylag_core::CodecId;

use super::checksum::Checksum;
use super::persistence_id::PersistenceId;

/// Extra data of an event or snapshot by short name; names that start with `gl.` are Greylag's.
pub type Metadata = BTreeMap<String, Bytes>;

/// The tags of an event: at most [`MAX_TAGS`], each of 1 to [`MAX_TAG_BYTES`] bytes.
pub type Tags = BTreeSet<String>;

/// Most tags of one event.
pub const MAX_TAGS: usize = 16;

/// Longest tag in bytes.
pub const MAX_TAG_BYTES: usize = 128;

/// Longest manifest in bytes.
pub const MAX_MANIFEST_BYTES: usize = 255;

/// Number of an event in its history; the first is 1, and [`SeqNr::ZERO`] means "no event".
///
/// Contiguous per id, never reused, not even after every event was deleted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SeqNr(u64);

impl SeqNr {
    /// No event.
    pub const ZERO: Self = Self(0);
    /// The number of the first event.
    pub const FIRST: Self = Self(1);
    /// The largest number, `i64::MAX`, so that every database has a type for it. No event has it, so that every
    /// history has a bound behind its last event.
    pub const MAX: Self = Self(i64::MAX as u64);
    /// The largest number that an event can have.
    pub const LAST: Self = Self(Self::MAX.0 - 1);

    /// `number`, unless it is past [`SeqNr::MAX`].
    pub const fn new(number: u64) -> Option<Self> {
        if number <= Self::MAX.0 { Some(Self(number)) } else { None }
    }

    /// `number`, or [`SeqNr::MAX`] if it is past that.
    pub const fn saturating(number: u64) -> Self {
        match Self::new(number) {
            Some(seq_nr) => seq_nr,
            None => Self::MAX,
        }
    }

    /// The number.
    pub const fn as_u64(self) -> u64 {
        self.0
    }

    /// `count` further on; `None` past [`SeqNr::MAX`].
    pub const fn plus(self, count: u64) -> Option<Self> {
        match self.0.checked_add(count) {
            Some(number) => Self::new(number),
            None => None,
        }
    }

    /// The number that follows; `None` after [`SeqNr::MAX`].
    pub const fn next(self) -> Option<Self> {
        self.plus(1)
    }

    /// The number before; [`SeqNr::ZERO`] before [`SeqNr::FIRST`].
    pub const fn previous(self) -> Self {
        Self(self.0.saturating_sub(1))
    }

    /// Whether there is no event at all.
    pub const fn is_zero(self) -> bool {
        self.0 == 0
    }
}

impl From<u32> for SeqNr {
    fn from(number: u32) -> Self {
        Self(u64::from(number))
    }
}

impl fmt::Display for SeqNr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Microseconds since the Unix epoch, by the clock of the store.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(u64);

impl Timestamp {
    /// From microseconds since the Unix epoch.
    pub const fn from_micros(micros: u64) -> Self {
        Self(micros)
    }

    /// Microseconds since the Unix epoch.
    pub const fn as_micros(self) -> u64 {
        self.0
    }

    /// The timestamp of an append when the clock shows `self` and the id's last append was at `last`: the clock, or one
    /// microsecond after `last` if the clock has not passed it.
    pub fn rising(self, last: Self) -> Self {
        self.max(Self(last.0.saturating_add(1)))
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}us", self.0)
    }
}

/// The fence of a history: every claim raises it by one, and writers with a smaller epoch can no longer write.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WriterEpoch(u64);

impl WriterEpoch {
    /// The history was never claimed.
    pub const NONE: Self = Self(0);

    /// An epoch from its stored form.
    pub const fn from_u64(epoch: u64) -> Self {
        Self(epoch)
    }

    /// The stored form.
    pub const fn as_u64(self) -> u64 {
        self.0
    }

    /// The epoch of the next claim.
    ///
    /// # Panics
    /// After 2^64 claims of one id.
    #[must_use]
    pub fn raised(self) -> Self {
        Self(self.0.checked_add(1).expect("2^64 claims of one id take longer than the disk lives"))
    }
}

impl fmt::Display for WriterEpoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// 128 random bits that identify one incarnation of one entity as a writer.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WriterUuid(u128);

impl WriterUuid {
    /// The writer of an id that was never written.
    pub const NONE: Self = Self(0);

    /// A writer uuid from its bits.
    pub const fn from_u128(bits: u128) -> Self {
        Self(bits)
    }

    /// The identity's bits.
    pub const fn as_u128(self) -> u128 {
        self.0
    }
}

impl fmt::Display for WriterUuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for WriterUuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}", self.0)
    }
}

/// Whether a record carries an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EventKind {
    /// The record carries an event.
    Event,
    /// The record only occupies its number: empty payload, metadata kept, no call of the event handler.
    Filtered,
}

impl EventKind {
    /// The stored form.
    pub const fn as_u8(self) -> u8 {
        match self {
            Self::Event => 0,
            Self::Filtered => 1,
        }
    }

    /// The kind with this stored form; `None` if there is none.
    pub const fn from_u8(kind: u8) -> Option<Self> {
        match kind {
            0 => Some(Self::Event),
            1 => Some(Self::Filtered),
            _ => None,
        }
    }
}

/// One event to append; its number comes from its place in the append.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewEvent {
    /// Id of the codec that wrote the payload.
    pub codec_id: CodecId,
    /// Name of the event's type, chosen by people; 1 to 255 bytes.
    pub manifest: String,
    /// Version of the type's format under this manifest.
    pub schema_version: u32,
    /// Whether the record carries an event.
    pub kind: EventKind,
    /// The encoded event; empty for `Filtered`.
    pub payload: Bytes,
    /// Extra data, kept with filtered events too.
    pub metadata: Metadata,
    /// Tags by which queries find the event.
    pub tags: Tags,
}

/// One event as a journal keeps and returns it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredEvent {
    /// The id that the event belongs to.
    pub id: PersistenceId,
    /// The event's number.
    pub seq_nr: SeqNr,
    /// When the append was committed, by the store's clock; rises strictly from append to append.
    pub timestamp: Timestamp,
    /// The incarnation that wrote the event.
    pub writer_uuid: WriterUuid,
    /// The epoch of that writer's claim.
    pub writer_epoch: WriterEpoch,
    /// Id of the codec that reads the payload.
    pub codec_id: CodecId,
    /// The name of the event's type.
    pub manifest: String,
    /// Version of the type's format under this manifest.
    pub schema_version: u32,
    /// Whether the record carries an event.
    pub kind: EventKind,
    /// The encoded event; empty for `Filtered`.
    pub payload: Bytes,
    /// Extra data.
    pub metadata: Metadata,
    /// Tags by which queries find the event.
    pub tags: Tags,
    /// CRC-32C of everything above but the timestamp; see [`StoredEvent::compute_crc32c`].
    pub crc32c: u32,
}

impl StoredEvent {
    /// The checksum that the record should carry.
    ///
    /// Over these fields in order, numbers little-endian, every text and byte string preceded by
    /// its length as `u32`, every collection by its count as `u32`: id, `seq_nr` u64, `writer_uuid`
    /// u128, `writer_epoch` u64, `codec_id` u32, manifest, `schema_version` u32, kind u8, payload,
    /// metadata (name, value), tags. The timestamp is left out, since only the commit gives it.
    pub fn compute_crc32c(&self) -> u32 {
        let mut crc = Checksum::new();
        crc.text(self.id.as_str());
        crc.u64(self.seq_nr.as_u64());
        crc.u128(self.writer_uuid.as_u128());
        crc.u64(self.writer_epoch.as_u64());
        crc.u32(self.codec_id.as_u32());
        crc.text(&self.manifest);
        crc.u32(self.schema_version);
        crc.raw(&[self.kind.as_u8()]);
        crc.bytes(&self.payload);
        crc.metadata(&self.metadata);
        crc.len(self.tags.len());
        self.tags.iter().for_each(|tag| crc.text(tag));
        crc.finish()
    }

    /// Whether the record is whole and stands where it was written.
    pub fn is_intact(&self) -> bool {
        self.crc32c == self.compute_crc32c()
    }

    /// Bytes that the record counts for in page limits: payload, manifest, metadata and tags.
    pub fn size_bytes(&self) -> usize {
        let metadata: usize = self.metadata.iter().map(|(name, value)| name.len() + value.len()).sum();
        let tags: usize = self.tags.iter().map(String::len).sum();
        self.payload.len() + self.manifest.len() + metadata + tags
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> StoredEvent {
        let mut record = StoredEvent {
            id: "Counter|1".parse().unwrap(),
            seq_nr: SeqNr::from(7),
            timestamp: Timestamp::from_micros(1),
            writer_uuid: WriterUuid::from_u128(9),
            writer_epoch: WriterEpoch::from_u64(2),
            codec_id: CodecId::JSON,
            manifest: "incremented".into(),
            schema_version: 1,
            kind: EventKind::Event,
            payload: Bytes::from_static(b"{}"),
            metadata: [("note".to_owned(), Bytes::from_static(b"x"))].into(),
            tags: ["red".to_owned()].into(),
            crc32c: 0,
        };
        record.crc32c = record.compute_crc32c();
        record
    }

    #[test]
    fn the_checksum_covers_everything_but_the_timestamp() {
        let whole = record();
        assert!(whole.is_intact());
        assert!(StoredEvent { timestamp: Timestamp::from_micros(2), ..whole.clone() }.is_intact());
        let broken: Vec<(&str, StoredEvent)> = vec![
            ("id", StoredEvent { id: "Counter|2".parse().unwrap(), ..whole.clone() }),
            ("seq_nr", StoredEvent { seq_nr: SeqNr::from(8), ..whole.clone() }),
            ("writer_uuid", StoredEvent { writer_uuid: WriterUuid::from_u128(8), ..whole.clone() }),
            ("writer_epoch", StoredEvent { writer_epoch: WriterEpoch::from_u64(3), ..whole.clone() }),
            ("codec_id", StoredEvent { codec_id: CodecId::PROST, ..whole.clone() }),
            ("manifest", StoredEvent { manifest: "Incremented".into(), ..whole.clone() }),
            ("schema_version", StoredEvent { schema_version: 2, ..whole.clone() }),
            ("kind", StoredEvent { kind: EventKind::Filtered, ..whole.clone() }),
            ("payload", StoredEvent { payload: Bytes::from_static(b"[]"), ..whole.clone() }),
            ("metadata", StoredEvent { metadata: Metadata::new(), ..whole.clone() }),
            ("tags", StoredEvent { tags: Tags::new(), ..whole.clone() }),
        ];
        for (field, record) in broken {
            assert!(!record.is_intact(), "a changed {field} must be found out");
        }
    }

    #[test]
    fn the_checksum_is_fixed_for_ever() {
        assert_eq!(record().crc32c, 1_563_921_878, "stored records carry it");
    }

    #[test]
    fn numbers_end_at_i64_max() {
        assert_eq!(SeqNr::MAX.next(), None);
        assert_eq!(SeqNr::MAX.previous().next(), Some(SeqNr::MAX));
        assert_eq!(SeqNr::saturating(u64::MAX), SeqNr::MAX);
        assert_eq!(SeqNr::ZERO.previous(), SeqNr::ZERO);
        assert_eq!(SeqNr::FIRST.plus(u64::MAX), None);
    }

    #[test]
    fn timestamps_rise_when_the_clock_does_not() {
        let (early, late) = (Timestamp::from_micros(5), Timestamp::from_micros(9));
        assert_eq!(late.rising(early), late);
        assert_eq!(early.rising(late), Timestamp::from_micros(10));
        assert_eq!(late.rising(late), Timestamp::from_micros(10));
    }
}
