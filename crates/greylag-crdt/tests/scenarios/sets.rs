//! Sets: scenarios 7–17.

use greylag_crdt::{Change, OrSet, ReplicatedData};

use crate::node::{Node, merged, with_deltas};

type Set = OrSet<char>;
type Delta = <Set as ReplicatedData>::Delta;

impl Node {
    pub(crate) fn add(&self, set: &mut Set, elements: &str) -> Delta {
        self.change(set, |set, cx| set.add_all(cx, elements.chars()))
    }

    pub(crate) fn take(&self, set: &mut Set, element: char) -> Delta {
        self.change(set, |set, cx| assert!(set.remove(cx, &element)))
    }
}

pub(crate) fn text(set: &Set) -> String {
    set.iter().collect()
}

/// ddata 7.
#[test]
fn scenario_07_orset_removals_win_over_what_they_saw() {
    let n1 = Node::new(1);
    let mut set = n1.zero();
    n1.add(&mut set, "uv");
    let earlier = set.clone();
    n1.take(&mut set, 'u');
    n1.take(&mut set, 'v');
    assert_eq!(text(&merged(&set, &earlier)), "");
}

/// ddata 8, Y2.
#[test]
fn scenario_08_orset_add_after_remove() {
    let n1 = Node::new(1);
    let mut set: Set = n1.zero();
    assert_eq!(n1.try_change(&mut set, |s, cx| assert!(!s.remove(cx, &'u'))), Change::None);
    n1.add(&mut set, "u");
    n1.take(&mut set, 'u');
    n1.add(&mut set, "u");
    assert_eq!(text(&set), "u");
}

/// ddata 9.
#[test]
fn scenario_09_orset_concurrent_adds_and_removes() {
    let (n1, n2) = (Node::new(1), Node::new(2));
    let mut a = n1.zero();
    n1.add(&mut a, "xyz");
    let mut b = n2.copy(&a);
    n2.add(&mut b, "x");
    n2.take(&mut b, 'y');
    n2.take(&mut b, 'z');
    n1.add(&mut a, "w");
    n1.take(&mut a, 'z');
    n1.add(&mut a, "y");
    assert_eq!(text(&merged(&a, &b)), "wxy");
}

/// ddata 10.
#[test]
fn scenario_10_orset_removed_after_merge() {
    let (n1, n2) = (Node::new(1), Node::new(2));
    let mut a = n1.zero();
    n1.add(&mut a, "Z");
    let c = a.clone();
    n1.take(&mut a, 'Z');
    let mut b = n2.zero();
    n2.add(&mut b, "Z");
    let a3 = merged(&a, &b);
    let mut b2 = b.clone();
    n2.take(&mut b2, 'Z');
    for order in [[&a3, &c, &b2], [&a3, &b2, &c], [&c, &a3, &b2], [&c, &b2, &a3], [&b2, &a3, &c], [&b2, &c, &a3]] {
        let [one, two, three] = order;
        assert_eq!(text(&merged(&merged(one, two), three)), "");
        assert_eq!(text(&merged(one, &merged(two, three))), "");
    }
}

/// ddata 11.
#[test]
fn scenario_11_orset_concurrent_adds_keep_both_dots() {
    let (n1, n2) = (Node::new(1), Node::new(2));
    let (mut a, mut b) = (n1.zero(), n2.zero());
    let (of_a, of_b) = (n1.add(&mut a, "d"), n2.add(&mut b, "d"));
    let both = merged(&a, &b);
    assert_eq!(both.dots(&'d').len(), 2);
    assert_eq!(with_deltas(&Set::zero(), [&of_a, &of_b]), both);
    assert_eq!(with_deltas(&a, [&of_b]), both);
}

/// ddata 12, Y3.
#[test]
fn scenario_12_orset_a_removal_loses_to_an_add_it_did_not_see() {
    let (n1, n2) = (Node::new(1), Node::new(2));
    let mut a = n1.zero();
    n1.add(&mut a, "ab");
    let mut b = n2.copy(&a);
    let removal = n1.take(&mut a, 'b');
    n2.add(&mut b, "b");
    assert_eq!(text(&with_deltas(&b, [&removal])), "ab");
}

