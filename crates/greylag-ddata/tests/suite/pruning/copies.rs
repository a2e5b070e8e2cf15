//! Late copies: of the removed replica, of a former owner, of members that heard nothing.

use std::time::Duration;

use greylag_crdt::{CounterOverflow, GCounter, ReplicatedData, UpdateCx};
use greylag_ddata::{Message, ReplicaStatus};

use crate::pruning::world::{LIFE, Map, Places, SOON, SPREAD, Set, TICK, Votes, World, replica};

/// A world in which c wrote a set and a counter, was removed, and a performed; with both entries as c had left them.
fn pruned() -> (World, greylag_ddata::Envelope, greylag_ddata::Envelope) {
    let mut world = World::new("abc");
    world.add('c', "s", "x");
    world.count('c', "c", 5);
    world.advance(SOON);
    let copies = (world.envelope('b', "s"), world.envelope('b', "c"));
    world.remove('c');
    world.until_pruned::<Set>("s", replica('c'));
    world.until_pruned::<GCounter>("c", replica('c'));
    (world, copies.0, copies.1)
}

/// ddata Z7, Z8: old updates in a late copy are ignored, and elements removed since stay removed.
#[test]
fn scenario_62_a_late_copy_with_nothing_new_changes_nothing() {
    let (mut world, set, counter) = pruned();
    world.turns_up('b', "s", &set);
    world.turns_up('b', "c", &counter);
    assert!(!world.is_named::<Set>("s", replica('c')) && !world.is_named::<GCounter>("c", replica('c')));
    world.take('a', "s", "x");
    world.advance(SOON);
    world.turns_up('b', "s", &set);
    world.turns_up('a', "s", &set);
    world.advance(TICK * 2);
    world.all_hold("s", "");
    world.all_count("c", 5);
    assert_eq!(world.performed('a'), (2, 0));
}

/// ddata Z7: markers of two removed replicas both count, and of one marker the later end.
#[test]
fn scenario_62_two_markers_clean_cumulatively() {
    let mut world = World::new("abcd");
    world.add('c', "s", "x");
    world.add('d', "s", "y");
    world.count('c', "c", 5);
    world.count('d', "c", 2);
    world.advance(SOON);
    let (set, counter) = (world.envelope('b', "s"), world.envelope('b', "c"));
    world.remove('c');
    world.until_pruned::<Set>("s", replica('c'));
    world.remove('d');
    world.until_pruned::<Set>("s", replica('d'));
    world.until_pruned::<GCounter>("c", replica('d'));
    world.turns_up('b', "s", &set);
    world.turns_up('b', "c", &counter);
    assert!(!world.is_named::<Set>("s", replica('c')) && !world.is_named::<Set>("s", replica('d')));
    world.all_count("c", 7);
    world.all_hold("s", "xy");
    let ends: Vec<_> = world.nodes[&'b'].core.markers("s").iter().map(|marker| marker.obsolete_at).collect();
    let mut earlier = world.envelope('a', "s");
    let markers = earlier.markers.clone();
    earlier.markers.retain(|_| false);
    for marker in markers.iter() {
        let mut marker = marker.clone();
        marker.obsolete_at = marker.obsolete_at.map(|at| at - 5_000);
        earlier.markers.add(&marker);
    }
    world.turns_up('b', "s", &earlier);
    let now: Vec<_> = world.nodes[&'b'].core.markers("s").iter().map(|marker| marker.obsolete_at).collect();
    assert_eq!(now, ends, "the later end is kept");
    let mut later = earlier;
    later.markers.prolong(10_000);
    world.turns_up('b', "s", &later);
    let now: Vec<_> = world.nodes[&'b'].core.markers("s").iter().map(|marker| marker.obsolete_at).collect();
    let expected: Vec<_> = ends.iter().map(|end| end.map(|at| at + 5_000)).collect();
    assert_eq!(now, expected, "a later end is taken over");
}

