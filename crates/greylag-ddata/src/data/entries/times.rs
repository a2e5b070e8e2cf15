//! The times of entries: tracks when they were last used, removes expired ones without a trace, and changes the times
//! of markers and tombstones. Source: ddata E1, E2, R5, Z9.

use std::collections::BTreeMap;
use std::ops::Bound;

use greylag_crdt::Markers;

use super::{Data, Entries, Entry, EntryContent, RemovedEntry};
use crate::api::key::KeyId;
use crate::data::expiry::{Dates, Lifetimes, NEVER, later};
use crate::messages::bounds::Bounds;
use crate::pruning::Renewal;

impl Data {
    /// The dates of data that are set now; `None` if they do not expire. `was` are the former dates of the entry.
    pub(super) fn dates(
        &self,
        lifetimes: &Lifetimes,
        now_ms: i64,
        key: &str,
        was: Option<Dates>,
        used_ms: Option<i64>,
    ) -> Option<Dates> {
        let (used_ms, told_ms, deadline_ms) = match self {
            Self::Tombstone { deleted_at } => (*deleted_at, *deleted_at, lifetimes.of_tombstone(key, *deleted_at)),
            Self::Value(_) => {
                let lifetime = lifetimes.of(key)?;
                let known = used_ms.max(was.map(|was| was.used_ms)).unwrap_or(now_ms);
                (known, was.map_or(known, |was| was.told_ms), later(known, lifetime))
            }
        };
        // Keep the place in the index: an entry that is used often is moved only when its turn comes.
        let indexed_ms = was.map_or(NEVER, |was| was.indexed_ms).min(deadline_ms);
        (deadline_ms != NEVER).then_some(Dates { used_ms, told_ms, deadline_ms, indexed_ms })
    }
}

impl Entries {
    /// The wall clock that was set last.
    pub(crate) fn now_ms(&self) -> i64 {
        self.now_ms
    }

    /// Sets the wall clock.
    pub(crate) fn set_now(&mut self, now_ms: i64) {
        self.now_ms = now_ms;
    }

    /// Removes an entry without a trace, and notifies its subscribers and its store. The caller removes its records
    /// from the delta log.
    pub(crate) fn forget(&mut self, key: &KeyId) {
        let Some(entry) = self.tree.remove(key) else { return };
        self.order.remove(key);
        self.storing.changed(key, None);
        self.index.update(key, Some(entry.named()), None);
        self.deadlines.update(key, entry.indexed_ms(), NEVER);
        self.totals.forget(&entry);
        self.dirty.insert(key.clone());
    }

    /// Whether an entry is past its deadline and not yet removed.
    pub(crate) fn is_overdue(&self, key: &str) -> bool {
        self.deadlines.next().is_some_and(|next| next <= self.now_ms)
            && self.tree.find(key).is_some_and(|entry| entry.deadline_ms() <= self.now_ms)
    }

    /// Removes at most `limit` entries that are past their deadline.
    pub(crate) fn expire(&mut self, limit: usize) -> Vec<RemovedEntry> {
        let mut gone = Vec::new();
        for _ in 0..limit {
            let Some(key) = self.deadlines.due(self.now_ms) else { break };
            let Some(entry) = self.tree.find_mut(&key) else { break };
            let Some(dates) = entry.dates() else { break };
            if dates.deadline_ms > self.now_ms {
                entry.set_dates(Some(Dates { indexed_ms: dates.deadline_ms, ..dates }));
                self.deadlines.update(&key, dates.indexed_ms, dates.deadline_ms);
                continue;
            }
            gone.extend(self.forget_overdue(&key));
        }
        gone
    }

    /// Removes an entry if it is past its deadline.
    pub(crate) fn forget_overdue(&mut self, key: &KeyId) -> Option<RemovedEntry> {
        self.deadlines.next()?;
        let entry = self.tree.find(key).filter(|entry| entry.deadline_ms() <= self.now_ms)?;
        let aged = match entry.data {
            Data::Tombstone { deleted_at } if self.lifetimes.is_dropped_by_age(key) => Some(deleted_at),
            _ => None,
        };
        self.forget(key);
        Some(RemovedEntry { key: key.clone(), aged })
    }

    /// When the next entry may be past its deadline.
    pub(crate) fn next_deadline_ms(&self) -> Option<i64> {
        self.deadlines.next()
    }

    /// Whether data arrive for an absent entry that have expired already. Source: ddata E2.
    pub(super) fn is_too_late(&self, key: &str, used_ms: Option<i64>) -> bool {
        self.get(key).is_none() && used_ms.is_some_and(|used_ms| self.lifetimes.of_value(key, used_ms) <= self.now_ms)
    }

    /// When an entry was last used; `None` if it does not expire, is absent, or is a tombstone.
    pub(crate) fn used_ms(&self, key: &str) -> Option<i64> {
        self.deadlines.next()?;
        self.get(key).and_then(Entry::used)
    }

