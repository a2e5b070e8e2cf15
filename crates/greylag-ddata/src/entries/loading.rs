//! Joining what a store held when the replicator started. Source: ddata U4, U5, Z9.

use std::sync::Arc;

use bytes::Bytes;

use super::{Data, Entries, Filled, Merged, Rules};
use crate::store::LoadedRecord;

/// Why a stored record was not joined.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum LoadProblem {
    /// It is damaged, or nothing that can be joined.
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
                    // Its time was over meanwhile: it goes from the store, too.
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

    /// Moves the end of every marker on. What is stored is to be like that too.
    pub(crate) fn prolong_markers(&mut self, by: i64) {
        for key in self.index.ended(i64::MAX) {
            let Some(entry) = self.get(&key) else { continue };
            let Some(value) = entry.value() else { continue };
            let mut markers = entry.markers().clone();
            markers.prolong(by);
            let (data, versions) = (Data::Value(value.boxed_clone()), entry.versions.to_map());
            let (size_bound, born) = (entry.size_bound, entry.born());
            self.set(&key, Filled { data, versions, markers, size_bound, born, used_ms: None });
        }
    }
}
