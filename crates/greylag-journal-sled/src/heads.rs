//! Heads in memory: a cache of what is stored; and what readers may not know yet, heads and other rows.

use std::collections::HashMap;
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

/// The durable heads and rows that the group in hand changes, and how far events are durable. sled shows a batch before it is
/// durable; readers look here, so that nobody but the committer sees it (J6).
#[derive(Debug, Default)]
pub(crate) struct Undurable {
    heads: Mutex<HashMap<PersistenceId, Option<StoredHead>>>,
    rows: Mutex<HashMap<Vec<u8>, Option<Bytes>>>,
    next_ordinal: AtomicU64,
}

impl Undurable {
    /// What readers must take in place of the head they read, if anything. Ask *after* reading:
    /// whoever read a head that is not durable is sure to find the durable one here, or it has
    /// become durable meanwhile.
    pub(crate) fn durable_head(&self, id: &PersistenceId) -> Option<Option<StoredHead>> {
        lock(&self.heads).get(id).copied()
    }

    /// The same for any other row that is only ever written over, by its key.
    pub(crate) fn durable_row(&self, key: &[u8]) -> Option<Option<Bytes>> {
        lock(&self.rows).get(key).cloned()
    }

    /// Before the group is applied: what it changes, as it is now.
    pub(crate) fn publish(
        &self,
        heads: HashMap<PersistenceId, Option<StoredHead>>,
        rows: HashMap<Vec<u8>, Option<Bytes>>,
    ) {
        *lock(&self.heads) = heads;
        *lock(&self.rows) = rows;
    }

    /// The ordinal of the first event that queries may not know yet.
    pub(crate) fn next_ordinal(&self) -> u64 {
        self.next_ordinal.load(Ordering::Acquire)
    }

    /// Every event below this ordinal is durable.
    pub(crate) fn raise_to(&self, next_ordinal: u64) {
        self.next_ordinal.store(next_ordinal, Ordering::Release);
    }

    pub(crate) fn clear(&self) {
        lock(&self.heads).clear();
        lock(&self.rows).clear();
    }
}

fn lock<T>(map: &Mutex<T>) -> MutexGuard<'_, T> {
    map.lock().unwrap_or_else(PoisonError::into_inner)
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
}
