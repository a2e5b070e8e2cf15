//! What a handler has seen, and whether it may see this now.

use std::collections::BTreeMap;

use greylag_persistence::{Envelope, Guarantee, PersistenceId, Processed, SeqNr, Shows};

pub(crate) struct Seen {
    guarantee: Guarantee,
    shows: Shows,
    /// Of each id the last number whose handling counts: what follows is next.
    counted: BTreeMap<PersistenceId, SeqNr>,
    /// Of each id the highest number ever, since the last reset.
    pub(crate) highest: BTreeMap<PersistenceId, SeqNr>,
}

impl Seen {
    pub(crate) fn new(guarantee: Guarantee, shows: Shows) -> Self {
        Self { guarantee, shows, counted: BTreeMap::new(), highest: BTreeMap::new() }
    }

    /// A run begins with these rows: at least once means that what was not saved is seen again. Where handling and
    /// saving are one step nothing is.
    pub(crate) fn resume<'a>(&mut self, saved: impl Iterator<Item = &'a Processed>) {
        if self.guarantee == Guarantee::AtLeastOnce {
            self.counted = saved.map(|row| (row.id.clone(), row.seq_nr)).collect();
        }
    }

    /// Forgets what was seen, since a projection that starts over sees everything again.
    pub(crate) fn reset(&mut self) {
        self.counted.clear();
        self.highest.clear();
    }

    /// Sees these. They count unless the projection is told that it failed, and hands them over again.
    pub(crate) fn see(&mut self, envelopes: &[Envelope], counts: bool) {
        let mut next = self.counted.clone();
        for Envelope { id, seq_nr, .. } in envelopes {
            let last = next.insert(id.clone(), *seq_nr).unwrap_or(SeqNr::ZERO);
            let highest = self.highest.entry(id.clone()).or_insert(SeqNr::ZERO);
            let is_next = match self.shows {
                Shows::Every => last.next() == Some(*seq_nr),
                // What was replaced is not there any more, so it does not come again either.
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
