//! Every world keeps its promises for some seeds, and finds each of its omissions.
//!
//! `cargo xtask sim --seeds 2000` does the same for many seeds.

use greylag_simulation::{Omission, World, worlds};

/// Enough seeds for every kind of fault, and few enough for a build without optimisation.
const SEEDS: u64 = 12;

fn world(name: &str) -> World {
    worlds().into_iter().find(|world| world.name == name).expect("the world is registered")
}

fn keeps_its_promises(name: &str) {
    let world = world(name);
    for seed in 0..SEEDS {
        let outcome = world.check(seed, None).unwrap_or_else(|violation| panic!("seed {seed}: {violation}"));
        assert_eq!(Ok(outcome), world.check(seed, None), "seed {seed} is one history");
    }
}

#[test]
fn ddata_keeps_its_promises() {
    keeps_its_promises("ddata");
}

#[test]
fn sharding_keeps_its_promises() {
    keeps_its_promises("sharding");
}

#[test]
fn delivery_keeps_its_promises() {
    keeps_its_promises("delivery");
}

#[test]
fn purchases_keep_their_promises() {
    keeps_its_promises("purchases");
}

#[test]
fn every_omission_is_noticed() {
    // The omissions of replicators and of persistent entities have tests of their own.
    let here = |world: &&World| world.profile.is_none() && !["ddata", "persistence"].contains(&world.name);
    for world in worlds().iter().filter(here) {
        for omission in world.omissions {
            let noticed = (0..2000).any(|seed| world.check(seed, Some(*omission)).is_err());
            assert!(noticed, "{} does not miss {omission:?}", world.name);
        }
    }
}

/// Scenario 74: without any one of these clauses a profile breaks a promise. The named seed found it last; when the
/// machines have changed, a seed near by does.
#[test]
fn scenario_74_every_omission_in_the_cluster_is_noticed() {
    let all = worlds();
    for (omission, profile, seed) in [
        (Omission::Tombstones, "all-mixed", 0),
        (Omission::Convergence, "all-mixed", 93),
        (Omission::StableAfter, "clean-cut", 2),
        (Omission::Margin, "clean-cut", 1),
        (Omission::Clearance, "several-leaves", 163),
        (Omission::Recheck, "leave-then-cut", 24),
        (Omission::TimeoutIsRefusal, "clean-cut", 0),
        (Omission::MovedName, "moved-name", 0),
    ] {
        let world = all.iter().find(|world| world.profile == Some(profile)).expect("the profile is registered");
        assert!(world.omissions.contains(&omission), "{profile} knows {omission:?}");
        let noticed = std::iter::once(seed).chain(0..600).any(|seed| world.check(seed, Some(omission)).is_err());
        assert!(noticed, "{profile} does not miss {omission:?}");
    }
}
