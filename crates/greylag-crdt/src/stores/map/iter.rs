//! Iteration over a map, from the least key to the greatest.

use std::fmt;

use super::node::Node;

/// Keys and values in ascending order.
pub struct Iter<'a, K, V> {
    /// The nodes after the present leaf, the nearest level last.
    pub(super) above: Vec<std::slice::Iter<'a, Node<K, V>>>,
    pub(super) leaf: std::slice::Iter<'a, (K, V)>,
}

impl<'a, K, V> Iter<'a, K, V> {
    pub(super) fn of_entries(entries: &'a [(K, V)]) -> Self {
        Self { above: Vec::new(), leaf: entries.iter() }
    }

    pub(super) fn of_tree(root: &'a Node<K, V>) -> Self {
        let mut iter = Self::of_entries(&[]);
        iter.descend(root);
        iter
    }

    fn descend(&mut self, mut node: &'a Node<K, V>) {
        loop {
            match node {
                Node::Leaf(leaf) => {
                    self.leaf = leaf.entries().iter();
                    return;
                }
                Node::Inner(inner) => {
                    let mut children = inner.nodes().iter();
                    let Some(first) = children.next() else { return };
                    self.above.push(children);
                    node = first;
                }
            }
        }
    }
}

impl<'a, K, V> Iterator for Iter<'a, K, V> {
    type Item = (&'a K, &'a V);

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some((key, value)) = self.leaf.next() {
                return Some((key, value));
            }
            match self.above.last_mut()?.next() {
                Some(child) => self.descend(child),
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
