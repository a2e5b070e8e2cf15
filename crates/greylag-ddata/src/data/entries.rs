//! The entries of a replica by id, kept in step with the sums that peers compare and with the index of named replicas.

mod encodings;
mod entry;
mod merging;
mod small_list;
mod times;
mod versions;

pub(crate) use entry::{Data, Entry, EntryContent};
pub(crate) use merging::{LoadProblem, Rules};

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use greylag_crdt::{Digest, DotSource, EntryMark, Home, Markers, ReplicaId};

use crate::api::key::KeyId;
use crate::api::settings::ReplicatorSettings;
use crate::data::envelope::{Content, Envelope};
use crate::data::expiry::{DeadlineIndex, Lifetimes, NEVER};
use crate::data::tree::{Prefix, SyncTree};
use crate::data::types::{AnyData, Tags, TypeTable};
use crate::dissemination::repair::Draft;
use crate::pruning::{Named, ReplicaIndex};
use crate::storage::store::{StoreMeta, StoreOp};
use crate::storage::storing::Storing;
use encodings::Encodings;
use entry::named_by;

/// The largest entry that is encoded only to measure it; for larger ones the bound is good enough.
const MEASURED_UP_TO: usize = 1024 * 1024;

/// The outcome of merging something that a peer sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Merged {
    /// Whether the entry changed.
    Done { changed: bool },
    /// A value was offered where a tombstone is held.
    Deleted { deleted_at: i64 },
    /// Deltas in between are missing; or a marker, if the full state is wanted.
    Gap { have: u64, full: bool },
    /// The entry had expired when it arrived: it counts as merged and expired at once.
    Expired,
}

/// An entry that was removed without a trace.
#[derive(Debug)]
pub(crate) struct RemovedEntry {
    pub(crate) key: KeyId,
    /// The deletion time, if the entry was a tombstone that was dropped for its age.
    pub(crate) aged: Option<i64>,
}

/// All entries of a replicator.
#[derive(Debug)]
pub(crate) struct Entries {
    replica: ReplicaId,
    numbers: DotSource,
    lifetimes: Lifetimes,
    /// The wall clock, in milliseconds; an entry past its deadline counts as absent.
    now_ms: i64,
    /// The entries, by the hashes of their ids.
    pub(crate) tree: SyncTree<Entry>,
    /// The ids, for iterating in order.
    order: BTreeSet<KeyId>,
    deadlines: DeadlineIndex,
    tags: Tags,
    pub(crate) index: ReplicaIndex,
    /// The changes of durable entries that are not on disk yet.
    pub(crate) storing: Storing,
    /// Entries changed since subscribers were notified.
    pub(crate) dirty: BTreeSet<KeyId>,
    /// What the last merge revealed.
    pub(crate) findings: MergeFindings,
    pub(crate) totals: Totals,
    /// Large values that are being received in parts.
    pub(crate) drafts: BTreeMap<KeyId, Draft>,
    encodings: Encodings,
}

/// Findings of a merge that are to be reported.
#[derive(Debug, Default)]
pub(crate) struct MergeFindings {
    /// When the latest marker was performed that came along, had ended, and was not kept.
    pub(crate) done_without: Option<i64>,
    /// The latest timestamp in the merged data.
    pub(crate) timestamp: Option<i64>,
    /// The version of this replica's own updates that the merged data claim to include.
    pub(crate) own_version: Option<u64>,
}

