//! Pruning of causal types: scenarios 67–69, 71, 73 and 77 at the level of types.

use greylag_crdt::{Context, GCounter, Markers, OrMap, OrSet, Performed, Plain, PnCounterMap, Range, ReplicatedData};

use crate::node::{Held, Node};
use crate::sets::text;

fn held(node: &Node, set: &OrSet<char>) -> Held<OrSet<char>> {
    Held::new(node.copy(set))
}

fn mentions(context: &Context, node: &Node) -> bool {
    context.highest(node.replica()) > 0
}

/// ddata 67, K7, Z6: a reserved range is never claimed.
#[test]
fn scenario_67_a_reserved_range_is_not_claimed() {
    let (r, p, q, mut o) = (Node::new(9), Node::new(1), Node::new(2), Node::new(3));
    let mut at_r = r.zero();
    r.add(&mut at_r, "x");
    let mut at_q = held(&q, &at_r);
    let (mut at_o, mut at_p) = (Held::new(o.zero()), Held::new(p.zero()));
    o.add(&mut at_o.value, "a");
    // o collects p, then q, and reserves ranges for r and for another removed replica.
    at_o.receive(&at_p);
    at_o.receive(&at_q);
    let ranges = o.reserve(&at_o.value, &r);
    o.reserve(&at_o.value, &r);
    let y = o.add(&mut at_o.value, "y");
    assert!(at_p.receive_delta(&y, &at_o.markers));
    assert_eq!(text(&at_p.value), "y");
    o.perform(&mut at_o, &r, &ranges);
    at_p.receive(&at_o);
    at_q.receive(&at_o);
    for copy in [&at_o, &at_p, &at_q] {
        assert_eq!(text(&copy.value), "axy");
        assert!(!mentions(copy.value.context(), &r));
    }
}

/// ddata 68, Z5, Z6: updates that a returning store brings are performed too.
#[test]
fn scenario_68_a_returning_store_brings_new_updates() {
    let (r, mut o, p) = (Node::new(9), Node::new(1), Node::new(2));
    let mut store = r.zero();
    r.add(&mut store, "x");
    let (mut at_o, mut at_p) = (held(&o, &store), held(&p, &store));
    r.add(&mut store, "x");
    r.add(&mut store, "z");
    o.reserve_and_perform(&mut at_o, &r);
    at_p.receive(&at_o);
    assert_eq!((text(&at_p.value), mentions(at_p.value.context(), &r)), ("x".into(), false));
    at_p.receive(&Held::new(store));
    assert_eq!(text(&at_p.value), "xz");
    at_o.receive(&at_p);
    assert!(mentions(at_o.value.context(), &r), "what no marker covers stays raw");
    o.reserve_and_perform(&mut at_o, &r);
    at_p.receive(&at_o);
    assert_eq!((text(&at_o.value), text(&at_p.value)), ("xz".into(), "xz".into()));
    assert!(!mentions(at_o.value.context(), &r) && !mentions(at_p.value.context(), &r));
}

/// ddata 69, Z6, Z7: two owners performed one replica; a removal made under one name holds under the other.
#[test]
fn scenario_69_two_owners_of_one_leaf() {
    for (first, second) in [(1, 2), (2, 1)] {
        let (r, mut o1, mut o2) = (Node::new(9), Node::new(first), Node::new(second));
        let mut at_r = r.zero();
        r.add(&mut at_r, "x");
        let (mut at_o1, mut at_o2) = (held(&o1, &at_r), held(&o2, &at_r));
        o1.reserve_and_perform(&mut at_o1, &r);
        o2.reserve_and_perform(&mut at_o2, &r);
        let mut removed = at_o2.clone();
        o2.take(&mut removed.value, 'x');
        let mut both = at_o2.clone();
        both.receive(&at_o1);
        assert_eq!((text(&both.value), both.value.dots(&'x').len()), ("x".into(), 1), "one leaf, one name");
        // The store of o1 returns to a replica that has removed x.
        removed.receive(&at_o1);
        assert_eq!(text(&removed.value), "");
        at_o1.receive(&removed);
        at_o2.receive(&removed);
        for copy in [&removed, &at_o1, &at_o2] {
            assert_eq!(text(&copy.value), "");
            assert!(!mentions(copy.value.context(), &r));
        }
    }
}

