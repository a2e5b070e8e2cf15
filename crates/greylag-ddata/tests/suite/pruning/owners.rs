//! Which replica prunes, when, and what happens while others act.

use std::time::Duration;

use greylag_crdt::{GCounter, OrMap, Plain};
use greylag_ddata::{Message, PruningRound, ReplicaStatus, ReplicatorEvent};

use crate::pruning::world::{Map, SOON, SPREAD, Set, TICK, World, replica};

/// ddata Z1, Z2, Z3, Z5, Z8: the data of a removed node keep their value at every moment, and its name disappears.
#[test]
fn scenario_60_a_node_leaves_and_every_value_stays() {
    let mut world = World::new("abc");
    for (name, by) in [('a', 2), ('b', 3), ('c', 4)] {
        world.count(name, "c", by);
        world.add(name, "s", &name.to_string());
        world.update::<Map>(name, "m", |map, cx| map.update(cx, "k".to_owned(), |value, cx| value.increment(cx, 1)));
        world.advance(SOON);
    }
    let old = world.envelope('b', "c");
    world.remove('c');
    world.always = Some(Box::new(|name, core| {
        let counter = core.value(&greylag_ddata::Key::<GCounter>::new("c").unwrap()).map(GCounter::value);
        let set = core.value(&greylag_ddata::Key::<Set>::new("s").unwrap()).map(Set::len);
        let map = core.value(&greylag_ddata::Key::<Map>::new("m").unwrap());
        let map = map.and_then(|map: &OrMap<_, Plain<GCounter>>| map.get("k").map(|value| value.value().value()));
        assert_eq!((counter, set, map), (Some(9), Some(3), Some(3)), "at {name}");
    }));
    world.advance_until(SPREAD + TICK * 6, |world| {
        let c = replica('c');
        !world.is_named::<GCounter>("c", c) && !world.is_named::<Set>("s", c) && !world.is_named::<Map>("m", c)
    });
    world.always = None;
    world.advance(Duration::from_secs(5));
    world.all_hold("s", "abc");
    for expected in 10..=13 {
        world.turns_up('b', "c", &old);
        assert_eq!(world.counter('b', "c"), expected - 1, "an old copy adds nothing");
        world.count('b', "c", 1);
        world.advance(SOON);
        world.all_count("c", expected);
    }
    assert_eq!(world.performed('a'), (3, 0));
    let done = world.nodes[&'a'].events.iter().filter(|event| matches!(event, ReplicatorEvent::PruningDone { .. }));
    assert_eq!(done.count(), 1);
    assert_eq!(world.performed('b').0, 0, "only the owner performs");
}

/// ddata Z3, Z4: if two replicas believe that they lead, only one performs.
#[test]
fn scenario_62_of_two_owners_only_the_winning_round_performs() {
    let mut world = World::new("abc");
    world.count('c', "c", 5);
    world.add('c', "s", "x");
    world.advance(SOON);
    // b sees a as WeaklyUp, so b believes that it leads itself.
    world.believe('b', 'a', ReplicaStatus::WeaklyUp);
    world.remove('c');
    world.cut('a', 'b');
    world.advance(SPREAD + TICK * 3);
    let owner = |world: &World, name: char| world.nodes[&name].core.pruning_news().rounds[0].owner;
    assert_eq!((owner(&world, 'a'), owner(&world, 'b')), (replica('a'), replica('b')), "neither knows of the other");
    assert_eq!(world.performed('a').0 + world.performed('b').0, 0, "neither has collected the other");
    world.mend();
    world.until_pruned::<Set>("s", replica('c'));
    world.advance(TICK * 4);
    assert_eq!((world.performed('a').0, world.performed('b').0), (2, 0));
    world.all_count("c", 5);
    world.all_hold("s", "x");
}

/// ddata 74, Z4: nothing is performed before a joining node was collected too, and an update that only it holds is
/// kept.
#[test]
fn a_joining_node_is_collected() {
    let mut world = World::new("abc");
    world.add('c', "s", "x");
    world.advance(SOON);
    // What c does now reaches the joining node alone.
    world.cut('c', 'a');
    world.cut('c', 'b');
    world.add('c', "s", "y");
    let more = world.envelope('c', "s");
    world.start('j', 0, ReplicaStatus::Joining);
    world.publish();
    world.turns_up('j', "s", &more);
    world.cut('a', 'j');
    world.cut('b', 'j');
    world.remove('c');
    world.advance(SPREAD + TICK * 4);
    assert_eq!(world.performed('a').0, 0);
    world.mend();
    world.until_pruned::<Set>("s", replica('c'));
    assert_eq!(world.performed('a'), (1, 0), "all of it at once");
    world.all_hold("s", "xy");
}

