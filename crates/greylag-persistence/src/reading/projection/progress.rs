//! The progress of a projection, and the gap rules: the judgement of the next envelope by that progress.
//!
//! Stores of ordinals show every event once and in order, so there a position is enough. Stores that
//! order by time show events late and twice: each id's numbers are tracked one by one, repeats
//! are dropped, and an event after a gap is left to backtracking, which fills the gap by reading the id. Of durable
//! states only the newest revision exists, so there are no gaps: a later revision is accepted, an earlier
//! one dropped.
//!
//! The position up to which *all* events were processed is saved as one more row of the offset store, a [`marker`] of
//! the range: an id of the projection's own that falls into the range's first slice. Without this row a slice without
//! events would look like one that was never read, and slices could not be divided into other ranges. Marks from before
//! a reset of a slice do not count for that slice.
//! Source: persistence §5 (gap handling at the consumer).

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::time::Duration;

use super::control_rows::{ControlRow, Starts, marker};
use crate::contract::offset::{Offset, Position, Processed};
use crate::contract::query::Shows;
use crate::contract::records::event::{SeqNr, Timestamp};
use crate::contract::records::persistence_id::PersistenceId;
use crate::reading::query::envelope::{Envelope, EventSource};
use crate::reading::query::feed::{after, before};

/// The decision on an envelope.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum GapDecision {
    /// The envelope is the next of its id.
    Accept,
    /// The envelope was processed before.
    Duplicate,
    /// Earlier events are missing; backtracking delivers them, and this envelope again.
    Leave,
    /// These events are next and must be read; the envelope's event is the last of them.
    Fetch { from: SeqNr, to: SeqNr },
    /// The id is not known; the event of this number must be read to decide.
    Look { at: SeqNr },
}

/// Time spans of the gap rules, by the time of the events.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Times {
    /// How long ids are kept.
    pub(crate) remember: Duration,
    /// How far before an offset the first backtracking pass begins; at most `remember`.
    pub(crate) lookback: Duration,
}

/// The progress of one projection.
#[derive(Debug)]
pub(crate) struct Progress {
    shows: Shows,
    slices: RangeInclusive<u16>,
    times: Times,
    marker: PersistenceId,
    ids: BTreeMap<PersistenceId, (SeqNr, Position)>,
    /// For each slice the position up to which all its events were processed when this run began.
    began_at: BTreeMap<u16, Position>,
    /// All events up to here were seen, and processed unless they are in `left`.
    reached: Option<Position>,
    /// For each id the first number and position left to backtracking.
    left: BTreeMap<PersistenceId, (SeqNr, Position)>,
    /// All events up to this time were read a second time, and judged.
    reread_to: Timestamp,
}

impl Progress {
    /// Continues from the saved progress of all slices of the projection, of any earlier owner. Returns
    /// also the offset to read from.
    pub(crate) fn resume(
        shows: Shows,
        slices: RangeInclusive<u16>,
        times: Times,
        saved: Vec<Processed>,
    ) -> (Self, Offset) {
        let starts = Starts::among(&saved);
        let mut began_at: BTreeMap<u16, Position> = BTreeMap::new();
        let mut ids = BTreeMap::new();
        for Processed { id, seq_nr, position } in saved {
            let (about, start) = match ControlRow::of(&id) {
                Some(ControlRow::Start { .. }) => continue,
                Some(ControlRow::Mark { slices, start }) => (slices, Some(start)),
                None => (id.slice()..=id.slice(), None),
            };
            // A mark counts only for slices that were not reset since; a reset cannot remove marks kept under other
            // slices.
            let counts = |slice: &u16| start.is_none_or(|start| starts.of_slice(*slice) <= start);
            // On a store of times only a mark gives a position: an id's own row may lie beyond events that were left,
            // or not reread.
            let tells = start.is_some() || matches!(position, Position::Ordinal(_));
            for slice in about.filter(|slice| tells && slices.contains(slice)).filter(counts) {
                let known = began_at.entry(slice).or_insert(position);
                *known = position.max(*known);
            }
            if start.is_none() && slices.contains(&id.slice()) {
                ids.insert(id, (seq_nr, position));
            }
        }
        // A slice without a known position may hold unprocessed events from the start on.
        let all = slices.clone().all(|slice| began_at.contains_key(&slice));
        let reached = began_at.values().min().copied().filter(|_| all);
        let offset = match reached {
            None => Offset::None,
            Some(Position::Ordinal(ordinal)) => Offset::Ordinal(ordinal),
            Some(Position::Timestamp(timestamp)) => Offset::Timestamp { timestamp, seen: Vec::new() },
        };
        let marker = marker(&slices, starts.of_range(&slices));
        let (left, reread_to) = (BTreeMap::new(), Timestamp::default());
        (Self { shows, slices, times, marker, ids, began_at, reached, left, reread_to }, offset)
    }

    /// Decides on an envelope.
    pub(crate) fn judge(&self, envelope: &Envelope) -> GapDecision {
        if !self.slices.contains(&envelope.id.slice()) {
            return GapDecision::Duplicate;
        }
        match envelope.position {
            Position::Ordinal(_) => {
                let known = self.began_at.get(&envelope.id.slice());
                if known.is_some_and(|known| envelope.position <= *known) {
                    GapDecision::Duplicate
                } else {
                    GapDecision::Accept
                }
            }
            Position::Timestamp(timestamp) => match self.shows {
                Shows::Every => self.judge_timed(envelope, timestamp),
                Shows::Newest => self.judge_newest(envelope, timestamp),
            },
        }
    }

