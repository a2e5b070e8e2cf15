//! Records what one group commit stored, so that an opening can check that all of it is there.
//!
//! sled can lose the rows that a group wrote last and keep the others, the commit record among them, if the
//! damage begins in the last group of a segment of its log. So the record names every row whose loss nothing else
//! shows: the heads and other rows that are overwritten in place, with their checksums, and the number of rows of
//! each tag. A lost event shows as a gap in the sequence numbers. `docs/formats/journal-sled.md` describes the bytes.

use bytes::Bytes;
use greylag_persistence::SeqNr;

use crate::rows::bytes_format::{FieldReader, FieldWriter};
use crate::rows::keys::{PidNo, TagNo};

const VERSION: u8 = 1;

/// The record of one group commit. Commits are numbered without a gap, so that a lost one is noticed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct CommitRecord {
    /// Ordinal of the first event of the commit.
    pub(crate) first_ordinal: u64,
    /// CRC-32C over the checksums of its events, in order.
    pub(crate) digest: u32,
    pub(crate) appends: Vec<CommittedAppend>,
    /// Count of changes of durable states; their ordinals follow those of the events.
    pub(crate) changes: u64,
    /// Heads that the commit wrote, each with the CRC-32C of its value.
    pub(crate) heads: Vec<(PidNo, u32)>,
    /// Other rows that the commit overwrote or removed.
    pub(crate) rows: Vec<CommittedRow>,
    /// How many following commits were merged into this record because all their events are deleted: their numbers
    /// follow this record's.
    pub(crate) merged: u64,
    /// Count of deleted events and changes of this commit and the merged ones; their ordinals follow the others.
    pub(crate) gone: u64,
}

/// One append within a commit record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CommittedAppend {
    pub(crate) pid: PidNo,
    pub(crate) first: SeqNr,
    pub(crate) count: u64,
    /// Every tag of any of its events, ascending, and how many of them have it.
    pub(crate) tags: Vec<(TagNo, u64)>,
}

/// The row of a snapshot, a durable state, or the offsets of a slice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CommittedRow {
    pub(crate) key: Bytes,
    /// The CRC-32C of the row's value; `None` if the row was removed.
    pub(crate) crc32c: Option<u32>,
}

impl CommittedAppend {
    /// An upper bound of the bytes that this append takes of a commit record.
    pub(crate) fn max_bytes(&self) -> usize {
        40 + 20 * self.tags.len()
    }

    pub(crate) fn last(&self) -> SeqNr {
        SeqNr::saturating(self.first.as_u64().saturating_add(self.count.saturating_sub(1)))
    }

    fn decode(fields: &mut FieldReader) -> Option<Self> {
        let (pid, first, count) = (PidNo(fields.varint()?), SeqNr::new(fields.varint()?)?, fields.varint()?);
        first.plus(count.saturating_sub(1))?;
        let tag = |fields: &mut FieldReader| Some((TagNo(fields.varint()?), fields.varint()?));
        let tags = (0..fields.count(2)?).map(|_| tag(fields)).collect::<Option<Vec<_>>>()?;
        Some(Self { pid, first, count, tags })
    }
}

impl CommittedRow {
    /// An upper bound of the bytes that the row under `key` takes of a commit record.
    pub(crate) fn bytes_of(key: &[u8]) -> usize {
        10 + key.len()
    }

    fn decode(fields: &mut FieldReader) -> Option<Self> {
        let (key, has_value, crc32c) = (fields.bytes()?, fields.u8()? != 0, fields.u32()?);
        Some(Self { key, crc32c: has_value.then_some(crc32c) })
    }
}

impl CommitRecord {
    /// An upper bound of the bytes that a head takes of a commit record.
    pub(crate) const HEAD_BYTES: usize = 14;

    pub(crate) fn add_digest(&mut self, crc32c: u32) {
        self.digest = crc32c::crc32c_append(self.digest, &crc32c.to_be_bytes());
    }

    pub(crate) fn event_count(&self) -> u64 {
        self.appends.iter().map(|append| append.count).sum()
    }

