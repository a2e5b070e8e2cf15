//! Values shared by many users, each kept once.
//!
//! A region of 100,000 shards knows a home for each of them, but only a few distinct regions. Source: sharding §10.

use std::collections::BTreeMap;
use std::sync::Arc;

/// One value for each key, for as long as it is in use.
#[derive(Debug)]
pub(crate) struct Interned<K, V>(BTreeMap<K, Arc<V>>);

impl<K, V> Default for Interned<K, V> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<K: Ord + Clone, V> Interned<K, V> {
    /// The value of a key, made by `make` if none is in use. A new value also removes all values that only this table
    /// still holds.
    pub(crate) fn share(&mut self, key: &K, make: impl FnOnce() -> V) -> Arc<V> {
        if let Some(known) = self.0.get(key) {
            return known.clone();
        }
        self.0.retain(|_, value| Arc::strong_count(value) > 1);
        let made = Arc::new(make());
        self.0.insert(key.clone(), made.clone());
        made
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_shared_while_it_is_in_use_and_forgotten_later() {
        let mut interned = Interned::default();
        let one = interned.share(&1, || "one");
        assert!(Arc::ptr_eq(&one, &interned.share(&1, || "another")));
        drop(one);
        let two = interned.share(&2, || "two");
        assert_eq!((interned.0.len(), *two), (1, "two"), "nothing holds the first one");
        assert_eq!(*interned.share(&1, || "anew"), "anew");
        assert_eq!(interned.0.len(), 2);
    }
}
