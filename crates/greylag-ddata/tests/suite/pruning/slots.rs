//! A replicator that restarts in its process counts in a slot of its own.

use std::time::Duration;

use greylag_crdt::{CounterOverflow, DotSource, GCounter, PNCounter};
use greylag_ddata::{ReplicaStatus, ReplicatorEvent};

use crate::pruning::world::{SOON, SPREAD, TICK, World, replica};

/// Restarts the replicator of a node: its process lives on, and no other node can reach it at first.
fn restart_alone(world: &mut World, name: char, others: &str) {
    let former = world.kill(name);
    world.start_with(name, 0, ReplicaStatus::Up, former.numbers);
    others.chars().for_each(|other| world.cut(name, other));
    world.publish();
    world.settle();
}

/// ddata Y4, K2, C3: increments that a counter takes before it knows its former amount are not swallowed by the greater
/// amount that its peers hold, neither on their own nor after the next restart.
#[test]
fn a_replicator_started_anew_counts_on() {
    let mut world = World::new("abr");
    world.count('r', "c", 5);
    let up_and_down = |counter: &mut PNCounter, cx: &mut greylag_crdt::UpdateCx<'_>| -> Result<(), CounterOverflow> {
        counter.increment(cx, 5)?;
        counter.decrement(cx, 2)
    };
    world.update::<PNCounter>('r', "p", up_and_down);
    world.advance(SOON);
    let mut expected = 5;
    for by in [1, 2] {
        restart_alone(&mut world, 'r', "ab");
        assert_eq!(world.counter('r', "c"), 0, "nothing was kept");
        world.count('r', "c", by);
        world.update::<PNCounter>('r', "p", up_and_down);
        expected += u128::from(by);
        world.mend();
        world.advance(Duration::from_secs(40));
        world.all_count("c", expected);
    }
    assert_eq!(world.value::<PNCounter>('a', "p").value(), 9);
    assert_eq!(world.value::<GCounter>('a', "c").slots().len(), 3, "one slot a life");
}

/// ddata Z1, Y4: such a slot stays while its process lives, and is pruned when the process is removed.
#[test]
fn a_slot_of_a_former_life_is_pruned_with_its_process() {
    let mut world = World::new("abr");
    world.count('r', "c", 5);
    world.advance(SOON);
    restart_alone(&mut world, 'r', "ab");
    world.count('r', "c", 1);
    world.mend();
    world.advance(SPREAD * 3 + TICK * 12);
    world.all_count("c", 6);
    assert_eq!(world.performed('a').0, 0, "the process lives");
    world.count('r', "c", 1);
    world.advance(SOON);
    world.all_count("c", 7);
    world.remove('r');
    world.until_pruned::<GCounter>("c", replica('r'));
    world.advance(SPREAD + TICK * 12);
    world.all_count("c", 7);
    assert_eq!(world.value::<GCounter>('b', "c").slots().len(), 1, "all is the owner's");
}

/// ddata §9, C8: a process that reuses an id and begins its numbers anew is detected as soon as a peer shows it what
/// that id wrote; reported once per entry.
#[test]
fn an_id_that_is_used_again_is_told_of() {
    let mut world = World::new("ab");
    for element in ["x", "y", "z"] {
        world.add('b', "s", element);
    }
    world.advance(SOON);
    world.kill('b');
    world.start_with('b', 0, ReplicaStatus::Up, DotSource::new());
    world.publish();
    world.advance(SOON);
    let told = &world.nodes[&'b'].events;
    let expected = ReplicatorEvent::ReplicaIdReused {
        replica: replica('b'),
        key: "s".into(),
        peer: world.nodes[&'a'].address.clone(),
    };
    assert_eq!(told.iter().filter(|event| **event == expected).count(), 1, "{told:?}");
    assert!(world.nodes[&'a'].events.is_empty());
}
