//! Maps: scenarios 18–26, 28, 29, 80 and 83.

use std::collections::BTreeSet;

use greylag_crdt::{
    GCounter, GSet, LwwMap, OrMap, OrMultiMap, OrSetStore, Plain, PnCounterMap, ReplicatedData, UpdateCx,
};

use crate::node::{Node, merged, with_deltas};

type PlainMap = OrMap<char, Plain<GSet<String>>>;
type SetMap = OrMap<char, OrSetStore<String>>;
type MultiMap = OrMultiMap<char, String>;

fn add_plain(map: &mut PlainMap, cx: &mut UpdateCx<'_>, key: char, value: &str) {
    map.update(cx, key, |set, _| set.add(value.into()));
}

fn plain(map: &PlainMap, key: char) -> Vec<String> {
    map.get(&key).map(|set| set.value().iter().cloned().collect()).unwrap_or_default()
}

fn set(map: &SetMap, key: char) -> Vec<String> {
    map.get(&key).map(|set| set.iter().cloned().collect()).unwrap_or_default()
}

fn multi(map: &MultiMap, key: char) -> Vec<String> {
    map.get(&key).map(|set| set.iter().cloned().collect()).unwrap_or_default()
}

/// ddata 18.
#[test]
fn scenario_18_ormap_a_plain_value_survives_whole() {
    let (n1, n2) = (Node::new(1), Node::new(2));
    let mut a: PlainMap = n1.zero();
    n1.change(&mut a, |m, cx| add_plain(m, cx, 'b', "B"));
    let mut b = n2.copy(&a);
    let removal = n1.change(&mut a, |m, cx| assert!(m.remove(cx, &'b')));
    let update = n2.change(&mut b, |m, cx| add_plain(m, cx, 'b', "B2"));
    assert_eq!(plain(&merged(&a, &b), 'b'), ["B", "B2"]);
    assert_eq!(with_deltas(&a, [&update]), with_deltas(&b, [&removal]));
    assert_eq!(plain(&with_deltas(&a, [&update]), 'b'), ["B", "B2"]);
}

/// ddata 19, D4.
#[test]
fn scenario_19_ormap_a_stale_value_never_returns() {
    let n1 = Node::new(1);
    let mut a: PlainMap = n1.zero();
    n1.change(&mut a, |m, cx| add_plain(m, cx, 'b', "B"));
    let stale = a.clone();
    n1.change(&mut a, |m, cx| assert!(m.remove(cx, &'b')));
    n1.change(&mut a, |m, cx| add_plain(m, cx, 'b', "B2"));
    assert_eq!(plain(&merged(&a, &stale), 'b'), ["B2"]);
}

/// ddata 20, D4, Y7.
#[test]
fn scenario_20_ormap_of_sets_reset_remove() {
    let (n1, n2) = (Node::new(1), Node::new(2));
    let mut a: SetMap = n1.zero();
    n1.change(&mut a, |m, cx| m.update(cx, 'b', |s, cx| s.add(cx, "B".into())));
    let mut b = n2.copy(&a);
    n1.change(&mut a, |m, cx| assert!(m.remove(cx, &'b')));
    let mut after = n2.copy(&a);
    n2.change(&mut b, |m, cx| m.update(cx, 'b', |s, cx| s.add(cx, "B2".into())));
    assert_eq!(set(&merged(&a, &b), 'b'), ["B2"]);
    n2.change(&mut after, |m, cx| m.update(cx, 'b', |s, cx| s.add(cx, "B2".into())));
    assert_eq!(set(&merged(&a, &after), 'b'), ["B2"], "the same if the removal was seen first");
}

/// ddata 21.
#[test]
fn scenario_21_ormap_of_sets_put_beside_an_add() {
    let (n1, n2) = (Node::new(1), Node::new(2));
    let mut a: SetMap = n1.zero();
    n1.change(&mut a, |m, cx| m.update(cx, 'b', |s, cx| s.add(cx, "B".into())));
    let mut b = n2.copy(&a);
    n1.change(&mut a, |m, cx| assert!(m.remove(cx, &'b')));
    n1.change(&mut a, |m, cx| m.put(cx, 'b', &OrSetStore::of_elements(["B2".into()])));
    n2.change(&mut b, |m, cx| m.update(cx, 'b', |s, cx| s.add(cx, "B3".into())));
    assert_eq!(set(&merged(&a, &b), 'b'), ["B2", "B3"]);
}

