//! Counters: scenarios 1–6, and slots of removed replicas (60, 62, 69).

use greylag_crdt::{
    Change, DotSource, Flag, GCounter, GSet, PNCounter, ReplicaId, ReplicatedData, SlotId, UpdateCx, WriterKey,
};

use crate::node::{Held, Node, merged, with_deltas};

/// ddata 1, Y2.
#[test]
fn scenario_01_flag() {
    let node = Node::new(1);
    let (off, mut on) = (Flag::new(), Flag::new());
    let delta = node.change(&mut on, |flag, _| flag.switch_on());
    assert!(merged(&off, &on).enabled());
    assert_eq!(with_deltas(&off, [&delta]), on);
    assert_eq!(node.try_change(&mut on, |flag, _| flag.switch_on()), Change::None, "twice gives one delta");
}

fn slot(id: u64) -> SlotId {
    SlotId::new(ReplicaId(id), 0)
}

/// ddata 2.
#[test]
fn scenario_02_gcounter_deltas_follow_the_state() {
    let (n1, n2) = (Node::new(1), Node::new(2));
    let mut counter = GCounter::new();
    for (node, by) in [(&n1, 3), (&n1, 4), (&n2, 2), (&n2, 7), (&n2, 1)] {
        let before = counter.clone();
        let delta = node.change(&mut counter, |c, cx| c.increment(cx, by).unwrap());
        assert_eq!(with_deltas(&before, [&delta]), counter);
    }
    let slots = counter.slots();
    assert_eq!((counter.value(), slots.get(slot(1)), slots.get(slot(2))), (17, 7, 10));
}

/// ddata A4: a change that adds to slots of several replicas at once, which no replicator makes, still has a delta.
#[test]
fn a_change_by_several_replicas_has_a_delta() {
    let (node, numbers, writer) = (Node::new(1), DotSource::new(), WriterKey::new(*b""));
    let mut counter = PNCounter::new();
    let delta = node.change(&mut counter, |counter, cx| {
        counter.increment(cx, 3).unwrap();
        counter.increment(&mut UpdateCx::new(&numbers, ReplicaId(2), &writer, 0), 2).unwrap();
    });
    assert_eq!(with_deltas(&PNCounter::zero(), [&delta]), counter);
    assert_eq!(counter.value(), 5);
}

fn counter(amounts: &[(u64, u64)]) -> GCounter {
    let mut counter = GCounter::new();
    for (id, by) in amounts {
        Node::new(*id).change(&mut counter, |c, cx| c.increment(cx, *by).unwrap());
    }
    counter
}

/// ddata 3.
#[test]
fn scenario_03_gcounter_slots_join_by_maximum() {
    assert_eq!(merged(&counter(&[(1, 7), (2, 10)]), &counter(&[(1, 4), (2, 6)])), counter(&[(1, 7), (2, 10)]));
    assert_eq!(merged(&counter(&[(1, 4), (2, 10)]), &counter(&[(1, 7), (2, 6)])), counter(&[(1, 7), (2, 10)]));
}

fn modified_by<T: ReplicatedData>(value: &T) -> Vec<u64> {
    value.pruning().unwrap().modified_by().into_iter().map(|replica| replica.0).collect()
}

/// ddata 4, Y4.
#[test]
fn scenario_04_gcounter_pruned_and_cleaned() {
    let (n1, mut n2) = (Node::new(1), Node::new(2));
    let mut held = Held::new(counter(&[(1, 1), (2, 1)]));
    n2.reserve_and_perform(&mut held, &n1);
    assert_eq!((held.value.value(), modified_by(&held.value)), (2, vec![2]));
    n1.change(&mut held.value, |c, cx| c.increment(cx, 1).unwrap());
    held.clean();
    assert_eq!((held.value.value(), modified_by(&held.value)), (2, vec![2]), "what was moved is not counted again");
}

fn pn(steps: &[(u64, i64)]) -> PNCounter {
    let nodes = [Node::new(1), Node::new(2)];
    let mut counter = PNCounter::new();
    for (id, by) in steps {
        nodes[*id as usize - 1].change(&mut counter, |c, cx| c.increment(cx, *by).unwrap());
    }
    counter
}

/// ddata 5.
#[test]
fn scenario_05_pncounter_joins_both_halves() {
    let one = pn(&[(1, 3), (1, -2), (2, 5), (2, -2), (2, 1)]);
    let other = pn(&[(1, 2), (2, 4), (1, -3), (2, -2)]);
    assert_eq!((one.value(), other.value()), (5, 1));
    let halves = |counter: &PNCounter| {
        let sum = |slots: &greylag_crdt::Slots| slots.iter().map(|(_, amount)| amount).sum::<u128>();
        (sum(counter.added()), sum(counter.taken()))
    };
    let both = merged(&one, &other);
    assert_eq!((halves(&one), halves(&other)), ((9, 4), (6, 5)));
    assert_eq!((halves(&both), both.value()), ((9, 5), 4));
}

