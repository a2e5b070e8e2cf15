//! The offsets row of one slice of a projection: its owner, and how far it was processed.
//!
//! Ordinals come in order and without gaps, so the newest place of a slice is enough, however many ids the slice
//! has. [Marks](greylag_persistence::Processed::is_mark) are kept beside it: each mark covers a range of slices, and
//! is saved in the first of them. `docs/formats/journal-sled.md` describes the bytes.

use bytes::Bytes;
use greylag_persistence::{OwnerEpoch, PersistenceId, Position, Processed, START_PREFIX, SeqNr};

use crate::rows::bytes_format::{FieldReader, FieldWriter};

const VERSION: u8 = 1;

/// The most marks that one slice keeps; more would not fit into a row. A slice keeps one mark for each range that
/// begins with it, so a projection that is cut evenly has at most 11.
const MAX_MARKS: usize = 200;

/// One change that was processed, by ordinal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ProcessedChange {
    pub(crate) id: PersistenceId,
    pub(crate) seq_nr: SeqNr,
    pub(crate) ordinal: u64,
    pub(crate) is_mark: bool,
}

impl ProcessedChange {
    /// Whether this is a start mark, which neither a reset nor forgetting removes.
    fn is_start(&self) -> bool {
        self.id.as_str().starts_with(START_PREFIX)
    }

    pub(crate) fn processed(self) -> Processed {
        Processed { id: self.id, seq_nr: self.seq_nr, position: Position::Ordinal(self.ordinal) }
    }
}

/// The row of one slice.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct SliceOffsets {
    pub(crate) epoch: OwnerEpoch,
    /// The newest place, unless it is a mark.
    newest: Option<ProcessedChange>,
    marks: Vec<ProcessedChange>,
}

impl SliceOffsets {
    /// Notes that `place` was processed; an older place than the stored one changes nothing.
    pub(crate) fn note(&mut self, place: &ProcessedChange) {
        if !place.is_mark {
            if self.newest.as_ref().is_none_or(|newest| newest.ordinal < place.ordinal) {
                self.newest = Some(place.clone());
            }
            return;
        }
        match self.marks.iter_mut().find(|mark| mark.id == place.id) {
            Some(mark) if mark.seq_nr < place.seq_nr => *mark = place.clone(),
            Some(_) => {}
            None => self.marks.push(place.clone()),
        }
        if self.marks.iter().filter(|mark| !mark.is_start()).count() > MAX_MARKS {
            // The oldest mark goes: without it events are read again, never skipped. Start marks stay: without one,
            // events would be skipped.
            let others = (0..self.marks.len()).filter(|at| !self.marks[*at].is_start());
            let oldest = others.min_by_key(|at| self.marks[*at].ordinal);
            oldest.map(|at| self.marks.swap_remove(at));
        }
    }

    /// Forgets places before `ordinal`, but never the newest place.
    pub(crate) fn forget_before(&mut self, ordinal: u64) {
        let Some(newest) = self.places().map(|place| place.ordinal).max() else { return };
        let stays = |place: &ProcessedChange| place.ordinal >= ordinal || place.ordinal == newest || place.is_start();
        self.newest = self.newest.take().filter(stays);
        self.marks.retain(stays);
    }

    /// Forgets everything but the owner and the start marks.
    pub(crate) fn reset(&mut self) {
        self.newest = None;
        self.marks.retain(ProcessedChange::is_start);
    }

    pub(crate) fn places(&self) -> impl Iterator<Item = &ProcessedChange> {
        self.newest.iter().chain(&self.marks)
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = FieldWriter::with_capacity(64 + 64 * self.marks.len());
        out.u8(VERSION);
        out.u64(self.epoch.as_u64());
        out.u8(self.newest.is_some().into());
        out.varint(self.marks.len() as u64);
        for place in self.places() {
            out.u64(place.ordinal);
            out.varint(place.seq_nr.as_u64());
            out.text(place.id.as_str());
        }
        out.0
    }

    pub(crate) fn decode(value: Bytes) -> Option<Self> {
        let mut fields = FieldReader(value);
        if fields.u8()? != VERSION {
            return None;
        }
        let epoch = OwnerEpoch::from_u64(fields.u64()?);
        let has_newest = fields.u8()? != 0;
        let marks = fields.count(10)?;
        let newest = if has_newest { Some(read_place(&mut fields, false)?) } else { None };
        let marks = (0..marks).map(|_| read_place(&mut fields, true)).collect::<Option<Vec<_>>>()?;
        fields.is_empty().then_some(Self { epoch, newest, marks })
    }
}

fn read_place(fields: &mut FieldReader, is_mark: bool) -> Option<ProcessedChange> {
    let (ordinal, seq_nr) = (fields.u64()?, SeqNr::new(fields.varint()?)?);
    let id = PersistenceId::unique(&fields.text()?).ok()?;
    Some(ProcessedChange { id, seq_nr, ordinal, is_mark })
}

#[cfg(test)]
mod tests {
    use greylag_store_sled::MAX_VALUE_BYTES;

    use super::*;

    fn place(id: &str, ordinal: u64) -> ProcessedChange {
        ProcessedChange { id: id.parse().unwrap(), seq_nr: SeqNr::saturating(ordinal + 1), ordinal, is_mark: false }
    }

    fn row() -> SliceOffsets {
        let mut row = SliceOffsets { epoch: OwnerEpoch::from_u64(3), ..SliceOffsets::default() };
        row.note(&place("a", 258));
        row.note(&ProcessedChange { is_mark: true, ..place("m", 7) });
        row
    }

    #[test]
    fn the_bytes_of_a_slice_are_fixed() {
        let bytes = row().encode();
        let expected = b"\x01\0\0\0\0\0\0\0\x03\x01\x01\0\0\0\0\0\0\x01\x02\x83\x02\x01a\0\0\0\0\0\0\0\x07\x08\x01m";
        assert_eq!(bytes, expected);
        assert_eq!(SliceOffsets::decode(bytes.into()), Some(row()));
    }

    #[test]
    fn cut_bytes_have_no_meaning_and_flipped_ones_never_panic() {
        let whole = row().encode();
        for at in 0..whole.len() {
            assert_eq!(SliceOffsets::decode(Bytes::copy_from_slice(&whole[..at])), None, "cut at {at}");
            for flip in [1_u8, 0x80, 0xff] {
                let mut damaged = whole.clone();
                damaged[at] ^= flip;
                let _ = SliceOffsets::decode(damaged.into());
            }
        }
    }

    #[test]
    fn of_too_many_marks_the_oldest_goes_and_the_row_fits() {
        let mut row = SliceOffsets::default();
        let long = "x".repeat(250);
        row.note(&place(&long, u64::MAX - 1));
        for number in 0..=MAX_MARKS as u64 {
            row.note(&ProcessedChange { is_mark: true, ..place(&format!("{long}{number:05}"), 1 << 40 | number) });
        }
        let start = ProcessedChange { is_mark: true, ..place("gl.projection|!0-1023/7", 0) };
        row.note(&start);
        row.note(&ProcessedChange { is_mark: true, ..place(&format!("{long}{:05}", 0), 1 << 40) });
        assert!(row.marks.contains(&start), "however old it is");
        row.marks.retain(|mark| *mark != start);
        let left = row.places().filter(|place| place.is_mark).map(|place| place.ordinal & 0xffff);
        let mut left: Vec<_> = left.collect();
        left.sort_unstable();
        assert_eq!(left, (1..=MAX_MARKS as u64).collect::<Vec<_>>());
        assert!(row.encode().len() <= MAX_VALUE_BYTES);
    }
}
