//! Leases: acceptance scenarios 53, 59 and 60 of cluster.md, and long pauses under P7.

use std::time::Duration;

use greylag_cluster::*;
use greylag_core::UniqueAddress;
use greylag_testkit::network::NodeId;

use crate::seeds;
use crate::world::leases::Of;
use crate::world::{MS, SECOND, World};

fn lease_majority(seed: u64) -> World {
    let strategy = Strategy::named("lease_majority", None).unwrap();
    World::new(seed, ClusterSettings::default().with_resolver(SbrSettings::with_strategy(strategy)))
}

fn ended(world: &World, ids: &[NodeId]) -> bool {
    ids.iter().all(|id| world.processes[id].ended.is_some())
}

/// Whether all of these have downed themselves, by the decision of one of them or of a node that could still tell them.
fn downed(world: &World, ids: &[NodeId]) -> bool {
    let reasons: Vec<_> = ids.iter().filter_map(|id| world.processes[id].ended).collect();
    assert!(reasons.iter().all(|reason| *reason == ShutdownReason::Downed), "{reasons:?}");
    reasons.len() == ids.len()
}

fn grants(world: &World, of: Of) -> Vec<(String, bool)> {
    let log = world.leases.log.iter().filter(|(which, ..)| *which == of);
    log.map(|(_, by, granted)| (by.address().host().to_owned(), *granted)).collect()
}

/// How long after its last member became unreachable `id` requested the lease, and the outcome.
fn request(world: &World, id: NodeId) -> (Duration, LeaseOutcome) {
    let unreachable = world.times(id, |event| matches!(event, ClusterEvent::UnreachableMember(_)));
    let by_it = |by: &UniqueAddress| *by == world.ua(id);
    let mut asked = world.leases.requests.iter().filter(|(of, by, ..)| *of == Of::Resolver && by_it(by));
    let (_, _, at, outcome) = asked.next().expect("it asked");
    assert_eq!(asked.next(), None, "once");
    let start = world.now() - world.net.now();
    (*at - start - *unreachable.last().unwrap(), *outcome)
}

/// Checks that the side with the lease survives and keeps it for 40 s, and that the other side, which is denied, ends.
fn check_outcome(world: &mut World, kept: &[NodeId], lost: &[NodeId]) {
    world.run_until(30 * SECOND, |world| downed(world, lost));
    world.run_until(30 * SECOND, |world| world.agreed_by(kept));
    let holder = world.ua(kept[0]).address().host().to_owned();
    assert_eq!(grants(world, Of::Resolver), [(holder.clone(), true)], "the other side was denied");
    let removals = world.times(kept[0], |event| matches!(event, ClusterEvent::MemberRemoved { .. }));
    let removed_at = *removals.last().unwrap();
    world.run_until(41 * SECOND, |world| world.leases.holder(Of::Resolver).is_none());
    let for_so_long = world.net.now() - removed_at;
    assert!(for_so_long >= 40 * SECOND, "{for_so_long:?}: until the other side has decided for sure");
    assert_eq!(grants(world, Of::Resolver), [(holder.clone(), true), (holder, false)]);
    assert!(kept.iter().all(|id| world.processes[id].ended.is_none()));
}

/// The majority requests after `stable_after`, the minority after that plus its delay; the side that requests first
/// survives. That is nearly always the majority: the delay outlasts the usual difference between the ends of their
/// detections, though not every one (F5, F8: it can exceed two seconds). Source: cluster S10.
#[test]
fn scenario_53_the_side_that_gets_the_lease_survives_and_gives_it_back() {
    let mut majorities = 0;
    for seed in seeds(10) {
        let mut world = lease_majority(seed);
        let ids = world.cluster(&["a", "b", "c", "d", "e"]);
        world.isolate(&ids[..3], &ids[3..]);
        world.run_until(60 * SECOND, |world| world.leases.requests.len() == 2);
        for (leader, waits) in [(ids[0], 20 * SECOND), (ids[3], 22 * SECOND)] {
            let (after, _) = request(&world, leader);
            assert!(after >= waits && after <= waits + SECOND, "seed {seed}, {leader:?}: {after:?}, by a tick of 1 s");
        }
        let outcomes = [request(&world, ids[0]).1, request(&world, ids[3]).1];
        let (kept, lost) = match outcomes {
            [LeaseOutcome::Granted, LeaseOutcome::Denied] => ids.split_at(3),
            [LeaseOutcome::Denied, LeaseOutcome::Granted] => (&ids[3..], &ids[..3]),
            outcomes => panic!("seed {seed}: {outcomes:?}"),
        };
        majorities += usize::from(kept.len() == 3);
        check_outcome(&mut world, kept, lost);
    }
    let worlds = seeds(10).count();
    assert!(majorities * 10 >= worlds * 9, "the majority lives in {majorities} of {worlds}");
}

