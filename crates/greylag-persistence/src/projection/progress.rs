//! What a projection has processed, and what that says of the next envelope: the gap rules.
//!
//! Stores of ordinals show every event once and in order, so there a number is enough. Stores that
//! order by time show events late and twice: each id's numbers are followed one by one, what comes twice
//! is dropped, and what leaves a gap is left to backtracking, which fills it by reading the id. Of durable
//! states only the newest revision is there, so there is nothing to fill: a later one is taken, an earlier
//! one dropped.
//!
//! How far *everything* was processed is kept as one more row of the offset store, a [`marker`] of the
//! range: an id of ours that falls into the range's first slice. Without it nobody could tell a slice that
//! is quiet from one that was never read, and ranges could not be cut anew. Marks from before a reset
//! of a slice say nothing of it.
//! Source: persistence §5 (gap handling at the consumer).

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::time::Duration;

use super::own_rows::{OwnRow, Starts, marker};
use crate::event::{SeqNr, Timestamp};
use crate::offset::{Offset, Position, Processed};
use crate::persistence_id::PersistenceId;
use crate::query::{Envelope, EventSource, Shows, before};

/// What becomes of an envelope.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Judgement {
    /// It is next.
    Accept,
    /// It was processed.
    Duplicate,
    /// Events before it are missing; backtracking brings them, and it.
    Leave,
    /// These are next, it among them.
    Fetch { from: SeqNr, to: SeqNr },
    /// The id is new here; what this number is decides.
    Look { at: SeqNr },
}

/// What one projection has processed.
#[derive(Debug)]
pub(crate) struct Progress {
    shows: Shows,
    slices: RangeInclusive<u16>,
    remember: Duration,
    marker: PersistenceId,
    ids: BTreeMap<PersistenceId, (SeqNr, Position)>,
    /// Up to where everything of a slice was processed when this run began.
    began_at: BTreeMap<u16, Position>,
    /// Everything up to here was seen, and processed unless it was left.
    reached: Option<Position>,
    /// What was left to backtracking: the first place of each id.
    left: BTreeMap<PersistenceId, (SeqNr, Position)>,
}

impl Progress {
    /// Goes on from what was saved, of all slices of the projection, whoever owned them. Answers where
    /// to read on.
    pub(crate) fn resume(
        shows: Shows,
        slices: RangeInclusive<u16>,
        remember: Duration,
        saved: Vec<Processed>,
    ) -> (Self, Offset) {
        let starts = Starts::among(&saved);
        let mut began_at: BTreeMap<u16, Position> = BTreeMap::new();
        let mut ids = BTreeMap::new();
        for Processed { id, seq_nr, position } in saved {
            let (about, start) = match OwnRow::of(&id) {
                Some(OwnRow::Start { .. }) => continue,
                Some(OwnRow::Mark { slices, start }) => (slices, Some(start)),
                None => (id.slice()..=id.slice(), None),
            };
            // A reset removes what is saved of ids, and leaves marks in slices of others.
            let counts = |slice: &u16| start.is_none_or(|start| starts.of_slice(*slice) <= start);
            for slice in about.filter(|slice| slices.contains(slice)).filter(counts) {
                let known = began_at.entry(slice).or_insert(position);
                *known = position.max(*known);
            }
            if start.is_none() && slices.contains(&id.slice()) {
                ids.insert(id, (seq_nr, position));
            }
        }
        // A slice of which nothing is known may hold anything.
        let all = slices.clone().all(|slice| began_at.contains_key(&slice));
        let reached = began_at.values().min().copied().filter(|_| all);
        let offset = match reached {
            None => Offset::None,
            Some(Position::Ordinal(ordinal)) => Offset::Ordinal(ordinal),
            Some(Position::Timestamp(timestamp)) => Offset::Timestamp { timestamp, seen: Vec::new() },
        };
        let marker = marker(&slices, starts.of_range(&slices));
        (Self { shows, slices, remember, marker, ids, began_at, reached, left: BTreeMap::new() }, offset)
    }

    /// What becomes of this envelope.
    pub(crate) fn judge(&self, envelope: &Envelope) -> Judgement {
        if !self.slices.contains(&envelope.id.slice()) {
            return Judgement::Duplicate;
        }
        match envelope.position {
            Position::Ordinal(_) => {
                let known = self.began_at.get(&envelope.id.slice());
                if known.is_some_and(|known| envelope.position <= *known) {
                    Judgement::Duplicate
                } else {
                    Judgement::Accept
                }
            }
            Position::Timestamp(timestamp) => match self.shows {
                Shows::Every => self.judge_timed(envelope, timestamp),
                Shows::Newest => self.judge_newest(envelope, timestamp),
            },
        }
    }

