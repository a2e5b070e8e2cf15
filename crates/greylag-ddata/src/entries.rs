//! What a replica holds: entries by id, kept in step with the sums that peers compare and with the
//! index of replicas that they name.

mod drafts;
mod expiring;
mod loading;
mod merging;
mod sizes;

pub(crate) use loading::LoadProblem;
pub(crate) use merging::Rules;

use std::collections::{BTreeMap, BTreeSet, VecDeque, btree_map};
use std::time::{Duration, Instant};

use bytes::Bytes;
use greylag_crdt::{Digest, DotSource, EntryMark, Home, Markers, ReplicaId};

use crate::expiry::{DeadlineIndex, Lifetimes, NEVER};
use crate::key::KeyId;
use crate::message::{Content, Envelope};
use crate::pruning::{Named, ReplicaIndex};
use crate::repair::Draft;
use crate::settings::ReplicatorSettings;
use crate::storing::Storing;
use crate::tree::{Prefix, SyncTree};
use crate::types::{AnyData, TypeTable};

/// Encodings that one input drops.
const ENCODINGS_AT_ONCE: usize = 1_024;

/// One entry.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) data: Data,
    /// By origin, up to which version its updates are included; of causal types only.
    pub(crate) versions: BTreeMap<ReplicaId, u64>,
    /// What was put where of removed replicas.
    pub(crate) markers: Markers,
    /// The replicas that the data name.
    mentions: Vec<ReplicaId>,
    /// An upper bound of the encoded size, so that the limit costs no encoding of every update.
    pub(crate) size_bound: usize,
    /// The highest number drawn here when the entry came into being here.
    born: u64,
    /// The size when it was last encoded to know it, and the largest that was told of.
    measured: usize,
    told_bytes: usize,
    /// When it was last used, by whomever; of a tombstone its deletion time. Wall clock in milliseconds.
    used_ms: i64,
    /// The used-time that all peers are told, so that further ones travel only if they matter.
    told_ms: i64,
    /// From then on it counts as absent.
    deadline_ms: i64,
    /// Where it stands in the index: at its deadline, or before it if it was used since.
    indexed_ms: i64,
    digest: Digest,
    /// The encoding, until the next change.
    encoded: Option<Bytes>,
}

/// What an entry holds.
#[derive(Debug)]
pub(crate) enum Data {
    Value(Box<dyn AnyData>),
    Tombstone { deleted_at: i64 },
}

impl Data {
    /// Over data and type tag, of a tombstone its deletion time; never over bookkeeping.
    fn digest(&self) -> Digest {
        match self {
            Self::Value(value) => value.digest().plus(Digest::of(value.tag().as_bytes())),
            Self::Tombstone { deleted_at } => {
                Digest::of(&[b"tombstone".as_slice(), &deleted_at.to_be_bytes()].concat())
            }
        }
    }
}

impl Entry {
    fn new(content: Filled) -> Self {
        let Filled { data, versions, markers, size_bound, born, used_ms: _ } = content;
        let digest = data.digest();
        let pruning = match &data {
            Data::Value(value) => value.pruning(),
            Data::Tombstone { .. } => None,
        };
        let mentions = pruning.map(|pruning| pruning.modified_by().into_iter().collect()).unwrap_or_default();
        Self {
            data,
            versions,
            markers,
            mentions,
            size_bound,
            born,
            measured: 0,
            told_bytes: 0,
            used_ms: 0,
            told_ms: 0,
            deadline_ms: NEVER,
            indexed_ms: NEVER,
            digest,
            encoded: None,
        }
    }

    pub(crate) fn digest(&self) -> Digest {
        self.digest
    }

    /// The canonical bytes of its value.
    pub(crate) fn bytes(&self, value: &dyn AnyData) -> Bytes {
        self.encoded.clone().unwrap_or_else(|| value.to_bytes().into())
    }

