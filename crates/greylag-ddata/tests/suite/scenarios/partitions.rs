//! Both sides of a partition serve, and agree when it heals.

use std::collections::BTreeSet;
use std::time::Duration;

use greylag_crdt::GCounter;
use greylag_ddata::{GetError, Read, ReadLevel, ReplicatorSettings, UpdateError, WriteLevel};

use crate::scenarios::levels::{MAJORITY, TWO, add, count, counter_key, set_key};
use crate::scenarios::world::{SOON, TIMEOUT, World};

const TIMED_OUT: UpdateError<std::convert::Infallible> = UpdateError::Timeout { needed: 2, acked: 1, refused: 0 };

/// ddata R3, G10: an update that timed out is done here, spreads, and is found elsewhere.
#[test]
fn scenario_49_an_update_that_timed_out_during_a_cut_is_found_after_it() {
    let mut world = World::new("ab");
    world.split("a", "b");
    let ids: Vec<u64> = "aabb".chars().map(|name| count(&mut world, name, "c", 1, TWO)).collect();
    for index in 0..30 {
        count(&mut world, 'a', &format!("k{index}"), 1, WriteLevel::Local);
    }
    world.run(TIMEOUT);
    assert!(ids.iter().all(|id| world.written(*id) == Some(Err(TIMED_OUT))));
    world.mend();
    let read = world.get('b', &counter_key("c"), ReadLevel::From { n: 2, timeout: TIMEOUT });
    world.settle();
    assert_eq!(world.value_of::<GCounter>(read).value(), 4);
    world.run(SOON);
    assert_eq!(world.core('b').keys("k", None, 100).len(), 30);
    world.all_equal();
}

/// ddata R4, R7, R13: a majority read sees what another node wrote locally; requests of one node see each other.
#[test]
fn scenario_50_reads_see_what_was_written_before_them() {
    let mut world = World::new("abc");
    count(&mut world, 'a', "c", 150, WriteLevel::all(TIMEOUT));
    world.settle();
    world.split("ab", "c");
    world.finds_unreachable('a', "c");
    world.finds_unreachable('b', "c");
    count(&mut world, 'b', "c", 1, WriteLevel::Local);
    let read = world.get('a', &counter_key("c"), ReadLevel::majority(TIMEOUT));
    world.settle();
    assert_eq!(world.value_of::<GCounter>(read).value(), 151);
    count(&mut world, 'a', "c", 1, MAJORITY);
    // Pipelined: nothing was delivered in between.
    for _ in 0..3 {
        count(&mut world, 'a', "c", 1, MAJORITY);
    }
    let read = world.get('a', &counter_key("c"), ReadLevel::majority(TIMEOUT));
    world.settle();
    assert_eq!(world.value_of::<GCounter>(read).value(), 155);
    // Read an absent entry: not all answer, so a read of all fails; the local read finds it absent.
    let absent = counter_key("absent");
    let (all, local) = (world.get('a', &absent, ReadLevel::all(TIMEOUT)), world.get('a', &absent, ReadLevel::Local));
    world.run(TIMEOUT);
    assert_eq!(world.found(all), Some(Err(GetError::Failure { needed: 3, got: 2 })));
    assert_eq!(world.found(local), Some(Ok(Read::NotFound)));
    world.mend();
    let read = world.get('c', &counter_key("c"), ReadLevel::majority(TIMEOUT));
    world.settle();
    assert_eq!(world.value_of::<GCounter>(read).value(), 155);
    assert_eq!(world.held('c', &counter_key("c")).value(), 155);
}

/// ddata C1, C4, R5: both sides serve two of their own; a deletion reaches all; a crashed node changes nothing.
#[test]
fn scenario_54_both_sides_serve_and_agree() {
    let mut world = World::new("abcde");
    let deleted = add(&mut world, 'a', "gone", "x", WriteLevel::all(TIMEOUT));
    world.settle();
    assert_eq!(world.written(deleted), Some(Ok(())));
    world.split("ab", "cde");
    let (mut ids, sides) = (Vec::new(), [("a", "cde"), ("b", "cde"), ("c", "ab"), ("d", "ab")]);
    for (by, others) in sides {
        let by = by.chars().next().unwrap();
        world.finds_unreachable(by, others);
        ids.push(count(&mut world, by, "c", 1, TWO));
        ids.push(add(&mut world, by, "s", &by.to_string(), TWO));
    }
    let deleted = world.delete('d', "gone", TWO);
    world.run(TIMEOUT);
    assert!(ids.iter().all(|id| world.written(*id) == Some(Ok(()))));
    assert!(world.deleted(deleted));
    world.crash('e');
    world.mend();
    world.run(SOON);
    for name in ['a', 'b', 'c', 'd'] {
        assert_eq!(world.held(name, &counter_key("c")).value(), 4);
        assert_eq!(world.held(name, &set_key("s")).len(), 4);
        let read = world.get(name, &set_key("gone"), ReadLevel::Local);
        assert_eq!(world.found(read), Some(Ok(Read::Deleted)));
    }
    world.all_equal();
}

