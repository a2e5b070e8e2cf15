//! Removed replicas and disks: copies that return, markers that outlast downtime, and stores that are too old.

use std::collections::BTreeSet;

use greylag_crdt::{GCounter, ReplicaId, ReplicatedData};
use greylag_ddata::{Lifecycle, ReplicatorEvent, StaleStore, StopReason, StoreImage};

use crate::pruning::world::{LIFE, SOON, SPREAD, TICK, World, address, replica};

/// All nodes have counted, including d; d was just performed, and all others know.
fn performed() -> World {
    let mut world = World::durable("abcd");
    for name in "abcd".chars() {
        world.count(name, "c", 1);
    }
    world.add('d', "s", "x");
    world.advance(SOON);
    world.remove('d');
    world.until_pruned::<GCounter>("c", replica('d'));
    world.advance(SOON);
    world.all_count("c", 4);
    assert!("abc".chars().all(|name| !world.nodes[&name].core.markers("c").is_empty()));
    world
}

fn slots(world: &World, name: char) -> BTreeSet<ReplicaId> {
    world.value::<GCounter>(name, "c").pruning().expect("counters are pruned").modified_by()
}

/// ddata 61, U7: a node comes back to its address with its old store; the value and the number of slots stay the same.
#[test]
fn scenario_61_a_node_that_returns_with_its_store_counts_once() {
    let mut world = World::durable("abc");
    for (name, by) in [('a', 3), ('b', 3), ('c', 4)] {
        world.count(name, "c", by);
    }
    world.advance(SOON);
    world.all_count("c", 10);
    world.remove('c');
    world.restart('c', 1);
    world.advance(SOON);
    world.all_count("c", 10);
    let returned = ReplicaId(address('c', 1).uid().get());
    world.count('c', "c", 1);
    world.until_pruned::<GCounter>("c", replica('c'));
    world.advance(SOON);
    world.all_count("c", 11);
    for name in "abc".chars() {
        assert_eq!(slots(&world, name).len(), 3, "of {name}");
        assert!(slots(&world, name).contains(&returned));
    }
    // Once more, now that everything is on the new disk.
    world.remove('c');
    world.restart('c', 2);
    world.until_pruned::<GCounter>("c", returned);
    world.advance(SOON);
    world.all_count("c", 11);
}

/// ddata 75, Z9: a node that was down, or idle, while markers ended is not too old if it knew of these markers.
#[test]
fn scenario_75_a_node_that_was_down_at_the_end_of_a_marker_is_accepted() {
    let mut world = performed();
    world.advance(LIFE - TICK * 4);
    // Stop c shortly before the end, until the others have forgotten.
    world.kill('c');
    world.publish();
    world.advance(TICK * 8 + SPREAD);
    let of_d = |marker: &greylag_crdt::Performed| marker.removed == replica('d');
    assert!(!world.nodes[&'a'].core.markers("c").iter().any(of_d), "the others have forgotten");
    assert!(world.nodes[&'a'].core.pruning_news().standing.forget_horizon.is_some());
    world.restart('c', 1);
    world.advance(SOON);
    assert_eq!(*world.lifecycle('c'), Lifecycle::Running);
    world.all_count("c", 4);
    world.all_hold("s", "x");
}

/// ddata 75, Z9: a node that was cut off from everything while markers ended, or stood still meanwhile, is not too old
/// either: it goes on, and its writes count everywhere.
#[test]
fn scenario_75_a_node_that_was_idle_at_the_end_of_a_marker_is_accepted() {
    for stands_still in [false, true] {
        let mut world = performed();
        world.advance(LIFE - TICK * 4);
        let node = stands_still.then(|| world.pause('c'));
        ["ac", "bc"].iter().for_each(|pair| world.cut_both(pair));
        world.advance(TICK * 8 + SPREAD);
        let of_d = |marker: &greylag_crdt::Performed| marker.removed == replica('d');
        assert!(!world.nodes[&'a'].core.markers("c").iter().any(of_d), "the others have forgotten");
        if let Some(node) = node {
            assert!(node.core.markers("c").iter().any(of_d), "it has not");
            world.go_on('c', node);
        }
        world.mend();
        world.count('c', "c", 1);
        world.advance(SOON * 2);
        assert_eq!(*world.lifecycle('c'), Lifecycle::Running);
        world.all_count("c", 5);
        world.all_hold("s", "x");
        world.advance(TICK * 2 + SPREAD);
        assert!("abc".chars().all(|name| !world.nodes[&name].core.markers("c").iter().any(of_d)), "all have forgotten");
        world.all_count("c", 5);
        world.all_hold("s", "x");
    }
}

/// ddata 75, Z9: only time in which a replicator ran counts for its markers; a cluster that was stopped as a whole has
/// forgotten nothing.
#[test]
fn scenario_75_a_cluster_that_was_stopped_forgets_nothing_meanwhile() {
    let mut world = performed();
    world.advance(LIFE / 2);
    for name in "abc".chars() {
        world.kill(name);
    }
    world.now += LIFE * 7 / 10;
    for name in "abc".chars() {
        world.start(name, 1, greylag_ddata::ReplicaStatus::Up);
    }
    world.publish();
    world.advance(LIFE / 2 - TICK * 4);
    for name in "abc".chars() {
        assert!(!matches!(world.lifecycle(name), Lifecycle::Stopped(_)), "{name} is accepted");
        let markers = world.nodes[&name].core.markers("c");
        assert!(markers.iter().any(|marker| marker.removed == replica('d')), "{name} keeps the marker");
    }
    world.advance(TICK * 8 + SPREAD * 2);
    world.all_count("c", 4);
    for name in "abc".chars() {
        let markers = world.nodes[&name].core.markers("c");
        assert!(!markers.iter().any(|marker| marker.removed == replica('d')), "{name} forgets it in its time");
    }
}

