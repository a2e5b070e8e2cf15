//! Heads in memory: a cache of stored heads; and rows as readers must see them until a group is durable.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use greylag_persistence::PersistenceId;

use crate::rows::keys::PidNo;
use crate::rows::records::StoredHead;

/// Recently used heads, so that an append needs no read.
///
/// The cache has two generations instead of a list of uses: a head found in the old one moves to the young one, and
/// when the young one is full it becomes the old one. Generations change between groups only, so every head that a
/// group changed is found here until the group is over. Every step takes constant time.
#[derive(Debug)]
pub(crate) struct HeadCache {
    young: HashMap<PersistenceId, StoredHead>,
    old: HashMap<PersistenceId, StoredHead>,
    half: usize,
}

impl HeadCache {
    pub(crate) fn new(capacity: usize) -> Self {
        Self { young: HashMap::new(), old: HashMap::new(), half: (capacity / 2).max(1) }
    }

    pub(crate) fn get(&mut self, id: &PersistenceId) -> Option<StoredHead> {
        if let Some(head) = self.young.get(id) {
            return Some(*head);
        }
        let (id, head) = self.old.remove_entry(id)?;
        self.young.insert(id, head);
        Some(head)
    }

    pub(crate) fn put(&mut self, id: &PersistenceId, head: StoredHead) {
        if let Some(known) = self.young.get_mut(id) {
            *known = head;
        } else {
            self.young.insert(id.clone(), head);
        }
    }

    /// Called before a group: drops the old generation if the young one is full.
    pub(crate) fn trim(&mut self) {
        if self.young.len() >= self.half {
            self.old = std::mem::take(&mut self.young);
        }
    }

    pub(crate) fn clear(&mut self) {
        self.young.clear();
        self.old.clear();
    }
}

/// Rows that readers find in place of those that one group changes, until that group is durable: the rows as they
/// were before the group, or none.
#[derive(Debug, Default)]
pub(crate) struct Before {
    /// Heads by the numbers of their ids, ascending.
    pub(crate) heads: Vec<(PidNo, Option<StoredHead>)>,
    /// Other rows that are overwritten in place, by their keys.
    pub(crate) rows: HashMap<Vec<u8>, Option<Bytes>>,
}

/// The heads that a group changes.
#[derive(Debug, Default)]
pub(crate) struct ChangedHeads {
    changed: Vec<ChangedHead>,
    places: HashMap<PidNo, usize>,
}

/// A head before its group, and as the group leaves it.
#[derive(Debug)]
pub(crate) struct ChangedHead {
    pub(crate) id: PersistenceId,
    pub(crate) before: Option<StoredHead>,
    pub(crate) now: StoredHead,
}

impl ChangedHeads {
    pub(crate) fn change(&mut self, id: PersistenceId, before: Option<StoredHead>, now: StoredHead) {
        let place = *self.places.entry(now.pid).or_insert(self.changed.len());
        match self.changed.get_mut(place) {
            Some(changed) => changed.now = now,
            None => self.changed.push(ChangedHead { id, before, now }),
        }
    }

    /// Takes all changed heads, by the numbers of their ids, ascending. The next group begins with none.
    pub(crate) fn take(&mut self) -> Vec<ChangedHead> {
        self.places.clear();
        let mut changed = std::mem::take(&mut self.changed);
        changed.sort_unstable_by_key(|changed| changed.now.pid);
        changed
    }

    pub(crate) fn clear(&mut self) {
        self.take();
    }
}

/// Changes of the groups in hand, and the ordinal up to which events are durable. sled shows a batch before it is
/// durable; readers look here, so that only the committer sees such a batch (J6).
#[derive(Debug, Default)]
pub(crate) struct Undurable {
    /// The oldest group first. The value that a row had before the oldest group is durable.
    groups: Mutex<VecDeque<Before>>,
    next_ordinal: AtomicU64,
}

impl Undurable {
    /// The durable head in place of `read`. Call it *after* reading: a reader that read an undurable head is sure to
    /// find the durable one here, unless the head that it read has become durable meanwhile.
    pub(crate) fn durable_head(&self, read: StoredHead) -> Option<StoredHead> {
        let in_group = |group: &Before| {
            let place = group.heads.binary_search_by_key(&read.pid, |(pid, _)| *pid).ok()?;
            Some(group.heads[place].1)
        };
        lock(&self.groups).iter().find_map(in_group).unwrap_or(Some(read))
    }

    /// As [`Undurable::durable_head`], for any other row that is overwritten in place, by its key.
    pub(crate) fn durable_row(&self, key: &[u8]) -> Option<Option<Bytes>> {
        lock(&self.groups).iter().find_map(|group| group.rows.get(key)).cloned()
    }

