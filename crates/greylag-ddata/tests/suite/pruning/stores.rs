//! Stores of different ages meet: which of them a history goes on from. Source: ddata Z11, scenario 90.

use greylag_crdt::GCounter;
use greylag_ddata::{Lifecycle, ReplicaStatus, ReplicatorEvent, StaleStore, StopReason, StoreImage};

use crate::pruning::world::{LIFE, SOON, SPREAD, TICK, World, replica};

/// All nodes count, five in all, and d adds x. Then a and b are down; c and e go on, perform the removed nodes, remove
/// x, and forget. The disks of a and b are old.
fn old_stores() -> World {
    let mut world = World::durable("abcde");
    for (name, by) in [('a', 1), ('b', 1), ('c', 1), ('d', 2)] {
        world.count(name, "c", by);
    }
    world.add('d', "s", "x");
    world.advance(SOON * 4);
    for name in "abd".chars() {
        world.remove(name);
    }
    for name in "abd".chars() {
        world.until_pruned::<GCounter>("c", replica(name));
    }
    world.take('c', "s", "x");
    world.advance(LIFE + SPREAD * 2 + TICK * 2);
    assert!("ce".chars().all(|name| world.nodes[&name].core.markers("c").is_empty()), "c and e have forgotten");
    assert!(world.nodes[&'c'].core.pruning_news().standing.forget_horizon.is_some());
    world.all_count("c", 5);
    world
}

/// Starts all of these at once; they know each other before any has told its standing.
fn start_all(world: &mut World, names: &str, incarnation: u64) {
    names.chars().for_each(|name| world.start(name, incarnation, ReplicaStatus::Up));
    world.publish();
    world.settle();
}

fn stop_all(world: &mut World) {
    for name in world.nodes.keys().copied().collect::<Vec<_>>() {
        world.kill(name);
    }
}

fn is_refused(world: &World, name: char) -> bool {
    matches!(world.lifecycle(name), Lifecycle::Stopped(StopReason::StoreTooOld { .. }))
}

fn sent_data(world: &World, name: char) -> u64 {
    let stats = world.nodes[&name].core.stats();
    stats.full_states_sent + stats.batches_sent
}

fn holds_what_c_holds(world: &World, names: &str) {
    for name in names.chars() {
        assert_eq!((world.counter(name, "c"), world.set(name, "s")), (5, String::new()), "at {name}");
    }
}

/// ddata 90 a: two old stores that meet first exchange nothing, and both are refused by c, which ran on.
#[test]
fn scenario_90_a_two_stale_stores_that_meet_first_exchange_nothing() {
    let mut world = old_stores();
    ["ac", "ae", "bc", "be"].iter().for_each(|pair| world.cut_both(pair));
    start_all(&mut world, "ab", 1);
    world.advance(SOON * 4);
    for name in "ab".chars() {
        assert!(world.nodes[&name].core.is_gate_closed(), "{name}");
        assert_eq!(sent_data(&world, name), 0, "{name}");
    }
    world.mend();
    world.advance(SOON * 2);
    assert!(is_refused(&world, 'a') && is_refused(&world, 'b'));
    holds_what_c_holds(&world, "c");
    let told = world.lifecycle('a').clone();
    let Lifecycle::Stopped(StopReason::StoreTooOld { parted, horizon, .. }) = told else { panic!("{told:?}") };
    assert!(Some(parted) < horizon);
}

/// ddata 90 a: with `Discard` the two stores become equal to c.
#[test]
fn scenario_90_a_discarded_stores_become_equal_to_the_current_member() {
    let mut world = old_stores();
    world.settings.durable.stale_store = StaleStore::Discard;
    ["ac", "ae", "bc", "be"].iter().for_each(|pair| world.cut_both(pair));
    start_all(&mut world, "ab", 1);
    world.advance(SOON * 2);
    world.mend();
    world.advance(SOON * 6);
    holds_what_c_holds(&world, "abce");
    world.all_count("c", 5);
    for name in "ab".chars() {
        let told = |event: &&ReplicatorEvent| matches!(event, ReplicatorEvent::StaleStore { .. });
        assert_eq!(world.nodes[&name].events.iter().filter(told).count(), 1, "{name}");
    }
}

/// ddata 90 b: all are members before any is current: c makes the start, a and b are refused, no gate stays closed.
#[test]
fn scenario_90_b_the_latest_store_makes_the_start() {
    let mut world = old_stores();
    stop_all(&mut world);
    start_all(&mut world, "abc", 1);
    world.advance(SOON * 2);
    assert!(is_refused(&world, 'a') && is_refused(&world, 'b'));
    assert!(world.nodes[&'c'].core.is_current() && !world.nodes[&'c'].core.is_gate_closed());
    holds_what_c_holds(&world, "c");
}