/// ddata 22.
#[test]
fn scenario_22_ormap_of_counters_by_deltas() {
    let (n1, n2) = (Node::new(1), Node::new(2));
    type Counters = OrMap<char, Plain<GCounter>>;
    let increment = |map: &mut Counters, cx: &mut UpdateCx<'_>| {
        map.update(cx, 'c', |counter, cx| counter.increment(cx, 10).unwrap());
    };
    let (mut a, mut b): (Counters, Counters) = (n1.zero(), n2.zero());
    let first = n1.change(&mut a, increment);
    b.merge_delta(&first).unwrap();
    let second = n2.change(&mut b, increment);
    a.merge_delta(&second).unwrap();
    assert_eq!((a.get(&'c').unwrap().value().value(), &a), (20, &b));
}

/// ddata 23, Y10, D6.
#[test]
fn scenario_23_ormultimap_removed_beside_added() {
    let (n1, n2) = (Node::new(1), Node::new(2));
    let mut a: MultiMap = n1.zero();
    n1.change(&mut a, |m, cx| m.add_binding(cx, 'a', "A".into()));
    let mut b = n2.copy(&a);
    n1.change(&mut a, |m, cx| assert!(m.remove_binding(cx, &'a', "A")));
    n2.change(&mut b, |m, cx| m.add_binding(cx, 'a', "B".into()));
    let merged = merged(&a, &b);
    assert_eq!(multi(&merged, 'a'), ["B"]);
}

/// ddata 24.
#[test]
fn scenario_24_ormultimap_two_maps() {
    let (n1, n2) = (Node::new(1), Node::new(2));
    let (mut m1, mut m2): (MultiMap, MultiMap) = (n1.zero(), n2.zero());
    let one = n1.change(&mut m1, |m, cx| {
        m.add_binding(cx, 'a', "A1".into());
        m.add_binding(cx, 'b', "B1".into());
        m.remove_binding(cx, &'a', "A1");
        m.add_binding(cx, 'd', "D1".into());
    });
    let two = n2.change(&mut m2, |m, cx| {
        m.add_binding(cx, 'c', "C2".into());
        m.add_binding(cx, 'a', "A2".into());
        m.add_binding(cx, 'b', "B2".into());
        m.remove_binding(cx, &'b', "B2");
        m.add_binding(cx, 'd', "D2".into());
    });
    let both = merged(&m1, &m2);
    let bindings: Vec<Vec<String>> = ['a', 'b', 'c', 'd'].iter().map(|key| multi(&both, *key)).collect();
    assert_eq!(bindings, [vec!["A2"], vec!["B1"], vec!["C2"], vec!["D1", "D2"]]);
    assert_eq!(with_deltas(&m1, [&two]), both);
    assert_eq!(with_deltas(&m2, [&one]), both);
}

/// ddata 25.
#[test]
fn scenario_25_ormultimap_a_removal_takes_only_what_it_saw() {
    let (n1, n2) = (Node::new(1), Node::new(2));
    let (mut a, mut b): (MultiMap, MultiMap) = (n1.zero(), n2.zero());
    let of_a = n1.change(&mut a, |m, cx| m.add_binding(cx, 'b', "B1".into()));
    let of_b = n2.change(&mut b, |m, cx| {
        m.add_binding(cx, 'b', "B2".into());
        m.remove(cx, &'b');
    });
    let both = merged(&a, &b);
    assert_eq!(multi(&both, 'b'), ["B1"]);
    assert_eq!(with_deltas(&a, [&of_b]), both);
    assert_eq!(with_deltas(&b, [&of_a]), both);
}

/// ddata 26.
#[test]
fn scenario_26_ormultimap_puts_replace() {
    let n1 = Node::new(1);
    let mut a: MultiMap = n1.zero();
    n1.change(&mut a, |m, cx| m.add_binding(cx, 'b', "B".into()));
    let stale = a.clone();
    let first = n1.change(&mut a, |m, cx| {
        m.put(cx, 'b', ["B2".into()]);
        m.add_binding(cx, 'b', "B3".into());
    });
    assert_eq!(multi(&with_deltas(&stale, [&first]), 'b'), ["B2", "B3"]);
    let second = n1.change(&mut a, |m, cx| {
        m.put(cx, 'b', ["B2".into()]);
        m.put(cx, 'b', ["B3".into()]);
    });
    assert_eq!(multi(&with_deltas(&stale, [&second, &first]), 'b'), ["B3"]);
    n1.change(&mut a, |m, cx| m.put(cx, 'b', []));
    assert!(a.is_empty(), "putting nothing removes the key");
}

/// ddata 28, D4, Y8.
#[test]
fn scenario_28_lwwmap() {
    let (n1, mut n2) = (Node::new(1), Node::new(2));
    let mut a: LwwMap<char, u32> = n1.zero();
    n1.change(&mut a, |m, cx| m.put(cx, 'b', 1).unwrap());
    let (mut b, stale) = (n2.copy(&a), a.clone());
    n1.change(&mut a, |m, cx| assert!(m.remove(cx, &'b')));
    n2.change(&mut b, |m, cx| m.put(cx, 'b', 22).unwrap());
    assert_eq!(merged(&a, &b).get(&'b'), Some(&22));
    n2.wall_ms -= 3_600_000;
    let mut again = n2.copy(&a);
    n2.change(&mut again, |m, cx| m.put(cx, 'b', 5).unwrap());
    assert_eq!(merged(&again, &stale).get(&'b'), Some(&5), "whatever the clock of the stale value said");
}

