//! Second clusters of one name: those that must not form, and those that did: scenarios 16, 19, 70 of cluster.md.

use greylag_cluster::*;
use greylag_testkit::network::NodeId;

use crate::seeds;
use crate::world::{SECOND, World};

const SEEDS: [&str; 3] = ["s1", "s2", "s3"];

/// Three seeds that formed a cluster, each with all three in its list.
fn three_seeds(seed: u64, settings: ClusterSettings) -> (World, Vec<NodeId>) {
    let mut world = World::new(seed, settings);
    let ids: Vec<NodeId> = SEEDS.iter().map(|name| world.start(name)).collect();
    for id in &ids {
        world.join(*id, &SEEDS);
    }
    let all = ids.clone();
    world.run_until(60 * SECOND, |world| world.agreed(&all));
    (world, ids)
}

fn met(world: &World, id: NodeId) -> bool {
    world.has_event(id, |event| matches!(event, ClusterEvent::ForeignClusterDetected { .. }))
}

/// cluster M24: without a majority of Nacks the first seed keeps asking.
#[test]
fn scenario_70_a_first_seed_that_restarts_while_cut_off_forms_no_island() {
    for seed in seeds(10) {
        let (mut world, ids) = three_seeds(seed, ClusterSettings::default());
        world.kill(ids[0]);
        let again = world.start("s1");
        world.isolate(&[again], &ids[1..]);
        world.join(again, &SEEDS);
        world.run_for(60 * SECOND);
        assert!(world.view(again).members.is_empty(), "seed {seed}: an island");
        world.net.heal();
        world.run_until(30 * SECOND, |world| world.agreed(&[again, ids[1], ids[2]]));
    }
}

/// cluster M24.
#[test]
fn scenario_70_all_three_seeds_restarted_at_once_form_one_cluster() {
    for seed in seeds(10) {
        let (mut world, ids) = three_seeds(seed, ClusterSettings::default());
        ids.iter().for_each(|id| world.kill(*id));
        let again: Vec<NodeId> = SEEDS.iter().map(|name| world.start(name)).collect();
        again.iter().for_each(|id| world.join(*id, &SEEDS));
        world.run_until(60 * SECOND, |world| world.agreed(&again));
    }
}

/// cluster M24.
#[test]
fn scenario_70_acks_that_are_lost_for_a_minute_make_no_second_cluster() {
    for seed in seeds(10) {
        let (mut world, ids) = three_seeds(seed, ClusterSettings::default());
        world.kill(ids[0]);
        let again = world.start("s1");
        world.net.cut(ids[1], again);
        world.net.cut(ids[2], again);
        world.join(again, &SEEDS);
        world.run_for(60 * SECOND);
        assert!(world.view(again).members.is_empty(), "seed {seed}: an island");
        world.net.heal();
        world.run_until(30 * SECOND, |world| world.agreed(&[again, ids[1], ids[2]]));
    }
}

/// cluster M24, M25b: `self_join_alone` permits the island; both sides see it once the cut heals.
#[test]
fn scenario_70_an_island_is_seen_by_both_sides_after_the_cut_heals_also_late() {
    for (seed, cut_for) in seeds(5).flat_map(|seed| [(seed, 30 * SECOND), (seed, 660 * SECOND)]).take(60) {
        let (mut world, ids) = three_seeds(seed, ClusterSettings::default());
        world.tolerate_two = true;
        world.kill(ids[0]);
        world.settings.self_join_alone = true;
        let island = world.start("s1");
        world.isolate(&[island], &ids[1..]);
        world.join(island, &SEEDS);
        world.run_for(cut_for);
        assert_eq!(world.view(island).members.len(), 1, "the operator asked for it");
        assert!(!met(&world, island) && !met(&world, ids[1]));
        world.net.heal();
        world.run_until(65 * SECOND, |world| met(world, island) && ids[1..].iter().any(|id| met(world, *id)));
        let now = world.now();
        let health = world.processes[&island].core.health(now);
        assert_eq!(health.foreign_cluster.map(|met| met.cluster_id), Some(world.view(ids[1]).cluster_id));
        assert!(!health.is_good());
    }
}

/// cluster M25b: the four numbers of one exchange decide that the smaller side ends, whichever side asked.
#[test]
fn scenario_70_the_smaller_cluster_ends_if_told_so_and_the_bigger_stays() {
    for seed in seeds(10) {
        let settings =
            ClusterSettings { on_foreign_cluster: OnForeignCluster::LeaveIfSmaller, ..ClusterSettings::default() };
        let (mut world, mut ids) = three_seeds(seed, settings);
        world.tolerate_two = true;
        ids.push(world.start("y"));
        world.join(ids[3], &["s2"]);
        let all = ids.clone();
        world.run_until(30 * SECOND, |world| world.agreed(&all));
        world.kill(ids[0]);
        world.settings.self_join_alone = true;
        let island = world.start("s1");
        let follower = world.start("x");
        world.isolate(&[island, follower], &ids[1..]);
        world.join(island, &SEEDS);
        world.join(follower, &["s1"]);
        world.run_for(30 * SECOND);
        assert_eq!(world.view(follower).members.len(), 2);
        world.net.heal();
        // The bigger cluster has three members, and one that is dead; the smaller has two.
        world.run_until(40 * SECOND, |world| [island, follower].iter().all(|id| world.processes[id].ended.is_some()));
        let reasons = [island, follower].map(|id| world.processes[&id].ended.unwrap());
        assert!(reasons.contains(&ShutdownReason::SmallerCluster), "{reasons:?}");
        world.run_for(20 * SECOND);
        assert!(ids[1..].iter().all(|id| world.processes[id].ended.is_none()), "the bigger one stays");
    }
}

/// cluster M23, M25b.
#[test]
fn scenario_19_two_clusters_are_never_merged() {
    for seed in seeds(10) {
        let mut world = World::new(seed, ClusterSettings::default());
        // Three clusters have three singletons.
        world.tolerate_two = true;
        let [a1, a2, b1, b2, c1] = ["a1", "a2", "b1", "b2", "c1"].map(|name| world.start(name));
        for (id, via) in [(a1, "a1"), (b1, "b1"), (c1, "c1"), (a2, "a1"), (b2, "b1")] {
            world.join(id, &[via]);
        }
        world.run_until(20 * SECOND, |world| {
            world.agreed_by(&[a1, a2]) && world.agreed_by(&[b1, b2]) && world.agreed_by(&[c1])
        });
        world.join(b1, &["a1"]);
        world.join(c1, &["a2"]);
        world.run_for(5 * SECOND);
        assert!(world.agreed_by(&[a1, a2]) && world.agreed_by(&[b1, b2]) && world.agreed_by(&[c1]), "seed {seed}");
    }
}