/// A majority whose reachability changes once more restarts its wait, requests after the minority, and ends: the lease
/// decides, not the size.
/// Source: cluster S4, S10.
#[test]
fn scenario_53_a_majority_that_asks_after_the_minority_is_denied_and_ends() {
    for seed in seeds(10) {
        let mut world = lease_majority(seed);
        let ids = world.cluster(&["a", "b", "c", "d", "e"]);
        world.isolate(&ids[..3], &ids[3..]);
        world.run_for(2 * SECOND);
        world.net.pause(ids[2], 8 * SECOND);
        world.run_until(60 * SECOND, |world| world.leases.requests.len() == 2);
        assert_eq!(
            [request(&world, ids[3]).1, request(&world, ids[0]).1],
            [LeaseOutcome::Granted, LeaseOutcome::Denied]
        );
        check_outcome(&mut world, &ids[3..], &ids[..3]);
    }
}

/// Source: cluster S10.
#[test]
fn scenario_53_a_minority_asks_later_and_lives_if_the_majority_never_asks() {
    for seed in seeds(10) {
        let mut world = lease_majority(seed);
        let ids = world.cluster(&["a", "b", "c", "d", "e"]);
        let began = world.net.now();
        world.isolate(&ids[..3], &ids[3..]);
        // End the bigger side before it can request.
        for id in &ids[..3] {
            world.kill(*id);
        }
        world.run_until(60 * SECOND, |world| !world.leases.log.is_empty());
        let asked_after = world.net.now() - began;
        assert!(asked_after > 26 * SECOND, "{asked_after:?}: detection, stable_after, and the delay of a minority");
        world.run_until(40 * SECOND, |world| world.agreed_by(&ids[3..]));
    }
}

/// Source: cluster S10.
#[test]
fn scenario_53_a_lease_that_nobody_can_ask_for_ends_everybody() {
    for fault in [LeaseOutcome::Failed, LeaseOutcome::Denied] {
        for seed in seeds(5) {
            let mut world = lease_majority(seed);
            let ids = world.cluster(&["a", "b", "c", "d", "e"]);
            world.leases.fault.insert(Of::Resolver, fault);
            world.isolate(&ids[..3], &ids[3..]);
            world.run_until(90 * SECOND, |world| downed(world, &ids));
            assert!(!world.leases.requests.is_empty() && world.leases.log.is_empty(), "asked for, and never granted");
        }
    }
}

/// Source: cluster S10: decisions on indirect connections need the lease too, and request it without delay.
#[test]
fn scenario_53_indirectly_connected_nodes_are_downed_under_the_lease() {
    for seed in seeds(5) {
        let mut world = lease_majority(seed);
        let ids = world.cluster(&["a", "b", "c", "d", "e"]);
        world.net.cut(ids[3], ids[4]);
        world.net.cut(ids[4], ids[3]);
        world.run_until(60 * SECOND, |world| downed(world, &ids[3..]));
        assert_eq!(grants(&world, Of::Resolver), [("a".to_owned(), true)]);
        world.run_until(40 * SECOND, |world| world.agreed_by(&ids[..3]));
    }
}

fn leased(seed: u64, settings: ClusterSettings) -> World {
    let mut world = World::new(seed, settings);
    world.use_lease = true;
    world
}

/// Source: cluster P4, P5.
#[test]
fn scenario_59_no_start_until_the_lease_is_granted() {
    for seed in seeds(10) {
        let mut world = leased(seed, ClusterSettings::default());
        world.leases.fault.insert(Of::Singleton, LeaseOutcome::Denied);
        let ids = world.cluster(&["a", "b"]);
        world.run_for(12 * SECOND);
        world.leases.fault.insert(Of::Singleton, LeaseOutcome::Failed);
        world.run_for(12 * SECOND);
        assert_eq!(world.host_of_singleton(), None);
        world.leases.fault.clear();
        let took = world.run_until(6 * SECOND, |world| world.host_of_singleton() == Some(ids[0]));
        assert!(took <= 5 * SECOND + 50 * MS, "{took:?}");
        // The world asserts that a lease is never released under a running instance.
        world.leave(ids[0], ids[0]);
        world.run_until(12 * SECOND, |world| world.host_of_singleton() == Some(ids[1]));
        let changes: Vec<(String, bool)> = grants(&world, Of::Singleton);
        assert_eq!(changes, [("a".to_owned(), true), ("a".to_owned(), false), ("b".to_owned(), true)]);
    }
}

