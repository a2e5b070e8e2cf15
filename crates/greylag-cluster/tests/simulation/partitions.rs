//! Partitions and sick links: acceptance scenarios 22, 37, 38, 44, 45, 51, 60, 66, 72 of cluster.md.

use std::collections::BTreeSet;

use greylag_cluster::*;

use greylag_testkit::network::NodeId;

use crate::seeds;
use crate::world::{MS, SECOND, World};

#[test]
fn scenario_45_three_against_two_the_majority_lives() {
    for seed in seeds(10) {
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
fn scenario_22_downed_during_a_partition_then_a_fresh_process_joins() {
    for seed in seeds(10) {
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
fn scenario_44_one_broken_direction_downs_the_two_and_gossip_flows_around_them() {
    for seed in seeds(10) {
        let mut world = World::resolver(seed);
        let ids = world.cluster(&["a", "b", "c", "d", "e"]);
        world.net.cut(ids[0], ids[1]);
        let pair = BTreeSet::from([world.ua(ids[0]), world.ua(ids[1])]);
        world.run_until(15 * SECOND, |world| ids[2..].iter().all(|id| *world.view(*id).unreachable == pair));
        // News is spread to both sides of the broken direction.
        let f = world.start("f");
        world.join(f, &["c"]);
        let joiner = world.ua(f);
        world.run_until(10 * SECOND, |world| ids.iter().all(|id| world.view(*id).member(&joiner).is_some()));
        assert!(ids.iter().all(|id| world.processes[id].ended.is_none()), "seed {seed}: before any member is downed");
        world.run_until(60 * SECOND, |world| ids[..2].iter().all(|id| world.processes[id].ended.is_some()));
        world.run_until(40 * SECOND, |world| world.agreed(&[ids[2], ids[3], ids[4], f]));
        world.run_until(30 * SECOND, |world| world.host_of_singleton() == Some(ids[2]));
    }
}

#[test]
fn scenario_60_the_oldest_partitioned_alone_stops_before_the_next_starts() {
    for seed in seeds(10) {
        let mut world = World::resolver(seed);
        let ids = world.cluster(&["a", "b", "c", "d", "e"]);
        world.isolate(&ids[..1], &ids[1..]);
        world.run_until(90 * SECOND, |world| world.host_of_singleton() == Some(ids[1]));
        assert_eq!(world.processes[&ids[0]].ended, Some(ShutdownReason::Downed));
    }
}

#[test]
fn scenario_66_two_crashes_in_sequence_leave_the_three_survivors() {
    for seed in seeds(10) {
        let mut world = World::resolver(seed);
        let ids = world.cluster(&["a", "b", "c", "d", "e"]);
        world.kill(ids[0]);
        world.run_for(15 * SECOND + MS * (seed as u32 * 250));
        world.kill(ids[1]);
        world.run_until(90 * SECOND, |world| world.agreed(&ids[2..]));
        world.run_until(30 * SECOND, |world| world.host_of_singleton() == Some(ids[2]));
    }
}

/// Heals the network, and expects all members Up, reachable to each other, and none downed.
fn heals(world: &mut World, seed: u64, shape: &str, ids: &[NodeId]) {
    world.net.heal();
    world.run_until(30 * SECOND, |world| {
        world.agreed(ids) && ids.iter().all(|id| world.view(*id).unreachable.is_empty())
    });
    let downed = |event: &ClusterEvent| matches!(event, ClusterEvent::MemberDowned(_));
    assert!(!ids.iter().any(|id| world.has_event(*id, downed)), "seed {seed}, {shape}: a member was downed");
}

/// cluster F8, F12, M14, S4: a partition that heals before `stable_after` costs no member.
#[test]
fn scenario_37_one_broken_pair_one_alone_two_islands_and_joiners_all_heal() {
    for seed in seeds(10) {
        let mut world = World::resolver(seed);
        let mut ids = world.cluster(&["a", "b", "c", "d", "e"]);
        world.isolate(&ids[..1], &ids[1..2]);
        world.run_for(12 * SECOND);
        assert_eq!(world.view(ids[3]).unreachable.len(), 2, "each of the pair accuses the other");
        heals(&mut world, seed, "a pair", &ids);
        world.isolate(&ids[4..], &ids[..4]);
        world.run_for(15 * SECOND);
        assert_eq!(world.view(ids[4]).unreachable.len(), 4);
        heals(&mut world, seed, "one alone", &ids);
        world.isolate(&ids[..2], &ids[2..]);
        world.run_for(15 * SECOND);
        assert_eq!(world.view(ids[0]).unreachable.len(), 3);
        heals(&mut world, seed, "two islands", &ids);
        let joiners = [world.start("f"), world.start("g")];
        let right: Vec<NodeId> = ids[2..].iter().chain(&joiners).copied().collect();
        world.isolate(&ids[..2], &right);
        world.run_for(4 * SECOND);
        for joiner in joiners {
            world.join(joiner, &["c"]);
        }
        world.run_for(11 * SECOND);
        assert!(joiners.iter().all(|id| !world.view(*id).members.is_empty()));
        ids.extend(joiners);
        heals(&mut world, seed, "islands and joiners", &ids);
    }
}

/// cluster M9, M29, G3: members that missed a removal do not bring the removed member back.
#[test]
fn scenario_38_one_half_downs_the_other_while_a_node_joins_and_none_comes_back() {
    for seed in seeds(10) {
        let mut world = World::new(seed, ClusterSettings::default());
        let ids = world.cluster(&["a", "b", "c", "d", "e"]);
        let f = world.start("f");
        world.isolate(&[ids[0], ids[1], ids[2], f], &ids[3..]);
        world.join(f, &["a"]);
        world.run_for(8 * SECOND);
        for id in &ids[3..] {
            world.down(ids[0], *id);
        }
        let survivors = [ids[0], ids[1], ids[2], f];
        world.run_until(20 * SECOND, |world| world.agreed_by(&survivors));
        world.net.heal();
        world.run_until(30 * SECOND, |world| ids[3..].iter().all(|id| world.processes[id].ended.is_some()));
        world.run_for(10 * SECOND);
        assert!(world.agreed(&survivors), "seed {seed}:\n{}", world.describe());
    }
}

/// cluster S4: members that come and go beside the accused do not postpone the decision; a heal in time prevents it.
#[test]
fn scenario_51_joiners_every_second_do_not_postpone_and_a_heal_in_time_prevents() {
    for seed in seeds(3) {
        let mut world = World::resolver(seed);
        let ids = world.cluster(&["a", "b", "c"]);
        world.isolate(&ids[2..], &ids[..2]);
        world.run_until(12 * SECOND, |world| world.view(ids[0]).unreachable.contains(&world.ua(ids[2])));
        let mut joiners = Vec::new();
        for n in 0..16 {
            let joiner = world.start(&format!("j{n:02}"));
            world.isolate(&ids[2..], &[joiner]);
            world.join(joiner, &["a"]);
            joiners.push(joiner);
            world.run_for(SECOND);
        }
        let decided = |event: &ClusterEvent| matches!(event, ClusterEvent::DowningDecision(_));
        assert!(!world.has_event(ids[0], decided), "not before stable_after");
        world.run_until(8 * SECOND, |world| world.has_event(ids[0], decided));
        let all: Vec<NodeId> = ids[..2].iter().chain(&joiners).copied().collect();
        world.run_until(40 * SECOND, |world| world.agreed_by(&all));
    }
    for seed in seeds(10) {
        let mut world = World::resolver(seed);
        let ids = world.cluster(&["a", "b", "c"]);
        world.isolate(&ids[2..], &ids[..2]);
        world.run_for(18 * SECOND);
        world.net.heal();
        world.run_for(40 * SECOND);
        assert!(world.agreed(&ids), "healed in time, no member is downed");
        assert!(!world.has_event(ids[0], |event| matches!(event, ClusterEvent::DowningDecision(_))));
    }
}

/// cluster S19, T20: only heartbeats reach the others; the answer to them is enough.
#[test]
fn scenario_72_removed_while_cut_off_then_healed_it_downs_itself_within_five_seconds() {
    for seed in seeds(10) {
        let mut world = World::new(seed, ClusterSettings::default());
        let ids = world.cluster(&["a", "b", "c"]);
        world.isolate(&ids[1..2], &[ids[0], ids[2]]);
        world.run_for(8 * SECOND);
        world.down(ids[0], ids[1]);
        world.run_until(20 * SECOND, |world| world.agreed_by(&[ids[0], ids[2]]));
        world.net.heal();
        world.run_until(5 * SECOND, |world| world.has_event(ids[1], |event| *event == ClusterEvent::SelfDowned));
        world.run_until(5 * SECOND, |world| world.processes[&ids[1]].ended.is_some());
    }
}
