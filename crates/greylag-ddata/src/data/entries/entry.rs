//! One entry: its data and its bookkeeping.
//!
//! There may be a million entries, and most are small: fields that few entries need are in a box of their own, and
//! lists that mostly have one item, such as the named replicas, take no memory for it. Source: ddata H1.

use std::collections::BTreeMap;

use greylag_crdt::{Digest, Markers, RemovedNodePruning, ReplicaId};

use super::small_list::SmallList;
use super::versions::Versions;
use crate::api::key::KeyId;
use crate::data::envelope::{Content, Envelope};
use crate::data::expiry::{Dates, NEVER};
use crate::data::tree::Placed;
use crate::data::types::{AnyData, Tags, TypeTable};
use crate::pruning::Named;

/// One entry.
#[derive(Debug)]
pub(crate) struct Entry {
    key: KeyId,
    pub(crate) data: Data,
    digest: Digest,
    /// For each origin, the version up to which its updates are included; of causal types only.
    pub(crate) versions: Versions,
    /// The replicas that the data name.
    mentions: SmallList<ReplicaId>,
    /// An upper bound of the encoded size, so that the limit costs no encoding of every update.
    pub(crate) size_bound: usize,
    /// The highest number drawn here when the entry came into being here.
    born: u64,
    rare: Option<Box<RareFields>>,
}

/// Fields that most entries lack: few name a removed replica, few expire, and few are large.
#[derive(Debug, Default)]
struct RareFields {
    markers: Markers,
    /// The digest of former data that read like the present ones; a subscriber that has it is not notified.
    notified: Option<Digest>,
    dates: Option<Dates>,
    /// The size when it was last measured by encoding, and the largest size that was reported.
    measured: usize,
    reported_bytes: usize,
}

/// The content of an entry.
#[derive(Debug)]
pub(crate) enum Data {
    Value(Box<dyn AnyData>),
    Tombstone { deleted_at: i64 },
}

impl Data {
    /// The digest of value and type tag, or of a tombstone's deletion time; never of bookkeeping.
    fn digest(&self, tags: &mut Tags) -> Digest {
        match self {
            Self::Value(value) => value.digest().plus(tags.of(&**value).1),
            Self::Tombstone { deleted_at } => {
                Digest::of(&[b"tombstone".as_slice(), &deleted_at.to_be_bytes()].concat())
            }
        }
    }
}

/// The replicas that data name, ascending.
pub(super) fn named_by(data: &Data) -> SmallList<ReplicaId> {
    let pruning = match data {
        Data::Value(value) => value.pruning(),
        Data::Tombstone { .. } => None,
    };
    pruning.map(RemovedNodePruning::modified_by).unwrap_or_default().into_iter().collect()
}

/// A whole entry to be set.
#[derive(Debug)]
pub(crate) struct EntryContent {
    pub(crate) data: Data,
    pub(crate) versions: BTreeMap<ReplicaId, u64>,
    pub(crate) markers: Markers,
    pub(crate) size_bound: usize,
    /// The birth of the value's [`greylag_crdt::Home`]; 0 for a tombstone.
    pub(crate) born: u64,
    /// When the entry was last used, if this is known; a new entry without it counts as used now.
    pub(crate) used_ms: Option<i64>,
}

impl Placed for Entry {
    fn id(&self) -> &KeyId {
        &self.key
    }

    fn digest(&self) -> Digest {
        self.digest
    }
}

impl Entry {
    pub(super) fn new(key: KeyId, content: EntryContent, mentions: SmallList<ReplicaId>, tags: &mut Tags) -> Self {
        let EntryContent { data, versions: included, markers, size_bound, born, used_ms: _ } = content;
        let digest = data.digest(tags);
        let mut versions = Versions::default();
        versions.set(&included);
        let mut entry = Self { key, data, digest, versions, mentions, size_bound, born, rare: None };
        entry.set_markers(markers);
        entry
    }

    /// Replaces the content. A value of the same type is moved into the memory of the former one, so that related
    /// memory stays together, however often the value changes.
    pub(super) fn replace_content(&mut self, content: EntryContent, mentions: SmallList<ReplicaId>, tags: &mut Tags) {
        let EntryContent { data, versions, markers, size_bound, born, used_ms: _ } = content;
        let before = std::mem::replace(&mut self.digest, data.digest(tags));
        if self.digest != before {
            self.set_notified_digest(self.digest);
        }
        match (&mut self.data, data) {
            (Data::Value(own), Data::Value(value)) => {
                if let Err(other) = own.replace(value) {
                    *own = other;
                }
            }
            (own, data) => *own = data,
        }
        self.versions.set(&versions);
        (self.mentions, self.size_bound, self.born) = (mentions, size_bound, born);
        self.set_markers(markers);
    }

    /// Sets the versions of the included updates.
    pub(super) fn include(&mut self, versions: &BTreeMap<ReplicaId, u64>) {
        self.versions.set(versions);
    }

    pub(crate) fn key(&self) -> &KeyId {
        &self.key
    }

    pub(crate) fn digest(&self) -> Digest {
        self.digest
    }

    /// The digest of what subscribers believe: of the present data, or of former data that read like them. A subscriber
    /// that was told data with another digest is notified of the present ones. Source: ddata R16.
    pub(crate) fn notified_digest(&self) -> Digest {
        self.rare.as_ref().and_then(|rare| rare.notified).unwrap_or(self.digest)
    }

