//! Acceptance scenarios of ddata §12 for the types built so far, by their numbers.

use greylag_crdt::{
    Change, DotSource, EntryMark, GCounter, Home, Lineage, LwwMap, LwwRegister, MergeError, OrSet, PNCounter,
    ReplicaId, ReplicatedData, UpdateCx, WriterKey,
};

const ENTRY: &str = "entry";

/// One replica with its numbers.
struct Node {
    id: u64,
    numbers: DotSource,
    writer: WriterKey,
    wall_ms: i64,
}

impl Node {
    fn new(id: u64) -> Self {
        Self { id, numbers: DotSource::new(), writer: WriterKey::new([id as u8]), wall_ms: 1_000 }
    }

    fn home(&self) -> Home {
        Home { entry: EntryMark::of(ENTRY), replica: ReplicaId(self.id), born: 0 }
    }

    /// Changes a value and returns the delta.
    fn change<T: ReplicatedData>(&self, value: &mut T, change: impl FnOnce(&mut T, &mut UpdateCx<'_>)) -> T::Delta {
        let lineage = Lineage(self.numbers.draw());
        value.bind(self.home());
        value.begin_change(lineage);
        let cx = UpdateCx::new(&self.numbers, ReplicaId(self.id), &self.writer, self.wall_ms);
        change(value, &mut cx.for_entry(self.home(), 0, &[]));
        match value.take_change(lineage) {
            Change::Delta(delta) => delta,
            other => panic!("a delta, not {other:?}"),
        }
    }

    fn add(&self, set: &mut OrSet<char>, elements: &str) -> <OrSet<char> as ReplicatedData>::Delta {
        self.change(set, |set, cx| set.add_all(cx, elements.chars()))
    }

    fn remove(&self, set: &mut OrSet<char>, element: char) -> <OrSet<char> as ReplicatedData>::Delta {
        self.change(set, |set, cx| assert!(set.remove(cx, &element)))
    }
}

fn merged<T: ReplicatedData>(a: &T, b: &T) -> T {
    let (mut left, mut right) = (a.clone(), b.clone());
    left.merge(b).unwrap();
    right.merge(a).unwrap();
    assert_eq!(left, right, "both ways");
    left
}

fn text(set: &OrSet<char>) -> String {
    set.iter().collect()
}

#[test]
fn gcounter_deltas_follow_the_state() {
    let (n1, n2) = (Node::new(1), Node::new(2));
    let mut counter = GCounter::new();
    for (node, by) in [(&n1, 3), (&n1, 4), (&n2, 2), (&n2, 7), (&n2, 1)] {
        let mut before = counter.clone();
        let delta = node.change(&mut counter, |c, cx| c.increment(cx, by).unwrap());
        before.merge_delta(&delta).unwrap();
        assert_eq!(before, counter);
    }
    assert_eq!((counter.value(), counter.slots().get(ReplicaId(1)), counter.slots().get(ReplicaId(2))), (17, 7, 10));
}

#[test]
fn gcounter_slots_join_by_maximum() {
    let (n1, n2) = (Node::new(1), Node::new(2));
    let counter = |first, second| {
        let mut counter = GCounter::new();
        n1.change(&mut counter, |c, cx| c.increment(cx, first).unwrap());
        n2.change(&mut counter, |c, cx| c.increment(cx, second).unwrap());
        counter
    };
    assert_eq!(merged(&counter(7, 10), &counter(4, 6)), counter(7, 10));
    assert_eq!(merged(&counter(4, 10), &counter(7, 6)), counter(7, 10));
}

#[test]
fn pncounter_joins_both_halves() {
    let (n1, n2) = (Node::new(1), Node::new(2));
    let build = |steps: &[(&Node, i64)]| {
        let mut counter = PNCounter::new();
        for (node, by) in steps {
            node.change(&mut counter, |c, cx| c.increment(cx, *by).unwrap());
        }
        counter
    };
    let one = build(&[(&n1, 3), (&n1, -2), (&n2, 5), (&n2, -2), (&n2, 1)]);
    assert_eq!(one.value(), 5);
    let other = build(&[(&n1, 2), (&n2, 4), (&n1, -3), (&n2, -2)]);
    assert_eq!(merged(&one, &other).value(), 4);
    let mut cx_free = PNCounter::new();
    n1.change(&mut cx_free, |c, cx| c.increment(cx, i64::MIN).unwrap());
    assert_eq!(cx_free.value(), i64::MIN.into(), "the magnitude of the least number fits");
}

#[test]
fn orset_removes_what_it_saw() {
    let (n1, n2) = (Node::new(1), Node::new(2));
    let mut set = OrSet::new();
    n1.add(&mut set, "uv");
    let earlier = set.clone();
    n1.remove(&mut set, 'u');
    n1.remove(&mut set, 'v');
    assert_eq!(text(&merged(&set, &earlier)), "", "scenario 7");
    n1.add(&mut set, "u");
    assert_eq!(text(&set), "u", "scenario 8");

    let mut a = OrSet::new();
    n1.add(&mut a, "xyz");
    let mut b = a.clone();
    n2.add(&mut b, "x");
    n2.remove(&mut b, 'y');
    n2.remove(&mut b, 'z');
    n1.add(&mut a, "w");
    n1.remove(&mut a, 'z');
    n1.add(&mut a, "y");
    assert_eq!(text(&merged(&a, &b)), "wxy", "scenario 9");
}

#[test]
fn orset_removals_and_clears_lose_to_what_they_did_not_see() {
    let (n1, n2) = (Node::new(1), Node::new(2));
    let mut a = OrSet::new();
    n1.add(&mut a, "abc");
    let mut b = a.clone();
    let removal = n1.remove(&mut a, 'b');
    n2.add(&mut b, "b");
    b.merge_delta(&removal).unwrap();
    assert!(b.contains(&'b'), "scenario 12");

    let clear = n1.change(&mut a, OrSet::clear);
    n2.add(&mut b, "d");
    b.merge_delta(&clear).unwrap();
    assert_eq!(text(&b), "bd", "scenario 13: what the clear did not see stays");
    n2.add(&mut b, "a");
    b.merge_delta(&clear).unwrap();
    assert_eq!(text(&b), "abd");
}

#[test]
fn orset_deltas_in_any_order_lose_nothing() {
    let (n1, n2) = (Node::new(1), Node::new(2));
    let mut a = OrSet::new();
    n1.add(&mut a, "a");
    let (mut second, mut third) = (a.clone(), a.clone());
    let b = n1.add(&mut a, "b");
    let c = n1.add(&mut a, "c");
    second.merge_delta(&b).unwrap();
    second.merge_delta(&c).unwrap();
    third.merge_delta(&c).unwrap();
    third.merge(&second).unwrap();
    assert_eq!(text(&third), "abc", "scenario 14");

    let mut at_b = OrSet::new();
    let deltas: Vec<_> = "12345".chars().map(|c| n2.add(&mut at_b, &c.to_string())).collect();
    let mut at_a = at_b.clone();
    let supersedes = n1.add(&mut at_a, "5");
    let mut at_c = OrSet::new();
    at_c.merge_delta(&supersedes).unwrap();
    for delta in &deltas {
        at_c.merge_delta(delta).unwrap();
    }
    assert_eq!(text(&at_c), "12345", "scenario 15");
}

#[test]
fn orset_groups_of_deltas() {
    let (n1, n2) = (Node::new(1), Node::new(2));
    let mut a = OrSet::new();
    let mut group = n1.add(&mut a, "b");
    for delta in [n1.add(&mut a, "a"), n1.remove(&mut a, 'b')] {
        OrSet::join_deltas(&mut group, &delta);
    }
    let mut b = OrSet::new();
    n2.add(&mut b, "z");
    b.merge_delta(&group).unwrap();
    assert_eq!(text(&b), "az", "scenario 16");
}

#[test]
fn lww_register_clocks_and_ties() {
    let (n1, n2) = (Node::new(1), Node::new(2));
    let mut register = LwwRegister::new();
    let mut last = i64::MIN;
    for value in 0..100_u32 {
        n1.change(&mut register, |r, cx| r.set(cx, value).unwrap());
        assert!(register.timestamp() > last, "timestamps rise within one millisecond");
        last = register.timestamp();
    }
    let mut first = LwwRegister::new();
    n1.change(&mut first, |r, cx| assert!(r.set_first(cx, 0_u32).unwrap()));
    let lineage = Lineage(0);
    first.begin_change(lineage);
    let mut cx = UpdateCx::new(&n1.numbers, ReplicaId(1), &n1.writer, 5_000);
    assert!(!first.set_first(&mut cx, 1).unwrap(), "the first write wins");
    assert_eq!(first.take_change(lineage), Change::None);

    let (mut one, mut other) = (LwwRegister::new(), LwwRegister::new());
    n1.change(&mut one, |r, cx| assert!(r.set_with(cx, "n1".to_owned(), |_, _| 7)));
    n2.change(&mut other, |r, cx| assert!(r.set_with(cx, "n2".to_owned(), |_, _| 7)));
    assert_eq!(merged(&one, &other).value().unwrap(), "n1", "the smaller writer key");
    let mut cx = UpdateCx::new(&n2.numbers, ReplicaId(2), &n2.writer, 0);
    assert!(!one.set_with(&mut cx, "late".to_owned(), |_, _| 6), "a smaller timestamp changes nothing");
    assert_eq!(one.value().unwrap(), "n1");
}

#[test]
fn lww_map_concurrency() {
    let (n1, mut n2) = (Node::new(1), Node::new(2));
    let mut a = LwwMap::new();
    n1.change(&mut a, |m, cx| m.put(cx, 'b', 1).unwrap());
    let (mut b, stale) = (a.clone(), a.clone());
    n1.change(&mut a, |m, cx| assert!(m.remove(cx, &'b')));
    n2.change(&mut b, |m, cx| m.put(cx, 'b', 22).unwrap());
    assert_eq!(merged(&a, &b).get(&'b'), Some(&22), "the put wins over a removal that did not see it");
    n2.wall_ms -= 3_600_000;
    let mut again = a.clone();
    n2.change(&mut again, |m, cx| m.put(cx, 'b', 5).unwrap());
    assert_eq!(merged(&again, &stale).get(&'b'), Some(&5), "a removed value never returns, whatever its clock said");

    // Put at two replicas, removed at one that has not seen the other's: the unseen value shows.
    let (mut a, mut b) = (LwwMap::new(), LwwMap::new());
    n1.change(&mut a, |m, cx| m.put(cx, 'k', 1).unwrap());
    n2.change(&mut b, |m, cx| m.put(cx, 'k', 2).unwrap());
    n2.change(&mut b, |m, cx| assert!(m.remove(cx, &'k')));
    assert_eq!(merged(&a, &b).get(&'k'), Some(&1));
}

#[test]
fn what_was_forgotten_by_its_writer_is_retired_everywhere() {
    let (r, b) = (Node::new(1), Node::new(2));
    let mut at_b = LwwMap::new();
    let mut at_r = LwwMap::new();
    r.change(&mut at_r, |m, cx| m.put(cx, 'x', 1).unwrap());
    at_b.merge(&at_r).unwrap();
    b.change(&mut at_b, |m, cx| m.put(cx, 'y', 2).unwrap());
    // The entry expires at r only, which then writes to a fresh one.
    let mut fresh = LwwMap::new();
    let delta = r.change(&mut fresh, |m, cx| m.put(cx, 'z', 3).unwrap());
    let (mut by_delta, mut by_state) = (at_b.clone(), at_b.clone());
    by_delta.merge_delta(&delta).unwrap();
    by_state.merge(&fresh).unwrap();
    let keys: Vec<char> = by_delta.iter().map(|(key, _)| *key).collect();
    assert_eq!((keys.as_slice(), by_delta.digest()), (&['y', 'z'][..], by_state.digest()));
}

#[test]
fn a_value_of_another_entry_is_refused() {
    let node = Node::new(1);
    let mut one = OrSet::new();
    node.add(&mut one, "a");
    let mut other = OrSet::new();
    other.bind(Home { entry: EntryMark::of("another"), ..node.home() });
    assert_eq!(other.merge(&one), Err(MergeError::ForeignEntry));
    assert!(other.is_empty(), "and nothing changed");
}