/// ddata Z9: a marker past its end counts until the tick drops it, and does not come back by a merge, in either
/// direction.
#[test]
fn scenario_62_an_ended_marker_counts_until_it_is_dropped_and_stays_away() {
    let (mut world, set, _) = pruned();
    let marked = world.envelope('a', "s");
    let has = |world: &World, name: char| !world.nodes[&name].core.markers("s").is_empty();
    world.advance(LIFE - SPREAD);
    assert!(has(&world, 'a') && has(&world, 'b'));
    world.turns_up('b', "s", &set);
    assert!(!world.is_named::<Set>("s", replica('c')), "it counts");
    world.advance_until(SPREAD * 4, |world| has(world, 'a') != has(world, 'b'));
    let (with, without) = if has(&world, 'a') { ('a', 'b') } else { ('b', 'a') };
    world.turns_up(with, "s", &set);
    let pruned = world.value::<Set>(with, "s");
    let names_c = pruned.pruning().is_some_and(|pruning| pruning.modified_by().contains(&replica('c')));
    assert!(!names_c, "it counts past its end, until it is dropped");
    let envelope = world.envelope(with, "s");
    world.turns_up(without, "s", &envelope);
    world.turns_up(without, "s", &marked);
    assert!(!has(&world, without), "not learned again");
    let envelope = world.envelope(without, "s");
    world.turns_up(with, "s", &envelope);
    assert!(has(&world, with), "nor lost by merging");
    world.advance(TICK * 2);
    assert!(!has(&world, 'a') && !has(&world, 'b'));
    world.turns_up('b', "s", &marked);
    assert!(!has(&world, 'b'));
    world.all_hold("s", "x");
}

/// ddata Z5, Z6, Z10: a late copy of the removed replica has more than was performed, and is performed again.
#[test]
fn scenario_68_updates_in_a_late_copy_are_performed_again() {
    let mut world = World::new("abr");
    world.add('r', "s", "x");
    world.count('r', "c", 5);
    world.advance(SOON);
    // From here on the updates of r reach no other node, but are in its store.
    world.cut('r', 'a');
    world.cut('r', 'b');
    world.add('r', "s", "x");
    world.add('r', "s", "z");
    world.count('r', "c", 2);
    let (set, counter) = (world.envelope('r', "s"), world.envelope('r', "c"));
    world.remove('r');
    world.mend();
    world.until_pruned::<Set>("s", replica('r'));
    world.until_pruned::<GCounter>("c", replica('r'));
    world.all_hold("s", "x");
    world.all_count("c", 5);
    world.start('r', 1, ReplicaStatus::Up);
    world.publish();
    world.turns_up('r', "s", &set);
    world.turns_up('r', "c", &counter);
    world.advance(SOON);
    world.all_count("c", 7);
    world.until_pruned::<Set>("s", replica('r'));
    world.until_pruned::<GCounter>("c", replica('r'));
    world.advance(TICK);
    world.all_hold("s", "xz");
    world.all_count("c", 7);
}

/// ddata 68, U7, Z9, Z11: the same with the store itself, which is loaded, judged and passed.
#[test]
fn scenario_68_the_store_of_the_removed_replica_returns() {
    let mut world = World::durable("abr");
    world.add('r', "s", "x");
    world.count('r', "c", 5);
    world.advance(SOON);
    world.cut('r', 'a');
    world.cut('r', 'b');
    world.add('r', "s", "x");
    world.add('r', "s", "z");
    world.count('r', "c", 2);
    world.remove('r');
    world.mend();
    world.until_pruned::<Set>("s", replica('r'));
    world.until_pruned::<GCounter>("c", replica('r'));
    world.all_hold("s", "x");
    world.all_count("c", 5);
    world.restart('r', 1);
    world.advance(SOON);
    assert_eq!(*world.lifecycle('r'), greylag_ddata::Lifecycle::Running);
    world.all_count("c", 7);
    // Wait for the owner's next tick, and until others hear of what it performed.
    world.advance(TICK);
    world.all_hold("s", "xz");
    world.all_count("c", 7);
    assert!(!world.is_named::<Set>("s", replica('r')) && !world.is_named::<GCounter>("c", replica('r')));
}