/// ddata C2, C3, R8: inserts from five nodes, locally, by majorities, and during a partition; nothing confirmed is
/// missing, on the minority side either once the partition heals.
#[test]
fn scenario_55_two_hundred_inserts_from_five_nodes() {
    let mut world = World::new("abcde");
    let key = set_key("s");
    let names = ['a', 'b', 'c', 'd', 'e'];
    let mut confirmed: BTreeSet<String> = BTreeSet::new();
    for index in 0..80 {
        let (name, element) = (names[index % 5], format!("before-{index}"));
        let level = if index < 40 { WriteLevel::Local } else { MAJORITY };
        let id = add(&mut world, name, "s", &element, level);
        world.run(Duration::from_millis(20));
        assert_eq!(world.written(id), Some(Ok(())));
        confirmed.insert(element);
    }
    world.split("abc", "de");
    let (majority, minority) = (['a', 'b', 'c'], ['d', 'e']);
    majority.iter().for_each(|by| world.finds_unreachable(*by, "de"));
    minority.iter().for_each(|by| world.finds_unreachable(*by, "abc"));
    let mut lonely = Vec::new();
    for index in 80..200 {
        let (name, element) = (names[index % 5], format!("during-{index}"));
        let id = add(&mut world, name, "s", &element, MAJORITY);
        world.run(Duration::from_millis(20));
        if majority.contains(&name) {
            assert_eq!(world.written(id), Some(Ok(())), "the larger side has a majority");
            confirmed.insert(element);
        } else {
            lonely.push((id, element));
        }
    }
    world.run(TIMEOUT);
    let timed_out = UpdateError::Timeout { needed: 3, acked: 2, refused: 0 };
    assert!(lonely.iter().all(|(id, _)| world.written(*id) == Some(Err(timed_out.clone()))));
    world.mend();
    for name in minority {
        let read = world.get(name, &key, ReadLevel::majority(TIMEOUT));
        world.settle();
        let found = world.value_of::<greylag_crdt::OrSet<String>>(read);
        assert!(confirmed.iter().all(|element| found.contains(element)), "{name} misses something that was confirmed");
    }
    world.run(SOON);
    for name in names {
        assert_eq!(world.held(name, &key).len(), 200, "at {name}, what timed out included");
    }
    world.all_equal();
}

/// ddata G5, G6, G8: with deltas alone a replica that missed some never shows a later one without them; the log brings
/// the missing ones, and then deltas arrive as deltas again.
#[test]
fn scenario_56_no_later_delta_without_the_earlier_ones() {
    let never = Duration::from_secs(100_000);
    let settings = ReplicatorSettings { gossip_interval: never, ..ReplicatorSettings::default() };
    let mut world = World::with("abc", settings);
    add(&mut world, 'a', "s", "a", WriteLevel::Local);
    world.run(Duration::from_secs(1));
    world.split("ab", "c");
    for element in ["b", "d"] {
        add(&mut world, 'a', "s", element, WriteLevel::Local);
        world.run(Duration::from_secs(1));
    }
    assert_eq!((world.held('b', &set_key("s")).len(), world.held('c', &set_key("s")).len()), (3, 1));
    world.mend();
    add(&mut world, 'a', "s", "c", WriteLevel::Local);
    for _ in 0..1_000 {
        world.run(Duration::from_millis(10));
        let held = world.held('c', &set_key("s"));
        assert!(!held.contains("c") || held.contains("b"), "never c without b");
    }
    assert_eq!(world.held('c', &set_key("s")).len(), 4, "the log has it all");
    let full_states = world.core('a').stats().full_states_sent;
    add(&mut world, 'a', "s", "e", WriteLevel::Local);
    world.run(Duration::from_secs(1));
    assert_eq!((world.held('c', &set_key("s")).len(), world.core('a').stats().full_states_sent), (5, full_states));
    assert_eq!(full_states, 0, "nothing but deltas ever travelled");
}