    fn judge_timed(&self, envelope: &Envelope, timestamp: Timestamp) -> GapDecision {
        let (seq_nr, is_live) = (envelope.seq_nr, envelope.source != EventSource::Backtracking);
        let last = match self.ids.get(&envelope.id) {
            Some((last, _)) => *last,
            None if self.is_forgotten(&envelope.id, timestamp) => return GapDecision::Duplicate,
            None if seq_nr <= SeqNr::FIRST => SeqNr::ZERO,
            None => return GapDecision::Look { at: seq_nr.previous() },
        };
        match last.next() {
            _ if seq_nr <= last => GapDecision::Duplicate,
            Some(next) if seq_nr == next && envelope.record.is_some() => GapDecision::Accept,
            Some(from) if seq_nr == from || !is_live => GapDecision::Fetch { from, to: seq_nr },
            _ => GapDecision::Leave,
        }
    }

    /// Decides on an envelope of a store that shows only the newest number: it replaces all earlier ones, so there are
    /// no gaps. A number that was replaced before its record was read comes again as its successor, at a later
    /// position.
    fn judge_newest(&self, envelope: &Envelope, timestamp: Timestamp) -> GapDecision {
        let (id, seq_nr) = (&envelope.id, envelope.seq_nr);
        let last = match self.ids.get(id) {
            Some((last, _)) => *last,
            None if self.is_forgotten(id, timestamp) => return GapDecision::Duplicate,
            None => SeqNr::ZERO,
        };
        match last.next() {
            Some(next) if next <= seq_nr && envelope.record.is_some() => GapDecision::Accept,
            Some(from) if from <= seq_nr => GapDecision::Fetch { from, to: seq_nr },
            _ => GapDecision::Duplicate,
        }
    }

    /// Whether an event of an unknown id is so old that it was processed and forgotten.
    fn is_forgotten(&self, id: &PersistenceId, timestamp: Timestamp) -> bool {
        let began_at = self.began_at.get(&id.slice()).copied();
        matches!(began_at, Some(Position::Timestamp(began_at)) if timestamp < before(began_at, self.times.remember))
    }

    /// Whether an event at this time was processed before the span that is kept, so that its
    /// successor is the next of the id. Source: persistence §5 (first sight of an id).
    pub(crate) fn is_before_retention(&self, id: &PersistenceId, timestamp: Timestamp) -> bool {
        let marked = self.mark(None).map(|mark| mark.position);
        let newest = self.began_at.get(&id.slice()).copied().max(marked);
        matches!(newest, Some(Position::Timestamp(newest)) if timestamp < before(newest, self.times.remember))
    }

    /// Records that the id is processed up to here, or is about to be.
    pub(crate) fn track(&mut self, id: &PersistenceId, seq_nr: SeqNr, position: Position) {
        if matches!(position, Position::Ordinal(_)) {
            return;
        }
        let known = self.ids.entry(id.clone()).or_insert((seq_nr, position));
        if known.0 < seq_nr {
            *known = (seq_nr, position);
        }
    }

    /// Records that the envelope is left to backtracking, since events before it are missing.
    pub(crate) fn leave(&mut self, envelope: &Envelope) {
        let place = (envelope.seq_nr, envelope.position);
        let first = self.left.entry(envelope.id.clone()).or_insert(place);
        *first = place.min(*first);
    }

    /// Records that all events up to this position are processed.
    pub(crate) fn reach(&mut self, position: Position) {
        self.reached = self.reached.max(Some(position));
        let ids = &self.ids;
        self.left.retain(|id, (seq_nr, _)| ids.get(id).is_none_or(|(last, _)| last < seq_nr));
    }

    /// Records that all events before this time were read a second time, and judged.
    pub(crate) fn reread(&mut self, to: Timestamp) {
        self.reread_to = to;
    }

    /// The mark to save. An instance that resumes from it reads on before every event that was left, and goes
    /// back over all events that were not read a second time.
    pub(crate) fn mark(&self, reached: Option<Position>) -> Option<Processed> {
        let (number, position) = match self.reached.max(reached)? {
            Position::Ordinal(ordinal) => (ordinal.saturating_add(1), Position::Ordinal(ordinal)),
            Position::Timestamp(reached) => {
                let marked = reached.min(self.first_left()).min(after(self.reread_to, self.times.lookback));
                (marked.as_micros(), Position::Timestamp(marked))
            }
        };
        Some(Processed { id: self.marker.clone(), seq_nr: SeqNr::saturating(number), position })
    }

    /// The time right before the first event that was left.
    fn first_left(&self) -> Timestamp {
        let place = |position: &Position| match position {
            Position::Timestamp(left) => Some(before(*left, Duration::from_micros(1))),
            Position::Ordinal(_) => None,
        };
        let places = self.left.values().filter_map(|(_, position)| place(position));
        places.min().unwrap_or(Timestamp::from_micros(u64::MAX))
    }

    /// Forgets ids that no later page can show; returns the position before which the store may forget too.  Keep ids
    /// for the whole span that a backtracking pass may still read again: without them its events would be handled
    /// twice, and dropping every old event of an unknown id would lose events that were committed late. The mark is at
    /// most `lookback` past the reread part, and `remember` is no less, so a bound of `remember` before the mark is
    /// safe.
    pub(crate) fn forget(&mut self) -> Option<Position> {
        let Some(Position::Timestamp(marked)) = self.mark(None).map(|mark| mark.position) else { return None };
        let bound = Position::Timestamp(before(marked, self.times.remember));
        self.ids.retain(|_, (_, position)| *position >= bound);
        Some(bound)
    }

    /// Number of ids that are kept.
    pub(crate) fn remembered(&self) -> usize {
        self.ids.len()
    }

    /// Number of ids with events left to backtracking.
    pub(crate) fn waiting(&self) -> usize {
        self.left.len()
    }
}

#[cfg(test)]
mod tests;