/// ddata 13.
#[test]
fn scenario_13_orset_clear() {
    let (n1, n2) = (Node::new(1), Node::new(2));
    let mut a = n1.zero();
    n1.add(&mut a, "abc");
    let mut b = n2.copy(&a);
    let clear = n1.change(&mut a, OrSet::clear);
    n2.add(&mut b, "d");
    b.merge_delta(&clear).unwrap();
    assert_eq!(text(&b), "d");
    n2.add(&mut b, "b");
    assert_eq!(text(&with_deltas(&b, [&clear])), "bd", "the old clear has not seen the new b");
}

/// ddata 14, K8, D3.
#[test]
fn scenario_14_orset_a_delta_ahead_of_another_loses_nothing() {
    let (n1, n3) = (Node::new(1), Node::new(3));
    let mut a = n1.zero();
    n1.add(&mut a, "a");
    let mut third = n3.copy(&a);
    n3.add(&mut third, "d");
    let (_, c) = (n1.add(&mut a, "b"), n1.add(&mut a, "c"));
    third.merge_delta(&c).unwrap();
    assert_eq!(text(&third), "acd");
    assert_eq!(text(&merged(&third, &a)), "abcd");
}

/// ddata 15, K4, D2: a seen dot does not imply that lower numbers were seen.
#[test]
fn scenario_15_orset_a_superseded_dot_does_not_hide_earlier_ones() {
    let (n1, n2) = (Node::new(1), Node::new(2));
    let mut at_b = n2.zero();
    let deltas: Vec<Delta> = "12345".chars().map(|c| n2.add(&mut at_b, &c.to_string())).collect();
    let mut at_a = n1.copy(&at_b);
    let supersedes = n1.add(&mut at_a, "5");
    let at_c = with_deltas(&Set::zero(), [&supersedes]);
    assert_eq!(text(&at_c), "5");
    assert_eq!(text(&with_deltas(&at_c, &deltas)), "12345");
}

/// ddata 16.
#[test]
fn scenario_16_orset_a_group_of_deltas() {
    let (n1, n2) = (Node::new(1), Node::new(2));
    let mut a = n1.zero();
    let mut group = n1.add(&mut a, "b");
    for delta in [n1.add(&mut a, "a"), n1.take(&mut a, 'b')] {
        Set::join_deltas(&mut group, &delta);
    }
    let mut b = n2.zero();
    n2.add(&mut b, "z");
    assert_eq!(text(&with_deltas(&b, [&group])), "az");
}

/// ddata 17.
#[test]
fn scenario_17_orset_three_nodes_with_deltas_and_a_full_state() {
    let (n1, n2, n3) = (Node::new(1), Node::new(2), Node::new(3));
    let (mut a, mut b, mut c): (Set, Set, Set) = (n1.zero(), n2.zero(), n3.zero());
    let mut first = n1.add(&mut a, "q");
    Set::join_deltas(&mut first, &n1.add(&mut a, "z"));
    Set::join_deltas(&mut first, &n1.add(&mut a, "x"));
    Set::join_deltas(&mut first, &n1.take(&mut a, 'z'));
    b.merge_delta(&first).unwrap();
    let mut second = n2.add(&mut b, "a");
    Set::join_deltas(&mut second, &n2.take(&mut b, 'q'));
    Set::join_deltas(&mut second, &n2.take(&mut b, 'a'));
    // The third node hears of the second's changes first, then of everything by a full state of the first.
    c.merge_delta(&second).unwrap();
    assert_eq!(text(&c), "");
    a.merge_delta(&second).unwrap();
    c.merge(&a).unwrap();
    b.merge(&c).unwrap();
    assert_eq!((text(&a), text(&b), text(&c)), ("x".into(), "x".into(), "x".into()));
}