/// ddata Z2: no owner performs while a member is unreachable, and an event names that member.
#[test]
fn an_unreachable_member_keeps_pruning_waiting() {
    let mut world = World::new("abc");
    world.count('c', "c", 5);
    world.advance(SOON);
    world.remove('c');
    world.set_reachable('b', false);
    world.advance(SPREAD * 4);
    assert!(world.is_named::<GCounter>("c", replica('c')));
    let by = world.nodes[&'b'].address.clone();
    assert!(world.nodes[&'a'].events.contains(&ReplicatorEvent::PruningBlocked { by }));
    assert_eq!(world.nodes[&'a'].core.pruning_news().rounds, []);
    world.set_reachable('b', true);
    world.until_pruned::<GCounter>("c", replica('c'));
    world.all_count("c", 5);
}

/// ddata Z3: a round whose owner is gone is announced anew, with a higher epoch.
#[test]
fn the_successor_of_a_dead_owner_takes_over_its_round() {
    let mut world = World::new("abcd");
    world.count('d', "c", 5);
    world.advance(SOON);
    world.remove('d');
    world.advance_until(SPREAD * 2, |world| !world.nodes[&'b'].core.pruning_news().rounds.is_empty());
    world.remove('a');
    world.until_pruned::<GCounter>("c", replica('d'));
    let round = &world.nodes[&'c'].core.pruning_news().rounds[0];
    assert_eq!((round.epoch, round.owner), (2, replica('b')));
    world.all_count("c", 5);
    assert_eq!(world.performed('b'), (1, 0));
}

/// ddata Z1, Z9: the leader finds a replica that only data name. Its round is dropped when it is old, and the replica
/// is forgotten with the last marker.
#[test]
fn a_replica_named_by_data_only_is_found_and_at_last_forgotten() {
    let mut world = World::new("abc");
    world.count('c', "c", 5);
    world.add('c', "s", "x");
    world.advance(SOON);
    // Stop c without a tombstone of it.
    world.kill('c');
    world.publish();
    world.until_pruned::<GCounter>("c", replica('c'));
    assert_eq!(world.nodes[&'b'].core.pruning_news().rounds.len(), 1);
    world.advance(world.settings.pruning_marker_time_to_live * 2 + TICK * 2);
    for name in ['a', 'b'] {
        assert_eq!(world.nodes[&name].core.pruning_news().rounds, Vec::<PruningRound>::new());
        assert!(world.nodes[&name].core.markers("c").is_empty() && world.nodes[&name].core.markers("s").is_empty());
        assert!(world.nodes[&name].core.pruning_news().standing.forget_horizon.is_some());
    }
    world.all_count("c", 5);
}

/// ddata K7, Z6: what an owner adds between reserving numbers and using them does not claim these numbers.
#[test]
fn scenario_67_an_add_between_reserving_and_performing() {
    let mut world = World::new("dopqr");
    world.add('r', "t", "u");
    world.add('d', "t", "v");
    world.advance(SOON);
    // Cut r and q from all others: r writes x, and only q gets it.
    for (one, other) in [('r', 'o'), ('r', 'p'), ('r', 'd'), ('q', 'o'), ('q', 'p'), ('q', 'd')] {
        world.cut(one, other);
    }
    world.add('r', "s", "x");
    world.advance(SOON);
    world.remove('r');
    world.remove('d');
    world.advance(SPREAD + TICK * 3);
    assert_eq!((world.set('q', "s").as_str(), world.performed('o').0), ("x", 0), "p is collected, q is not");
    world.mend();
    world.cut('o', 'p');
    world.cut('q', 'p');
    let end = world.now + TICK * 4;
    while !world.is_between_steps('o') {
        world.settle();
        assert!(world.tick_before(end), "never performed");
    }
    assert_eq!((world.set('o', "s").as_str(), world.set('p', "s").as_str()), ("x", ""));
    assert_eq!(world.performed('o').0, 0);
    // Numbers are reserved, nothing is performed, and y's delta reaches p.
    world.mend();
    world.add_everywhere('o', "s", "y");
    world.deliver(|_, to, message| to == 'p' && matches!(message, Message::DeltaWrite { .. }));
    assert_eq!(world.set('p', "s"), "y");
    world.until_pruned::<Set>("s", replica('r'));
    world.until_pruned::<Set>("t", replica('d'));
    world.all_hold("s", "xy");
    world.all_hold("t", "uv");
}