/// ddata Y8: a losing put refreshes the key against removals that have not seen it.
#[test]
fn a_losing_put_refreshes_the_winner() {
    let (n1, n2) = (Node::new(1), Node::new(2));
    let mut a: LwwMap<char, u32> = n1.zero();
    n1.change(&mut a, |m, cx| assert!(m.put_with(cx, 'k', 1, |_, _| 9)));
    let mut b = n2.copy(&a);
    n1.change(&mut a, |m, cx| assert!(m.remove(cx, &'k')));
    n2.change(&mut b, |m, cx| assert!(!m.put_with(cx, 'k', 2, |_, _| 3)));
    assert_eq!(merged(&a, &b).get(&'k'), Some(&1));
}

/// ddata 29, Y9, D5.
#[test]
fn scenario_29_pncountermap_removed_beside_counted() {
    let (n1, n2) = (Node::new(1), Node::new(2));
    let mut a: PnCounterMap<char> = n1.zero();
    n1.change(&mut a, |m, cx| m.increment(cx, 'b', 3).unwrap());
    let (mut b, stale) = (n2.copy(&a), a.clone());
    let removal = n1.change(&mut a, |m, cx| assert!(m.remove(cx, &'b')));
    let update = n2.change(&mut b, |m, cx| m.increment(cx, 'b', 10).unwrap());
    assert_eq!(merged(&a, &b).get(&'b'), Some(13));
    assert_eq!(with_deltas(&a, [&update]).get(&'b'), Some(13));
    assert_eq!(with_deltas(&b, [&removal]).get(&'b'), Some(13));
    n1.change(&mut a, |m, cx| m.increment(cx, 'b', 1).unwrap());
    assert_eq!(merged(&a, &stale).get(&'b'), Some(1));
}

/// ddata 80, Y9.
#[test]
fn scenario_80_nothing_is_swallowed_by_a_stale_slot() {
    let (na, nb, nc) = (Node::new(1), Node::new(2), Node::new(3));
    let (mut a, mut b, mut c): (PnCounterMap<char>, PnCounterMap<char>, PnCounterMap<char>) =
        (na.zero(), nb.zero(), nc.zero());
    let one = |m: &mut PnCounterMap<char>, cx: &mut UpdateCx<'_>| m.increment(cx, 'k', 1).unwrap();
    na.change(&mut a, one);
    b.merge(&a).unwrap();
    na.change(&mut a, one);
    c.merge(&a).unwrap();
    na.change(&mut a, |m, cx| assert!(m.remove(cx, &'k')));
    nb.change(&mut b, one);
    a.merge(&b).unwrap();
    na.change(&mut a, one);
    nc.change(&mut c, one);
    let all = merged(&merged(&a, &b), &c);
    assert_eq!(all.get(&'k'), Some(5));
    assert_eq!(merged(&a, &merged(&b, &c)), all);
}

/// ddata 83, K6, K7, E3.
#[test]
fn scenario_83_elements_that_their_writer_forgot_are_retired_everywhere() {
    let (r, b) = (Node::new(1), Node::new(2));
    let mut at_r: LwwMap<String, u32> = r.zero();
    r.change(&mut at_r, |m, cx| m.put(cx, "k1".into(), 1).unwrap());
    let mut at_b = b.copy(&at_r);
    b.change(&mut at_b, |m, cx| m.put(cx, "k2".into(), 2).unwrap());
    // The entry expires at r only. Removing an absent key draws nothing; the next put is the first that draws.
    let mut fresh = r.zero();
    r.try_change(&mut fresh, |m: &mut LwwMap<String, u32>, cx| assert!(!m.remove(cx, "k1")));
    let delta = r.change(&mut fresh, |m, cx| m.put(cx, "k3".into(), 3).unwrap());
    let by_delta = with_deltas(&at_b, [&delta]);
    let by_state = merged(&at_b, &fresh);
    let both = [merged(&by_delta, &fresh), with_deltas(&by_state, [&delta])];
    let keys: BTreeSet<&str> = by_delta.iter().map(|(key, _)| key.as_str()).collect();
    assert_eq!(keys, ["k2", "k3"].into());
    for other in [&by_state, &both[0], &both[1]] {
        assert_eq!((&by_delta, by_delta.digest()), (other, other.digest()));
    }
}
