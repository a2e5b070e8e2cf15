//! The singleton: acceptance scenarios 55 to 58 and 63 of cluster.md.

use greylag_cluster::*;

use crate::seeds;
use crate::world::{MS, SECOND, World};

#[test]
fn scenario_55_one_instance_on_the_oldest_with_the_role() {
    for seed in seeds(10) {
        let mut world = World::new(seed, ClusterSettings::default());
        let first = world.start_with("z", &[]);
        world.join(first, &["z"]);
        let mut workers = Vec::new();
        for name in ["f", "e", "d", "c", "b", "a"] {
            let id = world.start(name);
            world.join(id, &["z"]);
            workers.push(id);
            world.run_for(5 * SECOND);
            assert_eq!(world.host_of_singleton(), Some(workers[0]));
        }
        assert_eq!(world.most_instances, 1);
    }
}

#[test]
fn scenario_55_three_that_join_at_once_have_it_within_three_seconds_of_all_being_up() {
    for seed in seeds(20) {
        let mut world = World::new(seed, ClusterSettings::default());
        let _ids = world.cluster(&["c", "b", "a"]);
        world.run_until(3 * SECOND, |world| world.host_of_singleton().is_some());
    }
}

#[test]
fn scenario_56_the_oldest_leaves_again_and_again_until_one_is_left() {
    for seed in seeds(20) {
        let mut world = World::resolver(seed);
        let ids = world.cluster(&["a", "b", "c", "d"]);
        for next in 1..ids.len() {
            let (old, new) = (ids[next - 1], ids[next]);
            world.run_until(5 * SECOND, |world| world.host_of_singleton() == Some(old));
            world.leave(old, old);
            world.run_until(12 * SECOND, |world| world.host_of_singleton() == Some(new));
            world.run_until(12 * SECOND, |world| world.agreed(&ids[next..]));
        }
        let last = ids[3];
        world.leave(last, last);
        world.run_until(6 * SECOND, |world| world.processes[&last].ended.is_some());
        assert_eq!(world.host_of_singleton(), None);
    }
}

#[test]
fn scenario_56_several_leave_one_right_after_another() {
    for seed in seeds(60) {
        let mut world = World::resolver(seed);
        world.stop_delay = MS * (1 + (seed as u32 * 97) % 3000);
        let ids = world.cluster(&["a", "b", "c", "d", "e"]);
        world.run_until(5 * SECOND, |world| world.host_of_singleton() == Some(ids[0]));
        let order: [usize; 4] = if seed % 2 == 0 { [0, 1, 2, 3] } else { [2, 0, 3, 1] };
        for index in order {
            world.leave(ids[4], ids[index]);
            world.run_for(MS * ((seed as u32 * 31) % 1500));
        }
        world.run_until(60 * SECOND, |world| world.agreed(&ids[4..]));
        world.run_until(3 * SECOND, |world| world.host_of_singleton() == Some(ids[4]));
    }
}

#[test]
fn scenario_57_three_oldest_crash_and_are_downed_by_command_the_fourth_starts_after_the_margin() {
    for seed in seeds(10) {
        let mut world = World::new(seed, ClusterSettings::default());
        let ids = world.cluster(&["a", "b", "c", "d", "e", "f"]);
        for id in &ids[..3] {
            world.kill(*id);
        }
        world.run_for(10 * SECOND);
        for id in &ids[..3] {
            world.down(ids[4], *id);
        }
        world.run_until(20 * SECOND, |world| world.agreed(&ids[3..]));
        world.run_for(18 * SECOND);
        assert_eq!(world.host_of_singleton(), None, "the margin runs");
        world.run_until(5 * SECOND, |world| world.host_of_singleton() == Some(ids[3]));
    }
}

#[test]
fn scenario_58_the_oldest_restarts_at_the_same_address_the_next_hosts_it() {
    for seed in seeds(20) {
        let mut world = World::new(seed, ClusterSettings::default());
        let ids = world.cluster(&["a", "b"]);
        world.kill(ids[0]);
        let again = world.start("a");
        world.join(again, &["b"]);
        world.run_until(15 * SECOND, |world| world.agreed(&[again, ids[1]]));
        world.run_until(5 * SECOND, |world| world.host_of_singleton() == Some(ids[1]));
        world.leave(ids[1], ids[1]);
        world.run_until(15 * SECOND, |world| world.host_of_singleton() == Some(again));
    }
}

/// cluster M26 (`LeaveIsolated`), under every strategy and under none.
#[test]
fn scenario_63_a_leaving_host_that_is_cut_off_stops_before_the_successor_starts() {
    let named = Strategy::NAMES.map(|name| match Strategy::named(name, None).unwrap() {
        Strategy::StaticQuorum { role, .. } => Some(Strategy::StaticQuorum { role, quorum_size: 3 }),
        strategy => Some(strategy),
    });
    let strategies: Vec<_> = std::iter::once(None).chain(named).collect();
    for (seed, strategy) in seeds(3).flat_map(|seed| strategies.iter().map(move |strategy| (seed, strategy))) {
        let mut world = match strategy {
            Some(strategy) => {
                let sbr = SbrSettings { strategy: strategy.clone(), ..SbrSettings::default() };
                World::new(seed, ClusterSettings::default().with_resolver(sbr))
            }
            None => World::new(seed, ClusterSettings::default()),
        };
        let ids = world.cluster(&["a", "b", "c", "d", "e"]);
        world.run_until(5 * SECOND, |world| world.host_of_singleton() == Some(ids[0]));
        // Make the instance stop slowly: then the leaver is Exiting, and cannot hand over any more.
        world.stop_delay = 300 * MS;
        world.leave(ids[1], ids[0]);
        let gone = ids[0];
        world.run_until(15 * SECOND, |world| world.status(gone, gone).is_none_or(|s| s >= MemberStatus::Leaving));
        world.isolate(&ids[..1], &ids[1..]);
        world.run_until(60 * SECOND, |world| world.processes[&gone].ended.is_some());
        // The leaver ends by its own isolation, and not by a verdict about a side that it might be.
        let reason = world.processes[&gone].ended;
        assert_eq!(reason, Some(ShutdownReason::LeaveIsolated), "seed {seed}, {strategy:?}");
        world.run_until(60 * SECOND, |world| match strategy {
            None | Some(Strategy::DownAll) => world.host_of_singleton().is_none(),
            Some(_) => world.host_of_singleton() == Some(ids[1]),
        });
        world.net.heal();
        world.run_for(10 * SECOND);
        assert!(!world.alive().contains(&gone), "healed later, it is gone");
    }
}
