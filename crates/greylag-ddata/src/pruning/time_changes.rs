//! Changes the times of markers and tombstones in all entries, some entries at a time. Source: ddata Z2, Z9.

use std::time::Instant;

use greylag_crdt::Markers;

use crate::api::key::KeyId;

/// Makes markers performed after `since` count as performed at `now_ms`, with `life_ms` from then on: perhaps no member
/// has heard of them. Source: ddata Z9.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Renewal {
    pub(crate) since: i64,
    pub(crate) now_ms: i64,
    pub(crate) life_ms: i64,
}

impl Renewal {
    /// Renews the times of these markers. Returns whether any has changed.
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

/// A change of times.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TimeChange {
    /// The wall clock went back: times that lie ahead of it become now.
    Bound,
    /// The gate has opened: markers performed after `since` count as performed at `now_ms`.
    Renew { since: i64, now_ms: i64 },
}

/// The entries that are left for a change.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum RemainingEntries {
    /// Entries with markers that end, ordered by these ends, after `after`; then the tombstones.
    Markers { after: Option<(i64, KeyId)> },
    /// All entries, ordered by id, after `after`; the tombstones among them change.
    Tombstones { after: Option<KeyId> },
}

/// The changes that are not finished.
#[derive(Debug, Default)]
pub(crate) struct TimeChanges {
    /// The changes, the next one first.
    waiting: Vec<(TimeChange, RemainingEntries)>,
    /// When the next step is due.
    at: Option<Instant>,
}

impl TimeChanges {
    /// Adds a change, which goes through all entries from the beginning.
    pub(crate) fn add(&mut self, now: Instant, change: TimeChange) {
        self.waiting.retain(|(waiting, _)| *waiting != change);
        self.waiting.push((change, RemainingEntries::Markers { after: None }));
        self.at = Some(now);
    }

    /// Takes the step that is due: the change, and the entries that are left for it.
    pub(crate) fn take_due(&mut self, now: Instant) -> Option<(TimeChange, RemainingEntries)> {
        self.at.take_if(|at| *at <= now)?;
        (!self.waiting.is_empty()).then(|| self.waiting.remove(0))
    }

    /// Puts back a change after a step: `rest` are the entries left, `next` is when the next step is due.
    pub(crate) fn put_back(&mut self, change: TimeChange, rest: Option<RemainingEntries>, next: Instant) {
        if let Some(rest) = rest {
            self.waiting.insert(0, (change, rest));
        }
        self.at = (!self.waiting.is_empty()).then_some(next);
    }

    /// Whether markers wait to be renewed: until then none may be forgotten.
    pub(crate) fn has_to_renew(&self) -> bool {
        self.renewal().is_some()
    }

    /// The `since` and `now_ms` of a renewal that is not finished.
    pub(crate) fn renewal(&self) -> Option<(i64, i64)> {
        let renewals = self.waiting.iter().filter_map(|(change, _)| match change {
            TimeChange::Renew { since, now_ms } => Some((*since, *now_ms)),
            TimeChange::Bound => None,
        });
        renewals.min()
    }

    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.at
    }
}