    /// Called before a group is applied: keeps the rows that the group changes, as they are now.
    pub(crate) fn publish(&self, before: Before) {
        lock(&self.groups).push_back(before);
    }

    /// Called when the oldest group is durable, and with it every event below `next_ordinal`.
    pub(crate) fn settle(&self, next_ordinal: u64) {
        // The rows are dropped after the lock, which readers need, is released.
        let _settled = lock(&self.groups).pop_front();
        self.raise_to(next_ordinal);
    }

    /// The ordinal of the first event that queries may not know yet.
    pub(crate) fn next_ordinal(&self) -> u64 {
        self.next_ordinal.load(Ordering::Acquire)
    }

    /// Tells that every event below `next_ordinal` is durable.
    pub(crate) fn raise_to(&self, next_ordinal: u64) {
        self.next_ordinal.store(next_ordinal, Ordering::Release);
    }

    /// Forgets all groups: none is in hand any more.
    pub(crate) fn clear(&self) {
        lock(&self.groups).clear();
    }
}

fn lock<T>(groups: &Mutex<T>) -> MutexGuard<'_, T> {
    groups.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use greylag_persistence::{Head, Timestamp};

    use super::*;
    use crate::rows::keys::PidNo;

    #[test]
    fn heads_in_use_stay_and_others_go() {
        let head = |n| StoredHead { pid: PidNo(n), head: Head::default(), timestamp: Timestamp::default(), slice: 0 };
        let id = |n: u64| PersistenceId::unique(&n.to_string()).unwrap();
        let mut cache = HeadCache::new(4);
        for n in 0..20 {
            cache.trim();
            cache.put(&id(n), head(n));
            assert_eq!(cache.get(&id(0)), Some(head(0)), "used after every other one");
        }
        assert_eq!(cache.get(&id(19)), Some(head(19)));
        assert_eq!(cache.get(&id(10)), None);
    }

    /// J6: with two groups in hand readers see the row before the older group, then the row between the two.
    #[test]
    fn of_two_groups_the_older_one_tells_what_is_durable() {
        let timestamp = Timestamp::from_micros;
        let head = |n| StoredHead { pid: PidNo(7), head: Head::default(), timestamp: timestamp(n), slice: 0 };
        let group = |before: Option<u64>| {
            let row = before.map(|before| Bytes::from(before.to_string()));
            Before { heads: vec![(PidNo(7), before.map(head))], rows: [(b"key".to_vec(), row)].into() }
        };
        let undurable = Undurable::default();
        undurable.publish(group(None));
        undurable.publish(group(Some(1)));
        let read = head(2);
        assert_eq!((undurable.durable_head(read), undurable.durable_row(b"key")), (None, Some(None)));
        let other = StoredHead { pid: PidNo(8), ..read };
        assert_eq!(undurable.durable_head(other), Some(other));
        undurable.settle(5);
        assert_eq!((undurable.durable_head(read), undurable.next_ordinal()), (Some(head(1)), 5));
        assert_eq!(undurable.durable_row(b"key"), Some(Some("1".into())));
        undurable.settle(6);
        assert_eq!((undurable.durable_head(read), undurable.durable_row(b"key")), (Some(read), None));
    }

    /// The cache has a group's changes before sled does, so it must not drop a head until the group is over.
    #[test]
    fn a_group_finds_every_head_that_it_changed() {
        let head = |n| StoredHead { pid: PidNo(n), head: Head::default(), timestamp: Timestamp::default(), slice: 0 };
        let id = |n: u64| PersistenceId::unique(&n.to_string()).unwrap();
        let mut cache = HeadCache::new(4);
        cache.trim();
        (0..100).for_each(|n| cache.put(&id(n), head(n)));
        assert!((0..100).all(|n| cache.get(&id(n)) == Some(head(n))));
    }

    #[test]
    fn of_two_changes_in_a_group_the_first_tells_what_was_and_the_last_what_is() {
        let timestamp = Timestamp::from_micros;
        let head = |pid, n| StoredHead { pid: PidNo(pid), head: Head::default(), timestamp: timestamp(n), slice: 0 };
        let id = |n: u64| PersistenceId::unique(&n.to_string()).unwrap();
        let mut changed = ChangedHeads::default();
        changed.change(id(2), None, head(2, 1));
        changed.change(id(1), Some(head(1, 5)), head(1, 6));
        changed.change(id(2), Some(head(2, 1)), head(2, 2));
        let all: Vec<_> = changed.take().into_iter().map(|changed| (changed.id, changed.before, changed.now)).collect();
        assert_eq!(all, [(id(1), Some(head(1, 5)), head(1, 6)), (id(2), None, head(2, 2))]);
        changed.change(id(2), Some(head(2, 2)), head(2, 3));
        assert_eq!(changed.take().len(), 1);
    }
}