    /// Of the value's [`Home`].
    pub(crate) fn born(&self) -> u64 {
        self.born
    }

    /// Whether the data name this replica.
    pub(crate) fn mentions(&self, replica: ReplicaId) -> bool {
        self.mentions.binary_search(&replica).is_ok()
    }

    /// The value, and what it can do about removed replicas.
    pub(crate) fn value(&self) -> Option<&dyn AnyData> {
        match &self.data {
            Data::Value(value) => Some(&**value),
            Data::Tombstone { .. } => None,
        }
    }

    /// The entry as it travels, with this for its content.
    pub(crate) fn envelope_with(&self, content: Content) -> Envelope {
        let (versions, markers) = (self.versions.clone(), self.markers.clone());
        Envelope { content, versions, markers, used_ms: self.used() }
    }

    /// When the value was last used, if that matters.
    fn used(&self) -> Option<i64> {
        (self.deadline_ms != NEVER && matches!(self.data, Data::Value(_))).then_some(self.used_ms)
    }

    fn named(&self) -> Named<'_> {
        Named { mentions: &self.mentions, markers: &self.markers }
    }
}

/// Everything that an entry is made of.
#[derive(Debug)]
pub(crate) struct Filled {
    pub(crate) data: Data,
    pub(crate) versions: BTreeMap<ReplicaId, u64>,
    pub(crate) markers: Markers,
    pub(crate) size_bound: usize,
    /// Of the value's [`Home`]; nothing for a tombstone.
    pub(crate) born: u64,
    /// When it was last used, if that is known beside what is held; a new entry without it begins now.
    pub(crate) used_ms: Option<i64>,
}

/// What came of merging something that a peer sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Merged {
    /// Whether the entry changed.
    Done { changed: bool },
    /// A value was offered where a tombstone is held.
    Deleted { deleted_at: i64 },
    /// Deltas are missing in between, or, if the full state is wanted, a marker.
    Gap { have: u64, full: bool },
    /// Its time was over when it arrived: as if it had been merged and had expired at once.
    Expired,
}

/// An entry that was removed without trace.
#[derive(Debug)]
pub(crate) struct Gone {
    pub(crate) key: KeyId,
    /// The deletion time of a tombstone that went because of its age.
    pub(crate) aged: Option<i64>,
}

/// All entries of a replicator.
#[derive(Debug)]
pub(crate) struct Entries {
    replica: ReplicaId,
    numbers: DotSource,
    lifetimes: Lifetimes,
    /// The wall clock, in milliseconds; what is past its deadline is not there.
    now_ms: i64,
    map: BTreeMap<KeyId, Entry>,
    deadlines: DeadlineIndex,
    pub(crate) tree: SyncTree,
    pub(crate) index: ReplicaIndex,
    /// What of the durable ones is not on disk.
    pub(crate) storing: Storing,
    /// Changed since subscribers were told.
    pub(crate) dirty: BTreeSet<KeyId>,
    /// What the last merge brought to light.
    pub(crate) noticed: Noticed,
    pub(crate) totals: Totals,
    /// Large values that are on their way in.
    pub(crate) drafts: BTreeMap<KeyId, Draft>,
    encodings: Encodings,
}

/// Which entries have their encodings kept, the oldest first.
#[derive(Debug, Default)]
struct Encodings {
    /// When the input that is being handled came.
    now: Option<Instant>,
    made: VecDeque<(Instant, KeyId)>,
}

/// What may be wrong about something that was merged all the same.
#[derive(Debug, Default)]
pub(crate) struct Noticed {
    /// The latest timestamp in it.
    pub(crate) timestamp: Option<i64>,
    /// Up to which version of this replica's own updates it says to include.
    pub(crate) own_version: Option<u64>,
}

/// How much there is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    pub(crate) values: usize,
    pub(crate) tombstones: usize,
    /// An upper bound of what the values have encoded.
    pub(crate) bytes: usize,
}

