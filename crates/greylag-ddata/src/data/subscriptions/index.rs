//! Finds the subscribers of an entry by its id.
//!
//! A radix tree over the bytes of ids and prefixes: a node holds the subscribers of the id and of the prefix that the
//! path to it spells. One walk down the id finds all followers, however many others there are. Source: ddata R17, H8.

/// The pattern of a subscription.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pattern<'a> {
    /// One id.
    Id(&'a str),
    /// All ids that begin with this prefix.
    Prefix(&'a str),
}

impl<'a> Pattern<'a> {
    /// Reads an id, or a prefix and `*`.
    pub(super) fn read(text: &'a str) -> Self {
        text.strip_suffix('*').map_or(Self::Id(text), Self::Prefix)
    }

    fn text(self) -> &'a [u8] {
        match self {
            Self::Id(text) | Self::Prefix(text) => text.as_bytes(),
        }
    }
}

/// Subscribers by pattern.
#[derive(Debug, Default)]
pub(super) struct PatternIndex {
    root: Node,
}

/// The root has an empty label; every other node has followers, or at least two children.
#[derive(Debug, Default, PartialEq, Eq)]
struct Node {
    label: Vec<u8>,
    of_id: Vec<u64>,
    of_prefix: Vec<u64>,
    /// Sorted by the first bytes of their labels, which differ.
    children: Vec<Self>,
}

impl PatternIndex {
    pub(super) fn insert(&mut self, pattern: Pattern<'_>, subscriber: u64) {
        self.root.insert(pattern.text(), &|node| node.list(pattern).push(subscriber));
    }

    pub(super) fn remove(&mut self, pattern: Pattern<'_>, subscriber: u64) {
        self.root.remove(pattern.text(), &|node| node.list(pattern).retain(|other| *other != subscriber));
    }

    /// All subscribers that follow this id, including overlapping prefixes; each once, in no order.
    pub(super) fn followers(&self, id: &str) -> Vec<u64> {
        let mut found = Vec::new();
        self.walk(id, |node, is_end| {
            found.extend(&node.of_prefix);
            if is_end {
                found.extend(&node.of_id);
            }
        });
        found
    }

    /// Visits the nodes that the id spells, with whether the id ends there.
    fn walk<'a>(&'a self, id: &str, mut visit: impl FnMut(&'a Node, bool)) {
        let (mut node, mut rest) = (&self.root, id.as_bytes());
        loop {
            visit(node, rest.is_empty());
            let Some(first) = rest.first() else { return };
            let Ok(at) = node.place(*first) else { return };
            let Some(left) = rest.strip_prefix(&*node.children[at].label) else { return };
            (node, rest) = (&node.children[at], left);
        }
    }
}

impl Node {
    fn list(&mut self, pattern: Pattern<'_>) -> &mut Vec<u64> {
        match pattern {
            Pattern::Id(_) => &mut self.of_id,
            Pattern::Prefix(_) => &mut self.of_prefix,
        }
    }

    fn place(&self, first: u8) -> Result<usize, usize> {
        self.children.binary_search_by_key(&first, |child| child.label[0])
    }

    fn insert(&mut self, path: &[u8], put: &dyn Fn(&mut Self)) {
        let Some(first) = path.first() else { return put(self) };
        let at = match self.place(*first) {
            Ok(at) => at,
            Err(at) => {
                self.children.insert(at, Self { label: path.to_vec(), ..Self::default() });
                at
            }
        };
        let child = &mut self.children[at];
        let common = child.label.iter().zip(path).take_while(|(own, other)| own == other).count();
        if common < child.label.len() {
            child.split(common);
        }
        child.insert(&path[common..], put);
    }

    /// Splits the node: a new node above it ends after `common` bytes of the label.
    fn split(&mut self, common: usize) {
        let rest = self.label.split_off(common);
        let label = std::mem::take(&mut self.label);
        let lower = Self { label: rest, ..std::mem::take(self) };
        *self = Self { label, children: vec![lower], ..Self::default() };
    }

    fn remove(&mut self, path: &[u8], take: &dyn Fn(&mut Self)) {
        let Some(first) = path.first() else { return take(self) };
        let Ok(at) = self.place(*first) else { return };
        let child = &mut self.children[at];
        let Some(rest) = path.strip_prefix(&*child.label) else { return };
        child.remove(rest, take);
        if child.of_id.is_empty() && child.of_prefix.is_empty() {
            match child.children.len() {
                0 => drop(self.children.remove(at)),
                1 => child.fuse(),
                _ => {}
            }
        }
    }

    /// Joins a node without subscribers with its only child.
    fn fuse(&mut self) {
        if let Some(lower) = self.children.pop() {
            let mut label = std::mem::take(&mut self.label);
            label.extend_from_slice(&lower.label);
            *self = Self { label, ..lower };
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn pattern() -> impl Strategy<Value = String> {
        "[ab]{0,5}\\*?"
    }

    proptest! {
        /// ddata R17: exactly the matching subscribers are found, whatever was added and removed.
        #[test]
        fn followers_are_those_whose_patterns_match(
            steps in prop::collection::vec((pattern(), 0..6_u64, any::<bool>()), 0..60),
            ids in prop::collection::vec("[ab]{0,6}", 1..10),
        ) {
            let mut index = PatternIndex::default();
            let mut model = BTreeSet::new();
            for (text, subscriber, comes) in &steps {
                let pattern = Pattern::read(text);
                if *comes && model.insert((text, *subscriber)) {
                    index.insert(pattern, *subscriber);
                } else if model.remove(&(text, *subscriber)) {
                    index.remove(pattern, *subscriber);
                }
            }
            for id in &ids {
                let matching = model.iter().filter(|(text, _)| match Pattern::read(text) {
                    Pattern::Id(own) => own == id,
                    Pattern::Prefix(prefix) => id.starts_with(prefix),
                });
                let mut expected: Vec<u64> = matching.map(|(_, subscriber)| *subscriber).collect();
                let mut found = index.followers(id);
                expected.sort_unstable();
                found.sort_unstable();
                prop_assert_eq!(found, expected);
            }
            for (text, subscriber) in model {
                index.remove(Pattern::read(text), subscriber);
            }
            prop_assert_eq!(index.root, Node::default(), "nothing is left of what is gone");
        }
    }

    /// ddata H8: the cost of an id depends on its length and its followers, not on the number of other subscribers.
    #[test]
    fn ten_thousand_prefixes_cost_one_walk() {
        let mut index = PatternIndex::default();
        for number in 0..10_000_u64 {
            index.insert(Pattern::Prefix(&format!("cart-{number:05}-")), number);
        }
        index.insert(Pattern::Prefix(""), 10_000);
        let mut visited = 0;
        index.walk("cart-07321-x", |_, _| visited += 1);
        assert!(visited <= 8, "{visited} nodes");
        let mut found = index.followers("cart-07321-x");
        found.sort_unstable();
        assert_eq!(found, [7_321, 10_000]);
    }
}