/// The numbers of values and tombstones, and their bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    pub(crate) values: usize,
    pub(crate) tombstones: usize,
    /// An upper bound of the encoded bytes of all values.
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
    /// No entries; `numbers` is the source of the replica's process.
    pub(crate) fn new(replica: ReplicaId, numbers: DotSource, settings: &ReplicatorSettings) -> Self {
        let (tree, order, dirty) = (SyncTree::default(), BTreeSet::new(), BTreeSet::new());
        let (index, findings, totals) = (ReplicaIndex::default(), MergeFindings::default(), Totals::default());
        let (drafts, encodings, storing) = (BTreeMap::new(), Encodings::default(), Storing::new(settings));
        let (lifetimes, deadlines) = (Lifetimes::new(settings), DeadlineIndex::default());
        Self {
            replica,
            numbers,
            lifetimes,
            now_ms: 0,
            tree,
            order,
            deadlines,
            tags: Tags::default(),
            index,
            dirty,
            findings,
            totals,
            storing,
            drafts,
            encodings,
        }
    }

    /// The home of an entry's value; for an absent entry, the one that it would have if it came into being now.
    pub(crate) fn home(&self, key: &str) -> Home {
        let born = match self.get(key) {
            Some(entry) if entry.value().is_some() => entry.born(),
            _ => self.numbers.last(),
        };
        Home { entry: EntryMark::of(key), replica: self.replica, born }
    }

    /// An entry, unless it is past its deadline.
    pub(crate) fn get(&self, key: &str) -> Option<&Entry> {
        self.tree.find(key).filter(|entry| entry.deadline_ms() > self.now_ms)
    }

    /// All entries, in the order of their hashes.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&KeyId, &Entry)> {
        self.tree.iter().filter(|entry| entry.deadline_ms() > self.now_ms).map(|entry| (entry.key(), entry))
    }

    /// Entries with ids from `from` on, ascending.
    pub(crate) fn from(&self, from: &str) -> impl Iterator<Item = (&KeyId, &Entry)> {
        let after = self.order.range::<str, _>((Bound::Included(from), Bound::Unbounded));
        after.filter_map(|key| Some((key, self.get(key)?)))
    }

    pub(crate) fn digest(&self, key: &str) -> Option<Digest> {
        self.get(key).map(Entry::digest)
    }

    /// The markers of an entry.
    pub(crate) fn markers(&self, key: &str) -> Markers {
        self.get(key).map(|entry| entry.markers().clone()).unwrap_or_default()
    }

    /// The tag of a value's type.
    pub(crate) fn tag_of(&mut self, value: &dyn AnyData) -> Arc<str> {
        self.tags.of(value).0.clone()
    }

    /// Sets the content of an entry. An entry past its deadline must have been removed before, with its traces.
    pub(crate) fn set(&mut self, key: &KeyId, content: EntryContent) {
        self.set_by(key, content, None);
    }

    /// As `set`, for data that read like the former data: subscribers are not notified. Source: ddata R16.
    pub(crate) fn set_without_notice(&mut self, key: &KeyId, content: EntryContent) {
        let notified = self.get(key).map(Entry::notified_digest);
        self.set(key, content);
        if let (Some(notified), Some(entry)) = (notified, self.tree.find_mut(key)) {
            entry.set_notified_digest(notified);
        }
    }

    /// Sets the content of an entry; `delta` is the one that was joined into the former content, if any.
    pub(crate) fn set_by(&mut self, key: &KeyId, content: EntryContent, delta: Option<&Bytes>) {
        debug_assert!(!self.is_overdue(key), "{key}: nothing is built on what has expired");
        self.storing.changed(key, delta);
        self.dirty.insert(key.clone());
        let Self { tree, order, deadlines, tags, index, totals, lifetimes, now_ms, .. } = self;
        let used_ms = content.used_ms;
        let mentions = named_by(&content.data);
        let mut content = Some(content);
        let replaced = tree.change(key, |entry| {
            let Some(content) = content.take() else { return };
            let dates = content.data.dates(lifetimes, *now_ms, key, entry.dates(), used_ms);
            deadlines.update(key, entry.indexed_ms(), dates.map_or(NEVER, |dates| dates.indexed_ms));
            let named = Named { mentions: &mentions, markers: &content.markers };
            index.update(key, Some(entry.named()), Some(named));
            totals.forget(entry);
            entry.replace_content(content, mentions.clone(), tags);
            entry.set_dates(dates);
            totals.count(entry);
        });
        if let (None, Some(content)) = (replaced, content) {
            let dates = content.data.dates(lifetimes, *now_ms, key, None, used_ms);
            let mut entry = Entry::new(key.clone(), content, mentions, tags);
            entry.set_dates(dates);
            deadlines.update(key, NEVER, entry.indexed_ms());
            index.update(key, None, Some(entry.named()));
            totals.count(&entry);
            order.insert(key.clone());
            tree.insert(entry);
        }
    }

    /// Drops encodings older than `time_to_live`; the next message that needs one makes it anew. Source: ddata R14.
    pub(crate) fn forget_encodings(&mut self, now: Instant, time_to_live: Duration) {
        self.encodings.forget(now, time_to_live);
    }

    /// The next store request with its ticket: everything gathered, if no request is under way. `at_once` includes
    /// changes that would be written behind.
    pub(crate) fn next_store(
        &mut self,
        now: Instant,
        types: &TypeTable,
        meta: impl FnOnce() -> StoreMeta,
        at_once: bool,
    ) -> Option<(u64, Vec<StoreOp>)> {
        let Self { tree, encodings, storing, .. } = self;
        storing.next_request(now, types, meta, at_once, |key| {
            let entry = tree.find(key)?;
            Some((entry, encodings.of(key, entry.digest())))
        })
    }

    /// The entry as an envelope, for sending.
    pub(crate) fn envelope(&mut self, key: &str) -> Option<Envelope> {
        let now_ms = self.now_ms;
        let entry = self.tree.find_mut(key).filter(|entry| entry.deadline_ms() > now_ms)?;
        let content = match &entry.data {
            Data::Tombstone { deleted_at } => Content::Tombstone { deleted_at: *deleted_at },
            Data::Value(value) => {
                let bytes = self.encodings.get_or_make(entry.key(), entry.digest(), || value.encoded().into());
                let tag = self.tags.of(&**value).0.clone();
                self.totals.bytes = self.totals.bytes - entry.size_bound + bytes.len();
                entry.size_bound = bytes.len();
                Content::Value { tag, bytes }
            }
        };
        Some(entry.envelope_with(content))
    }

    /// The size of an entry, if it must be reported: at or above `limit`, and a tenth above the size reported last. The
    /// entry is encoded to measure it only when its bound says that it may have grown so far. Source: ddata E4.
    pub(crate) fn size_to_report(&mut self, key: &KeyId, limit: usize) -> Option<usize> {
        let entry = self.tree.find(key).filter(|entry| entry.value().is_some())?;
        let bound = entry.size_bound;
        if !entry.may_have_grown_to(limit) {
            return None;
        }
        let size = if bound > MEASURED_UP_TO { bound } else { self.encoded_size(key)? };
        self.tree.find_mut(key)?.note_size(size, limit).then_some(size)
    }

    /// The exact size of an entry's value.
    pub(crate) fn encoded_size(&mut self, key: &KeyId) -> Option<usize> {
        match self.envelope(key)?.content {
            Content::Value { bytes, .. } => Some(bytes.len()),
            Content::Tombstone { .. } | Content::Unreadable => None,
        }
    }

    /// Checks that sums, digests, totals and the index equal those computed anew, and that data are clean; only for
    /// some states, and while that is cheap.
    ///
    /// `is_alone`: no other replica was found to use this replica's id.
    pub(crate) fn check_invariants(&self, types: &TypeTable, is_alone: bool) {
        let is_sampled = self.tree.sum(Prefix::ROOT).total.0.is_multiple_of(16);
        if self.order.len() > 16 || !is_sampled {
            return;
        }
        let (mut index, mut totals) = (ReplicaIndex::default(), Totals::default());
        for entry in self.tree.iter() {
            let key = entry.key();
            index.update(key, None, Some(entry.named()));
            totals.count(entry);
            entry.check_invariants(key, types);
            let own = entry.versions.of(self.replica);
            let was_drawn = own.is_none_or(|own| own <= self.numbers.last());
            assert!(was_drawn || !is_alone, "{key}: an own version that was never drawn");
        }
        assert!(index == self.index, "the replica index is in step");
        assert_eq!(totals, self.totals, "the totals are in step");
        assert_eq!(self.tree.recounted(), self.tree.sum(Prefix::ROOT), "the sums are in step");
        let ids: BTreeSet<KeyId> = self.tree.iter().map(|entry| entry.key().clone()).collect();
        assert_eq!(ids, self.order, "every id stands in the order of ids");
        self.check_deadlines();
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
        entries.set(key, EntryContent { data, versions, markers, size_bound: 100, born: 0, used_ms: None });
    }

    /// ddata R14: recipients within `encode_cache_time_to_live` share one encoding, a change makes another, and an
    /// encoding that was not asked for lately is dropped.
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
        assert_eq!((entries.encodings.len(), entries.totals.bytes), (1, first.len()));
        fill(&mut entries, &key, "y");
        assert_ne!(bytes(&mut entries), first);
        entries.forget_encodings(now + second * 2, second);
        assert_eq!(entries.encodings.len(), 0);
    }

    /// ddata O5: the invariants find an index, sum or total that is out of step with the entries.
    #[test]
    fn inconsistent_indexes_and_totals_are_found() {
        let broken: [fn(&mut Entries); 5] = [
            |_| {},
            |entries| entries.totals.bytes += 1,
            |entries| entries.tree.find_mut("k").expect("an entry").corrupt_digest(),
            |entries| assert!(entries.order.insert("absent".into())),
            |entries| {
                entries.index.update(
                    &"absent".into(),
                    None,
                    Some(Named { mentions: &[ReplicaId(9)], markers: &Markers::new() }),
                );
            },
        ];
        let found: Vec<usize> = (0..broken.len())
            .filter(|at| {
                let types = TypeTable::new();
                let mut entries = Entries::new(ReplicaId(1), DotSource::new(), &ReplicatorSettings::default());
                fill(&mut entries, &"k".into(), "first");
                broken[*at](&mut entries);
                // Only some states are checked, not all.
                let check = |number: u32| {
                    fill(&mut entries, &"k".into(), &number.to_string());
                    let check = || entries.check_invariants(&types, true);
                    std::panic::catch_unwind(std::panic::AssertUnwindSafe(check)).is_err()
                };
                (0..200).any(check)
            })
            .collect();
        assert_eq!(found, [1, 2, 3, 4]);
    }
}
