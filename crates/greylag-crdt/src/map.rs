//! An ordered map whose versions share structure: `clone` is O(1), a change O(log n).
//!
//! A weight-balanced tree of shared nodes. A change copies the nodes on its path that somebody else
//! holds too and edits the others in place, so updates that run on a clone, subscribers and senders
//! all hold snapshots without blocking each other. Source: ddata K11; Adams 1993.

use std::borrow::Borrow;
use std::cmp::Ordering;
use std::fmt;
use std::sync::Arc;

type Link<K, V> = Option<Arc<Node<K, V>>>;

#[derive(Clone)]
struct Node<K, V> {
    key: K,
    value: V,
    size: usize,
    left: Link<K, V>,
    right: Link<K, V>,
}

/// One side may be this many times as heavy as the other.
const WEIGHT: usize = 3;
/// A single rotation suffices if the inner grandchild is lighter than this many times the outer.
const RATIO: usize = 2;

/// An ordered map with O(1) clones.
#[derive(Clone)]
pub struct PersistentMap<K, V> {
    root: Link<K, V>,
}

fn size<K, V>(link: &Link<K, V>) -> usize {
    link.as_ref().map_or(0, |node| node.size)
}

fn weight<K, V>(link: &Link<K, V>) -> usize {
    size(link) + 1
}

impl<K, V> Node<K, V> {
    fn resize(&mut self) {
        self.size = size(&self.left) + size(&self.right) + 1;
    }
}

impl<K: Ord + Clone, V: Clone> PersistentMap<K, V> {
    /// The empty map.
    pub fn new() -> Self {
        Self { root: None }
    }

    /// How many keys there are.
    pub fn len(&self) -> usize {
        size(&self.root)
    }

    /// Whether there is no key.
    pub fn is_empty(&self) -> bool {
        self.root.is_none()
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
        let mut link = &self.root;
        while let Some(node) = link {
            link = match key.cmp(node.key.borrow()) {
                Ordering::Less => &node.left,
                Ordering::Equal => return Some((&node.key, &node.value)),
                Ordering::Greater => &node.right,
            };
        }
        None
    }

    /// Sets the value of a key and returns the former one.
    pub fn insert(&mut self, key: K, value: V) -> Option<V> {
        insert(&mut self.root, key, value)
    }

    /// Takes a key out and returns its value.
    pub fn remove<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        // Looked up first: removing copies the path, which an absent key is not worth.
        self.get(key)?;
        remove(&mut self.root, key)
    }

    /// Keys and values in ascending order.
    pub fn iter(&self) -> Iter<'_, K, V> {
        let mut iter = Iter { path: Vec::new() };
        iter.descend(&self.root);
        iter
    }

    /// Keys in ascending order.
    pub fn keys(&self) -> impl Iterator<Item = &K> {
        self.iter().map(|(key, _)| key)
    }
}

fn insert<K: Ord + Clone, V: Clone>(link: &mut Link<K, V>, key: K, value: V) -> Option<V> {
    let Some(arc) = link else {
        *link = Some(Arc::new(Node { key, value, size: 1, left: None, right: None }));
        return None;
    };
    let node = Arc::make_mut(arc);
    let former = match key.cmp(&node.key) {
        Ordering::Less => insert(&mut node.left, key, value),
        Ordering::Equal => return Some(std::mem::replace(&mut node.value, value)),
        Ordering::Greater => insert(&mut node.right, key, value),
    };
    node.resize();
    balance(link);
    former
}

fn remove<K: Ord + Clone + Borrow<Q>, V: Clone, Q: Ord + ?Sized>(link: &mut Link<K, V>, key: &Q) -> Option<V> {
    let node = Arc::make_mut(link.as_mut()?);
    let removed = match key.cmp(node.key.borrow()) {
        Ordering::Less => remove(&mut node.left, key)?,
        Ordering::Greater => remove(&mut node.right, key)?,
        Ordering::Equal => match (node.left.take(), node.right.take()) {
            (None, only) | (only, None) => {
                let removed = node.value.clone();
                *link = only;
                return Some(removed);
            }
            (left, mut right) => {
                let (next_key, next_value) = pop_first(&mut right)?;
                node.left = left;
                node.right = right;
                node.key = next_key;
                std::mem::replace(&mut node.value, next_value)
            }
        },
    };
    node.resize();
    balance(link);
    Some(removed)
}

fn pop_first<K: Ord + Clone, V: Clone>(link: &mut Link<K, V>) -> Option<(K, V)> {
    let node = Arc::make_mut(link.as_mut()?);
    if node.left.is_none() {
        let first = (node.key.clone(), node.value.clone());
        *link = node.right.take();
        return Some(first);
    }
    let first = pop_first(&mut node.left);
    node.resize();
    balance(link);
    first
}

