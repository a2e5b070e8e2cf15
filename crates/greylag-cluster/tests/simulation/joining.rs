//! Joining under various conditions: scenarios 15, 21, 24, 25, 29, 32, 36, 42 of cluster.md.

use greylag_cluster::*;

use crate::seeds;
use crate::world::{MS, SECOND, World};

/// cluster M23, M24, M31: a node that calls join again starts over, and versions are visible everywhere.
#[test]
fn scenario_15_the_first_seed_is_late_another_joins_twice_and_versions_are_seen_everywhere() {
    for seed in seeds(10) {
        let mut world = World::new(seed, ClusterSettings::default());
        let seeds = ["s1", "s2", "s3"];
        let s2 = world.start("s2");
        let s3 = world.start("s3");
        world.join(s2, &seeds);
        world.join(s3, &seeds);
        world.run_for(SECOND);
        world.join(s3, &seeds);
        world.run_for(2 * SECOND);
        let s1 = world.start("s1");
        world.join(s1, &seeds);
        world.run_until(30 * SECOND, |world| world.agreed(&[s1, s2, s3]));
        let versions = ["1.4.0-M2", "2.0"];
        let others = versions.map(|version| {
            world.settings.app_version = version.parse().unwrap();
            let id = world.start(&format!("x{}", &version[..1]));
            world.join(id, &["s1", "s2"]);
            id
        });
        let all = [s1, s2, s3, others[0], others[1]];
        world.run_until(40 * SECOND, |world| world.agreed(&all));
        for id in all {
            for (other, version) in others.iter().zip(versions) {
                let member = world.view(id).member(&world.ua(*other)).unwrap();
                assert_eq!(member.app_version.as_str(), version);
            }
        }
    }
}

/// cluster M10, M25, M28.
#[test]
fn scenario_21_a_joiner_that_was_stuck_restarts_and_its_old_uid_is_gone() {
    for seed in seeds(10) {
        let mut world = World::new(seed, ClusterSettings { weakly_up_after: None, ..ClusterSettings::default() });
        let ids = world.cluster(&["a", "c"]);
        let b = world.start("b");
        world.isolate(&ids[1..], &[ids[0], b]);
        world.run_for(8 * SECOND);
        world.join(b, &["a"]);
        world.run_for(8 * SECOND);
        assert_eq!(world.status(b, ids[0]), Some(MemberStatus::Joining), "c is unreachable");
        let old = world.ua(b);
        world.kill(b);
        let again = world.start("b");
        world.join(again, &["a"]);
        world.run_for(3 * SECOND);
        world.net.heal();
        world.run_until(30 * SECOND, |world| world.agreed(&[ids[0], again, ids[1]]));
        assert!(world.view(ids[1]).member(&old).is_none() && world.view(ids[1]).tombstones.contains_key(&old));
    }
}

/// cluster M21, M37.
#[test]
fn scenario_24_joiners_on_both_sides_of_a_cut_are_weakly_up_and_up_when_it_heals() {
    for seed in seeds(10) {
        let mut world = World::new(seed, ClusterSettings::default());
        let ids = world.cluster(&["a", "c", "d"]);
        let (b, e) = (world.start("b"), world.start("e"));
        world.isolate(&[ids[0], b], &[ids[1], ids[2], e]);
        world.run_for(8 * SECOND);
        world.join(b, &["a"]);
        world.join(e, &["c"]);
        let weakly = |world: &World, id| world.status(id, id) == Some(MemberStatus::WeaklyUp);
        world.run_until(20 * SECOND, |world| weakly(world, b) && weakly(world, e));
        assert_ne!(world.host_of_singleton(), Some(b), "one that is weakly up hosts nothing");
        for leader in &ids[..2] {
            let at = |wanted: fn(&ClusterEvent) -> bool| {
                world.processes[leader].events.iter().find(|(_, event)| wanted(event)).expect("it was told").0
            };
            let marked = at(|event| matches!(event, ClusterEvent::UnreachableMember(_)));
            let let_in = at(|event| matches!(event, ClusterEvent::MemberWeaklyUp(_)));
            assert!(let_in >= marked + 6 * SECOND, "seed {seed}: after seven blocked ticks and not before");
        }
        world.net.heal();
        world.run_until(30 * SECOND, |world| world.agreed(&[ids[0], b, ids[1], ids[2], e]));
    }
}