    /// Sets the digest of what subscribers believe: a subscriber that was told data with it is not notified.
    pub(super) fn set_notified_digest(&mut self, notified: Digest) {
        if notified != self.digest {
            self.rare.get_or_insert_default().notified = Some(notified);
        } else if let Some(rare) = &mut self.rare {
            rare.notified = None;
        }
    }

    /// The birth of the value's [`greylag_crdt::Home`].
    pub(crate) fn born(&self) -> u64 {
        self.born
    }

    /// Whether the data name this replica.
    pub(crate) fn mentions(&self, replica: ReplicaId) -> bool {
        self.mentions.binary_search(&replica).is_ok()
    }

    /// The value; `None` for a tombstone.
    pub(crate) fn value(&self) -> Option<&dyn AnyData> {
        match &self.data {
            Data::Value(value) => Some(&**value),
            Data::Tombstone { .. } => None,
        }
    }

    /// The entry as an envelope with the given content.
    pub(crate) fn envelope_with(&self, content: Content) -> Envelope {
        let (versions, markers) = (self.versions.to_map(), self.markers().clone());
        Envelope { content, versions, markers, used_ms: self.used() }
    }

    /// When the value was last used, if it expires.
    pub(super) fn used(&self) -> Option<i64> {
        self.dates().filter(|_| self.value().is_some()).map(|dates| dates.used_ms)
    }

    pub(super) fn named(&self) -> Named<'_> {
        Named { mentions: &self.mentions, markers: self.markers() }
    }

    /// The markers of removed replicas.
    pub(crate) fn markers(&self) -> &Markers {
        static NONE: Markers = Markers::new();
        self.rare.as_ref().map_or(&NONE, |rare| &rare.markers)
    }

    fn set_markers(&mut self, markers: Markers) {
        if !markers.is_empty() || self.rare.is_some() {
            self.rare.get_or_insert_default().markers = markers;
        }
    }

    /// When the entry was used and when it expires; `None` if it does not expire.
    pub(super) fn dates(&self) -> Option<Dates> {
        self.rare.as_ref()?.dates
    }

    pub(super) fn set_dates(&mut self, dates: Option<Dates>) {
        if dates.is_some() || self.rare.is_some() {
            self.rare.get_or_insert_default().dates = dates;
        }
    }

    /// The time from which the entry counts as absent.
    pub(super) fn deadline_ms(&self) -> i64 {
        self.dates().map_or(NEVER, |dates| dates.deadline_ms)
    }

    /// The entry's time in the index of deadlines.
    pub(super) fn indexed_ms(&self) -> i64 {
        self.dates().map_or(NEVER, |dates| dates.indexed_ms)
    }

    /// Whether the bound of the size allows a size of `limit`, and has grown by a tenth since the entry was measured.
    ///
    /// The exact size is known when an entry is encoded; after that every delta adds its own length to the bound. So
    /// measuring costs a fraction of the updates themselves.
    pub(super) fn may_have_grown_to(&self, limit: usize) -> bool {
        let measured = self.rare.as_ref().map_or(0, |rare| rare.measured);
        self.size_bound >= limit.max(tenth_above(measured))
    }

    /// Notes the size as measured. Returns whether the size must be reported: it is at or above `limit`, and a tenth
    /// above the size reported last.
    pub(super) fn note_size(&mut self, size: usize, limit: usize) -> bool {
        let rare = self.rare.get_or_insert_default();
        let is_news = size >= limit && size >= tenth_above(rare.reported_bytes);
        rare.measured = size;
        if is_news {
            rare.reported_bytes = size;
        }
        is_news
    }

    /// Checks that the digest is that of the data, that the data can be decoded and have no empty leaf (no decoder
    /// accepts one), and that no marker covers anything left in them.
    pub(super) fn check_invariants(&self, key: &str, types: &TypeTable) {
        let Data::Value(value) = &self.data else {
            assert_eq!(self.digest, self.data.digest(&mut Tags::default()), "{key}: the tombstone's digest");
            return;
        };
        // Check samples only: decoding again costs more than everything else.
        let is_sampled = self.digest.0.is_multiple_of(32);
        if let Some(found) = types.find(&value.tag()).filter(|_| is_sampled) {
            let again = found.decode(&value.encoded()).expect("what is held can be read");
            assert_eq!(self.digest, Data::Value(again).digest(&mut Tags::default()), "{key}: the digest is in step");
        }
        let dropped = |removed: &ReplicaId| self.versions.of(*removed).is_none();
        assert!(self.markers().removed().iter().all(dropped), "{key}: a pruned replica has no version");
        let Some(pruning) = value.pruning() else { return };
        let uncovered = |removed: &ReplicaId| {
            !self.mentions(*removed) || pruning.needs_pruning(*removed, self.markers().of(*removed))
        };
        assert!(self.markers().removed().iter().all(uncovered), "{key}: what a marker covers is cleaned");
    }
}

fn tenth_above(size: usize) -> usize {
    size + size / 10
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Entry {
        /// Gives the entry a wrong digest.
        pub(in crate::data::entries) fn corrupt_digest(&mut self) {
            self.digest = self.digest.plus(Digest(1));
        }
    }

    /// ddata H1: the fields that every entry has are small.
    #[test]
    fn an_entry_is_small() {
        assert!(size_of::<Entry>() <= 112, "{} bytes", size_of::<Entry>());
    }
}
