//! Vector versions: which of two gossip states knows more.
//!
//! Each member counts its own changes. Of two states one is newer, or both know something the
//! other does not; then they are merged. Source: cluster M6.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use greylag_core::UniqueAddress;

/// How two states relate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Relation {
    /// They know the same.
    Same,
    /// The left one knows less.
    Before,
    /// The left one knows more.
    After,
    /// Each knows something the other does not.
    Concurrent,
}

/// How many changes of each member a state contains. A missing entry counts 0.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct VectorVersion(BTreeMap<UniqueAddress, u64>);

impl VectorVersion {
    /// Counts one more change by `node`.
    pub fn increment(&mut self, node: &UniqueAddress) {
        match self.0.entry(node.clone()) {
            Entry::Occupied(mut count) => *count.get_mut() += 1,
            Entry::Vacant(none) => {
                none.insert(1);
            }
        }
    }

    /// How `self` relates to `other`.
    pub fn compare(&self, other: &Self) -> Relation {
        let knows_more = |a: &Self, b: &Self| a.0.iter().any(|(node, count)| *count > b.count(node));
        match (knows_more(self, other), knows_more(other, self)) {
            (false, false) => Relation::Same,
            (false, true) => Relation::Before,
            (true, false) => Relation::After,
            (true, true) => Relation::Concurrent,
        }
    }

    /// What either knows.
    #[must_use]
    pub fn merged(&self, other: &Self) -> Self {
        let mut merged = self.clone();
        for (node, count) in &other.0 {
            let entry = merged.0.entry(node.clone()).or_insert(0);
            *entry = (*entry).max(*count);
        }
        merged
    }

    /// Keeps the entries of nodes that `keep` wants. True if any was dropped.
    pub fn retain(&mut self, keep: impl Fn(&UniqueAddress) -> bool) -> bool {
        let before = self.0.len();
        self.0.retain(|node, _| keep(node));
        self.0.len() < before
    }

    /// How many changes by `node` are known.
    pub fn count(&self, node: &UniqueAddress) -> u64 {
        self.0.get(node).copied().unwrap_or(0)
    }

    /// All entries, by address.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&UniqueAddress, u64)> {
        self.0.iter().map(|(node, count)| (node, *count))
    }
}

impl FromIterator<(UniqueAddress, u64)> for VectorVersion {
    fn from_iter<I: IntoIterator<Item = (UniqueAddress, u64)>>(entries: I) -> Self {
        Self(entries.into_iter().filter(|(_, count)| *count > 0).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(a: u64, b: u64) -> VectorVersion {
        [("a:1#1", a), ("b:1#1", b)].map(|(node, count)| (node.parse().unwrap(), count)).into_iter().collect()
    }

    /// cluster M6.
    #[test]
    fn a_missing_entry_is_zero_and_concurrency_is_found() {
        for (left, right, relation) in [
            (version(1, 0), version(1, 0), Relation::Same),
            (version(1, 0), version(1, 1), Relation::Before),
            (version(2, 1), version(1, 1), Relation::After),
            (version(2, 0), version(1, 1), Relation::Concurrent),
        ] {
            assert_eq!(left.compare(&right), relation);
        }
        assert_eq!(version(2, 0).merged(&version(1, 1)), version(2, 1));
    }
}