/// ddata 71, Z6: slots inside plain values do not count as mentions of a replica.
#[test]
fn scenario_71_plain_counters_keep_their_slots() {
    let (r, mut o, p) = (Node::new(9), Node::new(1), Node::new(2));
    let add = |node: &Node, map: &mut OrMap<char, Plain<GCounter>>, by: u64| {
        node.change(map, |m, cx| m.update(cx, 'k', |counter, cx| counter.increment(cx, by).unwrap()));
    };
    let (mut at_r, mut at_o) = (r.zero(), Held::new(o.zero()));
    add(&r, &mut at_r, 1);
    add(&o, &mut at_o.value, 1);
    at_o.receive(&Held::new(at_r.clone()));
    assert_eq!(at_o.value.get(&'k').unwrap().siblings().count(), 2);
    let value = |held: &Held<OrMap<char, Plain<GCounter>>>| held.value.get(&'k').unwrap().value().value();
    o.reserve_and_perform(&mut at_o, &r);
    assert_eq!(value(&at_o), 2);
    // r added more, and p took that over before p heard of the marker.
    add(&r, &mut at_r, 4);
    let mut at_p = Held::new(p.copy(&at_r));
    add(&p, &mut at_p.value, 3);
    at_p.receive(&at_o);
    at_o.receive(&at_p);
    assert_eq!((value(&at_p), value(&at_o)), (9, 9), "r's 5, o's 1 and p's 3");
    o.reserve_and_perform(&mut at_o, &r);
    at_p.receive(&at_o);
    for held in [&at_o, &at_p] {
        assert_eq!(value(held), 9);
        assert!(!mentions(held.value.context(), &r));
        let pruning = held.value.pruning().unwrap();
        assert!(!pruning.needs_pruning(r.replica(), held.markers.of(r.replica())), "its round does not repeat");
    }
}

/// ddata 73, K7: a replicator that restarted in its process claims nothing that an earlier one drew.
#[test]
fn scenario_73_no_claim_below_the_start_floor() {
    let (mut r, p) = (Node::new(9), Node::new(1));
    let mut first = r.zero();
    r.add(&mut first, "x");
    let at_p = p.copy(&first);
    r.start_floor = r.numbers.last();
    let mut second = r.zero();
    let y = r.add(&mut second, "y");
    assert_eq!(text(&crate::node::with_deltas(&at_p, [&y])), "xy");
    assert_eq!(text(&crate::node::merged(&at_p, &second)), "xy");
}

/// ddata 77, Z7: a delta that was logged before the pruned state came is cleaned when it is joined.
#[test]
fn scenario_77_a_logged_removal_goes_out_with_new_markers() {
    let (r, mut o, p, q) = (Node::new(9), Node::new(1), Node::new(2), Node::new(3));
    let mut at_r = r.zero();
    r.add(&mut at_r, "x");
    let (mut at_o, mut at_p, mut at_q) = (held(&o, &at_r), held(&p, &at_r), held(&q, &at_r));
    let removal = p.take(&mut at_p.value, 'x');
    o.reserve_and_perform(&mut at_o, &r);
    at_p.receive(&at_o);
    assert!(!at_q.receive_delta(&removal, &at_p.markers), "without the marker it asks for the full state");
    assert_eq!(text(&at_q.value), "x");
    at_q.receive(&at_o);
    assert!(at_q.receive_delta(&removal, &at_p.markers));
    assert_eq!((text(&at_q.value), mentions(at_q.value.context(), &r)), (String::new(), false));
    assert_eq!(at_q.value, at_p.value);
}