/// ddata 90 b: with c unreachable no gate opens, and an event names c as the member waited for; with c removed, a and b
/// go on.
#[test]
fn scenario_90_b_without_the_latest_member_no_gate_opens_until_it_is_removed() {
    let mut world = old_stores();
    stop_all(&mut world);
    world.cut('a', 'c');
    world.cut('b', 'c');
    "abc".chars().for_each(|name| world.start(name, 1, ReplicaStatus::Up));
    world.set_reachable('c', false);
    world.advance(SPREAD * 3);
    for name in "ab".chars() {
        assert!(world.nodes[&name].core.is_gate_closed(), "{name}");
        assert_eq!(sent_data(&world, name), 0, "{name}");
        let c = &world.nodes[&'c'].address;
        let waits = |event: &ReplicatorEvent| matches!(event, ReplicatorEvent::GateClosed { waiting_for, .. } if *waiting_for == [c.clone()]);
        assert!(world.nodes[&name].events.iter().any(waits), "{:?}", world.nodes[&name].events);
    }
    world.remove('c');
    world.advance(SOON * 2);
    assert!("ab".chars().all(|name| world.nodes[&name].core.is_current()));
    world.all_count("c", 5);
    world.all_hold("s", "x");
}

/// ddata 90 b: a store meets members that have none: the store makes the start, and they take what it holds. A cluster
/// without any store begins a history of its own.
#[test]
fn scenario_90_b_a_store_among_members_without_any() {
    let mut world = old_stores();
    stop_all(&mut world);
    for name in "ab".chars() {
        world.disks.insert(name, StoreImage::default());
    }
    start_all(&mut world, "abc", 1);
    world.advance(SOON * 2);
    holds_what_c_holds(&world, "abc");
    assert!("abc".chars().all(|name| world.nodes[&name].core.is_current()));
    let mut world = World::durable("abc");
    world.advance(SOON * 2);
    let is_open = |name: char| world.nodes[&name].core.is_current() && !world.nodes[&name].core.is_gate_closed();
    assert!("abc".chars().all(is_open), "no gate stays closed");
}

/// ddata Z11: members that had nothing begin a new history. One of them has written something and is not current yet
/// when a store makes a start with a base and has forgotten what others of its history did: no member is refused, what
/// was written counts once, and nothing that was forgotten comes back. Found by simulation (profile `gate`, seed 485).
#[test]
fn a_member_with_a_new_history_brings_its_writes_to_a_store_that_has_forgotten() {
    let mut world = old_stores();
    stop_all(&mut world);
    start_all(&mut world, "fg", 1);
    world.count('f', "c", 1);
    world.advance(SOON);
    assert!("fg".chars().all(|name| world.nodes[&name].core.is_current()), "they began a new history");
    world.start('h', 1, ReplicaStatus::Up);
    world.count('h', "c", 2);
    world.add('h', "s", "y");
    world.start('c', 1, ReplicaStatus::Up);
    world.publish();
    world.settle();
    world.advance(SOON * 2);
    for name in "cfgh".chars() {
        assert_eq!(*world.lifecycle(name), Lifecycle::Running, "{name}");
        assert!(world.nodes[&name].core.is_current(), "{name}");
    }
    world.all_count("c", 8);
    world.all_hold("s", "y");
    world.advance(LIFE * 2 + SPREAD * 4);
    world.all_count("c", 8);
    world.all_hold("s", "y");
}

/// Starts a, b and f, which has nothing, without c; c comes later.
fn started_without_c() -> (World, StoreImage) {
    let mut world = old_stores();
    stop_all(&mut world);
    let disk = world.disks[&'c'].clone();
    start_all(&mut world, "abf", 1);
    world.advance(SOON * 2);
    assert!("abf".chars().all(|name| world.nodes[&name].core.is_current()));
    world.all_count("c", 5);
    world.all_hold("s", "x");
    (world, disk)
}

/// ddata 90 c: a running cluster is judged by the store that it was started from: a store ahead of that comes too late
/// and is refused.
#[test]
fn scenario_90_c_a_running_cluster_yields_to_no_store() {
    let (mut world, disk) = started_without_c();
    start_all(&mut world, "c", 1);
    world.advance(SOON * 2);
    assert!(is_refused(&world, 'c'));
    world.kill('c');
    world.publish();
    world.all_count("c", 5);
    world.all_hold("s", "x");
    // Stop and start everything: a is now the store that was in touch last.
    world.advance(SOON * 2);
    stop_all(&mut world);
    world.disks.insert('c', disk);
    start_all(&mut world, "abcf", 2);
    world.advance(SOON * 4);
    assert!(is_refused(&world, 'c'));
    assert!("abf".chars().all(|name| world.nodes[&name].core.is_current()));
    world.kill('c');
    world.publish();
    world.all_count("c", 5);
    world.all_hold("s", "x");
}

