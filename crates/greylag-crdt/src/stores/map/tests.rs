//! Compares the map with an ordered map of the standard library.

use std::borrow::Cow;
use std::collections::BTreeMap;

use proptest::prelude::*;

use super::node::{MAX, MIN, Node};
use super::{Form, PersistentMap};

/// Checks order, bounds and sizes; returns how many keys there are and how deep the leaves lie.
fn check(node: &Node<u32, usize>, is_root: bool, low: Option<u32>, high: Option<u32>) -> (usize, usize) {
    assert!(node.len() <= MAX && (is_root || node.len() >= MIN), "{} entries", node.len());
    match node {
        Node::Leaf(leaf) => {
            let entries = leaf.entries();
            assert!(entries.is_sorted_by(|(a, _), (b, _)| a < b));
            let is_within = |key: u32| low.is_none_or(|low| low <= key) && high.is_none_or(|high| key < high);
            assert!(entries.iter().all(|(key, _)| is_within(*key)));
            (entries.len(), 0)
        }
        Node::Inner(inner) => {
            let (bounds, nodes) = (inner.bounds(), inner.nodes());
            assert_eq!(bounds.len(), nodes.len());
            let low_of = |at: usize| if at == 0 { low } else { Some(bounds[at]) };
            let high_of = |at: usize| bounds.get(at + 1).map_or(high, |next| Some(*next));
            let below = (0..nodes.len()).map(|at| check(&nodes[at], false, low_of(at), high_of(at)));
            let below: Vec<(usize, usize)> = below.collect();
            assert!(below.iter().all(|(_, depth)| *depth == below[0].1), "all leaves lie equally deep");
            (below.iter().map(|(count, _)| count).sum(), below[0].1 + 1)
        }
    }
}

fn is_sound(map: &PersistentMap<u32, usize>) {
    let count = match &map.0 {
        Form::Empty => 0,
        Form::Small(small) => {
            assert!((1..=MAX).contains(&small.entries().len()) && small.entries().is_sorted_by(|(a, _), (b, _)| a < b));
            small.entries().len()
        }
        Form::Tree(tree) => {
            assert!(tree.len() >= MIN);
            check(&tree.root, true, None, None).0
        }
    };
    assert_eq!(count, map.len());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// ddata K11, L11: the map is ordered, and clones are independent.
    #[test]
    fn the_map_is_ordered_and_clones_are_independent(
        built in prop::collection::btree_set(0..600_u32, 0..400),
        ops in prop::collection::vec((0..600_u32, 0..6_u32), 0..900),
    ) {
        let entries: Vec<(u32, usize)> = built.into_iter().map(|key| (key, 0)).collect();
        let mut model: BTreeMap<u32, usize> = entries.iter().copied().collect();
        let mut map = PersistentMap::from_ascending(entries);
        is_sound(&map);
        let mut snapshots = Vec::new();
        let removes_more = ops.len() % 2;
        for (index, (key, op)) in ops.into_iter().enumerate() {
            match op as usize {
                5 => {
                    // The key stays if its value is even afterwards.
                    map.alter(Cow::Owned(key), |value| {
                        *value += index;
                        value.is_multiple_of(2)
                    });
                    let value = model.remove(&key).unwrap_or_default() + index;
                    model.extend(value.is_multiple_of(2).then_some((key, value)));
                }
                4 => {
                    let is_absent = !model.contains_key(&key);
                    prop_assert_eq!(map.insert_absent(key, |_| index), is_absent);
                    _ = model.entry(key).or_insert(index);
                }
                op if op % 3 <= removes_more => prop_assert_eq!(map.remove(&key), model.remove(&key)),
                _ => prop_assert_eq!(map.insert(key, index), model.insert(key, index)),
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
fn the_tree_grows_to_several_levels_and_shrinks_to_nothing() {
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

/// A tree that has few keys left becomes small, and takes as little memory as a map that was always small.
#[test]
fn a_tree_that_shrinks_becomes_small() {
    let mut map = PersistentMap::new();
    (0..2_000_u32).for_each(|key| _ = map.insert(key, 0_usize));
    let before = map.clone();
    for key in 3..2_000 {
        match key % 2 {
            0 => assert_eq!(map.remove(&key), Some(0)),
            _ => map.alter(Cow::Owned(key), |_| false),
        }
    }
    assert!(matches!(map.0, Form::Small(_)), "three keys are left");
    is_sound(&map);
    is_sound(&before);
    assert!(map.keys().eq(&[0, 1, 2]) && before.len() == 2_000);
}

/// Keys that ascend leave full nodes behind.
#[test]
fn ascending_keys_fill_the_nodes() {
    let mut map = PersistentMap::new();
    (0..10_000_u32).for_each(|key| _ = map.insert(key, 0_usize));
    is_sound(&map);
    let Form::Tree(tree) = &map.0 else { panic!("many keys are a tree") };
    let leaves = count_leaves(&tree.root);
    assert!(leaves <= 10_000 / (MAX - MIN) + 1, "{leaves} leaves");
}

fn count_leaves(node: &Node<u32, usize>) -> usize {
    match node {
        Node::Leaf(_) => 1,
        Node::Inner(inner) => inner.nodes().iter().map(count_leaves).sum(),
    }
}
