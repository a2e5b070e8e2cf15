//! A map of many keys: a B+ tree.
//!
//! Each change searches its key once. If no other tree holds a node on the path, one descent finds and changes the
//! entry; else the path is remembered, so that nodes are copied only if something changes.

use std::borrow::{Borrow, Cow};

use super::Iter;
use super::node::{Node, find};

/// The tree, and how many keys it has.
pub(super) struct Tree<K, V> {
    pub(super) root: Node<K, V>,
    len: usize,
}

impl<K, V> Clone for Tree<K, V> {
    fn clone(&self) -> Self {
        Self { root: self.root.clone(), len: self.len }
    }
}

impl<K, V> Tree<K, V> {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Whether both are the same tree.
    pub(super) fn is(&self, other: &Self) -> bool {
        self.root.is(&other.root)
    }

    pub(super) fn iter(&self) -> Iter<'_, K, V> {
        Iter::of_tree(&self.root)
    }
}

impl<K: Ord + Clone, V: Clone> Tree<K, V> {
    /// The tree of `entries`, whose keys ascend.
    pub(super) fn from_ascending(entries: Vec<(K, V)>) -> Self {
        Self { len: entries.len(), root: Node::from_ascending(entries) }
    }

    /// The entry of a key.
    pub(super) fn get<Q: Ord + ?Sized>(&self, key: &Q) -> Option<&(K, V)>
    where
        K: Borrow<Q>,
    {
        let entries = self.root.leaf_of(key);
        Some(&entries[find(entries, key).ok()?])
    }

    /// Sets the value of a key and returns the former one.
    #[inline(never)]
    pub(super) fn insert(&mut self, key: K, value: V) -> Option<V> {
        match self.root.unshared(&key) {
            Some((leaf, Ok(at))) => return Some(std::mem::replace(leaf.value_mut(at), value)),
            Some((leaf, Err(at))) if leaf.has_room() => {
                leaf.insert(at, key, value);
                self.len += 1;
                return None;
            }
            _ => {}
        }
        let (path, place) = self.root.locate(&key);
        match place {
            Ok(at) => Some(std::mem::replace(self.root.value_mut(path, at), value)),
            Err(at) => {
                self.root.insert(path, at, key, value);
                self.len += 1;
                None
            }
        }
    }

    /// Inserts a key that is absent. Returns whether it was absent.
    #[inline(never)]
    pub(super) fn insert_absent(&mut self, key: K, value: impl FnOnce(&K) -> V) -> bool {
        match self.root.unshared(&key) {
            Some((_, Ok(_))) => return false,
            Some((leaf, Err(at))) if leaf.has_room() => {
                let value = value(&key);
                leaf.insert(at, key, value);
                self.len += 1;
                return true;
            }
            _ => {}
        }
        let (path, Err(at)) = self.root.locate(&key) else { return false };
        let value = value(&key);
        self.root.insert(path, at, key, value);
        self.len += 1;
        true
    }

    /// See [`super::PersistentMap::alter`].
    #[inline(never)]
    pub(super) fn alter(&mut self, key: Cow<'_, K>, change: impl FnOnce(&mut V) -> bool)
    where
        V: Default,
    {
        match self.root.unshared(&*key) {
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
        match self.root.locate(&*key) {
            (path, Ok(at)) => {
                if !change(self.root.value_mut(path, at)) {
                    self.root.remove(path, at);
                    self.len -= 1;
                }
            }
            (path, Err(at)) => {
                let mut value = V::default();
                if change(&mut value) {
                    self.root.insert(path, at, key.into_owned(), value);
                    self.len += 1;
                }
            }
        }
    }

    /// Removes a key and returns its value.
    pub(super) fn remove<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        let (path, Ok(at)) = self.root.locate(key) else { return None };
        self.len -= 1;
        Some(self.root.remove(path, at))
    }
}
