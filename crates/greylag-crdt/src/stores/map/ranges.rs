//! Sums over ranges of keys, remembered by the nodes.
//!
//! Each node remembers the sum over everything below it until something there changes. Versions of a map share nodes,
//! and with them the sums: a change of one key costs the sums on its path only, and only when they are asked for again.

use super::node::Node;
use super::{Form, Iter, PersistentMap};
use crate::encoding::hash::Digest;
use crate::ranges::RangeSum;

/// The digest of one key with its value; always the same function for one map.
pub(crate) type DigestOf<'a, K, V> = &'a dyn Fn(&K, &V) -> Digest;

impl<K: Ord + Clone, V: Clone> PersistentMap<K, V> {
    /// Keys and values from `from` on, ascending.
    pub(crate) fn iter_from(&self, from: Option<&K>) -> Iter<'_, K, V> {
        let Some(from) = from else { return self.iter() };
        let reached = |entries: &[(K, V)]| entries.partition_point(|(key, _)| key < from);
        let mut node = match &self.0 {
            Form::Empty => return self.iter(),
            Form::Small(small) => return Iter::of_entries(&small.entries()[reached(small.entries())..]),
            Form::Tree(tree) => &tree.root,
        };
        let mut iter = Iter::of_entries(&[]);
        loop {
            match node {
                Node::Inner(inner) => {
                    let at = inner.place(from);
                    iter.above.push(inner.nodes()[at + 1..].iter());
                    node = &inner.nodes()[at];
                }
                Node::Leaf(leaf) => {
                    iter.leaf = leaf.entries()[reached(leaf.entries())..].iter();
                    return iter;
                }
            }
        }
    }

    /// The sum over the keys at or above `from` and below `to`.
    pub(crate) fn sum(&self, from: Option<&K>, to: Option<&K>, of: DigestOf<'_, K, V>) -> RangeSum {
        match &self.0 {
            Form::Empty => RangeSum::default(),
            Form::Small(small) => sum_within(small.entries(), from, to, of),
            Form::Tree(tree) => tree.root.sum_between(from, to, (None, None), of),
        }
    }

    /// The key that `rank` others precede; `None` if the map has not so many keys.
    pub(crate) fn key_at(&self, mut rank: u64, of: DigestOf<'_, K, V>) -> Option<&K> {
        let mut node = match &self.0 {
            Form::Empty => return None,
            Form::Small(small) => return nth(small.entries(), rank),
            Form::Tree(tree) => &tree.root,
        };
        loop {
            match node {
                Node::Leaf(leaf) => return nth(leaf.entries(), rank),
                Node::Inner(inner) => {
                    let found = inner.nodes().iter().find(|child| {
                        let count = child.sum(of).count;
                        let is_below = rank < count;
                        rank -= if is_below { 0 } else { count };
                        is_below
                    });
                    node = found?;
                }
            }
        }
    }

    /// Computes sums that are not known yet, over about `most` keys. Returns whether all are known now.
    pub(crate) fn compute_sums(&self, most: usize, of: DigestOf<'_, K, V>) -> bool {
        let mut left = most;
        match &self.0 {
            Form::Empty | Form::Small(_) => true,
            Form::Tree(tree) => tree.root.compute_sums(&mut left, of),
        }
    }
}

impl<K: Ord + Clone, V: Clone> Node<K, V> {
    /// The sum over everything below.
    fn sum(&self, of: DigestOf<'_, K, V>) -> RangeSum {
        *self.known_sum().get_or_init(|| self.sum_between(None, None, (None, None), of))
    }

    /// The sum over the keys at or above `from` and below `to`. `low` and `high` bound the keys below this node, if
    /// known.
    fn sum_between(
        &self,
        from: Option<&K>,
        to: Option<&K>,
        (low, high): (Option<&K>, Option<&K>),
        of: DigestOf<'_, K, V>,
    ) -> RangeSum {
        let mut sum = RangeSum::default();
        match self {
            Self::Leaf(leaf) => sum = sum_within(leaf.entries(), from, to, of),
            Self::Inner(inner) => {
                for (at, child) in inner.nodes().iter().enumerate() {
                    // The first child's bound means nothing: it is never compared.
                    let low = if at == 0 { low } else { Some(&inner.bounds()[at]) };
                    let high = inner.bounds().get(at + 1).or(high);
                    if from.zip(high).is_some_and(|(from, high)| high <= from) {
                        continue;
                    }
                    if to.zip(low).is_some_and(|(to, low)| to <= low) {
                        break;
                    }
                    let is_all_above = from.is_none_or(|from| low.is_some_and(|low| from <= low));
                    let is_all_below = to.is_none_or(|to| high.is_some_and(|high| high <= to));
                    sum = sum.plus(match is_all_above && is_all_below {
                        true => child.sum(of),
                        false => child.sum_between(from, to, (low, high), of),
                    });
                }
            }
        }
        sum
    }

