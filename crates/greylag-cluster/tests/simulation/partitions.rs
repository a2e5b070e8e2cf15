//! Partitions, pauses, sick links: acceptance scenarios 22, 37, 43, 60, 64 to 66, 72 of cluster.md.

use greylag_cluster::*;

use crate::world::{MS, SECOND, World};

#[test]
fn scenario_45_three_against_two_the_majority_lives() {
    for seed in 0..20 {
        let mut world = World::resolver(seed);
        let ids = world.cluster(&["d", "e", "a", "b", "c"]);
        assert_eq!(world.host_of_singleton(), Some(ids[0]), "on the side that will lose");
        world.isolate(&ids[..2], &ids[2..]);
        world.run_until(60 * SECOND, |world| ids[..2].iter().all(|id| world.processes[id].ended.is_some()));
        world.run_until(60 * SECOND, |world| world.agreed(&ids[2..]));
        world.run_until(30 * SECOND, |world| world.host_of_singleton() == Some(ids[2]));
        assert!(world.has_event(ids[2], |event| matches!(event, ClusterEvent::DowningDecision(_))));
    }
}

#[test]
fn scenario_37_a_partition_that_heals_in_time_loses_nobody() {
    for seed in 0..20 {
        let mut world = World::resolver(seed);
        let ids = world.cluster(&["a", "b", "c", "d", "e"]);
        world.isolate(&ids[..2], &ids[2..]);
        world.run_for(15 * SECOND);
        assert_eq!(world.view(ids[0]).unreachable.len(), 3);
        world.net.heal();
        world.run_until(20 * SECOND, |world| world.agreed(&ids) && world.view(ids[0]).unreachable.is_empty());
    }
}

#[test]
fn scenario_22_downed_during_a_partition_then_a_fresh_process_joins() {
    for seed in 0..10 {
        let mut world = World::resolver(seed);
        let ids = world.cluster(&["a", "b", "c"]);
        world.isolate(&ids[1..2], &[ids[0], ids[2]]);
        world.run_until(60 * SECOND, |world| world.processes[&ids[1]].ended.is_some());
        world.run_until(30 * SECOND, |world| world.agreed(&[ids[0], ids[2]]));
        world.net.heal();
        let again = world.start("b");
        world.join(again, &["a"]);
        world.run_until(15 * SECOND, |world| world.agreed(&[ids[0], again, ids[2]]));
    }
}

#[test]
fn scenario_43_a_paused_process_is_missed_and_comes_back_and_blames_nobody() {
    for seed in 0..20 {
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

#[test]
fn scenario_43_a_process_paused_for_long_finds_itself_removed() {
    for seed in 0..20 {
        let mut world = World::resolver(seed);
        let ids = world.cluster(&["a", "b", "c"]);
        world.net.pause(ids[1], 90 * SECOND);
        world.run_until(80 * SECOND, |world| world.agreed_by(&[ids[0], ids[2]]));
        world.run_until(90 * SECOND, |world| world.processes[&ids[1]].ended.is_some());
        assert!(!world.has_event(ids[1], |event| matches!(event, ClusterEvent::UnreachableMember(_))));
        assert!(world.has_event(ids[1], |event| *event == ClusterEvent::SelfSuspect));
    }
}

#[test]
fn scenario_44_one_broken_direction_downs_the_two_and_gossip_flows_around_them() {
    for seed in 0..10 {
        let mut world = World::resolver(seed);
        let ids = world.cluster(&["a", "b", "c", "d", "e"]);
        world.net.cut(ids[0], ids[1]);
        world.run_until(60 * SECOND, |world| ids[..2].iter().all(|id| world.processes[id].ended.is_some()));
        world.run_until(40 * SECOND, |world| world.agreed(&ids[2..]));
        world.run_until(30 * SECOND, |world| world.host_of_singleton() == Some(ids[2]));
    }
}

#[test]
fn scenario_60_the_oldest_partitioned_alone_stops_before_the_next_starts() {
    for seed in 0..20 {
        let mut world = World::resolver(seed);
        let ids = world.cluster(&["a", "b", "c", "d", "e"]);
        world.isolate(&ids[..1], &ids[1..]);
        world.run_until(90 * SECOND, |world| world.host_of_singleton() == Some(ids[1]));
        assert_eq!(world.processes[&ids[0]].ended, Some(ShutdownReason::Downed));
    }
}

#[test]
fn scenario_65_marked_leader_paused_healed_leader_wakes_nobody_is_downed() {
    for seed in 0..10 {
        let mut world = World::resolver(seed);
        let ids = world.cluster(&["a", "b", "c", "d", "e"]);
        world.isolate(&ids[4..], &ids[..4]);
        world.run_for(10 * SECOND);
        world.net.pause(ids[0], 12 * SECOND);
        world.run_for(4 * SECOND);
        world.net.heal();
        world.run_until(40 * SECOND, |world| world.agreed(&ids));
    }
}

#[test]
fn scenario_66_two_crashes_in_sequence_leave_the_three_survivors() {
    for seed in 0..20 {
        let mut world = World::resolver(seed);
        let ids = world.cluster(&["a", "b", "c", "d", "e"]);
        world.kill(ids[0]);
        world.run_for(15 * SECOND + MS * (seed as u32 * 250));
        world.kill(ids[1]);
        world.run_until(90 * SECOND, |world| world.agreed(&ids[2..]));
        world.run_until(30 * SECOND, |world| world.host_of_singleton() == Some(ids[2]));
    }
}

#[test]
fn scenario_72_removed_while_cut_off_then_healed_it_downs_itself() {
    for seed in 0..10 {
        let mut world = World::new(seed, ClusterSettings::default());
        let ids = world.cluster(&["a", "b", "c"]);
        world.isolate(&ids[1..2], &[ids[0], ids[2]]);
        world.run_for(8 * SECOND);
        world.down(ids[0], ids[1]);
        world.run_until(20 * SECOND, |world| world.agreed_by(&[ids[0], ids[2]]));
        world.net.heal();
        world.run_until(10 * SECOND, |world| world.processes[&ids[1]].ended.is_some());
    }
}