    /// Notes that an entry is used now. Returns whether all peers must be told, which then counts as done: only if a
    /// tenth of the lifetime has passed since they were told last. Source: ddata E2.
    pub(crate) fn touch(&mut self, key: &str) -> bool {
        let (now_ms, mut matters) = (self.now_ms, false);
        self.use_at(key, now_ms, |dates| {
            let lifetime = dates.deadline_ms.saturating_sub(dates.used_ms);
            matters = dates.used_ms.saturating_sub(dates.told_ms).saturating_mul(10) >= lifetime;
            if matters {
                dates.told_ms = dates.used_ms;
            }
        });
        matters
    }

    /// Notes that an update of an entry is logged, which tells all peers when it was used. Returns that time.
    pub(crate) fn note_update(&mut self, key: &str) -> Option<i64> {
        self.deadlines.next()?;
        let entry = self.tree.find_mut(key)?;
        let dates = entry.dates()?;
        entry.set_dates(Some(Dates { told_ms: dates.used_ms, ..dates }));
        entry.used()
    }

    /// Notes when an entry was last used, as a peer said.
    pub(crate) fn note_used(&mut self, key: &str, used_ms: i64) {
        self.use_at(key, used_ms, |_| {});
    }

    /// As `note_used`, for a use that the peer told all others too.
    pub(crate) fn note_told(&mut self, key: &str, used_ms: i64) {
        self.use_at(key, used_ms, |dates| dates.told_ms = dates.told_ms.max(used_ms));
    }

    /// Moves on the deadline of a value that was used at `used_ms`; `then` changes its other dates.
    fn use_at(&mut self, key: &str, used_ms: i64, then: impl FnOnce(&mut Dates)) {
        if self.deadlines.next().is_none() {
            return;
        }
        let now_ms = self.now_ms;
        let Some(entry) = self.tree.find_mut(key).filter(|entry| entry.value().is_some()) else { return };
        let Some(mut dates) = entry.dates().filter(|dates| dates.deadline_ms > now_ms) else { return };
        let lifetime = dates.deadline_ms.saturating_sub(dates.used_ms);
        dates.used_ms = dates.used_ms.max(used_ms);
        dates.deadline_ms = later(dates.used_ms, lifetime);
        then(&mut dates);
        entry.set_dates(Some(dates));
    }

    /// Moves the end of every marker on by `by` milliseconds, and has the entries stored again.
    pub(crate) fn prolong_markers(&mut self, by: i64) {
        for key in self.index.ended(i64::MAX) {
            self.change_markers(&key, |markers| {
                markers.prolong(by);
                true
            });
        }
    }

    /// Renews the times of an entry's markers.
    pub(crate) fn renew_markers(&mut self, key: &KeyId, renewal: &Renewal) {
        self.change_markers(key, |markers| renewal.apply(markers));
    }

    /// Sets the times of an entry's markers that lie ahead of the wall clock to now: the clock went back. Source: ddata
    /// Z9.
    pub(crate) fn bound_markers(&mut self, key: &KeyId, bounds: &Bounds) {
        self.change_markers(key, |markers| bounds.markers(markers).is_some());
    }

    /// As [`Self::bound_markers`], for the deletion time of a tombstone.
    pub(crate) fn bound_tombstone(&mut self, key: &KeyId, bounds: &Bounds) {
        let Some(Entry { data: Data::Tombstone { deleted_at }, .. }) = self.get(key) else { return };
        if !bounds.allow(*deleted_at) {
            let (data, markers) = (Data::Tombstone { deleted_at: bounds.now_ms }, Markers::new());
            let versions = BTreeMap::new();
            self.set(key, EntryContent { data, versions, markers, size_bound: 16, born: 0, used_ms: None });
        }
    }

    /// The ids after `after`, at most `limit`.
    pub(crate) fn ids_after(&self, after: Option<&KeyId>, limit: usize) -> Vec<KeyId> {
        let from = after.map_or(Bound::Unbounded, |after| Bound::Excluded(&**after));
        self.order.range::<str, _>((from, Bound::Unbounded)).take(limit).cloned().collect()
    }

    /// Changes the markers of an entry; `change` returns whether it changed anything.
    fn change_markers(&mut self, key: &KeyId, change: impl FnOnce(&mut Markers) -> bool) {
        let Some(entry) = self.get(key) else { return };
        let Some(value) = entry.value() else { return };
        let mut markers = entry.markers().clone();
        if !change(&mut markers) {
            return;
        }
        let (data, versions) = (Data::Value(value.boxed_clone()), entry.versions.to_map());
        let (size_bound, born) = (entry.size_bound, entry.born());
        self.set(key, EntryContent { data, versions, markers, size_bound, born, used_ms: None });
    }

    /// Checks that the index holds every expiring entry, at its deadline or before, and nothing else. Source: ddata O5.
    pub(super) fn check_deadlines(&self) {
        let mut expiring = 0;
        for (key, dates) in self.tree.iter().filter_map(|entry| Some((entry.key(), entry.dates()?))) {
            assert!(dates.indexed_ms <= dates.deadline_ms, "{key}: it is looked at when its time has come");
            assert!(self.deadlines.contains(key, dates.indexed_ms), "{key}: every expiring entry is indexed");
            expiring += 1;
        }
        assert_eq!(expiring, self.deadlines.len(), "nothing else is indexed");
    }
}