/// c is cut off and removed just before d is performed, removes the others, and goes on alone until everything is
/// forgotten, with two restarts. Returns the world of the others and the last disk of c. Either side has counted what
/// the other never saw.
fn cut_off() -> (World, StoreImage) {
    let mut world = World::durable("abcd");
    for name in "abcd".chars() {
        world.count(name, "c", 1);
    }
    world.add('d', "s", "x");
    world.advance(SOON * 4);
    let c = world.pause('c');
    let mut alone = world.apart('c', c);
    world.remove('d');
    world.removed.insert(address('c', 0));
    world.publish();
    world.count('a', "of-the-others", 1);
    alone.count('c', "of-c", 1);
    world.until_pruned::<GCounter>("c", replica('d'));
    world.advance(LIFE + SPREAD * 2 + TICK * 2);
    assert!(world.nodes[&'a'].core.markers("c").is_empty());

    for incarnation in [1, 2] {
        alone.advance((world.now - alone.now) / 2);
        assert_eq!(*alone.lifecycle('c'), Lifecycle::Running);
        alone.kill('c');
        alone.restart('c', incarnation);
    }
    alone.advance(world.now - alone.now);
    (world, alone.disks.remove(&'c').unwrap())
}

/// ddata 75, Z9: a store that was out of touch when others performed, and comes when they have forgotten, is too old,
/// however lately its process ran: it is refused before anything is exchanged.
#[test]
fn scenario_75_a_store_that_is_too_old_is_refused_before_any_exchange() {
    let (mut world, disk) = cut_off();
    world.disks.insert('c', disk.clone());
    let before = world.nodes[&'a'].core.digests();
    world.restart('c', 4);
    let Lifecycle::Stopped(StopReason::StoreTooOld { synced_at, horizon, .. }) = world.lifecycle('c') else {
        panic!("{:?}", world.lifecycle('c'))
    };
    assert!(Some(*synced_at) < *horizon);
    assert_eq!(world.nodes[&'a'].core.digests(), before);
    assert_eq!(world.nodes[&'c'].core.stats().full_states_sent, 0);
    assert_eq!((world.counter('c', "of-c"), world.counter('c', "of-the-others")), (1, 0), "it took nothing either");
    // The store is refused again: being refused has not made it fresher.
    world.kill('c');
    world.restart('c', 5);
    assert!(matches!(world.lifecycle('c'), Lifecycle::Stopped(StopReason::StoreTooOld { .. })));
}

/// ddata Z9: with `Discard` a stale store is dropped, and its node takes what the others hold; with `Force` it is
/// merged.
#[test]
fn a_stale_store_is_discarded_or_forced_on_request() {
    for policy in [StaleStore::Discard, StaleStore::Force] {
        let (mut world, disk) = cut_off();
        world.disks.insert('c', disk);
        world.settings.durable.stale_store = policy;
        world.restart('c', 4);
        world.advance(SOON);
        assert_eq!(*world.lifecycle('c'), Lifecycle::Running);
        let told = |event: &ReplicatorEvent| matches!(event, ReplicatorEvent::StaleStore { .. });
        assert_eq!(world.nodes[&'c'].events.iter().filter(|event| told(event)).count(), 1);
        // With `Force`, what was forgotten counts twice: the hazard that refusing prevents.
        let counted = world.counter('c', "c");
        assert_eq!(counted == 4, policy == StaleStore::Discard, "{policy:?}: {counted}");
        world.all_count("c", counted);
    }
}

/// ddata 82, Z9: a node whose store was away since before a deletion that others have forgotten is refused, and the
/// entry stays deleted.
#[test]
fn scenario_82_a_store_from_before_a_forgotten_deletion_is_refused() {
    let mut world = World::durable("abc");
    world.settings.delete_tombstone_ttl = Some(LIFE);
    for name in "abc".chars() {
        world.kill(name);
        world.start(name, 1, greylag_ddata::ReplicaStatus::Up);
    }
    world.publish();
    world.add('a', "s", "x");
    world.advance(SOON * 2);
    world.kill('c');
    world.publish();
    world.advance(SPREAD);
    world.delete('a', "s");
    world.advance(SOON);
    world.advance(LIFE + TICK + SPREAD);
    assert!(world.nodes[&'a'].core.digests().is_empty(), "the deletion is forgotten");
    world.restart('c', 2);
    let stopped = world.lifecycle('c').clone();
    assert!(matches!(stopped, Lifecycle::Stopped(StopReason::StoreTooOld { .. })), "{stopped:?}");
    world.advance(SOON);
    for name in ['a', 'b'] {
        assert!(world.nodes[&name].core.digests().is_empty(), "it stays deleted at {name}");
    }
}
