//! The rows that a projection saves about itself in the offset store, and the forms of their ids.
//!
//! ```text
//! gl.projection|512-1023/7      mark: everything of these slices was processed up to its position
//! gl.projection|512-1023@2/4    mark, by an instance that knew of the second start
//! gl.projection|!512-1023/9     start: these slices were reset, its number says how often
//! ```
//! Marks of former ranges stay in the store, under slices that another instance may own by
//! now, and still give the progress of their slices. A reset of a part of such a range must override such marks, but
//! cannot remove them. So it numbers a *start* of its slices: from then on, marks that were saved without knowledge of
//! that start are ignored for these slices. The store keeps starts for good, at most one for each
//! range that was ever reset. The number after the slash makes the row fall into the first slice of its range.
//! Source: persistence §5 (projections).

use std::ops::RangeInclusive;

use crate::contract::offset::{MARK_TYPE, OffsetKind, Position, Processed, START_PREFIX};
use crate::contract::records::event::{SeqNr, Timestamp};
use crate::contract::records::persistence_id::PersistenceId;

/// A row of the projection's own, parsed from its id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ControlRow {
    Mark { slices: RangeInclusive<u16>, start: u64 },
    Start { slices: RangeInclusive<u16> },
}

/// The id of the mark that an instance saves which knows this start of these slices.
pub(crate) fn marker(slices: &RangeInclusive<u16>, start: u64) -> PersistenceId {
    let (first, last) = (slices.start(), slices.end());
    match start {
        0 => in_slice(*first, &format!("{first}-{last}")),
        start => in_slice(*first, &format!("{first}-{last}@{start}")),
    }
}

/// The first id with this text that falls into the slice.
fn in_slice(slice: u16, text: &str) -> PersistenceId {
    let ids = (0_u32..).map(|n| {
        PersistenceId::of(MARK_TYPE, &format!("{text}/{n}")).expect("a short text without control characters")
    });
    let mut fitting = ids.filter(|id| id.slice() == slice);
    fitting.next().expect("every slice has ids")
}

impl ControlRow {
    /// Parses the id; `None` if it is not a row of the projection's own.
    pub(crate) fn of(id: &PersistenceId) -> Option<Self> {
        if id.entity_type() != MARK_TYPE {
            return None;
        }
        let (text, _) = id.entity_id().split_once('/')?;
        if let Some(range) = text.strip_prefix('!') {
            return Some(Self::Start { slices: parse_range(range)? });
        }
        let (range, start) = text.split_once('@').unwrap_or((text, "0"));
        Some(Self::Mark { slices: parse_range(range)?, start: start.parse().ok()? })
    }
}

fn parse_range(text: &str) -> Option<RangeInclusive<u16>> {
    let (first, last) = text.split_once('-')?;
    Some(first.parse().ok()?..=last.parse().ok()?)
}

/// One start of a range. It is announced before the progress is deleted and confirmed afterwards, so that
/// an instance that starts in between can finish the reset. The stored number is even for a confirmed start.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Start {
    slices: RangeInclusive<u16>,
    number: u64,
    is_confirmed: bool,
}

/// All known starts of a projection.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Starts(Vec<Start>);

impl Starts {
    /// The starts among the rows of a projection.
    pub(crate) fn among(saved: &[Processed]) -> Self {
        let start = |row: &Processed| match ControlRow::of(&row.id)? {
            ControlRow::Start { slices } => {
                let number = row.seq_nr.as_u64();
                Some(Start { slices, number: number.div_ceil(2), is_confirmed: number.is_multiple_of(2) })
            }
            ControlRow::Mark { .. } => None,
        };
        Self(saved.iter().filter_map(start).collect())
    }

    /// The newest start of a slice; 0 if it was never reset.
    pub(crate) fn of_slice(&self, slice: u16) -> u64 {
        self.about(slice).map(|start| start.number).max().unwrap_or(0)
    }

