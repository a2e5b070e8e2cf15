//! Due times by key: the next time is found without looking at the others.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

/// One due time for each key.
#[derive(Debug)]
pub(crate) struct Timetable<K> {
    times: BTreeMap<K, Instant>,
    order: BTreeSet<(Instant, K)>,
}

impl<K> Default for Timetable<K> {
    fn default() -> Self {
        Self { times: BTreeMap::new(), order: BTreeSet::new() }
    }
}

impl<K: Ord + Clone> Timetable<K> {
    /// Sets the only due time of the key.
    pub(crate) fn set(&mut self, key: &K, at: Instant) {
        self.change(key, Some(at));
    }

    /// Sets the due time of the key, or removes it.
    pub(crate) fn change(&mut self, key: &K, at: Option<Instant>) {
        if self.times.get(key).copied() == at {
            return;
        }
        self.remove(key);
        if let Some(at) = at {
            self.times.insert(key.clone(), at);
            self.order.insert((at, key.clone()));
        }
    }

    /// Removes the due time of the key.
    pub(crate) fn remove(&mut self, key: &K) {
        if let Some(at) = self.times.remove(key) {
            self.order.remove(&(at, key.clone()));
        }
    }

    /// Removes all due times.
    pub(crate) fn clear(&mut self) {
        self.times.clear();
        self.order.clear();
    }

    /// How many keys have a due time.
    pub(crate) fn len(&self) -> usize {
        debug_assert_eq!(self.times.len(), self.order.len(), "each key has one due time");
        self.times.len()
    }

    /// The due time of the key.
    pub(crate) fn get(&self, key: &K) -> Option<Instant> {
        self.times.get(key).copied()
    }

    /// The earliest due time.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.order.first().map(|(at, _)| *at)
    }

    /// The keys that are due by now, the earliest first. They stay in the table until they are changed.
    pub(crate) fn due(&self, now: Instant) -> Vec<K> {
        self.order.iter().take_while(|(at, _)| *at <= now).map(|(_, key)| key.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_key_is_due_once_at_its_latest_time() {
        let (start, mut table) = (Instant::now(), Timetable::default());
        let at = |seconds| start + Duration::from_secs(seconds);
        for (key, seconds) in [("a", 3), ("b", 1), ("a", 2), ("c", 9)] {
            table.set(&key, at(seconds));
        }
        assert_eq!(table.next(), Some(at(1)));
        assert_eq!(table.due(at(2)), ["b", "a"]);
        table.change(&"b", None);
        table.remove(&"a");
        assert_eq!((table.next(), table.due(at(3))), (Some(at(9)), vec![]));
        table.clear();
        assert_eq!(table.next(), None);
    }
}
