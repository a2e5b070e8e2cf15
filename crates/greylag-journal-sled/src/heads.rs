//! Heads in memory: a cache of what is stored; and what readers may not know yet, heads and other rows.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use greylag_persistence::PersistenceId;

use crate::records::StoredHead;

/// The heads used of late, so that an append needs no read.
///
/// Two generations in place of a list of uses: what is found in the old one moves to the young one,
/// and when the young one is full it becomes the old one. Every step takes constant time.
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
        let head = self.old.remove(id)?;
        self.put(id.clone(), head);
        Some(head)
    }

    pub(crate) fn put(&mut self, id: PersistenceId, head: StoredHead) {
        if self.young.len() >= self.half && !self.young.contains_key(&id) {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(id, head);
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
    pub(crate) heads: HashMap<PersistenceId, ChangedHead>,
    /// Other rows that are only ever written over, by their keys.
    pub(crate) rows: HashMap<Vec<u8>, Option<Bytes>>,
}

/// A head before its group, and as the group leaves it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ChangedHead {
    pub(crate) before: Option<StoredHead>,
    pub(crate) now: StoredHead,
}

/// What the groups in hand change, and how far events are durable. sled shows a batch before it is durable;
/// readers look here, so that nobody but the committer sees it (J6).
#[derive(Debug, Default)]
pub(crate) struct Undurable {
    /// The oldest group first. What a row was before that one is durable.
    groups: Mutex<VecDeque<Before>>,
    next_ordinal: AtomicU64,
}

impl Undurable {
    /// What readers must take in place of the head they read, if anything. Ask *after* reading:
    /// whoever read a head that is not durable is sure to find the durable one here, or it has
    /// become durable meanwhile.
    pub(crate) fn durable_head(&self, id: &PersistenceId) -> Option<Option<StoredHead>> {
        lock(&self.groups).iter().find_map(|group| group.heads.get(id)).map(|changed| changed.before)
    }

    /// The same for any other row that is only ever written over, by its key.
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
            cache.put(id(n), head(n));
            assert_eq!(cache.get(&id(0)), Some(head(0)), "used after every other one");
        }
        assert_eq!(cache.get(&id(19)), Some(head(19)));
        assert_eq!(cache.get(&id(10)), None);
    }

    /// J6: with two groups in hand the row before the older one is durable, and then the row between them.
    #[test]
    fn of_two_groups_the_older_one_tells_what_is_durable() {
        let id = PersistenceId::unique("Counter|1").unwrap();
        let head = |n| StoredHead { pid: PidNo(n), head: Head::default(), timestamp: Timestamp::default(), slice: 0 };
        let group = |before: Option<u64>, now| {
            let changed = ChangedHead { before: before.map(head), now: head(now) };
            let row = before.map(|before| Bytes::from(before.to_string()));
            Before { heads: [(id.clone(), changed)].into(), rows: [(b"key".to_vec(), row)].into() }
        };
        let undurable = Undurable::default();
        undurable.publish(group(None, 1));
        undurable.publish(group(Some(1), 2));
        assert_eq!((undurable.durable_head(&id), undurable.durable_row(b"key")), (Some(None), Some(None)));
        undurable.settle(5);
        assert_eq!((undurable.durable_head(&id), undurable.next_ordinal()), (Some(Some(head(1))), 5));
        assert_eq!(undurable.durable_row(b"key"), Some(Some("1".into())));
        undurable.settle(6);
        assert_eq!((undurable.durable_head(&id), undurable.durable_row(b"key")), (None, None));
    }
}