impl Totals {
    fn count(&mut self, entry: &Entry) {
        match entry.data {
            Data::Value(_) => self.values += 1,
            Data::Tombstone { .. } => self.tombstones += 1,
        }
        self.bytes += entry.size_bound;
    }

    fn forget(&mut self, entry: &Entry) {
        match entry.data {
            Data::Value(_) => self.values -= 1,
            Data::Tombstone { .. } => self.tombstones -= 1,
        }
        self.bytes -= entry.size_bound;
    }
}

impl Entries {
    /// No entries; `numbers` are those of the replica's process.
    pub(crate) fn new(replica: ReplicaId, numbers: DotSource, settings: &ReplicatorSettings) -> Self {
        let (map, tree, dirty) = (BTreeMap::new(), SyncTree::default(), BTreeSet::new());
        let (index, noticed, totals) = (ReplicaIndex::default(), Noticed::default(), Totals::default());
        let (drafts, encodings, storing) = (BTreeMap::new(), Encodings::default(), Storing::new(settings));
        let (lifetimes, deadlines) = (Lifetimes::new(settings), DeadlineIndex::default());
        Self {
            replica,
            numbers,
            lifetimes,
            now_ms: 0,
            map,
            deadlines,
            tree,
            index,
            dirty,
            noticed,
            totals,
            storing,
            drafts,
            encodings,
        }
    }

    /// Where the value of an entry lives; of an absent one, where it would if it came into being now.
    pub(crate) fn home(&self, key: &str) -> Home {
        let born = match self.get(key) {
            Some(Entry { data: Data::Value(_), born, .. }) => *born,
            _ => self.numbers.last(),
        };
        Home { entry: EntryMark::of(key), replica: self.replica, born }
    }

    /// An entry, unless it is past its deadline.
    pub(crate) fn get(&self, key: &str) -> Option<&Entry> {
        self.map.get(key).filter(|entry| entry.deadline_ms > self.now_ms)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&KeyId, &Entry)> {
        self.map.iter().filter(|(_, entry)| entry.deadline_ms > self.now_ms)
    }

    /// Ids from `from` on, ascending.
    pub(crate) fn from(&self, from: &str) -> impl Iterator<Item = (&KeyId, &Entry)> {
        let after = self.map.range::<str, _>((std::ops::Bound::Included(from), std::ops::Bound::Unbounded));
        after.filter(|(_, entry)| entry.deadline_ms > self.now_ms)
    }

    pub(crate) fn digest(&self, key: &str) -> Option<Digest> {
        self.get(key).map(Entry::digest)
    }

    /// The markers of an entry.
    pub(crate) fn markers(&self, key: &str) -> Markers {
        self.get(key).map(|entry| entry.markers.clone()).unwrap_or_default()
    }

    /// Sets what an entry holds. One that is past its deadline was removed before, with its trace.
    pub(crate) fn set(&mut self, key: &KeyId, content: Filled) {
        self.set_by(key, content, None);
    }

    /// Sets what an entry holds after a delta was joined into it, if there was one.
    pub(crate) fn set_by(&mut self, key: &KeyId, content: Filled, delta: Option<&Bytes>) {
        debug_assert!(!self.is_overdue(key), "{key}: nothing is built on what has expired");
        self.storing.changed(key, delta);
        let used_ms = content.used_ms;
        let mut entry = Entry::new(content);
        self.tree.set(key, Some(entry.digest));
        self.dirty.insert(key.clone());
        self.totals.count(&entry);
        match self.map.entry(key.clone()) {
            btree_map::Entry::Occupied(mut place) => {
                entry.date(&self.lifetimes, self.now_ms, key, Some(place.get()), used_ms);
                (entry.measured, entry.told_bytes) = (place.get().measured, place.get().told_bytes);
                self.deadlines.update(key, place.get().indexed_ms, entry.indexed_ms);
                self.index.update(key, Some(place.get().named()), Some(entry.named()));
                self.totals.forget(&place.insert(entry));
            }
            btree_map::Entry::Vacant(place) => {
                entry.date(&self.lifetimes, self.now_ms, key, None, used_ms);
                self.deadlines.update(key, NEVER, entry.indexed_ms);
                self.index.update(key, None, Some(entry.named()));
                place.insert(entry);
            }
        }
    }

