//! A map of few keys, in one vector.

use std::borrow::{Borrow, Cow};

use smallvec::SmallVec;
use triomphe::Arc;

use super::node::{find, is_cheap};

/// Keys and values, ascending. Up to three stand beside the reference count, in one allocation.
type Entries<K, V> = SmallVec<[(K, V); 3]>;

/// A vector that versions of the map share. Most maps are small, and there are many of them.
pub(super) struct Small<K, V>(Arc<Entries<K, V>>);

impl<K, V> Clone for Small<K, V> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<K, V> Small<K, V> {
    pub(super) fn new(entries: impl IntoIterator<Item = (K, V)>) -> Self {
        Self(Arc::new(entries.into_iter().collect()))
    }

    /// Whether both are the same vector.
    pub(super) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    pub(super) fn entries(&self) -> &[(K, V)] {
        &self.0
    }
}

impl<K: Ord + Clone, V: Clone> Small<K, V> {
    /// The place of a key, or the place that it would have.
    #[inline]
    pub(super) fn find<Q: Ord + ?Sized>(&self, key: &Q) -> Result<usize, usize>
    where
        K: Borrow<Q>,
    {
        if !is_cheap::<K>() {
            return find(&self.0, key);
        }
        // Search linearly: with one or two keys nothing is quicker.
        for (at, (own, _)) in self.0.iter().enumerate() {
            if own.borrow() >= key {
                return if own.borrow() == key { Ok(at) } else { Err(at) };
            }
        }
        Err(self.0.len())
    }

    /// Sets the value of a key and returns the former one.
    pub(super) fn insert(&mut self, key: K, value: V) -> Option<V> {
        match self.find(&key) {
            Ok(at) => Some(std::mem::replace(&mut Arc::make_mut(&mut self.0)[at].1, value)),
            Err(at) => {
                self.insert_at(at, key, value);
                None
            }
        }
    }

    /// Inserts a key that is absent. Returns whether it was absent.
    #[inline]
    pub(super) fn insert_absent(&mut self, key: K, value: impl FnOnce(&K) -> V) -> bool {
        let Err(at) = self.find(&key) else { return false };
        let value = value(&key);
        self.insert_at(at, key, value);
        true
    }

    /// See [`super::PersistentMap::alter`].
    pub(super) fn alter(&mut self, key: Cow<'_, K>, change: impl FnOnce(&mut V) -> bool)
    where
        V: Default,
    {
        match self.find(&*key) {
            Ok(at) => {
                let entries = Arc::make_mut(&mut self.0);
                if !change(&mut entries[at].1) {
                    entries.remove(at);
                }
            }
            Err(at) => {
                let mut value = V::default();
                if change(&mut value) {
                    self.insert_at(at, key.into_owned(), value);
                }
            }
        }
    }

    /// Takes a key out and returns its value.
    pub(super) fn remove<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        let at = self.find(key).ok()?;
        Some(Arc::make_mut(&mut self.0).remove(at).1)
    }

    /// All entries; a copy if another map shares the vector.
    pub(super) fn into_entries(self) -> Vec<(K, V)> {
        Arc::unwrap_or_clone(self.0).into_vec()
    }

    #[inline]
    fn insert_at(&mut self, at: usize, key: K, value: V) {
        if let Some(entries) = Arc::get_mut(&mut self.0) {
            entries.insert(at, (key, value));
        } else {
            let (before, after) = self.0.split_at(at);
            let mut entries = Entries::with_capacity(self.0.len() + 1);
            entries.extend(before.iter().cloned());
            entries.push((key, value));
            entries.extend(after.iter().cloned());
            self.0 = Arc::new(entries);
        }
    }
}