    /// The newest start of any of these slices.
    pub(crate) fn of_range(&self, slices: &RangeInclusive<u16>) -> u64 {
        slices.clone().map(|slice| self.of_slice(slice)).max().unwrap_or(0)
    }

    /// The number for a new start, after all others.
    pub(crate) fn next(&self) -> u64 {
        self.0.iter().map(|start| start.number).max().unwrap_or(0) + 1
    }

    /// Whether a start of some of these slices was announced and never confirmed.
    pub(crate) fn is_unfinished(&self, slices: &RangeInclusive<u16>) -> bool {
        slices.clone().any(|slice| {
            let newest = self.of_slice(slice);
            newest > 0 && !self.about(slice).any(|start| start.is_confirmed && start.number == newest)
        })
    }

    fn about(&self, slice: u16) -> impl Iterator<Item = &Start> {
        self.0.iter().filter(move |start| start.slices.contains(&slice))
    }
}

/// The row that announces a start of these slices.
pub(crate) fn announced(slices: &RangeInclusive<u16>, number: u64, kind: OffsetKind) -> Processed {
    start(slices, number.saturating_mul(2).saturating_sub(1), kind)
}

/// The row that confirms this start: all earlier progress is deleted.
pub(crate) fn confirmed(slices: &RangeInclusive<u16>, number: u64, kind: OffsetKind) -> Processed {
    start(slices, number.saturating_mul(2), kind)
}

fn start(slices: &RangeInclusive<u16>, seq_nr: u64, kind: OffsetKind) -> Processed {
    let id = in_slice(*slices.start(), &format!("!{}-{}", slices.start(), slices.end()));
    debug_assert!(id.as_str().starts_with(START_PREFIX), "stores know it by its beginning");
    let position = match kind {
        OffsetKind::Ordinal => Position::Ordinal(0),
        OffsetKind::Timestamp => Position::Timestamp(Timestamp::default()),
    };
    Processed { id, seq_nr: SeqNr::saturating(seq_nr), position }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_rows_fall_into_the_first_slice_of_their_range_and_parse_back() {
        for slices in [0..=1023, 0..=0, 512..=767, 1023..=1023] {
            for start in [0, 3] {
                let marker = marker(&slices, start);
                let row = ControlRow::Mark { slices: slices.clone(), start };
                assert_eq!((marker.slice(), ControlRow::of(&marker)), (*slices.start(), Some(row)));
            }
            let row = announced(&slices, 1, OffsetKind::Ordinal);
            assert!(row.is_mark() && row.is_start());
            assert_eq!(
                (row.id.slice(), ControlRow::of(&row.id)),
                (*slices.start(), Some(ControlRow::Start { slices }))
            );
        }
        assert_eq!(ControlRow::of(&PersistenceId::of("Cart", "0-1023/1").unwrap()), None);
        assert!(
            !Processed { id: marker(&(0..=9), 4), seq_nr: SeqNr::FIRST, position: Position::Ordinal(1) }.is_start()
        );
    }

    #[test]
    fn a_start_is_unfinished_until_confirmed_for_every_slice() {
        let kind = OffsetKind::Ordinal;
        let begun = announced(&(512..=1023), 1, kind);
        let starts = |rows: &[Processed]| Starts::among(rows);
        let one = starts(std::slice::from_ref(&begun));
        assert_eq!((one.of_slice(511), one.of_slice(512), one.of_range(&(0..=1023)), one.next()), (0, 1, 1, 2));
        assert!(one.is_unfinished(&(512..=767)) && one.is_unfinished(&(0..=1023)) && !one.is_unfinished(&(0..=511)));
        let part = starts(&[begun, confirmed(&(512..=767), 1, kind)]);
        assert!(!part.is_unfinished(&(512..=767)) && part.is_unfinished(&(768..=1023)));
        let older = starts(&[announced(&(0..=9), 2, kind), confirmed(&(0..=1023), 1, kind)]);
        assert!(older.is_unfinished(&(0..=9)), "a confirmation of an earlier start is none");
    }
}
