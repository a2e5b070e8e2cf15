//! Updates whose delta is not collected: they change the value in place, and claim the same numbers as collected ones.

use greylag_crdt::{OrSet, ReplicatedData, UpdateCx};

use crate::node::Node;

fn seen(node: &Node, set: &OrSet<char>) -> Vec<(u64, u64)> {
    set.context().intervals(node.replica()).collect()
}

/// ddata K7: the first update claims all own numbers that were forgotten here, gaps of the context included.
#[test]
fn the_first_update_of_an_entry_claims_what_was_forgotten() {
    let node = Node::new(1);
    (0..4).for_each(|_| _ = node.numbers.draw());
    let cx = || UpdateCx::new(&node.numbers, node.replica(), &node.writer, 0);
    let mut stray = OrSet::new();
    stray.add(&mut cx(), 'x');
    let mut set: OrSet<char> = node.zero();
    set.merge(&stray).unwrap();
    assert_eq!(seen(&node, &set), [(5, 5)]);
    set.add(&mut cx().for_entry(node.home(), 0, &[]), 'y');
    assert_eq!(seen(&node, &set), [(1, 6)]);
}

/// ddata K7, Z6: own numbers reserved for images of a removed replica are not claimed.
#[test]
fn reserved_numbers_are_not_claimed() {
    let node = Node::new(1);
    let mut set: OrSet<char> = node.zero();
    let cx = || UpdateCx::new(&node.numbers, node.replica(), &node.writer, 0);
    set.add(&mut cx().for_entry(node.home(), 0, &[]), 'x');
    let above = node.numbers.reserve(10).unwrap();
    set.add(&mut cx().for_entry(node.home(), 0, &[(above, above + 10)]), 'y');
    assert_eq!(seen(&node, &set), [(1, 1), (12, 12)]);
}
