//! Joins states and deltas of peers into entries, and drafts of large values that were received in parts, and stored
//! records when the replicator starts.
//!
//! Markers come first: both sides are renamed by the same markers before they are joined, and a delta that was made
//! with a marker that is missing here is refused, so that the full state comes instead. Source: ddata Z7, G12, U4, U5.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use greylag_core::UniqueAddress;
use greylag_crdt::{Digest, Home, Markers, MergeError, Performed, RemovedNodePruning, ReplicaId};

use super::{Data, Entries, Entry, EntryContent, Merged};
use crate::api::key::{KeyId, problem};
use crate::api::settings::ReplicatorSettings;
use crate::api::settings::omissions::{Clause, Omissions};
use crate::data::envelope::{Content, Envelope};
use crate::data::types::{AnyData, AnyType, TypeTable};
use crate::dissemination::repair::{Deferred, Draft, Malformed};
use crate::messages::message::{DeltaItem, Refusal};
use crate::storage::store::LoadedRecord;

/// The rules for merging, beside the entries themselves.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rules<'a> {
    pub(crate) types: &'a TypeTable,
    /// The bound of a received value; larger ones are refused.
    pub(crate) max_bytes: usize,
    /// Markers that ended at this time or before may be forgotten.
    pub(crate) forgets_before: Option<i64>,
    pub(crate) omissions: Omissions,
    /// Whether versions of origins are kept, so that deltas of causal types can be joined.
    pub(crate) keeps_versions: bool,
}

impl<'a> Rules<'a> {
    /// The rules by the settings.
    pub(crate) fn new(types: &'a TypeTable, settings: &ReplicatorSettings, forgets_before: Option<i64>) -> Self {
        let max_bytes = settings.max_entry_bytes.saturating_mul(4);
        Self { types, max_bytes, forgets_before, omissions: settings.omissions, keeps_versions: settings.delta_enabled }
    }

    /// Whether the next tick would drop this marker from an entry that does not name its replica.
    pub(crate) fn may_forget(&self, marker: &Performed) -> bool {
        marker.obsolete_at.zip(self.forgets_before).is_some_and(|(ended, before)| ended <= before)
    }
}

/// Why a stored record was not joined.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum LoadProblem {
    /// The record is damaged or cannot be joined.
    Unreadable(String),
    /// No type is registered for this tag.
    UnknownType(Arc<str>),
}

/// A copy in which a merge is prepared: a merge that is refused half-way leaves the entry unchanged.
struct Prepared {
    home: Home,
    value: Box<dyn AnyData>,
    versions: BTreeMap<ReplicaId, u64>,
    markers: Markers,
    size: usize,
    /// When the entry was used, as the sender told.
    used_ms: Option<i64>,
    /// Whether only pruning changed the value, and it reads as before.
    is_unnoticed: bool,
}

impl Prepared {
    /// Cleans a value with the markers. Returns whether that changed it.
    fn clean(markers: &Markers, value: &mut dyn AnyData) -> bool {
        !markers.is_empty() && value.pruning_mut().is_some_and(|pruning| markers.clean(pruning))
    }
}

impl Entries {
    /// Joins a full state. Source: ddata G6, Z7.
    pub(crate) fn merge_envelope(
        &mut self,
        rules: &Rules<'_>,
        key: &KeyId,
        envelope: &Envelope,
    ) -> Result<Merged, Refusal> {
        let (tag, bytes) = match &envelope.content {
            Content::Tombstone { deleted_at } => return Ok(self.merge_tombstone(key, *deleted_at)),
            Content::Unreadable => return Err(Refusal::Undecodable),
            Content::Value { tag, bytes } => (tag, bytes),
        };
        if let Some(Entry { data: Data::Tombstone { deleted_at }, .. }) = self.get(key) {
            return Ok(Merged::Deleted { deleted_at: *deleted_at });
        }
        if self.is_too_late(key, envelope.used_ms) {
            return Ok(Merged::Expired);
        }
        self.check_tag(key, tag)?;
        if bytes.len() > rules.max_bytes {
            return Err(Refusal::TooLarge);
        }
        let found = rules.types.find(tag).ok_or(Refusal::UnknownType)?;
        let theirs = found.decode(bytes).map_err(|_| Refusal::Undecodable)?;
        self.merge_state(rules, key, &**found, theirs, envelope, bytes.len())
    }