    fn compute_sums(&self, left: &mut usize, of: DigestOf<'_, K, V>) -> bool {
        let Self::Inner(inner) = self else { return true };
        for child in inner.nodes().iter().filter(|child| child.known_sum().get().is_none()) {
            if *left == 0 || !child.compute_sums(left, of) {
                return false;
            }
            if let Self::Leaf(leaf) = child {
                *left = left.saturating_sub(leaf.entries().len());
            }
            child.sum(of);
        }
        true
    }
}

fn nth<K, V>(entries: &[(K, V)], rank: u64) -> Option<&K> {
    entries.get(usize::try_from(rank).ok()?).map(|(key, _)| key)
}

/// The sum over the entries at or above `from` and below `to`.
fn sum_within<K: Ord, V>(entries: &[(K, V)], from: Option<&K>, to: Option<&K>, of: DigestOf<'_, K, V>) -> RangeSum {
    let is_within = |key: &K| from.is_none_or(|from| from <= key) && to.is_none_or(|to| key < to);
    let within = entries.iter().filter(|(key, _)| is_within(key));
    within.map(|(key, value)| RangeSum { count: 1, total: of(key, value) }).fold(RangeSum::default(), RangeSum::plus)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn of(key: &u32, value: &usize) -> Digest {
        Digest(u128::from(*key) << 64 | *value as u128)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        /// ddata G12: remembered sums equal sums computed anew, whatever changed in between.
        #[test]
        fn sums_over_ranges_follow_every_change(
            built in prop::collection::btree_set(0..3_000_u32, 0..2_000),
            ops in prop::collection::vec((0..3_000_u32, any::<bool>(), 0..3_000_u32, 0..3_000_u32), 1..300),
        ) {
            let mut map = PersistentMap::from_ascending(built.iter().map(|key| (*key, 0_usize)).collect());
            let mut model: BTreeMap<u32, usize> = built.into_iter().map(|key| (key, 0)).collect();
            for (index, (key, removes, a, b)) in ops.into_iter().enumerate() {
                if removes {
                    prop_assert_eq!(map.remove(&key), model.remove(&key));
                } else {
                    prop_assert_eq!(map.insert(key, index), model.insert(key, index));
                }
                let (from, to) = (a.min(b), a.max(b));
                let model_sum = |range: &mut dyn Iterator<Item = (&u32, &usize)>| {
                    range.fold(RangeSum::default(), |sum, (k, v)| sum.plus(RangeSum { count: 1, total: of(k, v) }))
                };
                prop_assert_eq!(map.sum(Some(&from), Some(&to), &of), model_sum(&mut model.range(from..to)));
                prop_assert_eq!(map.sum(Some(&from), None, &of), model_sum(&mut model.range(from..)));
                prop_assert_eq!(map.sum(None, Some(&to), &of), model_sum(&mut model.range(..to)));
                prop_assert_eq!(map.sum(None, None, &of), model_sum(&mut model.iter()));
                prop_assert!(map.iter_from(Some(&from)).eq(model.range(from..)));
                let rank = u64::from(a) % (model.len() as u64 + 1);
                prop_assert_eq!(map.key_at(rank, &of), model.keys().nth(rank as usize));
            }
        }
    }

    #[test]
    fn sums_are_computed_in_steps() {
        let map = PersistentMap::from_ascending((0..20_000_u32).map(|key| (key, 1_usize)).collect());
        let mut steps = 1;
        while !map.compute_sums(1_000, &of) {
            steps += 1;
        }
        assert!((15..=30).contains(&steps), "{steps}");
        assert!(map.clone().compute_sums(0, &of), "versions share what they know");
    }
}