/// cluster M22.
#[test]
fn scenario_25_no_member_is_up_before_enough_have_joined_in_all_and_of_each_role() {
    for (seed, weakly) in seeds(5).flat_map(|seed| [(seed, false), (seed, true)]) {
        let settings = ClusterSettings { min_number_of_members: 3, ..ClusterSettings::default() };
        let weakly_up_after = settings.weakly_up_after.filter(|_| weakly);
        let mut world = World::new(seed, ClusterSettings { weakly_up_after, ..settings });
        let (a, b) = (world.start("a"), world.start("b"));
        world.join(a, &["a"]);
        world.join(b, &["a"]);
        world.run_for(15 * SECOND);
        assert_eq!(world.status(a, b), Some(MemberStatus::Joining));
        assert_eq!(world.status(b, a), Some(MemberStatus::Joining));
        let c = world.start("c");
        world.join(c, &["a"]);
        world.run_until(15 * SECOND, |world| world.agreed(&[a, b, c]));
        let own_up = |event: &&ClusterEvent| matches!(event, ClusterEvent::MemberUp(m) if m.address == world.ua(b));
        assert_eq!(world.processes[&b].events.iter().map(|(_, event)| event).filter(own_up).count(), 1);
    }
    for seed in seeds(5) {
        let role_min_number_of_members = [("backend".to_owned(), 2)].into();
        let mut world = World::new(seed, ClusterSettings { role_min_number_of_members, ..ClusterSettings::default() });
        let a = world.start_with("a", &["backend"]);
        let b = world.start_with("b", &["frontend"]);
        world.join(a, &["a"]);
        world.join(b, &["a"]);
        world.run_for(15 * SECOND);
        assert_eq!(world.status(a, b), Some(MemberStatus::Joining), "one backend of two");
        assert_eq!(world.status(b, a), Some(MemberStatus::Joining), "nor does a member of another role come up");
        let c = world.start_with("c", &["backend"]);
        world.join(c, &["a"]);
        world.run_until(15 * SECOND, |world| world.agreed(&[a, b, c]));
    }
}

/// cluster M30.
#[test]
fn scenario_29_prepared_for_shutdown_nobody_joins_and_leaves_complete() {
    for seed in seeds(10) {
        let mut world = World::new(seed, ClusterSettings::default());
        let ids = world.cluster(&["a", "b", "c"]);
        world.command(ids[1], Command::PrepareForFullShutdown);
        let ready = |world: &World| {
            ids.iter().all(|id| ids.iter().all(|of| world.status(*of, *id) == Some(MemberStatus::ReadyForShutdown)))
        };
        world.run_until(15 * SECOND, ready);
        let late = world.start("x");
        world.join(late, &["a"]);
        world.run_for(5 * SECOND);
        assert!(world.view(late).members.is_empty() && world.processes[&late].ended.is_none(), "it goes on trying");
        assert!(ids.iter().all(|id| world.view(*id).members.len() == 3));
        for id in &ids {
            world.leave(*id, *id);
        }
        let took = world.run_until(15 * SECOND, |world| ids.iter().all(|id| world.processes[id].ended.is_some()));
        assert!(took < 12 * SECOND, "seed {seed}: {took:?}");
    }
}

/// cluster M29, G2: the state does not grow under churn once tombstones expire.
#[test]
fn scenario_32_after_rounds_of_short_lived_nodes_the_state_is_as_small_as_before() {
    for seed in seeds(1) {
        let settings = ClusterSettings { prune_gossip_tombstones_after: SECOND, ..ClusterSettings::default() };
        let mut world = World::new(seed, settings);
        world.one_host = true;
        let ids = world.cluster(&["a", "b", "c"]);
        // The first round leaves each observer's version of its row, which stays.
        let mut baseline = world.processes[&ids[0]].core.gossip().encoded_len();
        for round in 0..6 {
            let names: Vec<String> = (0..6).map(|n| format!("x{round}{n}")).collect();
            let guests: Vec<_> = names.iter().map(|name| world.start(name)).collect();
            for guest in &guests {
                world.join(*guest, &["a"]);
            }
            let all: Vec<_> = ids.iter().chain(&guests).copied().collect();
            world.run_until(30 * SECOND, |world| world.agreed(&all));
            assert!(world.processes[&ids[0]].core.gossip().encoded_len() > baseline + 6 * 10);
            for (n, guest) in guests.iter().enumerate() {
                if (round + n) % 2 == 0 { world.leave(ids[1], *guest) } else { world.down(ids[1], *guest) }
            }
            world.run_until(60 * SECOND, |world| world.agreed(&ids));
            world.run_until(20 * SECOND, |world| ids.iter().all(|id| world.view(*id).tombstones.is_empty()));
            if round == 0 {
                baseline = world.processes[&ids[0]].core.gossip().encoded_len();
            }
        }
        let gossip = world.processes[&ids[0]].core.gossip();
        // Counters may have grown by a digit; one member more would be tens of bytes.
        assert!(gossip.encoded_len() <= baseline + 16, "{} of {baseline}", gossip.encoded_len());
        assert!(gossip.version.iter().len() <= ids.len());
    }
}

