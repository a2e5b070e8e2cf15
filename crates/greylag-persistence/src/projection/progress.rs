//! What a projection has processed, and what that says of the next envelope: the gap rules.
//!
//! Stores of ordinals show every event once and in order, so there a number is enough. Stores that
//! order by time show events late and twice: each id's numbers are followed one by one, what comes twice
//! is dropped, and what leaves a gap is left to backtracking, which fills it by reading the id. Of durable
//! states only the newest revision is there, so there is nothing to fill: a later one is taken, an earlier
//! one dropped.
//!
//! How far *everything* was processed is kept as one more row of the offset store, a [`marker`] of the
//! range: an id of ours that falls into the range's first slice. Without this row a slice that is quiet
//! could not be told from one that was never read, and ranges could not be cut anew. Marks from before
//! a reset of a slice do not count for that slice.
//! Source: persistence §5 (gap handling at the consumer).

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::time::Duration;

use super::own_rows::{OwnRow, Starts, marker};
use crate::event::{SeqNr, Timestamp};
use crate::offset::{Offset, Position, Processed};
use crate::persistence_id::PersistenceId;
use crate::query::{Envelope, EventSource, Shows, after, before};

/// What becomes of an envelope.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Judgement {
    /// The envelope is next.
    Accept,
    /// The envelope was processed.
    Duplicate,
    /// Events before it are missing; backtracking brings them, and it.
    Leave,
    /// These events are next, the envelope's among them.
    Fetch { from: SeqNr, to: SeqNr },
    /// The id is new here; what this number is decides.
    Look { at: SeqNr },
}

/// How far back things matter, by the time of the events.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Times {
    /// How long ids are remembered.
    pub(crate) remember: Duration,
    /// How far before an offset the first pass backwards begins; at most `remember`.
    pub(crate) lookback: Duration,
}

/// What one projection has processed.
#[derive(Debug)]
pub(crate) struct Progress {
    shows: Shows,
    slices: RangeInclusive<u16>,
    times: Times,
    marker: PersistenceId,
    ids: BTreeMap<PersistenceId, (SeqNr, Position)>,
    /// Up to where everything of a slice was processed when this run began.
    began_at: BTreeMap<u16, Position>,
    /// Everything up to here was seen, and processed unless it was left.
    reached: Option<Position>,
    /// The envelopes left to backtracking: of each id the first number and place.
    left: BTreeMap<PersistenceId, (SeqNr, Position)>,
    /// Up to here everything was read a second time, and judged.
    reread_to: Timestamp,
}

impl Progress {
    /// Goes on from what was saved, of all slices of the projection, under any earlier owner. Answers
    /// where to read on.
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
            let (about, start) = match OwnRow::of(&id) {
                Some(OwnRow::Start { .. }) => continue,
                Some(OwnRow::Mark { slices, start }) => (slices, Some(start)),
                None => (id.slice()..=id.slice(), None),
            };
            // A reset removes what is saved of ids, and leaves marks in slices of others.
            let counts = |slice: &u16| start.is_none_or(|start| starts.of_slice(*slice) <= start);
            // On a store of times only a mark tells: an id's own row may lie beyond events that were left, or not read
            // again.
            let tells = start.is_some() || matches!(position, Position::Ordinal(_));
            for slice in about.filter(|slice| tells && slices.contains(slice)).filter(counts) {
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
        let (left, reread_to) = (BTreeMap::new(), Timestamp::default());
        (Self { shows, slices, times, marker, ids, began_at, reached, left, reread_to }, offset)
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
        let last = match self.ids.get(id) {
            Some((last, _)) => *last,
            None if self.is_forgotten(id, timestamp) => return Judgement::Duplicate,
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
        matches!(began_at, Some(Position::Timestamp(began_at)) if timestamp < before(began_at, self.times.remember))
    }

    /// Whether an event at this time was processed before anything that is remembered, so that what
    /// follows it is next. Source: persistence §5 (first sight of an id).
    pub(crate) fn is_before_memory(&self, id: &PersistenceId, timestamp: Timestamp) -> bool {
        let marked = self.mark(None).map(|mark| mark.position);
        let newest = self.began_at.get(&id.slice()).copied().max(marked);
        matches!(newest, Some(Position::Timestamp(newest)) if timestamp < before(newest, self.times.remember))
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

    /// Everything before this was read a second time, and judged.
    pub(crate) fn reread(&mut self, to: Timestamp) {
        self.reread_to = to;
    }

    /// The row to save so that an instance that resumes from it reads on at the right place: not past anything
    /// that was left, and back over everything that was not read a second time.
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

    /// Right before the first that was left.
    fn first_left(&self) -> Timestamp {
        let place = |position: &Position| match position {
            Position::Timestamp(left) => Some(before(*left, Duration::from_micros(1))),
            Position::Ordinal(_) => None,
        };
        let places = self.left.values().filter_map(|(_, position)| place(position));
        places.min().unwrap_or(Timestamp::from_micros(u64::MAX))
    }

    /// Forgets ids that no later page can show; answers before which place the store may do the same.
    ///
    /// An event that will be read a second time has to be known until then, or it would be handled again; and dropping
    /// every event that is old and unknown would drop those that were committed late. So nothing is forgotten that a
    /// pass backwards may still meet, however far a page went: the mark is at most `lookback` past what was read again,
    /// and `remember` is no less.
    pub(crate) fn forget(&mut self) -> Option<Position> {
        let Some(Position::Timestamp(marked)) = self.mark(None).map(|mark| mark.position) else { return None };
        let bound = Position::Timestamp(before(marked, self.times.remember));
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