/// Removes r and lets o perform both entries that r wrote to, unheard by any other node.
fn remove_and_perform_unheard(world: &mut World) {
    world.remove('r');
    world.advance_until(SPREAD * 3, |world| !world.nodes[&'p'].core.pruning_news().rounds.is_empty());
    let end = world.now + SPREAD * 3;
    while world.performed('o').0 < 2 {
        if world.performed('o').0 == 1 {
            world.lose();
        } else {
            world.settle();
        }
        assert!(world.tick_before(end));
    }
    world.lose();
}

/// Removes o, which no other node heard; lets p perform the same entries, and then remove x.
fn another_owner_performs(world: &mut World) {
    world.remove('o');
    world.start('q', 0, ReplicaStatus::Up);
    world.publish();
    world.until_pruned::<Set>("s", replica('r'));
    world.until_pruned::<GCounter>("c", replica('r'));
    assert!(world.performed('p').0 >= 2);
    world.take('p', "s", "x");
    world.advance(SOON);
}

/// Checks from now on that every node that holds the counter counts five.
fn counts_five_always(world: &mut World) {
    world.always = Some(Box::new(|name, core| {
        let counter = core.value(&greylag_ddata::Key::<GCounter>::new("c").unwrap()).map_or(5, GCounter::value);
        assert_eq!(counter, 5, "at {name}");
    }));
}

/// ddata Z6, Z7, Y4: the store of an owner returns, after another owner performed the same replica.
#[test]
fn scenario_69_the_store_of_a_dead_owner_returns() {
    for returns_first in [true, false] {
        let mut world = World::new("opr");
        world.add('r', "s", "x");
        world.count('r', "c", 5);
        world.advance(SOON);
        remove_and_perform_unheard(&mut world);
        let (set, counter) = (world.envelope('o', "s"), world.envelope('o', "c"));
        another_owner_performs(&mut world);
        if !returns_first {
            world.advance(SPREAD + TICK * 3);
        }
        world.start('o', 1, ReplicaStatus::Up);
        world.publish();
        world.turns_up('o', "s", &set);
        world.turns_up('o', "c", &counter);
        counts_five_always(&mut world);
        world.advance(SOON);
        world.all_hold("s", "");
        world.all_count("c", 5);
        world.until_pruned::<GCounter>("c", replica('o'));
        world.advance(LIFE + SPREAD + TICK * 3);
        world.all_count("c", 5);
        world.all_hold("s", "");
    }
}

/// ddata 69, U7, Z11: the same with the store of the former owner itself, which has a further replica to be pruned.
#[test]
fn scenario_69_the_store_of_a_dead_owner_is_loaded() {
    for returns_first in [true, false] {
        let mut world = World::durable("opr");
        world.add('r', "s", "x");
        world.count('r', "c", 5);
        world.count('o', "w", 1);
        world.advance(SOON);
        remove_and_perform_unheard(&mut world);
        another_owner_performs(&mut world);
        if !returns_first {
            world.until_pruned::<GCounter>("w", replica('o'));
            assert!(world.performed('p').0 > 2, "what o wrote is performed before its store returns");
        }
        world.restart('o', 1);
        counts_five_always(&mut world);
        world.advance(SOON);
        assert_eq!(*world.lifecycle('o'), greylag_ddata::Lifecycle::Running);
        world.all_hold("s", "");
        world.all_count("c", 5);
        world.until_pruned::<GCounter>("c", replica('o'));
        world.advance(LIFE + SPREAD + TICK * 3);
        world.all_count("c", 5);
        world.all_count("w", 1);
        world.all_hold("s", "");
    }
}

