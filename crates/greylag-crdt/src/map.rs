//! An ordered map whose versions share structure: `clone` is O(1), a change O(log n).
//!
//! A B+ tree of shared nodes. A change copies the nodes on its path that somebody else holds too and edits the others in
//! place, so updates that run on a clone, subscribers and senders all hold snapshots without blocking each other. Nodes
//! are wide, because a change of a map that nobody else holds should touch few of them. Source: ddata K11.

mod ranges;

use std::borrow::Borrow;
use std::fmt;
use std::sync::{Arc, OnceLock};

use crate::ranges::RangeSum;

/// A node with more entries than this is split in two.
const MAX: usize = 32;
/// A node with fewer is joined with a neighbour, unless it is the root.
const MIN: usize = 8;

#[derive(Clone)]
enum Node<K, V> {
    /// Ascending.
    Leaf(Vec<(K, V)>),
    /// Ascending, and not empty.
    Inner(Vec<Child<K, V>>),
}

#[derive(Clone)]
struct Child<K, V> {
    /// At most the first key below it, and above every key below its left neighbour.
    from: K,
    node: Arc<Node<K, V>>,
    /// The sum over everything below, once somebody has asked for it; see [`ranges`].
    sum: OnceLock<RangeSum>,
}

impl<K, V> Child<K, V> {
    fn new(from: K, node: Node<K, V>) -> Self {
        Self { from, node: Arc::new(node), sum: OnceLock::new() }
    }

    /// What is below, to be changed.
    fn node_mut(&mut self) -> &mut Node<K, V>
    where
        K: Clone,
        V: Clone,
    {
        self.sum.take();
        Arc::make_mut(&mut self.node)
    }
}

/// An ordered map with O(1) clones.
#[derive(Clone)]
pub struct PersistentMap<K, V> {
    /// `None` if there is no key.
    root: Option<Arc<Node<K, V>>>,
    len: usize,
}

impl<K: Ord + Clone, V: Clone> PersistentMap<K, V> {
    /// The empty map.
    pub fn new() -> Self {
        Self { root: None, len: 0 }
    }

    /// The map of these keys, which ascend.
    pub(crate) fn from_ascending(entries: Vec<(K, V)>) -> Self {
        debug_assert!(entries.is_sorted_by(|(a, _), (b, _)| a < b), "keys ascend");
        let len = entries.len();
        let mut nodes: Vec<Child<K, V>> = chunks(entries)
            .into_iter()
            .filter_map(|leaf| Some(Child::new(leaf.first()?.0.clone(), Node::Leaf(leaf))))
            .collect();
        while nodes.len() > 1 {
            nodes = chunks(nodes)
                .into_iter()
                .filter_map(|inner| Some(Child::new(inner.first()?.from.clone(), Node::Inner(inner))))
                .collect();
        }
        Self { root: nodes.pop().map(|root| root.node), len }
    }

    /// How many keys there are.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is no key.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether the two are one structure, so that nothing need be compared.
    pub(crate) fn is_shared_with(&self, other: &Self) -> bool {
        match (&self.root, &other.root) {
            (Some(own), Some(theirs)) => Arc::ptr_eq(own, theirs),
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
        let mut node = self.root.as_ref()?;
        loop {
            match &**node {
                Node::Inner(children) => node = &children[place(children, key)].node,
                Node::Leaf(entries) => {
                    let at = entries.binary_search_by(|(own, _)| own.borrow().cmp(key)).ok()?;
                    return Some((&entries[at].0, &entries[at].1));
                }
            }
        }
    }

    /// Sets the value of a key and returns the former one.
    pub fn insert(&mut self, key: K, value: V) -> Option<V> {
        let Some(root) = &mut self.root else {
            self.root = Some(Arc::new(Node::Leaf(vec![(key, value)])));
            self.len = 1;
            return None;
        };
        let (former, split) = insert(Arc::make_mut(root), key, value);
        if let Some(right) = split {
            let left = Arc::clone(root);
            // What stands before every other key needs no bound of its own: nothing is ever compared with it.
            let from = right.from.clone();
            *root = Arc::new(Node::Inner(vec![Child { from, node: left, sum: OnceLock::new() }, right]));
        }
        self.len += usize::from(former.is_none());
        former
    }

    /// Takes a key out and returns its value.
    pub fn remove<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        // Looked up first: removing copies the path, which an absent key is not worth.
        self.get(key)?;
        let root = self.root.as_mut()?;
        let removed = remove(Arc::make_mut(root), key)?;
        self.len -= 1;
        if self.len == 0 {
            self.root = None;
        } else if let Node::Inner(children) = &**root
            && let [only] = &children[..]
        {
            *root = Arc::clone(&only.node);
        }
        Some(removed)
    }