fn balance<K: Clone, V: Clone>(link: &mut Link<K, V>) {
    let Some(arc) = link else { return };
    let (left, right) = (weight(&arc.left), weight(&arc.right));
    if left + right <= 3 {
        return;
    }
    if right > WEIGHT * left {
        let node = Arc::make_mut(arc);
        if node.right.as_ref().is_some_and(|r| weight(&r.left) >= RATIO * weight(&r.right)) {
            rotate_right(&mut node.right);
        }
        rotate_left(link);
    } else if left > WEIGHT * right {
        let node = Arc::make_mut(arc);
        if node.left.as_ref().is_some_and(|l| weight(&l.right) >= RATIO * weight(&l.left)) {
            rotate_left(&mut node.left);
        }
        rotate_right(link);
    }
}

fn rotate_left<K: Clone, V: Clone>(link: &mut Link<K, V>) {
    let Some(mut root) = link.take() else { return };
    let top = Arc::make_mut(&mut root);
    let Some(mut right) = top.right.take() else {
        *link = Some(root);
        return;
    };
    let pivot = Arc::make_mut(&mut right);
    top.right = pivot.left.take();
    top.resize();
    pivot.left = Some(root);
    pivot.resize();
    *link = Some(right);
}

fn rotate_right<K: Clone, V: Clone>(link: &mut Link<K, V>) {
    let Some(mut root) = link.take() else { return };
    let top = Arc::make_mut(&mut root);
    let Some(mut left) = top.left.take() else {
        *link = Some(root);
        return;
    };
    let pivot = Arc::make_mut(&mut left);
    top.left = pivot.right.take();
    top.resize();
    pivot.right = Some(root);
    pivot.resize();
    *link = Some(left);
}

/// Keys and values in ascending order.
#[derive(Debug)]
pub struct Iter<'a, K, V> {
    /// Nodes whose own key comes next, the nearest last.
    path: Vec<&'a Node<K, V>>,
}

impl<'a, K, V> Iter<'a, K, V> {
    fn descend(&mut self, mut link: &'a Link<K, V>) {
        while let Some(node) = link {
            self.path.push(node);
            link = &node.left;
        }
    }
}

impl<'a, K, V> Iterator for Iter<'a, K, V> {
    type Item = (&'a K, &'a V);

    fn next(&mut self) -> Option<Self::Item> {
        let node = self.path.pop()?;
        self.descend(&node.right);
        Some((&node.key, &node.value))
    }
}

impl<K: Ord + Clone, V: Clone> Default for PersistentMap<K, V> {
    fn default() -> Self {
        Self::new()
    }
}

impl<K: Ord + Clone, V: Clone + PartialEq> PartialEq for PersistentMap<K, V> {
    fn eq(&self, other: &Self) -> bool {
        self.len() == other.len() && self.iter().eq(other.iter())
    }
}

impl<K: Ord + Clone, V: Clone + Eq> Eq for PersistentMap<K, V> {}

impl<K: fmt::Debug, V: fmt::Debug> fmt::Debug for Node<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {:?}", self.key, self.value)
    }
}

impl<K: Ord + Clone + fmt::Debug, V: Clone + fmt::Debug> fmt::Debug for PersistentMap<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    fn check<K, V>(link: &Link<K, V>) -> usize {
        let Some(node) = link else { return 0 };
        let (left, right) = (check(&node.left), check(&node.right));
        assert_eq!(node.size, left + right + 1);
        assert!(left + right < 2 || (left < WEIGHT * (right + 1) && right < WEIGHT * (left + 1)), "{left} and {right}");
        node.size
    }

    proptest! {
        #[test]
        fn it_is_an_ordered_map_and_clones_are_independent(ops in prop::collection::vec((0..60_u32, 0..3_u32), 0..300)) {
            let mut map = PersistentMap::new();
            let mut model = BTreeMap::new();
            let mut snapshots = Vec::new();
            for (index, (key, op)) in ops.into_iter().enumerate() {
                if op == 0 {
                    prop_assert_eq!(map.remove(&key), model.remove(&key));
                } else {
                    prop_assert_eq!(map.insert(key, index), model.insert(key, index));
                }
                check(&map.root);
                if index % 16 == 0 {
                    snapshots.push((map.clone(), model.clone()));
                }
            }
            snapshots.push((map, model));
            for (map, model) in snapshots {
                prop_assert!(map.iter().eq(model.iter()));
                prop_assert_eq!(map.len(), model.len());
            }
        }
    }
}