/// ddata 71, Z6: a sibling that was superseded before the marker was heard of keeps what it took over, and the round
/// does not repeat.
#[test]
fn scenario_71_a_value_that_superseded_another_before_the_marker_keeps_it() {
    let mut world = World::new("opr");
    let add = |world: &mut World, name: char, by: u64| {
        world.update::<Map>(name, "m", |map, cx| map.update(cx, "k".to_owned(), |value, cx| value.increment(cx, by)));
    };
    let shown = |world: &World, name: char| world.value::<Map>(name, "m").get("k").map(|value| value.value().value());
    add(&mut world, 'r', 5);
    world.advance(SOON);
    world.remove('r');
    world.advance_until(SPREAD * 4, |world| world.performed('o').0 > 0);
    world.lose();
    world.cut('o', 'p');
    assert!(world.is_named::<Map>("m", replica('r')), "p has not heard of it");
    add(&mut world, 'p', 3);
    world.mend();
    world.advance(SOON * 2);
    assert_eq!((shown(&world, 'o'), shown(&world, 'p')), (Some(8), Some(8)));
    assert!(!world.is_named::<Map>("m", replica('r')));
    world.advance(TICK * 4);
    assert_eq!(world.performed('o'), (1, 0), "the round does not repeat");
}

/// How separate changes become known: which link mends first, and whether full states arrive before or after the logged
/// deltas.
#[derive(Debug, Clone, Copy)]
struct Meeting {
    delta_enabled: bool,
    first: &'static str,
    states_first: bool,
}

/// a increments, which b sees, and again, which c sees; a removes the key; b increments without having seen that; a
/// merges and increments; c increments without having seen the removal. Then all meet. Returns what each shows.
fn increments_around_a_removal(how: Meeting) -> Vec<Option<i128>> {
    let settings =
        greylag_ddata::ReplicatorSettings { delta_enabled: how.delta_enabled, ..crate::pruning::world::settings() };
    let mut world = World::with("abc", settings);
    let up = |world: &mut World, name: char| {
        world.update::<Votes>(name, "v", |votes, cx| votes.increment(cx, "k".to_owned(), 1));
    };
    let cuts = |world: &mut World, pairs: &[&str]| {
        world.mend();
        pairs.iter().for_each(|pair| world.cut_both(pair));
    };
    let votes = |world: &World| {
        let of = |name: char| world.value::<Votes>(name, "v").get("k");
        "abc".chars().map(of).collect::<Vec<_>>()
    };
    cuts(&mut world, &["ac", "bc"]);
    up(&mut world, 'a');
    world.advance(SOON);
    cuts(&mut world, &["ab", "bc"]);
    up(&mut world, 'a');
    world.advance(SOON);
    assert_eq!(votes(&world), [Some(2), Some(1), Some(2)]);
    cuts(&mut world, &["ab", "bc", "ac"]);
    world.update::<Votes>('a', "v", |votes, cx| {
        assert!(votes.remove(cx, "k"));
        Ok(())
    });
    up(&mut world, 'b');
    cuts(&mut world, &["bc", "ac"]);
    world.advance(SOON);
    up(&mut world, 'a');
    up(&mut world, 'c');
    let states = ['a', 'b', 'c'].map(|name| world.envelope(name, "v"));
    let arrive = |world: &mut World| {
        for (at, name) in [(0, 'b'), (0, 'c'), (1, 'c'), (1, 'a'), (2, 'a'), (2, 'b')] {
            world.turns_up(name, "v", &states[at]);
        }
    };
    if how.states_first {
        arrive(&mut world);
        assert_eq!(votes(&world), [Some(5); 3], "by full states alone, {how:?}");
    }
    let later = if how.first == "ac" { "bc" } else { "ac" };
    cuts(&mut world, &[later, "ab"]);
    world.advance(SOON);
    world.mend();
    world.advance(SOON);
    if !how.states_first {
        assert_eq!(votes(&world), [Some(5); 3], "{how:?}");
        arrive(&mut world);
    }
    votes(&world)
}

/// ddata 80, Y9: increments of a key that was removed meanwhile, elsewhere and here, count once each, whether deltas,
/// full states or both travel, in either order, and whichever two meet first.
#[test]
fn scenario_80_increments_around_a_removal_count_once() {
    for delta_enabled in [true, false] {
        for first in ["ac", "bc"] {
            for states_first in [true, false] {
                let how = Meeting { delta_enabled, first, states_first };
                assert_eq!(increments_around_a_removal(how), [Some(5); 3], "{how:?}");
            }
        }
    }
}

