//! Joins stored entries when the replicator starts. Source: ddata U4, U5, Z9.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use bytes::Bytes;
use greylag_crdt::Markers;

use super::{Data, Entries, Entry, EntryContent, Merged, Rules};
use crate::bounds::Bounds;
use crate::key::KeyId;
use crate::pruning::Renewal;
use crate::store::LoadedRecord;

/// Why a stored record was not joined.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum LoadProblem {
    /// The record is damaged or cannot be joined.
    Unreadable(String),
    /// No type is registered for this tag.
    UnknownType(Arc<str>),
}

impl Entries {
    /// Joins a stored record, wholly or not at all.
    pub(crate) fn load(&mut self, rules: &Rules<'_>, record: &LoadedRecord) -> Result<(), LoadProblem> {
        let (key, tag, bytes, markers, deltas) = match record {
            LoadedRecord::Bad { why, .. } => return Err(LoadProblem::Unreadable(why.clone())),
            LoadedRecord::Tombstone { key, deleted_at } => {
                if self.merge_tombstone(key, *deleted_at) == Merged::Expired {
                    // The tombstone has expired meanwhile: remove it from the store, too.
                    self.storing.changed(key, None);
                }
                return Ok(());
            }
            LoadedRecord::Value { key, tag, bytes, markers, deltas } => (key, tag, bytes, markers, deltas),
        };
        let unreadable = |why: &dyn std::fmt::Display| LoadProblem::Unreadable(why.to_string());
        let found = rules.types.find(tag).ok_or_else(|| LoadProblem::UnknownType(tag.clone()))?;
        let mut stored = found.decode(bytes).map_err(|error| unreadable(&error))?;
        for delta in deltas {
            found
                .merge_delta(&mut *stored, delta, markers)
                .map_err(|error| LoadProblem::Unreadable(format!("a delta cannot be joined: {error:?}")))?;
        }
        if !matches!(self.get(key).map(|entry| &entry.data), Some(Data::Tombstone { .. })) {
            self.join_stored(key, &**found, &*stored, markers).map_err(|why| unreadable(&why))?;
        }
        self.storing.loaded(key, bytes.len(), deltas.iter().map(Bytes::len).sum());
        Ok(())
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
}
