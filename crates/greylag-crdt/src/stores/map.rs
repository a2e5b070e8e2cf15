//! An ordered map whose versions share structure: `clone` is O(1), a change O(log n).
//!
//! The map is a vector of few keys, or a B+ tree of shared nodes. A change copies the nodes on its path that other
//! versions share and edits the rest in place, so updates that run on a clone, subscribers and senders all hold
//! snapshots without blocking each other. Source: ddata K11.

mod iter;
mod node;
mod ranges;
mod small;
#[cfg(test)]
mod tests;
mod tree;

use std::borrow::{Borrow, Cow};
use std::fmt;

pub(crate) use iter::Iter;
use node::{MAX, MIN};
use small::Small;
use tree::Tree;

/// An ordered map with O(1) clones.
#[derive(Clone)]
pub struct PersistentMap<K, V>(Form<K, V>);

/// A map becomes a tree when it gets more than [`MAX`] keys, and small again when it has fewer than [`MIN`].
enum Form<K, V> {
    /// No key, and no memory.
    Empty,
    Small(Small<K, V>),
    Tree(Tree<K, V>),
}

impl<K, V> Clone for Form<K, V> {
    fn clone(&self) -> Self {
        match self {
            Self::Empty => Self::Empty,
            Self::Small(small) => Self::Small(small.clone()),
            Self::Tree(tree) => Self::Tree(tree.clone()),
        }
    }
}

impl<K, V> PersistentMap<K, V> {
    /// How many keys there are.
    pub fn len(&self) -> usize {
        match &self.0 {
            Form::Empty => 0,
            Form::Small(small) => small.entries().len(),
            Form::Tree(tree) => tree.len(),
        }
    }

    /// Whether there is no key.
    pub fn is_empty(&self) -> bool {
        matches!(self.0, Form::Empty)
    }
}

impl<K: Ord + Clone, V: Clone> PersistentMap<K, V> {
    /// The empty map.
    pub fn new() -> Self {
        Self(Form::Empty)
    }

    /// The map of `entries`, whose keys ascend.
    pub(crate) fn from_ascending(entries: Vec<(K, V)>) -> Self {
        debug_assert!(entries.is_sorted_by(|(a, _), (b, _)| a < b), "keys ascend");
        Self(match entries.len() {
            0 => Form::Empty,
            len if len > MAX => Form::Tree(Tree::from_ascending(entries)),
            _ => Form::Small(Small::new(entries)),
        })
    }

    /// Whether both maps are the same structure, so that nothing need be compared.
    pub(crate) fn is_shared_with(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (Form::Empty, Form::Empty) => true,
            (Form::Small(own), Form::Small(theirs)) => own.is(theirs),
            (Form::Tree(own), Form::Tree(theirs)) => own.is(theirs),
            _ => false,
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
        let (key, value) = match &self.0 {
            Form::Empty => return None,
            Form::Small(small) => &small.entries()[small.find(key).ok()?],
            Form::Tree(tree) => tree.get(key)?,
        };
        Some((key, value))
    }

    /// Sets the value of a key and returns the former one.
    pub fn insert(&mut self, key: K, value: V) -> Option<V> {
        match &mut self.0 {
            Form::Empty => {
                self.begin_with(key, value);
                None
            }
            Form::Small(small) => {
                let former = small.insert(key, value);
                self.grow();
                former
            }
            Form::Tree(tree) => tree.insert(key, value),
        }
    }

    /// Inserts a key that is absent. Returns whether it was absent.
    pub(crate) fn insert_absent(&mut self, key: K, value: impl FnOnce(&K) -> V) -> bool {
        match &mut self.0 {
            Form::Empty => {
                let value = value(&key);
                self.begin_with(key, value);
                true
            }
            Form::Small(small) => {
                let was_absent = small.insert_absent(key, value);
                if was_absent {
                    self.grow();
                }
                was_absent
            }
            Form::Tree(tree) => tree.insert_absent(key, value),
        }
    }

    /// Changes the value of a key in place, the default value if the key is absent. `change` returns whether the key
    /// stays.
    pub(crate) fn alter(&mut self, key: Cow<'_, K>, change: impl FnOnce(&mut V) -> bool)
    where
        V: Default,
    {
        match &mut self.0 {
            Form::Empty => {
                let mut value = V::default();
                if change(&mut value) {
                    self.begin_with(key.into_owned(), value);
                }
            }
            Form::Small(small) => {
                small.alter(key, change);
                self.grow();
                self.shrink();
            }
            Form::Tree(tree) => {
                tree.alter(key, change);
                self.shrink();
            }
        }
    }

    /// Removes a key and returns its value.
    pub fn remove<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        let removed = match &mut self.0 {
            Form::Empty => None,
            Form::Small(small) => small.remove(key),
            Form::Tree(tree) => tree.remove(key),
        };
        self.shrink();
        removed
    }

    fn begin_with(&mut self, key: K, value: V) {
        // Small: many maps never get a second key.
        self.0 = Form::Small(Small::new([(key, value)]));
    }

    /// Turns a small map with too many keys into a tree.
    #[inline]
    fn grow(&mut self) {
        if matches!(&self.0, Form::Small(small) if small.entries().len() > MAX) {
            self.become_tree();
        }
    }

    #[cold]
    fn become_tree(&mut self) {
        if let Form::Small(small) = std::mem::replace(&mut self.0, Form::Empty) {
            self.0 = Form::Tree(Tree::from_ascending(small.into_entries()));
        }
    }

    /// Turns a tree with few keys into a small map, and frees an empty one.
    #[inline]
    fn shrink(&mut self) {
        match &self.0 {
            Form::Small(small) if small.entries().is_empty() => self.0 = Form::Empty,
            Form::Tree(tree) if tree.len() < MIN => {
                let left = Small::new(tree.iter().map(|(key, value)| (key.clone(), value.clone())));
                self.0 = Form::Small(left);
            }
            _ => {}
        }
    }

    /// Keys and values in ascending order.
    pub fn iter(&self) -> Iter<'_, K, V> {
        match &self.0 {
            Form::Empty => Iter::of_entries(&[]),
            Form::Small(small) => Iter::of_entries(small.entries()),
            Form::Tree(tree) => tree.iter(),
        }
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
