//! Joining, leaving, downing, restarting: acceptance scenarios 14 to 31 of cluster.md.

use std::collections::BTreeSet;

use greylag_cluster::*;

use crate::seeds;
use crate::world::{MS, SECOND, World};

/// cluster M24, M25: the node forms the cluster and acts as its leader within one input.
#[test]
fn scenario_14_a_node_that_joins_itself_is_up_at_once() {
    let mut world = World::new(1, ClusterSettings::default());
    let a = world.start("a");
    world.join(a, &["a"]);
    let own = world.view(a).self_member().unwrap().clone();
    assert_eq!((own.status, own.up_number), (MemberStatus::Up, 1));
    assert_eq!(world.view(a).leader, Some(world.ua(a)));
}

/// cluster M16, M24.
#[test]
fn scenario_14_seeds_in_reverse_address_order_the_first_seed_is_the_oldest_everywhere() {
    for seed in seeds(10) {
        let mut world = World::new(seed, ClusterSettings::default());
        let seeds = ["c", "b", "a"];
        let ids: Vec<_> = seeds.iter().map(|name| world.start(name)).collect();
        for id in &ids {
            world.join(*id, &seeds);
        }
        world.run_until(30 * SECOND, |world| world.agreed(&ids));
        for id in &ids {
            assert_eq!(world.view(*id).oldest(None).unwrap().address, world.ua(ids[0]));
        }
    }
}

/// cluster M24, M25.
#[test]
fn scenario_16_a_restarted_first_seed_joins_the_others_not_itself() {
    for seed in seeds(10) {
        let mut world = World::new(seed, ClusterSettings::default());
        let ids = world.cluster(&["s1", "s2", "s3"]);
        world.kill(ids[0]);
        world.run_for(500 * MS);
        let again = world.start("s1");
        world.join(again, &["s1", "s2", "s3", "s4"]);
        world.run_until(20 * SECOND, |world| world.agreed(&[again, ids[1], ids[2]]));
    }
}

/// cluster M24: no node is let in by joiners, which get only Nacks from each other, nor by a seed that never began to
/// join.
#[test]
fn scenario_17_no_seed_answers_and_the_joiners_give_up() {
    let settings =
        ClusterSettings { shutdown_after_unsuccessful_join_seed_nodes: Some(5 * SECOND), ..ClusterSettings::default() };
    for seed in seeds(10) {
        let mut world = World::new(seed, settings.clone());
        let (a, b, idle) = (world.start("a"), world.start("b"), world.start("s"));
        world.join(a, &["s", "b"]);
        world.join(b, &["s", "a"]);
        world.run_for(4_900 * MS);
        assert!([a, b].iter().all(|id| world.processes[id].ended.is_none()), "seed {seed}: not before its time");
        world.run_for(SECOND);
        let ended = [a, b, idle].map(|id| world.processes[&id].ended);
        let gave_up = Some(ShutdownReason::JoinUnsuccessful);
        assert_eq!(ended, [gave_up, gave_up, None], "seed {seed}");
    }
}

/// cluster M25a.
#[test]
fn scenario_18_a_joiner_with_another_downing_strategy_is_refused_unless_told_otherwise() {
    for (seed, enforce) in seeds(10).flat_map(|seed| [(seed, true), (seed, false)]) {
        let mut world = World::resolver(seed);
        let a = world.start("a");
        world.join(a, &["a"]);
        world.settings = ClusterSettings { enforce_config_on_join: enforce, ..ClusterSettings::default() };
        let b = world.start("b");
        world.join(b, &["a"]);
        world.run_for(10 * SECOND);
        let ended = world.processes[&b].ended;
        assert_eq!(ended, enforce.then_some(ShutdownReason::IncompatibleConfig));
        assert_eq!(world.agreed(&[a, b]), !enforce);
    }
}

/// cluster M25, M28.
#[test]
fn scenario_20_three_restarts_at_the_same_address_without_downing() {
    for seed in seeds(10) {
        let mut world = World::new(seed, ClusterSettings::default());
        let mut ids = world.cluster(&["a", "b", "c"]);
        for _ in 0..3 {
            world.kill(ids[1]);
            world.run_for(200 * MS);
            ids[1] = world.start("b");
            world.join(ids[1], &["a", "b", "c"]);
            let expected = ids.clone();
            world.run_until(20 * SECOND, |world| world.agreed(&expected));
        }
    }
}

/// cluster M20, M26, M33.
#[test]
fn scenario_26_a_member_leaves_in_order_and_so_does_the_leader() {
    for seed in seeds(10) {
        for leaver in [2, 0] {
            let mut world = World::new(seed, ClusterSettings::default());
            let ids = world.cluster(&["a", "b", "c"]);
            let gone = world.ua(ids[leaver]);
            world.leave(ids[1], ids[leaver]);
            let rest: Vec<_> = ids.iter().copied().filter(|id| *id != ids[leaver]).collect();
            world.run_until(20 * SECOND, |world| world.agreed(&rest));
            assert_eq!(world.processes[&ids[leaver]].ended, Some(ShutdownReason::Left));
            for id in &rest {
                let clean = |event: &ClusterEvent| matches!(event, ClusterEvent::MemberRemoved { member, previous_status: MemberStatus::Exiting, clean: true } if member.address == gone);
                assert!(world.has_event(*id, clean), "removed clean, from Exiting");
                assert!(!world.has_event(*id, |event| matches!(event, ClusterEvent::MemberDowned(_))));
            }
            if leaver == 0 {
                assert_eq!(world.view(ids[1]).leader, Some(world.ua(ids[1])), "the next address leads");
            }
        }
    }
}