/// ddata 90 d: an empty new node that meets a store first opens nothing with it and takes nothing from it.
#[test]
fn scenario_90_d_an_empty_node_takes_nothing_from_a_closed_store() {
    let mut world = old_stores();
    ["ac", "ae", "fc", "fe"].iter().for_each(|pair| world.cut_both(pair));
    start_all(&mut world, "af", 1);
    world.advance(SOON * 4);
    assert!(world.nodes[&'a'].core.is_gate_closed());
    assert!(world.nodes[&'f'].core.digests().is_empty());
    assert_eq!(sent_data(&world, 'a'), 0);
    world.mend();
    world.advance(SOON * 4);
    assert!(is_refused(&world, 'a'));
    holds_what_c_holds(&world, "cef");
}

/// ddata 90 e: a performs d and is stopped before any node hears of that; a returns when another owner has performed d:
/// d is counted once, also after both lifetimes.
#[test]
fn scenario_90_e_an_owner_that_died_unheard_returns() {
    let mut world = World::durable("abcd");
    for (name, by) in [('a', 1), ('b', 1), ('c', 1), ('d', 2)] {
        world.count(name, "c", by);
    }
    world.advance(SOON * 2);
    world.remove('d');
    world.advance_until(SPREAD + TICK * 12, |world| world.performed('a').0 > 0);
    world.lose();
    world.remove('a');
    world.until_pruned::<GCounter>("c", replica('d'));
    world.advance(SOON);
    assert!(world.performed('b').0 > 0, "another owner has performed");
    start_all(&mut world, "a", 1);
    world.advance(SOON * 2);
    assert_eq!(*world.lifecycle('a'), Lifecycle::Running);
    world.all_count("c", 5);
    world.advance(LIFE * 2 + SPREAD * 4);
    world.all_count("c", 5);
}

/// ddata 90 f: a refused node stays a member; when all others restart, they open.
#[test]
fn scenario_90_f_a_refused_member_keeps_no_gate_closed() {
    let mut world = old_stores();
    start_all(&mut world, "a", 1);
    world.advance(SOON);
    assert!(is_refused(&world, 'a'));
    for name in "ce".chars() {
        world.kill(name);
    }
    start_all(&mut world, "ce", 2);
    world.advance(SOON * 2);
    assert!(is_refused(&world, 'a'));
    for name in "ce".chars() {
        assert!(world.nodes[&name].core.is_current() && !world.nodes[&name].core.is_gate_closed(), "{name}");
    }
    holds_what_c_holds(&world, "ce");
}

/// ddata 87, Z9: a member's wall clock runs a year ahead during a pruning, and is then set right: no store is refused
/// afterwards.
#[test]
fn scenario_87_a_clock_that_was_a_year_ahead_refuses_no_store() {
    let mut world = World::durable("abcd");
    for name in "abcd".chars() {
        world.count(name, "c", 1);
    }
    world.advance(SOON * 2);
    world.set_clock('a', 365 * 86_400_000);
    world.remove('d');
    world.until_pruned::<GCounter>("c", replica('d'));
    world.advance(LIFE + SPREAD * 2 + TICK * 2);
    world.set_clock('a', 0);
    world.advance(LIFE + SPREAD * 4);
    for name in "abc".chars() {
        assert!(world.nodes[&name].core.markers("c").is_empty(), "{name} forgets in its time");
    }
    let went_back = |event: &ReplicatorEvent| matches!(event, ReplicatorEvent::ClockWentBack { .. });
    assert!(world.nodes[&'a'].events.iter().any(went_back));
    stop_all(&mut world);
    start_all(&mut world, "abc", 1);
    world.advance(SOON * 2);
    assert!("abc".chars().all(|name| *world.lifecycle(name) == Lifecycle::Running));
    world.all_count("c", 4);
}

/// ddata 87, Z9, Z11: horizons of the future from a peer change nothing anywhere, not even after restarts, with
/// `Refuse` and with `Discard`; a horizon within the skew of clocks is merged.
#[test]
fn scenario_87_no_horizon_of_a_peer_refuses_a_store() {
    let (year, skew) = (365 * 86_400_000, 300_000);
    for policy in [StaleStore::Refuse, StaleStore::Discard] {
        for (ahead, is_merged) in [(i64::MAX, false), (year, false), (skew + 1, false), (skew, true)] {
            let mut world = World::durable("abc");
            world.settings.durable.stale_store = policy;
            for name in "abc".chars() {
                world.count(name, "c", 1);
            }
            world.advance(SOON * 2);
            world.says_horizon('c', 'a', ahead);
            world.advance(SOON * 2);
            let held = "ab".chars().map(|name| world.nodes[&name].core.pruning_news().standing.forget_horizon);
            assert!(held.into_iter().all(|horizon| horizon.is_some() == is_merged), "{ahead}, {policy:?}");
            if is_merged {
                continue;
            }
            stop_all(&mut world);
            start_all(&mut world, "abc", 1);
            world.advance(SOON * 2);
            assert!("abc".chars().all(|name| *world.lifecycle(name) == Lifecycle::Running), "{ahead}, {policy:?}");
            world.all_count("c", 3);
        }
    }
}