    /// Keys and values in ascending order.
    pub fn iter(&self) -> Iter<'_, K, V> {
        let mut iter = Iter { above: Vec::new(), leaf: [].iter() };
        if let Some(root) = &self.root {
            iter.descend(root);
        }
        iter
    }

    /// Keys in ascending order.
    pub fn keys(&self) -> impl Iterator<Item = &K> {
        self.iter().map(|(key, _)| key)
    }
}

/// Pieces of about the same length, none too long and none too short.
fn chunks<T>(mut items: Vec<T>) -> Vec<Vec<T>> {
    let count = items.len().div_ceil(MAX * 3 / 4).max(1);
    let mut chunks = Vec::with_capacity(count);
    for left in (1..count).rev() {
        let at = items.len() * left / (left + 1);
        chunks.push(items.split_off(at));
    }
    chunks.push(items);
    chunks.reverse();
    chunks
}

/// Below which child a key is or would be.
fn place<K: Borrow<Q>, V, Q: Ord + ?Sized>(children: &[Child<K, V>], key: &Q) -> usize {
    children[1..].partition_point(|child| child.from.borrow() <= key)
}

fn insert<K: Ord + Clone, V: Clone>(node: &mut Node<K, V>, key: K, value: V) -> (Option<V>, Option<Child<K, V>>) {
    match node {
        Node::Leaf(entries) => match entries.binary_search_by(|(own, _)| own.cmp(&key)) {
            Ok(at) => (Some(std::mem::replace(&mut entries[at].1, value)), None),
            Err(at) => {
                entries.insert(at, (key, value));
                (None, split(entries).map(|right| Child::new(right[0].0.clone(), Node::Leaf(right))))
            }
        },
        Node::Inner(children) => {
            let at = place(children, &key);
            let (former, new) = insert(children[at].node_mut(), key, value);
            let Some(new) = new else { return (former, None) };
            children.insert(at + 1, new);
            let right = split(children);
            (former, right.map(|right| Child::new(right[0].from.clone(), Node::Inner(right))))
        }
    }
}

/// Takes the greater half off if there are too many.
fn split<T>(items: &mut Vec<T>) -> Option<Vec<T>> {
    (items.len() > MAX).then(|| items.split_off(items.len() / 2))
}

fn remove<K: Ord + Clone + Borrow<Q>, V: Clone, Q: Ord + ?Sized>(node: &mut Node<K, V>, key: &Q) -> Option<V> {
    match node {
        Node::Leaf(entries) => {
            let at = entries.binary_search_by(|(own, _)| own.borrow().cmp(key)).ok()?;
            Some(entries.remove(at).1)
        }
        Node::Inner(children) => {
            let at = place(children, key);
            let child = children[at].node_mut();
            let removed = remove(child, key);
            if child.len() < MIN && children.len() > 1 {
                join_neighbours(children, at.min(children.len() - 2));
            }
            removed
        }
    }
}

/// Moves all of the child after `at` to the one at it, and takes half back if that is too much.
fn join_neighbours<K: Ord + Clone, V: Clone>(children: &mut Vec<Child<K, V>>, at: usize) {
    let right = children.remove(at + 1);
    let new = match (children[at].node_mut(), Arc::unwrap_or_clone(right.node)) {
        (Node::Leaf(left), Node::Leaf(mut right)) => {
            left.append(&mut right);
            split(left).map(|half| Child::new(half[0].0.clone(), Node::Leaf(half)))
        }
        (Node::Inner(left), Node::Inner(mut others)) => {
            // Its first child's bound was never compared; now it stands between others.
            others[0].from = right.from;
            left.append(&mut others);
            split(left).map(|half| Child::new(half[0].from.clone(), Node::Inner(half)))
        }
        _ => unreachable!("neighbours stand on one level"),
    };
    if let Some(new) = new {
        children.insert(at + 1, new);
    }
}

impl<K, V> Node<K, V> {
    fn len(&self) -> usize {
        match self {
            Self::Leaf(entries) => entries.len(),
            Self::Inner(children) => children.len(),
        }
    }
}

