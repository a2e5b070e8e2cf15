//! Heads in memory: a cache of what is stored; and what readers may not know yet, heads and other rows.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use greylag_persistence::PersistenceId;

use crate::keys::PidNo;
use crate::records::StoredHead;

/// The heads used of late, so that an append needs no read.
///
/// Two generations in place of a list of uses: what is found in the old one moves to the young one, and when the
/// young one is full it becomes the old one. That happens between groups only: what a group changed is found here
/// until it is over. Every step takes constant time.
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

    /// Before a group: forgets what was not used of late, if there is too much.
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

/// What readers find in place of the rows that one group changes, until that group is durable: the rows as they
/// were before it, or none.
#[derive(Debug, Default)]
pub(crate) struct Before {
    /// By the numbers of their ids, ascending.
    pub(crate) heads: Vec<(PidNo, Option<StoredHead>)>,
    /// Other rows that are only ever written over, by their keys.
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

    /// All of them, by the numbers of their ids, ascending. The next group begins with none.
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

/// What the groups in hand change, and how far events are durable. sled shows a batch before it is durable;
/// readers look here, so that only the committer sees such a batch (J6).
#[derive(Debug, Default)]
pub(crate) struct Undurable {
    /// The oldest group first. The value that a row had before the oldest group is durable.
    groups: Mutex<VecDeque<Before>>,
    next_ordinal: AtomicU64,
}

impl Undurable {
    /// What readers must take for the head they read. Ask *after* reading: a reader that read a head that is not
    /// durable is sure to find the durable one here, unless the head has become durable meanwhile.
    pub(crate) fn durable_head(&self, read: StoredHead) -> Option<StoredHead> {
        let in_group = |group: &Before| {
            let place = group.heads.binary_search_by_key(&read.pid, |(pid, _)| *pid).ok()?;
            Some(group.heads[place].1)
        };
        lock(&self.groups).iter().find_map(in_group).unwrap_or(Some(read))
    }

    /// As [`Undurable::durable_head`], for any other row that is only ever written over, by its key.
    pub(crate) fn durable_row(&self, key: &[u8]) -> Option<Option<Bytes>> {
        lock(&self.groups).iter().find_map(|group| group.rows.get(key)).cloned()
    }

    /// Before a group is applied: what it changes, as it is now.
    pub(crate) fn publish(&self, before: Before) {
        lock(&self.groups).push_back(before);
    }

    /// The oldest group is durable, and every event below this ordinal.
    pub(crate) fn settle(&self, next_ordinal: u64) {
        // Dropped without the lock that readers need.
        let _settled = lock(&self.groups).pop_front();
        self.raise_to(next_ordinal);
    }

    /// The ordinal of the first event that queries may not know yet.
    pub(crate) fn next_ordinal(&self) -> u64 {
        self.next_ordinal.load(Ordering::Acquire)
    }

    /// Every event below this ordinal is durable.
    pub(crate) fn raise_to(&self, next_ordinal: u64) {
        self.next_ordinal.store(next_ordinal, Ordering::Release);
    }

    /// No group is in hand any more.
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
    use crate::keys::PidNo;

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

    /// J6: with two groups in hand the row before the older one is durable, and then the row between them.
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

    /// The cache knows what a group changed before sled does, so it may forget nothing until the group is over.
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
