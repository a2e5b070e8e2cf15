//! Times of markers and tombstones that have to be set anew in all entries, some entries at a time. Source: ddata Z2, Z9.

use std::time::Instant;

use crate::key::KeyId;

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
        self.waiting.iter().any(|(retiming, _)| matches!(retiming, Retiming::Renew { .. }))
    }

    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.at
    }
}