/// ddata Y4: arithmetic is checked, and nothing wraps.
#[test]
fn counters_refuse_amounts_that_do_not_fit() {
    let node = Node::new(1);
    let mut counter = PNCounter::new();
    node.change(&mut counter, |c, cx| c.increment(cx, i64::MIN).unwrap());
    assert_eq!(counter.value(), i64::MIN.into(), "the magnitude of the least number fits");
    node.change(&mut counter, |c, cx| c.decrement(cx, i64::MIN).unwrap());
    assert_eq!(counter.value(), 0, "a negative decrement is an increment");

    // The greatest possible slot, as a peer might send it.
    let mut full = vec![1, 1, 1];
    full.extend([0xff; 18]);
    full.push(0x03);
    let mut counter = GCounter::from_bytes(&full).unwrap();
    assert_eq!(counter.value(), u128::MAX);
    assert_eq!(node.try_change(&mut counter, |c, cx| assert!(c.increment(cx, 1).is_err())), Change::None);
    Node::new(2).change(&mut counter, |c, cx| c.increment(cx, 1).unwrap());
    assert_eq!((counter.value(), counter.checked_value()), (u128::MAX, None), "the sum is at its bound");
}

/// ddata 6.
#[test]
fn scenario_06_gset() {
    let node = Node::new(1);
    let mut set = GSet::new();
    let one = node.change(&mut set, |s, _| s.add('a'));
    let two = node.change(&mut set, |s, _| ['b', 'c'].into_iter().for_each(|c| s.add(c)));
    for deltas in [[&one, &two], [&two, &one]] {
        assert_eq!(with_deltas(&GSet::zero(), deltas), set);
    }
    assert!(set.iter().eq(&['a', 'b', 'c']));
    assert_eq!(node.try_change(&mut set, |s, _| s.add('a')), Change::None);
}

/// ddata 68, the counter: a store that returns with 2 more is counted once.
#[test]
fn scenario_68_a_returning_store_is_counted_once() {
    let (r, mut o) = (Node::new(1), Node::new(2));
    let mut held = Held::new(counter(&[(1, 5), (2, 1)]));
    let mut store = held.value.clone();
    r.change(&mut store, |c, cx| c.increment(cx, 2).unwrap());
    o.reserve_and_perform(&mut held, &r);
    assert_eq!(held.value.value(), 6);
    held.receive(&Held::new(store));
    assert_eq!(held.value.value(), 8, "the two that were not known, and nothing twice");
    assert!(held.value.pruning().unwrap().needs_pruning(r.replica(), held.markers.of(r.replica())));
    o.reserve_and_perform(&mut held, &r);
    assert_eq!((held.value.value(), modified_by(&held.value)), (8, vec![2]));
}

/// ddata 69, Y4: two owners performed the same replica.
#[test]
fn scenario_69_two_owners_count_once() {
    let (r, mut o1, mut o2, mut o3) = (Node::new(9), Node::new(1), Node::new(2), Node::new(3));
    let raw = Held::new(counter(&[(9, 5)]));
    let (mut first, mut second) = (raw.clone(), raw.clone());
    o1.reserve_and_perform(&mut first, &r);
    o2.reserve_and_perform(&mut second, &r);
    // The store of o1 returns.
    let mut both = second.clone();
    both.receive(&first);
    assert_eq!(both.value.value(), 5);
    assert!(both.markers.iter().all(|marker| marker.obsolete_at.is_none()), "markers of two owners stay for ever");
    // o1 is pruned after its store returned, and before.
    o3.reserve_and_perform(&mut both, &o1);
    assert_eq!(both.value.value(), 5);
    first.receive(&both);
    assert_eq!(first.value.value(), 5);
    o3.reserve_and_perform(&mut second, &o1);
    second.receive(&first);
    assert_eq!((second.value.value(), &second.value), (5, &first.value));
    // A raw copy changes nothing.
    second.receive(&raw);
    assert_eq!((second.value.value(), &second.value), (5, &first.value));
}