/// Source: cluster P4 row Oldest.
#[test]
fn scenario_59_a_lost_lease_stops_the_instance_until_it_is_ours_again() {
    for seed in seeds(10) {
        let mut world = leased(seed, ClusterSettings::default());
        let ids = world.cluster(&["a", "b"]);
        world.run_until(5 * SECOND, |world| world.host_of_singleton() == Some(ids[0]));
        world.leases.lose(Of::Singleton);
        world.run_until(13 * SECOND, |world| world.host_of_singleton().is_none());
        world.run_until(6 * SECOND, |world| world.host_of_singleton() == Some(ids[0]));
    }
}

fn quick(seed: u64) -> World {
    let sbr = SbrSettings { stable_after: Duration::from_secs(7), ..SbrSettings::default() };
    World::new(seed, ClusterSettings::default().with_resolver(sbr))
}

const FIVE: [&str; 5] = ["a", "b", "c", "d", "e"];

/// Source: cluster P7, G1. The world refuses two instances at every step.
#[test]
fn scenario_60_an_oldest_cut_off_alone_stops_before_the_margin_ends() {
    for seed in seeds(20) {
        let mut world = quick(seed);
        let ids = world.cluster(&FIVE);
        world.run_until(5 * SECOND, |world| world.host_of_singleton() == Some(ids[0]));
        // The margin of 7 s must also cover the difference between the two sides' detections.
        world.stop_delay = MS * (1 + seed as u32 * 50 % 3_000);
        world.isolate(&ids[..1], &ids[1..]);
        world.run_until(30 * SECOND, |world| world.agreed_by(&ids[1..]));
        world.run_until(10 * SECOND, |world| world.host_of_singleton().is_none());
        let removed = |event: &ClusterEvent| matches!(event, ClusterEvent::MemberRemoved { .. });
        let removed_at = world.processes[&ids[1]].events.iter().find(|(_, event)| removed(event)).unwrap().0;
        world.run_until(20 * SECOND, |world| world.host_of_singleton() == Some(ids[1]));
        assert!(world.net.now() >= removed_at + 7 * SECOND, "the margin");
        assert!(world.has_event(ids[0], |event| *event == ClusterEvent::SelfDowned));
    }
}

/// Source: cluster P7.
#[test]
fn scenario_60_an_oldest_paused_for_a_moment_keeps_its_instance() {
    for seed in seeds(20) {
        let mut world = quick(seed);
        let ids = world.cluster(&FIVE);
        world.run_until(5 * SECOND, |world| world.host_of_singleton() == Some(ids[0]));
        world.net.pause(ids[0], 8 * SECOND);
        world.run_for(60 * SECOND);
        assert_eq!(world.host_of_singleton(), Some(ids[0]));
        assert!(world.agreed(&ids));
    }
}

/// Source: cluster P7.
#[test]
fn scenario_60_an_oldest_whose_words_are_lost_one_way_goes_with_its_peer_and_the_third_hosts() {
    for seed in seeds(20) {
        let mut world = quick(seed);
        let ids = world.cluster(&FIVE);
        world.run_until(5 * SECOND, |world| world.host_of_singleton() == Some(ids[0]));
        world.net.cut(ids[0], ids[1]);
        world.run_until(60 * SECOND, |world| ended(world, &ids[..2]));
        world.run_until(40 * SECOND, |world| world.host_of_singleton() == Some(ids[2]));
        world.run_until(20 * SECOND, |world| world.agreed_by(&ids[2..]));
    }
}

/// The gap of P7: an oldest that stands still for longer than the others wait wakes up with its instance while the next
/// one's runs. The lease closes this gap. Source: cluster P7.
#[test]
fn a_long_pause_makes_two_instances_without_the_lease_and_one_with_it() {
    for (use_lease, most) in [(false, 2), (true, 1)] {
        let mut world = quick(3);
        world.use_lease = use_lease;
        world.tolerate_two = !use_lease;
        let ids = world.cluster(&FIVE);
        world.run_until(5 * SECOND, |world| world.host_of_singleton() == Some(ids[0]));
        world.net.pause(ids[0], 60 * SECOND);
        world.run_for(100 * SECOND);
        assert_eq!(world.most_instances, most);
        assert_eq!(world.host_of_singleton(), Some(ids[1]));
    }
}