/// cluster M2, M26.
#[test]
fn scenario_27_a_joining_member_is_told_to_leave() {
    for seed in seeds(10) {
        let settings = ClusterSettings { min_number_of_members: 3, ..ClusterSettings::default() };
        let mut world = World::new(seed, settings);
        let a = world.start("a");
        world.join(a, &["a"]);
        let b = world.start("b");
        world.join(b, &["a"]);
        world.run_for(4 * SECOND);
        let gone = world.ua(b);
        world.leave(a, b);
        world.run_until(20 * SECOND, |world| world.view(a).members.len() == 1);
        let removed = |event: &ClusterEvent| matches!(event, ClusterEvent::MemberRemoved { member, previous_status: MemberStatus::Exiting, .. } if member.address == gone);
        assert!(world.has_event(a, removed));
        assert_eq!(world.processes[&b].ended, Some(ShutdownReason::Left));
    }
}

/// cluster M15, M27.
#[test]
fn scenario_28_a_healthy_member_is_downed_and_ends_itself() {
    for seed in seeds(10) {
        let mut world = World::new(seed, ClusterSettings::default());
        let ids = world.cluster(&["a", "b", "c"]);
        let gone = world.ua(ids[2]);
        world.down(ids[0], ids[2]);
        world.run_for(50 * MS);
        assert!(world.has_event(ids[2], |event| *event == ClusterEvent::SelfDowned), "told directly");
        world.run_until(30 * SECOND, |world| world.agreed(&ids[..2]));
        assert_eq!(world.processes[&ids[2]].ended, Some(ShutdownReason::Downed));
        let removed = |event: &ClusterEvent| matches!(event, ClusterEvent::MemberRemoved { member, previous_status: MemberStatus::Down, .. } if member.address == gone);
        assert!(world.has_event(ids[0], removed) && world.has_event(ids[1], removed));
    }
}

#[test]
fn clusters_of_three_to_ten_form_and_everybody_agrees() {
    let names = ["j", "i", "h", "g", "f", "e", "d", "c", "b", "a"];
    for size in 3..=10 {
        let mut world = World::new(size as u64, ClusterSettings::default());
        let ids = world.cluster(&names[..size]);
        let mut numbers: Vec<u32> = world.view(ids[0]).members.iter().map(|member| member.up_number).collect();
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), size, "ages are unique");
        assert!(!world.has_event(ids[0], |event| matches!(event, ClusterEvent::UnreachableMember(_))));
    }
}

/// cluster M25: a joiner that hears no member asks again.
#[test]
fn scenario_68_the_contact_dies_before_it_told_others_of_the_joiner() {
    for seed in seeds(10) {
        let mut world = World::new(seed, ClusterSettings::default());
        world.one_host = true;
        let ids = world.cluster(&["a", "b", "c"]);
        let x = world.start("x");
        world.join(x, &["a"]);
        let ua = world.ua(x);
        world.run_until(10 * SECOND, |world| world.view(ids[0]).member(&ua).is_some());
        world.isolate(&[ids[0]], &[ids[1], ids[2]]);
        world.run_until(10 * SECOND, |world| !world.view(x).members.is_empty());
        world.net.heal();
        world.kill(ids[0]);
        world.run_until(60 * SECOND, |world| world.agreed(&[ids[1], ids[2], x]));
    }
}

/// cluster M17, M21.
#[test]
fn scenario_23_while_one_is_unreachable_nobody_comes_up_and_weakly_only_if_allowed() {
    for (seed, weakly) in seeds(10).flat_map(|seed| [(seed, false), (seed, true)]) {
        let settings = ClusterSettings::default();
        let weakly_up_after = settings.weakly_up_after.filter(|_| weakly);
        let mut world = World::new(seed, ClusterSettings { weakly_up_after, ..settings });
        let ids = world.cluster(&["a", "b", "c"]);
        world.kill(ids[2]);
        world.run_for(10 * SECOND);
        let rest = BTreeSet::from([world.ua(ids[0]), world.ua(ids[1])]);
        for id in &ids[..2] {
            let view = world.view(*id);
            assert!(view.unreachable.iter().eq([&world.ua(ids[2])]), "seed {seed}: both of the rest mark it");
            assert_eq!(view.seen_by.iter().cloned().collect::<BTreeSet<_>>(), rest, "seed {seed}: and agree on it");
        }
        let d = world.start("d");
        world.join(d, &["a"]);
        world.run_for(17 * SECOND);
        let expected = if weakly { MemberStatus::WeaklyUp } else { MemberStatus::Joining };
        assert_eq!(world.status(d, ids[1]), Some(expected));
        world.down(ids[0], ids[2]);
        world.run_until(20 * SECOND, |world| world.agreed(&[ids[0], ids[1], d]));
    }
}