    /// Joins a value of the entry's type, with everything in the envelope except its content.
    pub(super) fn merge_state(
        &mut self,
        rules: &Rules<'_>,
        key: &KeyId,
        found: &dyn AnyType,
        mut theirs: Box<dyn AnyData>,
        envelope: &Envelope,
        size: usize,
    ) -> Result<Merged, Refusal> {
        let mut prepared = self.prepare(key, found);
        let named = theirs.pruning().map(RemovedNodePruning::modified_by).unwrap_or_default();
        let mut told = envelope.markers.clone();
        let is_kept = |marker: &Performed| {
            !rules.may_forget(marker) || self.names(key, marker) || named.contains(&marker.removed)
        };
        let done_without = told.iter().filter(|marker| !is_kept(marker)).map(|marker| marker.performed_at).max();
        told.retain(is_kept);
        prepared.markers.unite(&told);
        let cleaned = Prepared::clean(&prepared.markers, &mut *prepared.value);
        Prepared::clean(&prepared.markers, &mut *theirs);
        let grew = prepared.value.merge(&*theirs).map_err(|_| Refusal::Undecodable)?;
        self.findings.done_without = done_without;
        self.findings.timestamp = theirs.latest_timestamp();
        self.findings.own_version = envelope.versions.get(&self.replica).copied();
        for (origin, version) in &envelope.versions {
            let own = prepared.versions.entry(*origin).or_default();
            *own = (*own).max(*version);
        }
        prepared.size += size;
        prepared.used_ms = envelope.used_ms;
        let before = self.get(key).and_then(|own| Some((own.markers(), own.value()?)));
        prepared.is_unnoticed =
            before.is_some_and(|(markers, before)| !markers.includes(&told) && prepared.value.reads_like(before));
        let changed = cleaned || grew.grew() || self.get(key).is_none();
        self.finish(key, prepared, changed, None);
        Ok(Merged::Done { changed })
    }

    /// Joins a stored value and its markers.
    pub(super) fn join_stored(
        &mut self,
        key: &KeyId,
        found: &dyn AnyType,
        stored: &dyn AnyData,
        markers: &Markers,
    ) -> Result<(), MergeError> {
        let mut prepared = self.prepare(key, found);
        let mut stored = stored.boxed_clone();
        prepared.markers.unite(markers);
        Prepared::clean(&prepared.markers, &mut *prepared.value);
        Prepared::clean(&prepared.markers, &mut *stored);
        prepared.value.merge(&*stored)?;
        prepared.size += stored.size_hint();
        self.finish(key, prepared, true, None);
        Ok(())
    }

    /// Joins deltas of one origin. Source: ddata G5, Z7.
    pub(crate) fn merge_delta(
        &mut self,
        rules: &Rules<'_>,
        origin: ReplicaId,
        item: &DeltaItem,
    ) -> Result<Merged, Refusal> {
        if let Some(Entry { data: Data::Tombstone { deleted_at }, .. }) = self.get(&item.key) {
            return Ok(Merged::Deleted { deleted_at: *deleted_at });
        }
        if self.is_too_late(&item.key, item.used_ms) {
            return Ok(Merged::Expired);
        }
        self.check_tag(&item.key, &item.tag)?;
        let found = rules.types.find(&item.tag).ok_or(Refusal::UnknownType)?;
        let before = self.digest(&item.key);
        let mut prepared = self.prepare(&item.key, &**found);
        let have = prepared.versions.get(&origin).copied().unwrap_or(0);
        // Check markers first: this delta may use names that are unknown here.
        if self.lacks_marker(rules, &**found, item) {
            return Ok(Merged::Gap { have, full: true });
        }
        if prepared.value.is_causal() {
            if !rules.keeps_versions {
                // Without versions it is unknown whether all earlier deltas have arrived. Source: ddata G16.
                return Ok(Merged::Gap { have, full: true });
            }
            if item.version <= have {
                if let Some(used_ms) = item.used_ms {
                    self.note_used(&item.key, used_ms);
                }
                return Ok(Merged::Done { changed: false });
            }
            if item.prev > have && !rules.omissions.has(Clause::Gap) {
                return Ok(Merged::Gap { have, full: false });
            }
            prepared.versions.insert(origin, item.version);
        }
        let (grew, timestamp) = found
            .merge_delta(&mut *prepared.value, &item.delta, &prepared.markers)
            .map_err(|_refused| Refusal::Undecodable)?;
        self.findings.timestamp = timestamp;
        self.findings.own_version = (origin == self.replica).then_some(u64::MAX);
        prepared.size += item.delta.len();
        prepared.used_ms = item.used_ms;
        let changed = grew.grew() || self.get(&item.key).is_none();
        self.finish(&item.key, prepared, changed, Some(&item.delta));
        self.note_delta(&item.key, &item.delta, before);
        Ok(Merged::Done { changed })
    }