/// ddata Z6: an owner may be removed in its turn.
#[test]
fn a_chain_of_owners() {
    let (r, mut o1, mut o2, mut o3) = (Node::new(9), Node::new(8), Node::new(7), Node::new(1));
    let mut at_r: OrSet<char> = r.zero();
    r.add(&mut at_r, "ab");
    let mut copy = held(&o1, &at_r);
    o1.reserve_and_perform(&mut copy, &r);
    o2.reserve_and_perform(&mut copy, &o1);
    o3.reserve_and_perform(&mut copy, &o2);
    assert_eq!(text(&copy.value), "ab");
    assert_eq!(copy.value.context().replicas().collect::<Vec<_>>(), [o3.replica()]);
    let mut late = copy.clone();
    late.receive(&Held::new(at_r.clone()));
    assert_eq!(late.value, copy.value, "a raw copy goes the whole way at once");
    let digest = OrSet::<char>::from_bytes(&copy.value.to_bytes()).unwrap().digest();
    assert_eq!(copy.value.digest(), digest, "the kept digest followed the names");
}

/// ddata Y9: no replica adds to a slot that came from renaming, because a late copy of the slot may know more.
#[test]
fn a_renamed_slot_is_not_counted_on() {
    let (r, mut o) = (Node::new(9), Node::new(1));
    let add = |node: &Node, map: &mut PnCounterMap<char>, by: i64| {
        node.change(map, |m, cx| m.increment(cx, 'k', by).unwrap());
    };
    let mut store = r.zero();
    add(&r, &mut store, 5);
    let mut at_o = Held::new(o.copy(&store));
    add(&r, &mut store, 3);
    o.reserve_and_perform(&mut at_o, &r);
    add(&o, &mut at_o.value, 2);
    at_o.receive(&Held::new(store));
    assert_eq!(at_o.value.get(&'k'), Some(10), "r's 8 and o's 2");
}

/// ddata Y9: no replica adds to a slot from before the entry came into being here.
#[test]
fn a_slot_of_a_former_life_is_not_counted_on() {
    let (r, p, q) = (Node::new(9), Node::new(1), Node::new(2));
    let add = |node: &Node, map: &mut PnCounterMap<char>, by: i64| {
        node.change(map, |m, cx| m.increment(cx, 'k', by).unwrap());
    };
    let mut at_r = r.zero();
    add(&r, &mut at_r, 5);
    let mut at_p = p.copy(&at_r);
    add(&p, &mut at_p, 1);
    add(&r, &mut at_r, 3);
    let mut at_q = q.copy(&at_r);
    add(&q, &mut at_q, 10);
    // The entry expires at r and comes back from p, which knows less of r than q does; then r adds to it.
    let mut at_r = r.copy(&at_p);
    add(&r, &mut at_r, 2);
    assert_eq!(crate::node::merged(&at_r, &at_q).get(&'k'), Some(8 + 1 + 10 + 2));
}

/// ddata Z7: only a replica that has every marker, range and amount of the sender may join a delta.
#[test]
fn markers_include_others() {
    let marker = |ranges: &[(u64, u64, u64)], amount: u128| {
        let mut marker = Performed::new(Node::new(9).replica(), Node::new(1).replica());
        marker.add_ranges(
            &ranges.iter().map(|(lo, hi, offset)| Range { lo: *lo, hi: *hi, offset: *offset }).collect::<Vec<_>>(),
        );
        marker.moved.set_amount(3, 4, amount);
        let mut markers = Markers::new();
        markers.add(&marker);
        markers
    };
    let full = marker(&[(0, 4, 10), (4, 6, 20)], 7);
    for less in [marker(&[(0, 4, 10)], 7), marker(&[(0, 4, 10), (4, 6, 20)], 6), Markers::new()] {
        assert!(full.includes(&less) && !less.includes(&full), "{less:?}");
        let mut united = less.clone();
        united.unite(&full);
        assert_eq!(united, full);
    }
    assert!(full.includes(&full));
}