    /// The ordinal after all events and changes of the commit; `None` if it would overflow.
    pub(crate) fn next_ordinal(&self) -> Option<u64> {
        self.first_ordinal.checked_add(self.event_count())?.checked_add(self.changes)?.checked_add(self.gone)
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = FieldWriter::with_capacity(32 + 16 * self.appends.len() + Self::HEAD_BYTES * self.heads.len());
        out.u8(VERSION);
        out.u64(self.first_ordinal);
        out.u32(self.digest);
        out.varint(self.appends.len() as u64);
        for append in &self.appends {
            out.varint(append.pid.0);
            out.varint(append.first.as_u64());
            out.varint(append.count);
            out.varint(append.tags.len() as u64);
            for (tag, count) in &append.tags {
                out.varint(tag.0);
                out.varint(*count);
            }
        }
        out.varint(self.changes);
        out.varint(self.heads.len() as u64);
        for (pid, crc32c) in &self.heads {
            out.varint(pid.0);
            out.u32(*crc32c);
        }
        out.varint(self.rows.len() as u64);
        for row in &self.rows {
            out.bytes(&row.key);
            out.u8(row.crc32c.is_some().into());
            out.u32(row.crc32c.unwrap_or_default());
        }
        if self.merged > 0 || self.gone > 0 {
            out.varint(self.merged);
            out.varint(self.gone);
        }
        out.0
    }

    pub(crate) fn decode(value: Bytes) -> Option<Self> {
        let mut fields = FieldReader(value);
        if fields.u8()? != VERSION {
            return None;
        }
        let (first_ordinal, digest) = (fields.u64()?, fields.u32()?);
        let appends =
            (0..fields.count(4)?).map(|_| CommittedAppend::decode(&mut fields)).collect::<Option<Vec<_>>>()?;
        let changes = fields.varint()?;
        let head = |fields: &mut FieldReader| Some((PidNo(fields.varint()?), fields.u32()?));
        let heads = (0..fields.count(5)?).map(|_| head(&mut fields)).collect::<Option<Vec<_>>>()?;
        let rows = (0..fields.count(6)?).map(|_| CommittedRow::decode(&mut fields)).collect::<Option<Vec<_>>>()?;
        let (merged, gone) = if fields.is_empty() { (0, 0) } else { (fields.varint()?, fields.varint()?) };
        fields.is_empty().then_some(Self { first_ordinal, digest, appends, changes, heads, rows, merged, gone })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> CommitRecord {
        let mut record = CommitRecord { first_ordinal: 5, ..CommitRecord::default() };
        record.add_digest(1);
        record.add_digest(2);
        for pid in [1, 300] {
            let tags = vec![(TagNo(1), 2), (TagNo(200), 1)];
            record.appends.push(CommittedAppend { pid: PidNo(pid), first: SeqNr::from(9), count: 2, tags });
        }
        record.changes = 300;
        record.heads = vec![(PidNo(1), 7), (PidNo(300), u32::MAX)];
        let row = |key: &'static [u8], crc32c| CommittedRow { key: Bytes::from_static(key), crc32c };
        record.rows = vec![row(b"\x20a", Some(8)), row(b"\x10b", None)];
        record
    }

    #[test]
    fn they_come_back() {
        let mut record = record();
        assert_eq!((record.event_count(), record.next_ordinal()), (4, Some(309)));
        assert_eq!(CommitRecord::decode(record.encode().into()).as_ref(), Some(&record));
        (record.merged, record.gone) = (3, 11);
        assert_eq!(record.next_ordinal(), Some(320));
        assert_eq!(CommitRecord::decode(record.encode().into()), Some(record));
        assert_eq!(CommitRecord::decode(CommitRecord::default().encode().into()), Some(CommitRecord::default()));
    }

    /// No event is given the largest number any more, but old stores may hold one: its record still decodes.
    #[test]
    fn the_largest_number_comes_back() {
        let mut record = record();
        record.appends[0].first = SeqNr::saturating(SeqNr::MAX.as_u64() - 1);
        assert_eq!(record.appends[0].last(), SeqNr::MAX);
        assert_eq!(CommitRecord::decode(record.encode().into()), Some(record));
    }

    #[test]
    fn the_bytes_are_fixed() {
        let mut record = record();
        record.appends.truncate(1);
        let bytes: String = record.encode().iter().map(|byte| format!("{byte:02x}")).collect();
        let expected = concat!(
            "0100000000000000055502add10101090202010",
            "2c80101ac0202010000000",
            "7ac02ffffffff020220610100000008021062000000",
            "0000"
        );
        assert_eq!(bytes, expected);
    }

    #[test]
    fn cut_and_flipped_bytes_never_panic() {
        let whole = CommitRecord { merged: 3, gone: 11, ..record() }.encode();
        for at in 0..whole.len() {
            assert_eq!(CommitRecord::decode(Bytes::copy_from_slice(&whole[..at])).is_some(), at == whole.len() - 2);
            for flip in [1_u8, 0x80, 0xff] {
                let mut damaged = whole.clone();
                damaged[at] ^= flip;
                let _ = CommitRecord::decode(damaged.into());
            }
        }
    }
}