    /// Drops encodings that were made so long ago. Whoever needs one then makes it anew. Source: ddata R14.
    pub(crate) fn forget_encodings(&mut self, now: Instant, time_to_live: Duration) {
        self.encodings.now = Some(now);
        // After a new node was served there are as many as there are entries; the next inputs go on.
        for _ in 0..ENCODINGS_AT_ONCE {
            let due = self.encodings.made.pop_front_if(|(made_at, _)| *made_at + time_to_live <= now);
            let Some((_, key)) = due else { return };
            if let Some(entry) = self.map.get_mut(&key) {
                entry.encoded = None;
            }
        }
    }

    #[cfg(test)]
    pub(crate) fn encoded_count(&self) -> usize {
        self.map.values().filter(|entry| entry.encoded.is_some()).count()
    }

    /// An entry beside what is known of its storing.
    pub(crate) fn entry_and_storing(&mut self, key: &str) -> (Option<&Entry>, &mut Storing) {
        (self.map.get(key), &mut self.storing)
    }

    /// The entry as it travels.
    pub(crate) fn envelope(&mut self, key: &str) -> Option<Envelope> {
        let now_ms = self.now_ms;
        let entry = self.map.get_mut(key).filter(|entry| entry.deadline_ms > now_ms)?;
        let content = match &entry.data {
            Data::Tombstone { deleted_at } => Content::Tombstone { deleted_at: *deleted_at },
            Data::Value(value) => {
                if entry.encoded.is_none() {
                    self.encodings.made.extend(self.encodings.now.map(|now| (now, KeyId::from(key))));
                }
                let bytes = entry.encoded.get_or_insert_with(|| value.to_bytes().into());
                self.totals.bytes = self.totals.bytes - entry.size_bound + bytes.len();
                entry.size_bound = bytes.len();
                Content::Value { tag: value.tag(), bytes: bytes.clone() }
            }
        };
        Some(entry.envelope_with(content))
    }

    /// Sums, digests, totals and the index are what computing them anew gives, and data are clean; checked
    /// for some states, and while that is cheap.
    ///
    /// `is_alone`: nobody else was found to use this replica's id.
    pub(crate) fn check_invariants(&self, types: &TypeTable, is_alone: bool) {
        let is_sampled = self.tree.sum(Prefix::ROOT).total.0.is_multiple_of(16);
        if self.map.len() > 16 || !is_sampled {
            return;
        }
        let (mut tree, mut index, mut totals) = (SyncTree::default(), ReplicaIndex::default(), Totals::default());
        for (key, entry) in &self.map {
            index.update(key, None, Some(entry.named()));
            tree.set(key, Some(entry.digest));
            totals.count(entry);
            entry.check_invariants(key, types);
            let own = entry.versions.get(&self.replica);
            let was_drawn = own.is_none_or(|own| *own <= self.numbers.last());
            assert!(was_drawn || !is_alone, "{key}: an own version that was never drawn");
        }
        assert!(index == self.index, "the replica index is in step");
        assert_eq!(totals, self.totals, "the totals are in step");
        assert_eq!(tree.sum(Prefix::ROOT), self.tree.sum(Prefix::ROOT), "the sums are in step");
        self.check_deadlines();
    }
}

