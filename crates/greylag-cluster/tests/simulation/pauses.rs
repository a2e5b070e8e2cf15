//! Processes that stand still: acceptance scenarios 43, 64, 65, 71 of cluster.md.

use greylag_cluster::*;

use crate::seeds;
use crate::world::{MS, SECOND, World};

/// cluster F9.
#[test]
fn scenario_43_a_paused_process_is_missed_and_comes_back_and_blames_nobody() {
    for seed in seeds(10) {
        let mut world = World::resolver(seed);
        let ids = world.cluster(&["a", "b", "c"]);
        world.net.pause(ids[1], 8 * SECOND);
        let b = world.ua(ids[1]);
        world.run_until(8 * SECOND, |world| world.view(ids[0]).unreachable.contains(&b));
        world.run_until(20 * SECOND, |world| world.agreed(&ids));
        assert!(!world.has_event(ids[1], |event| matches!(event, ClusterEvent::UnreachableMember(_))));
        assert!(world.has_event(ids[1], |event| matches!(event, ClusterEvent::LocalPause(_))));
    }
}

/// cluster F9, S19.
#[test]
fn scenario_43_a_process_paused_for_long_finds_itself_removed() {
    for seed in seeds(10) {
        let mut world = World::resolver(seed);
        let ids = world.cluster(&["a", "b", "c"]);
        world.net.pause(ids[1], 90 * SECOND);
        world.run_until(80 * SECOND, |world| world.agreed_by(&[ids[0], ids[2]]));
        world.run_until(90 * SECOND, |world| world.processes[&ids[1]].ended.is_some());
        assert!(!world.has_event(ids[1], |event| matches!(event, ClusterEvent::UnreachableMember(_))));
        assert!(world.has_event(ids[1], |event| *event == ClusterEvent::SelfSuspect));
    }
}

/// cluster F8, F9.
#[test]
fn scenario_65_marked_leader_paused_healed_leader_wakes_nobody_is_downed() {
    for seed in seeds(10) {
        let mut world = World::resolver(seed);
        let ids = world.cluster(&["a", "b", "c", "d", "e"]);
        world.isolate(&ids[4..], &ids[..4]);
        let e = world.ua(ids[4]);
        world.run_until(12 * SECOND, |world| world.view(ids[0]).unreachable.contains(&e));
        // The leader's verdict falls due while the leader stands still, and the link is healed before the leader wakes.
        world.run_for(12 * SECOND);
        world.net.pause(ids[0], 12 * SECOND);
        world.run_for(2 * SECOND);
        world.net.heal();
        world.run_until(40 * SECOND, |world| world.agreed(&ids));
        assert!(ids.iter().all(|id| world.processes[id].ended.is_none()), "seed {seed}: no member is downed");
    }
}

/// cluster F9: the hold after a pause delays the decision of the losing side, and no more.
#[test]
fn scenario_64_the_losing_leader_pauses_shortly_before_its_decision_and_downs_its_side_when_it_wakes() {
    for seed in seeds(10) {
        let mut world = World::resolver(seed);
        // The losing side has the lowest address, the leader and the singleton.
        let ids = world.cluster(&["a", "b", "c", "d", "e"]);
        world.isolate(&ids[..2], &ids[2..]);
        world.run_until(12 * SECOND, |world| world.view(ids[0]).unreachable.len() == 3);
        world.run_for(18 * SECOND);
        assert!(world.processes[&ids[0]].ended.is_none());
        world.net.pause(ids[0], 12 * SECOND);
        // The world asserts that there is no second singleton at any time.
        world.run_for(12 * SECOND);
        let downed = |event: &ClusterEvent| *event == ClusterEvent::SelfDowned;
        world.run_until(5 * SECOND, |world| world.has_event(ids[0], downed));
        world.run_until(30 * SECOND, |world| ids[..2].iter().all(|id| world.processes[id].ended.is_some()));
        world.run_until(60 * SECOND, |world| world.host_of_singleton() == Some(ids[2]));
    }
}

/// cluster F9: a hypervisor's snapshot suspends all nodes; none may accuse another.
#[test]
fn scenario_71_all_stand_still_for_half_a_minute_and_all_go_on() {
    for seed in seeds(10) {
        let mut world = World::resolver(seed);
        let ids = world.cluster(&["a", "b", "c", "d", "e"]);
        for id in &ids {
            let pause = 30 * SECOND + MS * (seed as u32 % 7) * 40;
            world.net.pause(*id, pause);
        }
        world.run_for(31 * SECOND);
        world.run_until(40 * SECOND, |world| world.agreed(&ids) && !ids.iter().any(|id| world.view(*id).self_suspect));
        assert!(ids.iter().all(|id| world.processes[id].ended.is_none()), "seed {seed}");
        assert!(ids.iter().all(|id| world.has_event(*id, |event| matches!(event, ClusterEvent::LocalPause(_)))));
    }
}

/// cluster F9, S19: some nodes stand still for longer than detection and decision take together.
#[test]
fn scenario_71_some_stand_still_for_up_to_a_minute_and_at_most_one_side_lives() {
    for seed in seeds(10) {
        let mut world = World::resolver(seed);
        // Tolerate the exception of P7: an instance on a node that stood still for longer than the margin.
        world.tolerate_two = true;
        let ids = world.cluster(&["a", "b", "c", "d", "e"]);
        let stopped = 1 + (seed as usize % 4);
        let pause = 22 * SECOND + MS * ((seed as u32 * 1777) % 38_000);
        for id in &ids[..stopped] {
            world.net.pause(*id, pause);
        }
        world.run_for(pause + 120 * SECOND);
        let alive = world.alive();
        assert!(world.agreed_by(&alive), "seed {seed}: {stopped} for {pause:?}\n{}", world.describe());
    }
}