/// The variant with a thousand nodes is a separate benchmark.
#[test]
fn scenario_36_many_join_through_three_seeds_at_once_and_nobody_is_missed() {
    let size = if seeds(1).end > 1 { 100 } else { 40 };
    let mut world = World::new(36, ClusterSettings::default());
    let names: Vec<String> = (0..size).map(|n| format!("n{n:03}")).collect();
    let mut ids = Vec::new();
    for name in &names[..10] {
        let id = world.start(name);
        world.join(id, &["n000", "n001", "n002"]);
        ids.push(id);
    }
    let first = ids.clone();
    world.run_until(60 * SECOND, |world| world.agreed(&first));
    for name in &names[10..] {
        let id = world.start(name);
        world.join(id, &["n002", "n001", "n000"]);
        ids.push(id);
        world.run_for(10 * SECOND / (size as u32 - 10));
    }
    world.run_until(60 * SECOND, |world| world.agreed(&ids));
    let mut numbers: Vec<u32> = world.view(ids[0]).members.iter().map(|member| member.up_number).collect();
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), size, "cluster M16: ages are unique");
    let missed = |event: &ClusterEvent| matches!(event, ClusterEvent::UnreachableMember(_));
    assert!(!ids.iter().any(|id| world.has_event(*id, missed)), "no false alarm");
}

/// cluster F1, F4: heartbeats do not wait for gossip.
#[test]
fn scenario_42_with_gossip_every_five_minutes_nobody_suspects_a_joiner() {
    for seed in seeds(10) {
        let mut world =
            World::new(seed, ClusterSettings { gossip_interval: 300 * SECOND, ..ClusterSettings::default() });
        let (a, b) = (world.start("a"), world.start("b"));
        world.join(a, &["a"]);
        world.join(b, &["a"]);
        world.run_for(60 * SECOND);
        assert!(world.status(b, a).is_some() && world.status(a, b).is_some(), "seed {seed}: it joined");
        for id in [a, b] {
            assert!(!world.has_event(id, |event| matches!(event, ClusterEvent::UnreachableMember(_))));
        }
    }
    for seed in seeds(10) {
        let mut world = World::new(seed, ClusterSettings::default());
        let a = world.start("a");
        world.join(a, &["a"]);
        let b = world.start("b");
        world.join(b, &["a"]);
        world.run_until(5 * SECOND, |world| !world.view(b).members.is_empty());
        world.isolate(&[a], &[b]);
        // Detection takes one second until a response is assumed, 5.3 s of silence, and the time to the next check.
        world.run_for(9 * SECOND);
        assert!(world.view(b).unreachable.contains(&world.ua(a)), "seed {seed}: found by the assumed response");
    }
}

/// cluster M11, M12, C4: members that started together do not gossip in step.
#[test]
fn periodic_work_is_spread_by_the_seed() {
    let mut world = World::new(1, ClusterSettings::default());
    let ids = world.cluster(&["a", "b", "c", "d", "e"]);
    world.run_for(20 * SECOND);
    let base = world.now();
    let next = |id| world.processes[&id].core.next_deadline().unwrap() - base;
    let mut times: Vec<_> = ids.into_iter().map(next).collect();
    times.sort();
    times.dedup_by(|a, b| *a - *b < MS);
    assert!(times.len() >= 3, "{times:?}");
}