    /// Whether the sender's entry had a marker, a range or an amount that is missing here and may not be done without.
    fn lacks_marker(&self, rules: &Rules<'_>, found: &dyn AnyType, item: &DeltaItem) -> bool {
        if item.markers.is_empty() {
            return false;
        }
        let own = self.markers(&item.key);
        item.markers.iter().any(|marker| {
            let mut alone = Markers::new();
            alone.add(marker);
            let needed = || {
                !rules.may_forget(marker) || self.names(&item.key, marker) || found.is_cleaned_by(&item.delta, &alone)
            };
            !own.includes(&alone) && needed()
        })
    }

    fn names(&self, key: &str, marker: &Performed) -> bool {
        self.get(key).is_some_and(|entry| entry.mentions(marker.removed))
    }

    /// Joins a tombstone, which absorbs any value; of two tombstones the later time stays. A tombstone past its age is
    /// ignored, so that it is not learned again from a later clock. Source: ddata R5.
    pub(crate) fn merge_tombstone(&mut self, key: &KeyId, deleted_at: i64) -> Merged {
        if self.lifetimes.of_tombstone(key, deleted_at) <= self.now_ms {
            return Merged::Expired;
        }
        if let Some(Entry { data: Data::Tombstone { deleted_at: own }, .. }) = self.get(key)
            && *own >= deleted_at
        {
            return Merged::Done { changed: false };
        }
        let (versions, markers) = (BTreeMap::new(), Markers::new());
        let (data, used_ms) = (Data::Tombstone { deleted_at }, None);
        self.set(key, EntryContent { data, versions, markers, size_bound: 16, born: 0, used_ms });
        Merged::Done { changed: true }
    }

    /// Drops the markers that may be forgotten, unless the entry still names their replicas. Returns the dropped ones.
    /// Source: ddata Z9.
    pub(crate) fn forget_markers(&mut self, rules: &Rules<'_>, key: &KeyId) -> Vec<Performed> {
        let Some(entry) = self.get(key) else { return Vec::new() };
        let goes = |marker: &Performed| rules.may_forget(marker) && !entry.mentions(marker.removed);
        let gone: Vec<Performed> = entry.markers().iter().filter(|marker| goes(marker)).cloned().collect();
        let Some(value) = entry.value().filter(|_| !gone.is_empty()) else { return Vec::new() };
        let mut markers = entry.markers().clone();
        markers.retain(|marker| !goes(marker));
        let mut value = value.boxed_clone();
        if let Some(pruning) = value.pruning_mut() {
            markers.clean(pruning);
        }
        let (versions, size_bound, born) = (entry.versions.to_map(), entry.size_bound, entry.born());
        let used_ms = None;
        self.set(key, EntryContent { data: Data::Value(value), versions, markers, size_bound, born, used_ms });
        gone
    }

    pub(super) fn check_tag(&self, key: &KeyId, tag: &str) -> Result<(), Refusal> {
        // The stored entry has a type unknown here; another type must not replace it in the store.
        if self.storing.held_back.contains_key(key) {
            return Err(Refusal::TypeMismatch);
        }
        match self.get(key).and_then(Entry::value) {
            Some(value) if *value.tag() != *tag => Err(Refusal::TypeMismatch),
            _ => Ok(()),
        }
    }

    fn prepare(&self, key: &KeyId, found: &dyn AnyType) -> Prepared {
        let home = self.home(key);
        match self.get(key) {
            Some(entry @ Entry { data: Data::Value(value), .. }) => Prepared {
                home,
                value: value.boxed_clone(),
                versions: entry.versions.to_map(),
                markers: entry.markers().clone(),
                size: entry.size_bound,
                used_ms: None,
                is_unnoticed: false,
            },
            _ => {
                let mut value = found.zero();
                value.bind(home);
                let (versions, markers, size, used_ms) = (BTreeMap::new(), Markers::new(), 0, None);
                Prepared { home, value, versions, markers, size, used_ms, is_unnoticed: false }
            }
        }
    }

