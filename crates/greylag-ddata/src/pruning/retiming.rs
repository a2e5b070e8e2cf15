//! Times of markers and tombstones that have to be set anew in all entries, some entries at a time. Source: ddata Z2, Z9.

use std::time::Instant;

use greylag_crdt::Markers;

use crate::key::KeyId;

/// What was performed after `since` counts as performed at `now_ms`, and lives for `life_ms` from then on: perhaps no
/// member has heard of it. Source: ddata Z9.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Renewal {
    pub(crate) since: i64,
    pub(crate) now_ms: i64,
    pub(crate) life_ms: i64,
}

impl Renewal {
    /// Sets the times of these markers anew; returns whether one has changed.
    pub(crate) fn apply(&self, markers: &mut Markers) -> bool {
        let end = self.now_ms.saturating_add(self.life_ms);
        let mut renewed = Markers::new();
        for marker in markers.iter() {
            let mut marker = marker.clone();
            if marker.performed_at > self.since {
                marker.performed_at = marker.performed_at.max(self.now_ms);
                marker.obsolete_at = marker.obsolete_at.map(|obsolete_at| obsolete_at.max(end));
            }
            renewed.add(&marker);
        }
        let before = std::mem::replace(markers, renewed);
        *markers != before
    }
}

/// Why times are set anew.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Retiming {
    /// The wall clock went back: times that lie ahead of it count from now.
    Bound,
    /// The gate has opened: what was performed after `since` counts as performed at `now_ms`.
    Renew { since: i64, now_ms: i64 },
}

/// What a step goes through.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Stretch {
    /// Entries with markers that end, in the order of their ends, after this one.
    Markers { after: Option<(i64, KeyId)> },
    /// All entries, in the order of their ids, after this one; tombstones are among them.
    Tombstones { after: Option<KeyId> },
}

/// All that is still to be set anew.
#[derive(Debug, Default)]
pub(crate) struct Retimings {
    /// In the order in which it is done.
    waiting: Vec<(Retiming, Stretch)>,
    /// When the next step is due.
    at: Option<Instant>,
}

impl Retimings {
    /// Adds one, which goes through all entries from the beginning.
    pub(crate) fn add(&mut self, now: Instant, retiming: Retiming) {
        self.waiting.retain(|(waiting, _)| *waiting != retiming);
        self.waiting.push((retiming, Stretch::Markers { after: None }));
        self.at = Some(now);
    }

    /// Takes the step that is due: the change of times and the stretch of entries that it goes through.
    pub(crate) fn take_due(&mut self, now: Instant) -> Option<(Retiming, Stretch)> {
        self.at.take_if(|at| *at <= now)?;
        (!self.waiting.is_empty()).then(|| self.waiting.remove(0))
    }

    /// A step was done. `rest` is what is left of its retiming, and `next` when the next step is due.
    pub(crate) fn put_back(&mut self, retiming: Retiming, rest: Option<Stretch>, next: Instant) {
        if let Some(rest) = rest {
            self.waiting.insert(0, (retiming, rest));
        }
        self.at = (!self.waiting.is_empty()).then_some(next);
    }

    /// Whether markers wait to be renewed: until they are, none may be forgotten.
    pub(crate) fn has_to_renew(&self) -> bool {
        self.renewal().is_some()
    }

    /// Since when what was performed waits to be renewed, and when it then counts as performed.
    pub(crate) fn renewal(&self) -> Option<(i64, i64)> {
        let renewals = self.waiting.iter().filter_map(|(retiming, _)| match retiming {
            Retiming::Renew { since, now_ms } => Some((*since, *now_ms)),
            Retiming::Bound => None,
        });
        renewals.min()
    }

    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.at
    }
}
