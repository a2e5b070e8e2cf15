//! The index from replicas to the entries that name them, so that pruning never scans all entries. Source: ddata Z2,
//! H2.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use greylag_crdt::{Markers, ReplicaId};

use crate::api::key::KeyId;

/// Entries by the replicas that their data or their markers name, and markers by their end.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ReplicaIndex {
    mentions: BTreeMap<ReplicaId, BTreeSet<KeyId>>,
    marked: BTreeMap<ReplicaId, BTreeSet<KeyId>>,
    due: BTreeSet<(i64, KeyId)>,
}

/// The part of an entry that the index needs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Named<'a> {
    pub(crate) mentions: &'a [ReplicaId],
    pub(crate) markers: &'a Markers,
}

impl ReplicaIndex {
    /// Takes the change, creation or removal of an entry.
    pub(crate) fn update(&mut self, key: &KeyId, was: Option<Named<'_>>, is: Option<Named<'_>>) {
        if was.map(|was| was.mentions).unwrap_or_default() != is.map(|is| is.mentions).unwrap_or_default() {
            let of = |named: Option<Named<'_>>| named.map(|named| named.mentions.to_vec()).unwrap_or_default();
            put(&mut self.mentions, key, &of(was), &of(is));
        }
        // Return early: most entries have no marker.
        if was.iter().chain(&is).all(|named| named.markers.is_empty()) {
            return;
        }
        let of = |named: Option<Named<'_>>| {
            named.map(|named| named.markers.removed().into_iter().collect::<Vec<_>>()).unwrap_or_default()
        };
        put(&mut self.marked, key, &of(was), &of(is));
        if let Some(due) = was.and_then(|was| first_end(was.markers)) {
            self.due.remove(&(due, key.clone()));
        }
        if let Some(due) = is.and_then(|is| first_end(is.markers)) {
            self.due.insert((due, key.clone()));
        }
    }

    /// Whether the data of an entry name this replica.
    pub(crate) fn mentions(&self, replica: ReplicaId) -> bool {
        self.mentions.contains_key(&replica)
    }

    /// Whether data or markers name this replica.
    pub(crate) fn names(&self, replica: ReplicaId) -> bool {
        self.mentions(replica) || self.marked.contains_key(&replica)
    }

    /// Every replica that data name.
    pub(crate) fn replicas(&self) -> impl Iterator<Item = ReplicaId> + '_ {
        self.mentions.keys().copied()
    }

    /// Entries whose data name a replica, in order, after `after`, at most `limit`.
    pub(crate) fn naming(&self, replica: ReplicaId, after: Option<&KeyId>, limit: usize) -> Vec<KeyId> {
        let Some(keys) = self.mentions.get(&replica) else { return Vec::new() };
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        keys.range::<KeyId, _>((from, Bound::Unbounded)).take(limit).cloned().collect()
    }

    /// Entries with a marker that ended at `at` or before, each with its first end, ordered by these ends, after
    /// `after`, at most `limit`.
    pub(crate) fn ended_after(&self, at: i64, after: Option<&(i64, KeyId)>, limit: usize) -> Vec<(i64, KeyId)> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let due = self.due.range::<(i64, KeyId), _>((from, Bound::Unbounded));
        due.take_while(|(due, _)| *due <= at).take(limit).cloned().collect()
    }

    /// Entries with a marker that ended at `at` or before.
    pub(crate) fn ended(&self, at: i64) -> Vec<KeyId> {
        self.due.iter().take_while(|(due, _)| *due <= at).map(|(_, key)| key.clone()).collect()
    }
}

fn first_end(markers: &Markers) -> Option<i64> {
    markers.iter().filter_map(|marker| marker.obsolete_at).min()
}

fn put(map: &mut BTreeMap<ReplicaId, BTreeSet<KeyId>>, key: &KeyId, was: &[ReplicaId], is: &[ReplicaId]) {
    for replica in was.iter().filter(|replica| !is.contains(replica)) {
        if let Some(keys) = map.get_mut(replica) {
            keys.remove(key);
            if keys.is_empty() {
                map.remove(replica);
            }
        }
    }
    for replica in is.iter().filter(|replica| !was.contains(replica)) {
        map.entry(*replica).or_default().insert(key.clone());
    }
}