    fn judge_timed(&self, envelope: &Envelope, timestamp: Timestamp) -> Judgement {
        let (seq_nr, is_live) = (envelope.seq_nr, envelope.source != EventSource::Backtracking);
        let last = match self.ids.get(&envelope.id) {
            Some((last, _)) => *last,
            None if self.is_forgotten(&envelope.id, timestamp) => return Judgement::Duplicate,
            None if seq_nr <= SeqNr::FIRST => SeqNr::ZERO,
            None => return Judgement::Look { at: seq_nr.previous() },
        };
        match last.next() {
            _ if seq_nr <= last => Judgement::Duplicate,
            Some(next) if seq_nr == next && envelope.record.is_some() => Judgement::Accept,
            Some(from) if seq_nr == from || !is_live => Judgement::Fetch { from, to: seq_nr },
            _ => Judgement::Leave,
        }
    }

    /// A number stands for all before it, so none is waited for. One that was replaced before its record was
    /// read comes again as its successor, which has a place of its own.
    fn judge_newest(&self, envelope: &Envelope, timestamp: Timestamp) -> Judgement {
        let (id, seq_nr) = (&envelope.id, envelope.seq_nr);
        let is_live = envelope.source != EventSource::Backtracking;
        let last = match self.ids.get(id) {
            Some((last, _)) => *last,
            None if self.is_forgotten(id, timestamp) => return Judgement::Duplicate,
            // Forgotten since this run began; no commit is so late.
            None if !is_live && self.is_before_memory(id, timestamp) => return Judgement::Duplicate,
            None => SeqNr::ZERO,
        };
        match last.next() {
            Some(next) if next <= seq_nr && envelope.record.is_some() => Judgement::Accept,
            Some(from) if from <= seq_nr => Judgement::Fetch { from, to: seq_nr },
            _ => Judgement::Duplicate,
        }
    }

    /// Whether an event of an id that is not remembered is so old that it was processed.
    fn is_forgotten(&self, id: &PersistenceId, timestamp: Timestamp) -> bool {
        let began_at = self.began_at.get(&id.slice()).copied();
        matches!(began_at, Some(Position::Timestamp(began_at)) if timestamp < before(began_at, self.remember))
    }

    /// Whether an event at this time was processed before anything that is remembered, so that what
    /// follows it is next. Source: persistence §5 (first sight of an id).
    pub(crate) fn is_before_memory(&self, id: &PersistenceId, timestamp: Timestamp) -> bool {
        let newest = [self.began_at.get(&id.slice()).copied(), self.reached].into_iter().flatten().max();
        matches!(newest, Some(Position::Timestamp(newest)) if timestamp < before(newest, self.remember))
    }

    /// The id is processed up to here, or is about to be.
    pub(crate) fn track(&mut self, id: &PersistenceId, seq_nr: SeqNr, position: Position) {
        if matches!(position, Position::Ordinal(_)) {
            return;
        }
        let known = self.ids.entry(id.clone()).or_insert((seq_nr, position));
        if known.0 < seq_nr {
            *known = (seq_nr, position);
        }
    }

    /// The envelope waits for those before it.
    pub(crate) fn leave(&mut self, envelope: &Envelope) {
        let place = (envelope.seq_nr, envelope.position);
        let first = self.left.entry(envelope.id.clone()).or_insert(place);
        *first = place.min(*first);
    }

    /// All up to this place is done.
    pub(crate) fn reach(&mut self, position: Position) {
        self.reached = self.reached.max(Some(position));
        let ids = &self.ids;
        self.left.retain(|id, (seq_nr, _)| ids.get(id).is_none_or(|(last, _)| last < seq_nr));
    }

    /// Where to read on if it ended here, as a row to save: not past anything that was left.
    pub(crate) fn mark(&self, reached: Option<Position>) -> Option<Processed> {
        let reached = self.reached.max(reached)?;
        let first_left = self.left.values().map(|(_, position)| *position).min();
        let position = match (reached, first_left) {
            (Position::Timestamp(_), Some(Position::Timestamp(left))) => {
                reached.min(Position::Timestamp(Timestamp::from_micros(left.as_micros().saturating_sub(1))))
            }
            _ => reached,
        };
        let number = match position {
            Position::Ordinal(ordinal) => ordinal.saturating_add(1),
            Position::Timestamp(timestamp) => timestamp.as_micros(),
        };
        Some(Processed { id: self.marker.clone(), seq_nr: SeqNr::saturating(number), position })
    }

    /// Forgets ids that nobody will ask for; answers before which place the store may do the same.
    pub(crate) fn forget(&mut self) -> Option<Position> {
        let Some(Position::Timestamp(reached)) = self.mark(None).map(|mark| mark.position) else { return None };
        let bound = Position::Timestamp(before(reached, self.remember));
        self.ids.retain(|_, (_, position)| *position >= bound);
        Some(bound)
    }

    /// Ids that are remembered.
    pub(crate) fn remembered(&self) -> usize {
        self.ids.len()
    }

    /// Ids that wait for backtracking.
    pub(crate) fn waiting(&self) -> usize {
        self.left.len()
    }
}

#[cfg(test)]
mod tests;