    fn finish(&mut self, key: &KeyId, prepared: Prepared, changed: bool, delta: Option<&Bytes>) {
        let Prepared { home, value, mut versions, markers, size, used_ms, is_unnoticed } = prepared;
        if !markers.is_empty() {
            let removed = markers.removed();
            versions.retain(|origin, _| !removed.contains(origin));
        }
        let marked = self.get(key).is_none_or(|entry| *entry.markers() != markers);
        if changed || marked {
            let (data, born) = (Data::Value(value), home.born);
            let content = EntryContent { data, versions, markers, size_bound: size, born, used_ms };
            if is_unnoticed {
                self.set_without_notice(key, content);
            } else {
                self.set_by(key, content, delta);
            }
        } else if let Some(entry) = self.tree.find_mut(key) {
            // The value is the same, but may now be known to include more updates.
            entry.include(&versions);
            if let Some(used_ms) = used_ms {
                self.note_used(key, used_ms);
            }
        }
    }

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

    /// Whether a value is compared and sent range by range, because it has more than `keys` top-level keys.
    pub(crate) fn is_large(&self, key: &str, keys: usize) -> bool {
        let ranged = self.get(key).and_then(Entry::value).and_then(AnyData::ranged);
        ranged.is_some_and(|ranged| ranged.keys() > keys)
    }

    /// Begins a draft that joins an offered value with the value held here.
    pub(crate) fn begin_draft(
        &mut self,
        rules: &Rules<'_>,
        key: &KeyId,
        from: UniqueAddress,
        offered: Deferred,
    ) -> Result<(), Refusal> {
        let Content::Value { tag, .. } = &offered.offer.head.content else { return Err(Refusal::Undecodable) };
        if problem(key).is_some() {
            return Err(Refusal::Undecodable);
        }
        self.check_tag(key, tag)?;
        let found = rules.types.find(tag).ok_or(Refusal::UnknownType)?;
        let mut zero = found.zero();
        zero.bind(self.home(key));
        let own = self.get(key);
        let draft = Draft::new(from, offered, own, zero).map_err(|Malformed| Refusal::Undecodable)?;
        self.drafts.insert(key.clone(), draft);
        Ok(())
    }

    /// Adds a delta to the draft of its entry: the delta was joined into the entry, which had the digest `before`.
    pub(crate) fn note_delta(&mut self, key: &KeyId, delta: &Bytes, before: Option<Digest>) {
        if self.drafts.is_empty() {
            return;
        }
        let after = self.digest(key);
        if let Some(draft) = self.drafts.get_mut(key) {
            draft.note(delta, before, after);
        }
    }

    /// Replaces the entry by a finished draft that includes it, or joins the draft.
    pub(crate) fn merge_draft(&mut self, rules: &Rules<'_>, key: &KeyId, draft: Draft) -> Result<Merged, Refusal> {
        if let Some(Entry { data: Data::Tombstone { deleted_at }, .. }) = self.get(key) {
            return Ok(Merged::Deleted { deleted_at: *deleted_at });
        }
        if self.is_too_late(key, draft.offer.head.used_ms) {
            return Ok(Merged::Expired);
        }
        let Content::Value { tag, .. } = &draft.offer.head.content else { return Err(Refusal::Undecodable) };
        self.check_tag(key, tag)?;
        let found = rules.types.find(tag).ok_or(Refusal::UnknownType)?;
        let (now, bytes) = (self.digest(key), draft.bytes);
        let (value, head, includes_all) = draft.finish(found, now);
        let Some(own) = self.get(key).filter(|own| includes_all && *own.markers() == head.markers) else {
            return self.merge_state(rules, key, &**found, value, &head, bytes);
        };
        let mut versions = own.versions.to_map();
        for (origin, version) in &head.versions {
            let own = versions.entry(*origin).or_default();
            *own = (*own).max(*version);
        }
        let (markers, size_bound, born) = (own.markers().clone(), own.size_bound + bytes, own.born());
        let (data, used_ms) = (Data::Value(value), head.used_ms);
        self.set(key, EntryContent { data, versions, markers, size_bound, born, used_ms });
        Ok(Merged::Done { changed: self.digest(key) != now })
    }
}
