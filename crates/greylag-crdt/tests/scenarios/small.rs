//! Rules about one value: which operations change nothing, which values may merge, what a delta carries.

use greylag_crdt::{
    Change, Element as _, EntryMark, Flag, Home, Lineage, LwwMap, MergeError, OrMap, OrMultiMap, OrSet, PNCounter,
    Plain, PnCounterMap, ReplicatedData, UpdateCx,
};

use crate::node::{Node, with_deltas};

fn is_no_change<T: ReplicatedData>(value: &T, operation: impl FnOnce(&mut T, &mut UpdateCx<'_>)) {
    let node = Node::new(1);
    let (mut changed, drawn) = (value.clone(), node.numbers.last());
    assert_eq!(node.try_change(&mut changed, operation), Change::None);
    assert_eq!(&changed, value);
    // The lineage took one number.
    assert_eq!(node.numbers.last(), drawn + 1, "and no dot was drawn");
}

/// ddata Y2, L8.
#[test]
fn operations_that_change_nothing() {
    is_no_change(&PNCounter::new(), |c, cx| c.increment(cx, 0).unwrap());
    is_no_change(&OrSet::<char>::new(), |s, cx| assert!(!s.remove(cx, &'x')));
    is_no_change(&OrSet::<char>::new(), OrSet::clear);
    is_no_change(&LwwMap::<char, u8>::new(), |m, cx| assert!(!m.remove(cx, &'x')));
    is_no_change(&PnCounterMap::<char>::new(), |m, cx| m.increment(cx, 'x', 0).unwrap());
    is_no_change(&OrMultiMap::<char, char>::new(), |m, cx| m.replace_binding(cx, 'k', &'x', 'x'));
    is_no_change(&OrMultiMap::<char, char>::new(), |m, cx| m.put(cx, 'k', []));
    is_no_change(&OrMultiMap::<char, char>::new(), |m, cx| assert!(!m.remove_binding(cx, &'k', &'x')));
    is_no_change(&OrMap::<char, Plain<Flag>>::new(), |m, cx| m.update(cx, 'k', |_, _| {}));
    let mut on = Flag::new();
    on.switch_on();
    is_no_change(&on, |f, _| f.switch_on());
}

/// ddata K12, A3: a value of another entry is refused; its content is copied by adding it anew.
#[test]
fn a_value_of_another_entry_is_refused() {
    let node = Node::new(1);
    let mut one: OrSet<char> = node.zero();
    node.add(&mut one, "a");
    let mut other = OrSet::new();
    other.bind(Home { entry: EntryMark::of("another"), ..node.home() });
    assert_eq!(other.merge(&one), Err(MergeError::ForeignEntry));
    assert!(other.is_empty(), "and nothing changed");
    let mut cx = UpdateCx::new(&node.numbers, node.replica(), &node.writer, 0);
    other.extend_from(&mut cx, &one);
    assert!(other.contains(&'a') && other.dots(&'a') != one.dots(&'a'));
}

/// ddata A4.
#[test]
fn a_change_is_taken_by_lineage() {
    let node = Node::new(1);
    let mut set: OrSet<char> = node.zero();
    node.add(&mut set, "a");
    let before = set.clone();
    // Several operations give one delta.
    let delta = node.change(&mut set, |set, cx| {
        set.add(cx, 'b');
        set.add(cx, 'c');
        set.remove(cx, &'a');
    });
    assert_eq!(with_deltas(&before, [&delta]), set);
    // Another value in its place has another lineage.
    assert_eq!(node.try_change(&mut set, |set, _| *set = OrSet::new()), Change::FullOnly);
    // No delta explains a merge.
    let mut set = before.clone();
    let change = node.try_change(&mut set, |set, cx| {
        set.add(cx, 'd');
        set.merge(&before).unwrap();
    });
    assert_eq!(change, Change::FullOnly);
    set.begin_change(Lineage(1));
    assert_eq!(set.take_change(Lineage(2)), Change::FullOnly);
}

/// ddata Y9: the first update of a value that came back claims every own number except the live ones: removed elements
/// stay removed everywhere, and nothing else goes.
#[test]
fn a_first_claim_spares_live_elements() {
    let (node, other) = (Node::new(1), Node::new(2));
    let mut set: OrSet<char> = node.zero();
    node.add(&mut set, "aebdc");
    let stale = other.copy(&set);
    node.change(&mut set, |set, cx| assert!(set.remove(cx, &'b')));
    let mut back: OrSet<char> = node.copy(&set);
    let delta = node.change(&mut back, |set, cx| set.add(cx, 'f'));
    assert!(back.iter().eq(&['a', 'c', 'd', 'e', 'f']));
    assert_eq!(with_deltas(&set, [&delta]), back, "nothing that lives is claimed");
    assert!(with_deltas(&stale, [&delta]).iter().eq(&['a', 'c', 'd', 'e', 'f']), "what was forgotten goes");
}

/// ddata K2: numbers go on when an entry is dropped and created again, so a new element is not mistaken for an old one.
#[test]
fn a_created_again_entry_reuses_no_dot() {
    let (r, p) = (Node::new(1), Node::new(2));
    let mut first: OrSet<char> = r.zero();
    r.add(&mut first, "x");
    let at_p = p.copy(&first);
    let mut second: OrSet<char> = r.zero();
    r.add(&mut second, "y");
    let both = crate::node::merged(&at_p, &second);
    assert!(both.iter().eq(&['y']), "the new element is there, and the forgotten one is gone");
}

/// ddata A9: every creation of an entry has another actor.
#[test]
fn an_actor_names_one_life_of_an_entry() {
    let node = Node::new(7);
    let names = |home: Home| {
        let cx = UpdateCx::new(&node.numbers, node.replica(), &node.writer, 0).for_entry(home, 0, &[]);
        assert_eq!((cx.actor().0, cx.actor().1), (cx.slot().replica, cx.slot().birth), "counters use the same");
        cx.actor()
    };
    let first = names(node.home());
    node.numbers.draw();
    let _again: OrSet<char> = node.zero();
    assert_ne!(first, names(node.home()));
}

/// ddata L12, H4: the cost of one element does not depend on the size of the set.
#[test]
fn the_delta_of_one_element_is_small_whatever_the_set() {
    let node = Node::new(1);
    let mut sizes = Vec::new();
    let mut set: OrSet<u64> = node.zero();
    for count in [10, 1_000, 10_000] {
        node.change(&mut set, |set, cx| set.add_all(cx, 0..count));
        // Make numbers of the same length, so that only the set's size differs.
        while node.numbers.last() < 1 << 20 {
            node.numbers.draw();
        }
        let delta = node.change(&mut set, |set, cx| set.add(cx, 99_999));
        sizes.push(OrSet::<u64>::delta_to_bytes(&delta).len());
    }
    assert_eq!(sizes[1], sizes[2]);
    let mut element = greylag_crdt::Encoder::new();
    99_999_u64.encode(&mut element);
    assert!(sizes.iter().all(|size| *size <= 64 + element.len()), "{sizes:?}");
}
