//! Vector versions: tell which of two gossip states is newer.
//!
//! Each member counts its own changes. Of two states one is newer, or each contains changes that the other does not;
//! then they are merged. Source: cluster M6.

use std::collections::BTreeMap;

use greylag_core::UniqueAddress;

use crate::testing::side_by_side::side_by_side;

/// The relation of two states.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Relation {
    /// Both states contain the same changes.
    Same,
    /// The left state contains fewer changes.
    Before,
    /// The left state contains more changes.
    After,
    /// Each state contains changes that the other does not.
    Concurrent,
}

/// How many changes of each member a state contains. A missing entry counts 0.
///
/// Sorted by address, so that two versions are compared and merged side by side (cluster C5).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct VectorVersion(Vec<(UniqueAddress, u64)>);

impl VectorVersion {
    fn place(&self, node: &UniqueAddress) -> Result<usize, usize> {
        self.0.binary_search_by(|(other, _)| other.cmp(node))
    }

    /// Counts one more change by `node`.
    pub fn increment(&mut self, node: &UniqueAddress) {
        match self.place(node) {
            Ok(place) => self.0[place].1 = self.0[place].1.saturating_add(1),
            Err(place) => self.0.insert(place, (node.clone(), 1)),
        }
    }

    /// The counts of both versions, node by node.
    fn zip<'a>(&'a self, other: &'a Self) -> impl Iterator<Item = (&'a UniqueAddress, u64, u64)> {
        let entries = |version: &'a Self| version.0.iter().map(|(node, count)| (node, *count));
        let counts = |(node, left, right): (_, Option<u64>, Option<u64>)| (node, left.unwrap_or(0), right.unwrap_or(0));
        side_by_side(entries(self), entries(other)).map(counts)
    }

    /// The relation of `self` to `other`.
    pub fn compare(&self, other: &Self) -> Relation {
        let (mut less, mut more) = (false, false);
        for (_, ours, theirs) in self.zip(other) {
            less |= ours < theirs;
            more |= ours > theirs;
        }
        match (more, less) {
            (false, false) => Relation::Same,
            (false, true) => Relation::Before,
            (true, false) => Relation::After,
            (true, true) => Relation::Concurrent,
        }
    }

    /// The greater count of each node.
    #[must_use]
    pub fn merged(&self, other: &Self) -> Self {
        Self(self.zip(other).map(|(node, ours, theirs)| (node.clone(), ours.max(theirs))).collect())
    }

    /// Keeps the entries of nodes that `keep` accepts. True if any was dropped.
    pub fn retain(&mut self, keep: impl Fn(&UniqueAddress) -> bool) -> bool {
        let before = self.0.len();
        self.0.retain(|(node, _)| keep(node));
        self.0.len() < before
    }

    /// How many changes by `node` are known.
    pub fn count(&self, node: &UniqueAddress) -> u64 {
        self.place(node).map_or(0, |place| self.0[place].1)
    }

    /// All entries, by address.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&UniqueAddress, u64)> {
        self.0.iter().map(|(node, count)| (node, *count))
    }
}

impl FromIterator<(UniqueAddress, u64)> for VectorVersion {
    /// Keeps the last of several counts of one node.
    fn from_iter<I: IntoIterator<Item = (UniqueAddress, u64)>>(entries: I) -> Self {
        let entries: BTreeMap<_, _> = entries.into_iter().filter(|(_, count)| *count > 0).collect();
        Self(entries.into_iter().collect())
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