/// ddata Z6: a plain counter inside a map keeps its slots; the dots around it are renamed.
#[test]
fn scenario_71_a_plain_value_keeps_its_slots() {
    let mut world = World::new("opr");
    let add = |world: &mut World, name: char, by: u64| {
        world.update::<Map>(name, "m", |map, cx| map.update(cx, "k".to_owned(), |value, cx| value.increment(cx, by)));
    };
    let shown = |world: &World, name: char| world.value::<Map>(name, "m").get("k").map(|value| value.value().value());
    world.cut('o', 'r');
    world.cut('p', 'r');
    add(&mut world, 'r', 1);
    add(&mut world, 'o', 1);
    world.mend();
    world.advance(SOON);
    assert_eq!(shown(&world, 'p'), Some(2));
    world.remove('r');
    world.until_pruned::<Map>("m", replica('r'));
    for name in ['o', 'p'] {
        assert_eq!(shown(&world, name), Some(2));
    }
    world.advance(TICK * 4);
    assert_eq!(world.performed('o'), (1, 0), "the round does not repeat");
    add(&mut world, 'p', 3);
    world.advance(SOON);
    assert_eq!((shown(&world, 'o'), shown(&world, 'p')), (Some(5), Some(5)));
    assert!(!world.is_named::<Map>("m", replica('r')));
}

/// r's replicator has had x acknowledged by all and restarts in its process; it goes on with the numbers if `goes_on`.
/// a and b hear nothing, a batch of the new replicator is lost, and an update waits. Then every answer to any number
/// that the former replicator drew arrives. Returns whether the log was trimmed, a round completed, and the update
/// answered.
fn restarted_and_answered(world: &mut World, goes_on: bool) -> [bool; 3] {
    world.add_everywhere('r', "s", "x");
    world.settle();
    assert_eq!(world.answered.len(), 1, "all have acknowledged it");
    let former = world.kill('r');
    // Let the former replicator draw more numbers than the new one will have drawn by then.
    (0..40).for_each(|_| _ = former.numbers.draw());
    let last = former.numbers.last();
    let numbers = if goes_on { former.numbers } else { greylag_crdt::DotSource::new() };
    world.start_with('r', 0, ReplicaStatus::Up, numbers);
    world.publish();
    world.cut('r', 'a');
    world.cut('r', 'b');
    world.settle();
    assert_eq!(world.set('r', "s"), "");
    world.add('r', "s", "y");
    world.count_everywhere('r', "w", 1);
    let end = world.now + SOON;
    while !(world.is_under_way('r', 'a', "DeltaBatch") && world.is_under_way('r', 'b', "DeltaBatch")) {
        assert!(world.tick_before(end), "batches are sent");
    }
    world.lose();
    world.answered.clear();
    let log = world.nodes[&'r'].core.log_len();
    assert!(log > 0);
    // Send the answers twice, since full rounds begin when those over a share are complete.
    for from in ['a', 'b', 'a', 'b'] {
        let (from, pruning) = (world.nodes[&from].address.clone(), world.nodes[&from].core.pruning_news());
        let pairs = (1..=last).flat_map(|low| (low..=last.min(low + 40)).map(move |high| (low, high)));
        let acks = pairs.map(|(from_seq, to_seq)| Message::DeltaAck { from_seq, to_seq, nacked: Vec::new() });
        let others = (1..=last).flat_map(|number| {
            let reply = greylag_ddata::WriteReply::Ack;
            let same = Message::SyncSame { round: number, pruning: pruning.clone() };
            [Message::WriteReply { request: number, reply }, same]
        });
        // An acknowledgement is accepted only from a peer whose standing is known.
        for message in others.chain(acks) {
            world.input('r', greylag_ddata::Input::Received { from: from.clone(), message });
        }
    }
    // The replicator has caught up once enough of its rounds are complete.
    let is_completed = *world.lifecycle('r') != greylag_ddata::Lifecycle::Syncing;
    // Records acknowledged by all leave the log in the next step.
    world.tick_before(world.now + Duration::from_millis(50));
    world.lose();
    [world.nodes[&'r'].core.log_len() != log, is_completed, !world.answered.is_empty()]
}