/// Keys and values in ascending order.
pub struct Iter<'a, K, V> {
    /// What comes after the present leaf, the nearest last.
    above: Vec<std::slice::Iter<'a, Child<K, V>>>,
    leaf: std::slice::Iter<'a, (K, V)>,
}

impl<'a, K, V> Iter<'a, K, V> {
    fn descend(&mut self, mut node: &'a Node<K, V>) {
        loop {
            match node {
                Node::Leaf(entries) => {
                    self.leaf = entries.iter();
                    return;
                }
                Node::Inner(children) => {
                    let mut children = children.iter();
                    let Some(first) = children.next() else { return };
                    self.above.push(children);
                    node = &first.node;
                }
            }
        }
    }
}

impl<'a, K, V> Iterator for Iter<'a, K, V> {
    type Item = (&'a K, &'a V);

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some((key, value)) = self.leaf.next() {
                return Some((key, value));
            }
            match self.above.last_mut()?.next() {
                Some(child) => self.descend(&child.node),
                None => drop(self.above.pop()),
            }
        }
    }
}

impl<K: fmt::Debug, V: fmt::Debug> fmt::Debug for Iter<'_, K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.leaf.clone()).finish_non_exhaustive()
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    /// Checks order, bounds and sizes; returns how many keys there are and how deep the leaves lie.
    fn check(node: &Node<u32, usize>, is_root: bool, low: Option<u32>, high: Option<u32>) -> (usize, usize) {
        assert!(node.len() <= MAX && (is_root || node.len() >= MIN), "{} entries", node.len());
        match node {
            Node::Leaf(entries) => {
                assert!(entries.is_sorted_by(|(a, _), (b, _)| a < b));
                let is_within = |key: u32| low.is_none_or(|low| low <= key) && high.is_none_or(|high| key < high);
                assert!(entries.iter().all(|(key, _)| is_within(*key)));
                (entries.len(), 0)
            }
            Node::Inner(children) => {
                let low_of = |at: usize| if at == 0 { low } else { Some(children[at].from) };
                let high_of = |at: usize| children.get(at + 1).map_or(high, |next| Some(next.from));
                let below = (0..children.len()).map(|at| check(&children[at].node, false, low_of(at), high_of(at)));
                let below: Vec<(usize, usize)> = below.collect();
                assert!(below.iter().all(|(_, depth)| *depth == below[0].1), "all leaves lie equally deep");
                (below.iter().map(|(count, _)| count).sum(), below[0].1 + 1)
            }
        }
    }

    fn is_sound(map: &PersistentMap<u32, usize>) {
        assert_eq!(map.root.as_ref().map_or(0, |root| check(root, true, None, None).0), map.len());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// ddata K11, L11.
        #[test]
        fn it_is_an_ordered_map_and_clones_are_independent(
            built in prop::collection::btree_set(0..600_u32, 0..400),
            ops in prop::collection::vec((0..600_u32, 0..3_u32), 0..900),
        ) {
            let entries: Vec<(u32, usize)> = built.into_iter().map(|key| (key, 0)).collect();
            let mut model: BTreeMap<u32, usize> = entries.iter().copied().collect();
            let mut map = PersistentMap::from_ascending(entries);
            is_sound(&map);
            let mut snapshots = Vec::new();
            let removes_more = ops.len() % 2;
            for (index, (key, op)) in ops.into_iter().enumerate() {
                if op as usize <= removes_more {
                    prop_assert_eq!(map.remove(&key), model.remove(&key));
                } else {
                    prop_assert_eq!(map.insert(key, index), model.insert(key, index));
                }
                prop_assert_eq!(map.get(&key), model.get(&key));
                if index % 64 == 0 {
                    is_sound(&map);
                    snapshots.push((map.clone(), model.clone()));
                }
            }
            snapshots.push((map, model));
            for (map, model) in snapshots {
                is_sound(&map);
                prop_assert!(map.iter().eq(model.iter()));
            }
        }
    }

    #[test]
    fn it_grows_to_several_levels_and_shrinks_to_nothing() {
        let mut map = PersistentMap::new();
        (0..20_000_u32).for_each(|key| _ = map.insert(key.wrapping_mul(2_654_435_761) % 100_003, 0_usize));
        is_sound(&map);
        let keys: Vec<u32> = map.keys().copied().collect();
        for key in keys {
            assert_eq!(map.remove(&key), Some(0));
        }
        is_sound(&map);
        assert!(map.is_empty() && map.iter().next().is_none());
    }
}