/// ddata Y4: both halves, and each counter of a value, have moved amounts of their own.
#[test]
fn each_half_is_moved_by_its_own_amount() {
    let (n1, mut n2) = (Node::new(1), Node::new(2));
    let mut held = Held::new(pn(&[(1, 7), (1, -3), (2, 1)]));
    n2.reserve_and_perform(&mut held, &n1);
    assert_eq!((held.value.value(), modified_by(&held.value)), (5, vec![2]));
    let marker = held.markers.get(n1.replica(), n2.replica()).unwrap();
    assert_eq!((marker.moved.part(0).amount(0, 0), marker.moved.part(1).amount(0, 0)), (7, 3));
    held.receive(&Held::new(pn(&[(1, 8), (1, -3)])));
    assert_eq!(held.value.value(), 6, "one more was added before it was removed");
    let bytes = held.value.to_bytes();
    let raw = PNCounter::from_bytes(&bytes).unwrap();
    assert_eq!(
        (raw.clone(), raw.digest()),
        (held.value.clone(), held.value.digest()),
        "ddata K9: the correction is in neither"
    );
}

/// The counter of an entry that has just come into being at a node, by a copy that the store or a peer returned.
fn reborn(node: &Node, from: &GCounter) -> Held<GCounter> {
    node.numbers.draw();
    Held::new(node.copy(from))
}

/// ddata 91, Y4: each life of an entry counts in its own slot, even if copies of former lives come back.
#[test]
fn scenario_91_each_life_counts_in_its_own_slot() {
    let (r, b) = (Node::new(9), Node::new(1));
    let mut at_r = reborn(&r, &GCounter::new());
    r.change(&mut at_r.value, |c, cx| c.increment(cx, 5).unwrap());
    let mut at_b = Held::new(b.copy(&at_r.value));
    // The entry expires at r, and is created there again.
    let mut again = reborn(&r, &GCounter::new());
    let delta = r.change(&mut again.value, |c, cx| c.increment(cx, 2).unwrap());
    assert!(at_b.receive_delta(&delta, &again.markers));
    again.receive(&at_r);
    assert_eq!((at_b.value.value(), again.value.value()), (7, 7));
    assert_eq!(at_b, again);
}

/// ddata 91, Y4, Z7: an owner whose entry was dropped performs the replica again, into another slot. Its marker names
/// both slots, so that every copy counts each update once, and such a marker is never forgotten.
#[test]
fn scenario_91_an_owner_performs_in_two_lives() {
    let (r, mut o, mut o2) = (Node::new(9), Node::new(1), Node::new(2));
    let mut raw = reborn(&r, &GCounter::new());
    r.change(&mut raw.value, |c, cx| c.increment(cx, 5).unwrap());
    let mut first = reborn(&o, &raw.value);
    let born = o.home().born;
    o.reserve_and_perform(&mut first, &r);
    o.change(&mut first.value, |c, cx| c.increment(cx, 1).unwrap());
    // The entry expires at o; an old copy of r's reaches o, with one increment that was unknown.
    r.change(&mut raw.value, |c, cx| c.increment(cx, 1).unwrap());
    let mut second = reborn(&o, &raw.value);
    assert!(o.home().born > born);
    o.reserve_and_perform(&mut second, &r);
    assert_eq!((first.value.value(), second.value.value()), (6, 6));
    let mut both = first.clone();
    both.receive(&second);
    second.receive(&first);
    assert_eq!((both.value.value(), &both), (7, &second), "r's 6 and o's 1");
    assert_eq!((both.value.slots().len(), modified_by(&both.value)), (2, vec![1]));
    assert!(both.markers.iter().all(|marker| marker.obsolete_at.is_none()));
    let marker = both.markers.get(r.replica(), o.replica()).unwrap();
    let slot = marker.moved.amounts().next().unwrap().0;
    assert_eq!((marker.moved.amounts().count(), marker.moved.greatest(slot)), (2, 6));
    // The owner is pruned in its turn, and a raw copy comes late.
    o2.reserve_and_perform(&mut both, &o);
    both.receive(&raw);
    assert_eq!((both.value.value(), modified_by(&both.value)), (7, vec![2]));
    second.receive(&both);
    assert_eq!(both, second);
}

/// ddata Y4, Z9: two slots of one replica, each moved once, are no reason to keep a marker for ever.
#[test]
fn a_marker_of_two_slots_moved_once_ends() {
    let (r, mut o) = (Node::new(9), Node::new(1));
    let mut raw = reborn(&r, &GCounter::new());
    r.change(&mut raw.value, |c, cx| c.increment(cx, 5).unwrap());
    let mut again = reborn(&r, &raw.value);
    r.change(&mut again.value, |c, cx| c.increment(cx, 2).unwrap());
    let mut held = reborn(&o, &again.value);
    o.reserve_and_perform(&mut held, &r);
    assert_eq!((held.value.value(), held.value.slots().len()), (7, 1));
    assert!(held.markers.iter().all(|marker| marker.obsolete_at.is_some()));
}
