//! Proof of death: acceptance scenarios 61 and 62 of cluster.md.

use greylag_cluster::*;

use crate::seeds;
use crate::world::{SECOND, World};

fn removed_clean(gone: &greylag_core::UniqueAddress) -> impl Fn(&ClusterEvent) -> bool + use<> {
    let gone = gone.clone();
    move |event| matches!(event, ClusterEvent::MemberRemoved { member, clean: true, .. } if member.address == gone)
}

#[test]
fn scenario_61_a_killed_process_is_removed_clean_within_seconds() {
    let mut times = Vec::new();
    for seed in seeds(60) {
        let mut world = World::resolver(seed);
        world.one_host = true;
        let ids = world.cluster(&["a", "b", "c", "d"]);
        let victim = (seed % 4) as usize;
        let gone = world.ua(ids[victim]);
        world.kill(ids[victim]);
        let rest: Vec<_> = ids.iter().copied().filter(|id| *id != ids[victim]).collect();
        let check = rest.clone();
        times.push(world.run_until(8 * SECOND, |world| world.agreed(&check)));
        for id in &rest {
            assert!(world.has_event(*id, removed_clean(&gone)));
        }
        assert_eq!(world.view(ids[(victim + 1) % 4]).unreachable.len(), 0);
        world.run_until(2 * SECOND, |world| world.host_of_singleton() == Some(rest[0]));
        // Run as long as the resolver would wait for its decision.
        world.run_for(25 * SECOND);
        for id in rest {
            assert!(!world.has_event(id, |event| matches!(event, ClusterEvent::DowningDecision(_))));
        }
    }
    times.sort();
    let median = times[times.len() / 2];
    assert!(median < SECOND, "the median is {median:?}, the longest {:?}", times.last());
}

#[test]
fn scenario_61_without_a_broken_link_the_detector_starts_the_dials() {
    let mut world = World::new(5, ClusterSettings::default());
    let ids = world.cluster(&["a", "b", "c"]);
    let gone = world.ua(ids[2]);
    world.isolate(&ids[2..], &ids[..2]);
    world.kill(ids[2]);
    world.net.heal();
    world.one_host = true;
    let took = world.run_until(9 * SECOND, |world| world.agreed(&ids[..2]));
    assert!(took > 3 * SECOND && world.has_event(ids[0], removed_clean(&gone)));
}

#[test]
fn scenario_61_a_stopped_process_is_never_proven_dead() {
    for seed in seeds(10) {
        let mut world = World::resolver(seed);
        world.one_host = true;
        let ids = world.cluster(&["a", "b", "c", "d"]);
        let host = world.host_of_singleton();
        world.net.pause(ids[3], 15 * SECOND);
        world.run_for(14 * SECOND);
        assert!(world.view(ids[0]).unreachable.contains(&world.ua(ids[3])), "marked, but not downed");
        world.run_until(20 * SECOND, |world| world.agreed(&ids));
        assert_eq!(world.host_of_singleton(), host);
        let harmed = |event: &ClusterEvent| {
            let is_proof = matches!(event, ClusterEvent::ProvenDead { .. });
            is_proof || matches!(event, ClusterEvent::MemberDowned(_) | ClusterEvent::DowningDecision(_))
        };
        assert!(!ids.iter().any(|id| world.has_event(*id, harmed)), "nothing is proven, and no node is downed");
    }
}

#[test]
fn scenario_61_killed_and_restarted_at_once_at_the_same_address() {
    for seed in seeds(40) {
        let mut world = World::new(seed, ClusterSettings::default());
        world.one_host = seed % 2 == 0;
        let ids = world.cluster(&["a", "b", "c", "d"]);
        let gone = world.ua(ids[1]);
        world.kill(ids[1]);
        let again = world.start("b");
        world.join(again, &["a", "b", "c"]);
        world.run_until(10 * SECOND, |world| world.agreed(&[ids[0], again, ids[2], ids[3]]));
        assert!(world.has_event(ids[0], removed_clean(&gone)), "the new process proves that the old one is gone");
    }
}

#[test]
fn scenario_62_a_remote_process_is_not_proven_dead_by_refusals() {
    let mut world = World::new(1, ClusterSettings::default());
    let ids = world.cluster(&["a", "b", "c"]);
    world.kill(ids[2]);
    world.run_for(60 * SECOND);
    assert_eq!(world.status(ids[2], ids[0]), Some(MemberStatus::Up), "unreachable, not downed, without a resolver");
    assert!(world.view(ids[0]).unreachable.contains(&world.ua(ids[2])));
}

#[test]
fn scenario_62_a_killed_singleton_host_is_replaced_without_a_margin() {
    for seed in seeds(30) {
        let mut world = World::resolver(seed);
        world.one_host = true;
        let ids = world.cluster(&["a", "b", "c"]);
        assert_eq!(world.host_of_singleton(), Some(ids[0]));
        world.kill(ids[0]);
        world.run_until(4 * SECOND, |world| world.host_of_singleton() == Some(ids[1]));
    }
}

#[test]
fn scenario_62_a_leaver_that_ends_normally_is_never_downed() {
    for seed in seeds(20) {
        let mut world = World::resolver(seed);
        world.one_host = true;
        let ids = world.cluster(&["a", "b", "c", "d"]);
        world.leave(ids[3], ids[3]);
        world.run_until(20 * SECOND, |world| world.agreed(&ids[..3]));
        for id in &ids {
            assert!(!world.has_event(*id, |event| matches!(event, ClusterEvent::MemberDowned(_))));
        }
    }
}

#[test]
fn several_die_together_the_survivors_agree() {
    for seed in seeds(30) {
        let mut world = World::resolver(seed);
        world.one_host = true;
        let ids = world.cluster(&["a", "b", "c", "d", "e", "f"]);
        for id in &ids[..3] {
            world.kill(*id);
        }
        world.run_until(8 * SECOND, |world| world.agreed(&ids[3..]));
        world.run_until(2 * SECOND, |world| world.host_of_singleton() == Some(ids[3]));
        world.run_for(30 * SECOND);
        assert!(world.agreed(&ids[3..]));
    }
}