/// ddata Z4: a member that vanishes before it was collected may have passed data on to one that was collected.
#[test]
fn scenario_74_an_uncollected_member_that_vanishes_restarts_the_collection() {
    let mut world = World::new("opqr");
    world.add('r', "s", "u");
    world.count('r', "c", 3);
    world.advance(SOON);
    for (one, other) in [('r', 'o'), ('r', 'p'), ('q', 'o'), ('q', 'p')] {
        world.cut(one, other);
    }
    world.add('r', "s", "x");
    world.count('r', "c", 4);
    world.advance(SOON);
    assert_eq!((world.set('q', "s").as_str(), world.set('p', "s").as_str()), ("ux", "u"));
    world.remove('r');
    world.advance(SPREAD + TICK * 4);
    assert_eq!(world.performed('o').0, 0, "p is collected, q is not");
    // q passes on what it has to p alone, and vanishes.
    let (set, counter) = (world.envelope('q', "s"), world.envelope('q', "c"));
    world.turns_up('p', "s", &set);
    world.turns_up('p', "c", &counter);
    world.mend();
    world.lose();
    world.cut('o', 'p');
    world.remove('q');
    world.advance(TICK * 2);
    assert_eq!(world.performed('o').0, 0, "p has to be collected again");
    world.mend();
    world.until_pruned::<Set>("s", replica('r'));
    world.until_pruned::<GCounter>("c", replica('r'));
    world.advance(TICK * 2);
    world.all_hold("s", "ux");
    world.all_count("c", 7);
    assert_eq!(world.performed('o'), (2, 0), "each entry once, since everything was collected first");
}

/// ddata Z4: a sync round that a member began before it knew the pruning round collects nothing, even if it is
/// complete: while the round runs, the member still accepts messages of the removed replica.
#[test]
fn a_round_from_before_the_announcement_collects_nothing() {
    let mut world = World::new("opr");
    world.add('r', "s", "u");
    world.advance(SOON);
    world.hears_of_removal('o', 'r');
    world.advance_until(SPREAD + TICK * 3, |world| !world.nodes[&'o'].core.pruning_news().rounds.is_empty());
    world.lose();
    // p begins a round, with data to send in it.
    world.add('p', "s", "y");
    let end = world.now + SOON;
    while !world.is_under_way('p', 'o', "SyncOpen") {
        assert!(world.tick_before(end), "p opens a round");
    }
    let between = |from: char, to: char| [('p', 'o'), ('o', 'p')].contains(&(from, to));
    world.deliver(|from, to, message| (from, to) == ('p', 'o') && message.kind() == "SyncOpen");
    assert!(world.is_under_way('o', 'p', "SyncDiffers"));
    // The messages after o's answer overtake it, and so does a last message of r.
    world.deliver(|from, to, message| (from, to) == ('o', 'p') && message.kind() == "SyncList");
    assert!(world.is_under_way('p', 'o', "Gossip"));
    world.add('r', "s", "x");
    while !world.is_under_way('r', 'p', "DeltaBatch") {
        assert!(world.tick_before(end), "r says it");
    }
    world.deliver(|from, to, message| (from, to) == ('r', 'p') && message.kind() == "DeltaBatch");
    assert_eq!(world.set('p', "s"), "uxy");
    let is_of_the_round =
        |message: &Message| ["SyncDiffers", "SyncList", "SyncAck", "Gossip", "SyncDone"].contains(&message.kind());
    for _ in 0..20 {
        world.deliver(|from, to, message| between(from, to) && is_of_the_round(message));
    }
    assert_eq!(world.set('o', "s"), "uy", "the round is over, and x was not in it");
    world.lose();
    world.cut('o', 'p');
    world.advance(TICK * 2);
    assert_eq!(world.performed('o').0, 0, "p has still to be collected");
    world.mend();
    world.remove('r');
    world.until_pruned::<Set>("s", replica('r'));
    world.advance(TICK);
    world.all_hold("s", "uxy");
    assert_eq!(world.performed('o'), (1, 0));
}