impl Entry {
    /// The digest is that of the data, which can be read again and have no empty leaf (no decoder takes
    /// one), and nothing is left in them that a marker covers.
    fn check_invariants(&self, key: &str, types: &TypeTable) {
        let Data::Value(value) = &self.data else {
            assert_eq!(self.digest, self.data.digest(), "{key}: the tombstone's digest");
            return;
        };
        // Reading again what is written costs more than all the rest.
        let is_sampled = self.digest.0.is_multiple_of(32);
        if let Some(found) = types.find(&value.tag()).filter(|_| is_sampled) {
            let again = found.decode(&value.to_bytes()).expect("what is held can be read");
            assert_eq!(self.digest, Data::Value(again).digest(), "{key}: the digest is in step");
        }
        let dropped = |removed: &ReplicaId| !self.versions.contains_key(removed);
        assert!(self.markers.removed().iter().all(dropped), "{key}: a pruned replica has no version");
        let Some(pruning) = value.pruning() else { return };
        let uncovered = |removed: &ReplicaId| {
            !self.mentions(*removed) || pruning.needs_pruning(*removed, self.markers.of(*removed))
        };
        assert!(self.markers.removed().iter().all(uncovered), "{key}: what a marker covers is cleaned");
    }
}

#[cfg(test)]
mod tests {
    use greylag_crdt::{GSet, ReplicatedData};

    use super::*;

    fn fill(entries: &mut Entries, key: &KeyId, element: &str) {
        let mut set = GSet::<String>::zero();
        set.add(element.to_owned());
        let data = Data::Value(Box::new(set));
        let (versions, markers) = (BTreeMap::new(), Markers::new());
        entries.set(key, Filled { data, versions, markers, size_bound: 100, born: 0, used_ms: None });
    }

    /// ddata R14: recipients within `encode_cache_time_to_live` share one encoding, a change makes another, and
    /// what nobody asked for lately is not kept.
    #[test]
    fn recipients_share_an_encoding_for_a_while() {
        let (now, second) = (Instant::now(), Duration::from_secs(1));
        let key = KeyId::from("k");
        let mut entries = Entries::new(ReplicaId(1), DotSource::new(), &ReplicatorSettings::test());
        fill(&mut entries, &key, "x");
        let bytes = |entries: &mut Entries| match entries.envelope("k").map(|envelope| envelope.content) {
            Some(Content::Value { bytes, .. }) => bytes,
            other => panic!("{other:?}"),
        };
        entries.forget_encodings(now, second);
        let (first, second_one) = (bytes(&mut entries), bytes(&mut entries));
        assert_eq!(first.as_ptr(), second_one.as_ptr(), "one encoding");
        entries.forget_encodings(now + second / 2, second);
        assert_eq!((entries.encoded_count(), entries.totals.bytes), (1, first.len()));
        fill(&mut entries, &key, "y");
        assert_ne!(bytes(&mut entries), first);
        entries.forget_encodings(now + second * 2, second);
        assert_eq!((entries.encoded_count(), entries.encodings.made.len()), (0, 0));
    }

    /// ddata O5: what is not in step is found.
    #[test]
    fn what_is_not_in_step_is_found() {
        let broken: [fn(&mut Entries); 4] = [
            |_| {},
            |entries| entries.totals.bytes += 1,
            |entries| entries.tree.set(&"nobody".into(), Some(Digest::of(b"x"))),
            |entries| {
                entries.index.update(
                    &"nobody".into(),
                    None,
                    Some(Named { mentions: &[ReplicaId(9)], markers: &Markers::new() }),
                );
            },
        ];
        let found: Vec<usize> = (0..broken.len())
            .filter(|at| {
                let types = TypeTable::new();
                let mut entries = Entries::new(ReplicaId(1), DotSource::new(), &ReplicatorSettings::default());
                broken[*at](&mut entries);
                // Some states are looked at, not all.
                let check = |number: u32| {
                    fill(&mut entries, &"k".into(), &number.to_string());
                    let check = || entries.check_invariants(&types, true);
                    std::panic::catch_unwind(std::panic::AssertUnwindSafe(check)).is_err()
                };
                (0..200).any(check)
            })
            .collect();
        assert_eq!(found, [1, 2, 3]);
    }
}