/// ddata 73, K7, G1: a replicator that restarts in its process claims nothing that the former one drew, and no answer
/// to the former one's numbers trims, completes or answers anything; all of that would happen if numbers began anew.
#[test]
fn scenario_73_a_replicator_is_started_anew_in_its_process() {
    assert_eq!(restarted_and_answered(&mut World::new("abr"), false), [true; 3], "numbers that begin anew are found");
    let mut world = World::new("abr");
    assert_eq!(restarted_and_answered(&mut world, true), [false; 3], "nothing is trimmed, completed or answered");
    world.mend();
    world.advance(Duration::from_secs(40));
    world.all_hold("s", "xy");
    world.all_count("w", 1);
}

/// ddata 73, G1: the end of a round between a peer and the former replicator does not end a round of the new one.
#[test]
fn scenario_73_the_end_of_a_former_round_ends_no_other() {
    let mut world = World::new("abr");
    let former = world.kill('r');
    world.start_with('r', 0, ReplicaStatus::Up, former.numbers);
    world.publish();
    world.lose();
    let mut say = |message: &dyn Fn(&World, char) -> Message| {
        for name in ['a', 'b'] {
            let (from, message) = (world.nodes[&name].address.clone(), message(&world, name));
            world.input('r', greylag_ddata::Input::Received { from, message });
        }
        world.lose();
        world.lifecycle('r').clone()
    };
    let (part, root) = (greylag_ddata::Sixteenths::ALL, greylag_ddata::Sum { count: 9, ..Default::default() });
    say(&|world, name| Message::SyncOpen { round: 7, part, root, pruning: world.nodes[&name].core.pruning_news() });
    let done = |round| move |_: &World, _: char| Message::SyncDone { round };
    assert_eq!(say(&done(6)), greylag_ddata::Lifecycle::Syncing, "that was another round");
    assert_eq!(say(&done(7)), greylag_ddata::Lifecycle::Running, "it has caught up by the rounds that are complete");
}

/// ddata Z9: while a member is unreachable no marker is forgotten, whatever its age; after that all are forgotten, and
/// not learned again while updates go on.
#[test]
fn scenario_76_no_marker_is_forgotten_while_a_member_is_unreachable() {
    let (mut world, set, counter) = pruned();
    world.start('d', 0, ReplicaStatus::Up);
    world.publish();
    world.advance(SOON);
    world.take('a', "s", "x");
    world.advance(SOON);
    world.set_reachable('d', false);
    world.cut('d', 'a');
    world.cut('d', 'b');
    world.turns_up('d', "s", &set);
    world.turns_up('d', "c", &counter);
    world.advance(LIFE * 2);
    for name in ['a', 'b', 'd'] {
        assert!(!world.nodes[&name].core.markers("c").is_empty(), "{name} forgot");
        assert_eq!(world.nodes[&name].core.stats().markers_forgotten, 0);
    }
    world.mend();
    world.set_reachable('d', true);
    let back = world.now;
    world.advance(SOON);
    world.all_count("c", 5);
    world.all_hold("s", "");
    let mut expected = 5;
    while world.now < back + SPREAD + TICK * 3 {
        world.count('b', "c", 1);
        world.add('d', "s", "y");
        expected += 1;
        let before = world.now - back < SPREAD;
        let held = world.nodes.values().filter(|node| !node.core.markers("c").is_empty()).count();
        assert!(!before || held == 3, "forgotten before there was time to spread");
        world.advance(SOON);
    }
    for node in world.nodes.values() {
        assert!(node.core.markers("c").is_empty() && node.core.markers("s").is_empty());
    }
    world.all_count("c", expected);
    world.all_hold("s", "y");
}

