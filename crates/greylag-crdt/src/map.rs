//! An ordered map whose versions share structure: `clone` is O(1), a change O(log n).
//!
//! A B+ tree of shared nodes. A change copies the nodes on its path that somebody else holds too and edits the others in
//! place, so updates that run on a clone, subscribers and senders all hold snapshots without blocking each other. A key is
//! looked for once: the way to its place is remembered, and only when something is to change there are nodes copied.
//! Source: ddata K11.

mod iter;
mod node;
mod ranges;
#[cfg(test)]
mod tests;

use std::borrow::{Borrow, Cow};
use std::fmt;

pub(crate) use iter::Iter;
use node::Node;

/// An ordered map with O(1) clones.
#[derive(Clone)]
pub struct PersistentMap<K, V> {
    /// `None` if there is no key.
    root: Option<Node<K, V>>,
    len: usize,
}

impl<K, V> PersistentMap<K, V> {
    /// How many keys there are.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is no key.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl<K: Ord + Clone, V: Clone> PersistentMap<K, V> {
    /// The empty map.
    pub fn new() -> Self {
        Self { root: None, len: 0 }
    }

    /// The map of these keys, which ascend.
    pub(crate) fn from_ascending(entries: Vec<(K, V)>) -> Self {
        debug_assert!(entries.is_sorted_by(|(a, _), (b, _)| a < b), "keys ascend");
        Self { len: entries.len(), root: Node::from_ascending(entries) }
    }

    /// Whether the two are one structure, so that nothing need be compared.
    pub(crate) fn is_shared_with(&self, other: &Self) -> bool {
        match (&self.root, &other.root) {
            (Some(own), Some(theirs)) => own.is(theirs),
            (own, theirs) => own.is_none() && theirs.is_none(),
        }
    }

    /// The value of a key.
    pub fn get<Q: Ord + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        self.get_key_value(key).map(|(_, value)| value)
    }

    /// A key as the map holds it, with its value.
    pub fn get_key_value<Q: Ord + ?Sized>(&self, key: &Q) -> Option<(&K, &V)>
    where
        K: Borrow<Q>,
    {
        self.root.as_ref()?.get_key_value(key)
    }

    /// Sets the value of a key and returns the former one.
    pub fn insert(&mut self, key: K, value: V) -> Option<V> {
        let Some(root) = &mut self.root else {
            self.begin_with(key, value);
            return None;
        };
        match root.unshared(&key) {
            Some((leaf, Ok(at))) => return Some(std::mem::replace(leaf.value_mut(at), value)),
            Some((leaf, Err(at))) if leaf.has_room() => {
                leaf.insert(at, key, value);
                self.len += 1;
                return None;
            }
            _ => {}
        }
        let (path, place) = root.locate(&key);
        match place {
            Ok(at) => Some(std::mem::replace(root.value_mut(path, at), value)),
            Err(at) => {
                root.insert(path, at, key, value);
                self.len += 1;
                None
            }
        }
    }

    /// Inserts a key that is absent. Returns whether it was.
    pub(crate) fn insert_absent(&mut self, key: K, value: impl FnOnce(&K) -> V) -> bool {
        let Some(root) = &mut self.root else {
            let value = value(&key);
            self.begin_with(key, value);
            return true;
        };
        match root.unshared(&key) {
            Some((_, Ok(_))) => return false,
            Some((leaf, Err(at))) if leaf.has_room() => {
                let value = value(&key);
                leaf.insert(at, key, value);
                self.len += 1;
                return true;
            }
            _ => {}
        }
        let (path, Err(at)) = root.locate(&key) else { return false };
        let value = value(&key);
        root.insert(path, at, key, value);
        self.len += 1;
        true
    }

    /// Changes the value of a key where it stands, the default one if the key is absent. Whether the key is there
    /// afterwards is what the closure returns.
    pub(crate) fn alter(&mut self, key: Cow<'_, K>, change: impl FnOnce(&mut V) -> bool)
    where
        V: Default,
    {
        let Some(root) = &mut self.root else {
            let mut value = V::default();
            if change(&mut value) {
                self.begin_with(key.into_owned(), value);
            }
            return;
        };
        match root.unshared(&*key) {
            Some((leaf, Ok(at))) => {
                if !change(leaf.value_mut(at)) {
                    self.remove(&*key);
                }
                return;
            }
            Some((leaf, Err(at))) if leaf.has_room() => {
                let mut value = V::default();
                if change(&mut value) {
                    leaf.insert(at, key.into_owned(), value);
                    self.len += 1;
                }
                return;
            }
            _ => {}
        }
        match root.locate(&*key) {
            (path, Ok(at)) => {
                if !change(root.value_mut(path, at)) {
                    self.remove_at(path, at);
                }
            }
            (path, Err(at)) => {
                let mut value = V::default();
                if change(&mut value) {
                    root.insert(path, at, key.into_owned(), value);
                    self.len += 1;
                }
            }
        }
    }

    /// Takes a key out and returns its value.
    pub fn remove<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        let (path, Ok(at)) = self.root.as_ref()?.locate(key) else { return None };
        self.remove_at(path, at)
    }

    fn begin_with(&mut self, key: K, value: V) {
        self.root = Some(Node::single(key, value));
        self.len = 1;
    }

    fn remove_at(&mut self, path: node::Path, at: usize) -> Option<V> {
        let removed = self.root.as_mut()?.remove(path, at);
        self.len -= 1;
        if self.len == 0 {
            self.root = None;
        }
        Some(removed)
    }

    /// Keys and values in ascending order.
    pub fn iter(&self) -> Iter<'_, K, V> {
        Iter::of(self.root.as_ref())
    }

    /// Keys in ascending order.
    pub fn keys(&self) -> impl Iterator<Item = &K> {
        self.iter().map(|(key, _)| key)
    }
}

impl<K: Ord + Clone, V: Clone> Default for PersistentMap<K, V> {
    fn default() -> Self {
        Self::new()
    }
}

impl<K: Ord + Clone, V: Clone + PartialEq> PartialEq for PersistentMap<K, V> {
    fn eq(&self, other: &Self) -> bool {
        self.is_shared_with(other) || (self.len() == other.len() && self.iter().eq(other.iter()))
    }
}

impl<K: Ord + Clone, V: Clone + Eq> Eq for PersistentMap<K, V> {}

impl<K: Ord + Clone + fmt::Debug, V: Clone + fmt::Debug> fmt::Debug for PersistentMap<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}
