//! The events that a handler has got, and the check of the next one.

use std::collections::BTreeMap;

use greylag_persistence::{Envelope, Guarantee, PersistenceId, Processed, SeqNr, Shows};

pub(crate) struct Seen {
    guarantee: Guarantee,
    shows: Shows,
    /// For each id the last number whose handling counts; its successor is next.
    counted: BTreeMap<PersistenceId, SeqNr>,
    /// For each id the highest number ever, since the last reset.
    pub(crate) highest: BTreeMap<PersistenceId, SeqNr>,
}

impl Seen {
    pub(crate) fn new(guarantee: Guarantee, shows: Shows) -> Self {
        Self { guarantee, shows, counted: BTreeMap::new(), highest: BTreeMap::new() }
    }

    /// Begins a run with these saved rows. At-least-once: events that were not saved come again. Exactly-once,
    /// where handling and saving are one step: none does.
    pub(crate) fn resume<'a>(&mut self, saved: impl Iterator<Item = &'a Processed>) {
        if self.guarantee == Guarantee::AtLeastOnce {
            self.counted = saved.map(|row| (row.id.clone(), row.seq_nr)).collect();
        }
    }

    /// Starts over: all events come again.
    pub(crate) fn reset(&mut self) {
        self.counted.clear();
        self.highest.clear();
    }

    /// Checks these envelopes. They count unless the handler fails; then they come again.
    pub(crate) fn see(&mut self, envelopes: &[Envelope], counts: bool) {
        let mut next = self.counted.clone();
        for Envelope { id, seq_nr, .. } in envelopes {
            let last = next.insert(id.clone(), *seq_nr).unwrap_or(SeqNr::ZERO);
            let highest = self.highest.entry(id.clone()).or_insert(SeqNr::ZERO);
            let is_next = match self.shows {
                Shows::Every => last.next() == Some(*seq_nr),
                // A replaced revision no longer exists, so it does not come again either.
                Shows::Newest => last < *seq_nr && *highest <= *seq_nr,
            };
            assert!(is_next, "{id}: {seq_nr} after {last}, and {highest} was seen ({:?})", self.guarantee);
            *highest = (*highest).max(*seq_nr);
        }
        if counts {
            self.counted = next;
        }
    }
}