/// ddata Z7: a delta logged before the pruning goes out with the markers added after it.
#[test]
fn scenario_77_a_logged_delta_goes_out_with_the_new_markers() {
    let mut world = World::new("opqr");
    world.add('r', "s", "x");
    world.advance(SOON);
    world.remove('r');
    let end = world.now + SPREAD * 4;
    while world.performed('o').0 == 0 {
        world.settle();
        assert!(world.tick_before(end));
    }
    assert!(world.is_named::<Set>("s", replica('r')));
    let pruned = world.envelope('o', "s");
    world.lose();
    // p removes x before it hears of the pruning.
    world.take('p', "s", "x");
    world.turns_up('p', "s", &pruned);
    world.turns_up('q', "s", &pruned);
    assert_eq!(world.set('q', "s"), "x");
    let log = world.nodes[&'p'].core.log_len();
    assert!(log > 0, "the removal is in the log");
    world.cut('o', 'p');
    world.cut('o', 'q');
    world.advance(Duration::from_millis(150));
    assert_eq!(world.set('q', "s"), "");
    assert_eq!(world.nodes[&'q'].core.stats().gaps, 0, "the delta itself was joined");
    world.mend();
    world.advance(SOON);
    world.all_hold("s", "");
    assert!(!world.is_named::<Set>("s", replica('r')));
}

/// Puts a place into a map.
fn put(place: String) -> impl FnOnce(&mut Places, &mut UpdateCx<'_>) -> Result<(), CounterOverflow> {
    |map, cx| {
        map.put(cx, place, "there".to_owned()).expect("a clock that goes on");
        Ok(())
    }
}

/// ddata Z7: a replica that missed the pruned state gets it before any delta made on it; otherwise a counter would
/// count moved amounts twice.
#[test]
fn scenario_63_a_replica_that_missed_the_pruned_state_shows_the_old_or_the_new_one() {
    let mut world = World::new("abcd");
    for element in ["u", "v", "w"] {
        world.add('d', "s", element);
    }
    world.count('d', "c", 5);
    for place in ["u", "v", "w"] {
        world.update('d', "m", put(place.to_owned()));
    }
    world.advance(SOON);
    world.remove('d');
    let end = world.now + SPREAD * 4;
    while world.performed('a').0 < 3 {
        world.settle();
        assert!(world.tick_before(end));
    }
    world.lose();
    world.always = Some(Box::new(|name, core| {
        let set = core.value(&greylag_ddata::Key::<Set>::new("s").unwrap()).expect("a set");
        let map = core.value(&greylag_ddata::Key::<Places>::new("m").unwrap()).expect("a map");
        let counter = core.value(&greylag_ddata::Key::<GCounter>::new("c").unwrap()).map(GCounter::value);
        let elements: String = set.iter().map(String::as_str).collect();
        let places: String = map.iter().map(|(place, _)| place.as_str()).collect();
        for shown in [&elements, &places] {
            assert!(["uvw", "uvwx"].contains(&shown.as_str()), "{name} shows {elements} and {places}");
        }
        assert!(matches!(counter, Some(5 | 6)), "{name} shows {counter:?}");
    }));
    world.add_everywhere('a', "s", "x");
    world.count_everywhere('a', "c", 1);
    world.update_everywhere('a', "m", put("x".to_owned()));
    world.deliver(|_, _, message| matches!(message, Message::DeltaWrite { .. }));
    for name in ['b', 'c'] {
        assert_eq!(world.nodes[&name].core.stats().gaps, 3, "{name} refuses the deltas for the full state");
    }
    world.advance(SOON);
    world.all_hold("s", "uvwx");
    world.all_count("c", 6);
    for name in "abc".chars() {
        let places: String = world.value::<Places>(name, "m").iter().map(|(place, _)| place.as_str()).collect();
        assert_eq!(places, "uvwx", "at {name}");
    }
}

/// ddata Z9: a marker stays, however old, while its entry names the removed replica again.
#[test]
fn a_marker_stays_while_its_entry_names_the_replica_again() {
    let mut world = World::new("abr");
    world.count('r', "c", 5);
    world.advance(SOON);
    world.cut('r', 'a');
    world.cut('r', 'b');
    world.count('r', "c", 2);
    let late = world.envelope('r', "c");
    world.remove('r');
    world.mend();
    world.until_pruned::<GCounter>("c", replica('r'));
    world.advance(LIFE - SPREAD);
    world.cut('a', 'b');
    world.turns_up('b', "c", &late);
    world.advance(SPREAD * 4);
    assert!(!world.nodes[&'b'].core.markers("c").is_empty());
    assert_eq!(world.counter('b', "c"), 7);
}
