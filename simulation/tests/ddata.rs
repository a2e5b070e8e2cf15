//! Replicators under faults, a few seeds of each profile; `cargo xtask sim ddata --seeds 10000`
//! plays many.
//!
//! The world checks ddata C1 to C8, L7, Z8, O6 at every step, at every acknowledgement, and at the end.

use greylag_simulation::{Omission, World, worlds};

fn world(profile: Option<&str>) -> World {
    let mut all = worlds().into_iter();
    all.find(|world| world.name == "ddata" && world.profile == profile).expect("the profile is registered")
}

fn keeps(profile: Option<&str>, seeds: std::ops::Range<u64>) -> greylag_simulation::Outcome {
    let (world, mut all) = (world(profile), greylag_simulation::Outcome::default());
    for seed in seeds {
        match world.check(seed, None) {
            Ok(outcome) => all += outcome,
            Err(violation) => {
                let story = world.explain(seed, None).unwrap_or_default();
                panic!("{profile:?}, seed {seed}: {violation}\n{story}");
            }
        }
    }
    all
}

/// ddata O6, C1, C2, C3, C4, C5, C6, C7: crashes, restarts with and without their stores, replicators that start anew
/// in their process, members that come and go, cuts, pauses, loss, duplication and reordering. One seed in sixteen
/// joins deltas in any order: all other promises hold all the same (ddata K8).
#[test]
fn replicas_agree_after_every_history() {
    let all = keeps(None, 0..10);
    // A simulation without failures and repairs proves nothing.
    assert!(all.checked > 200 && all.faults > 80 && all.performed > 10, "{all:?}");
}

/// ddata O6, Z4, Z5, Z6, Z7, Z8, Z9: every twist of pruning, four times.
#[test]
fn every_pruning_event_keeps_the_promises() {
    let all = keeps(Some("pruning"), 0..48);
    assert!(all.performed > 40, "{all:?}");
}

/// ddata Y4, A9, E3, Z5, Z7, O6: counters expire at different processes, owners among them, are created again, and old
/// copies return; nothing is lost and nothing counts twice.
#[test]
fn every_life_of_a_counter_counts_once() {
    let all = keeps(Some("births"), 0..40);
    assert!(all.performed > 30, "{all:?}");
}

/// ddata Z11, scenario 90: full stops, and starts from stores of different ages.
#[test]
fn every_start_is_one_history() {
    let all = keeps(Some("gate"), 0..40);
    assert!(all.performed > 10, "{all:?}");
}

/// ddata G13: a replica that has caught up holds everything.
#[test]
fn a_caught_up_replica_holds_every_entry() {
    keeps(Some("catch-up"), 0..3);
}

/// Sharding §2.15, ddata I4: a coordinator writes its epoch and its decision, and reads the epoch again before it
/// announces the decision.
#[test]
fn no_shard_gets_two_decisions() {
    keeps(Some("fence"), 0..4);
}

/// The promise that the operations done explain every value that a replica shows.
const EXPLAINED: &str = "what is shown is what was done (ddata L7, Z8)";
/// The promise that a replica continues to show each operation that it has shown.
const GROWS: &str = "what was seen stays seen (ddata C3, C7)";
/// The promise that a store is refused only where it is too old.
const ACCEPTED: &str = "a store that is not too old is not refused (ddata Z9, 87)";

/// Asserts that a seed, or one of the first few hundred, breaks just this promise in this way with the omission.
/// Another promise broken on the way does not count.
fn is_noticed(profile: Option<&str>, omission: Omission, seeds: impl IntoIterator<Item = u64>, broken: (&str, &str)) {
    let (world, (promise, what)) = (world(profile), broken);
    assert!(world.omissions.contains(&omission), "{profile:?} knows {omission:?}");
    let is_it =
        |violation: greylag_simulation::Violation| violation.promise == promise && violation.what.contains(what);
    let found = seeds.into_iter().find(|seed| world.check(*seed, Some(omission)).is_err_and(is_it));
    let Some(seed) = found else { panic!("without {omission:?} {profile:?} does not find that {promise:?} is broken") };
    let sound = world.check(seed, None).err().map(|violation| violation.to_string());
    assert_eq!(sound, None, "seed {seed} breaks a promise with {omission:?} in place, too");
}

/// Scenario 86: without any one of these clauses the promise that it keeps is broken. The named seed found it last;
/// when the machines have changed, another seed does, and a search in release finds it: `cargo xtask sim ddata --seeds
/// 20000 --without <clause>`.
#[test]
fn scenario_86_every_omission_is_noticed() {
    let decisions = "no two decisions are announced (sharding §2.15)";
    let in_order = "no later update of an origin without its earlier ones (ddata C5)";
    let held = "acknowledged at a level means held by as many (ddata C2)";
    let once = "no entry is performed twice for one replica (ddata Z4, O6)";
    for (omission, profile, seed, promise, what) in [
        (Omission::FenceRead, Some("fence"), 29, decisions, "a home of its own for one shard"),
        (Omission::BucketReRead, Some("fence"), 3, decisions, "a home of its own for one shard"),
        (Omission::Marker, Some("pruning"), 1, EXPLAINED, "counts one twice"),
        (Omission::RemovalContext, None, 0, EXPLAINED, "not Shown"),
        (Omission::Gap, None, 0, in_order, "has seen"),
        (Omission::DurableFlush, None, 1, held, "was told"),
        (Omission::DeltaMarkers, None, 141, EXPLAINED, "counts one twice"),
        (Omission::Collection, Some("pruning"), 64, once, "entries again by one owner"),
        (Omission::StartFloor, None, 54, EXPLAINED, "not Shown"),
        (Omission::ClaimStart, None, 117, EXPLAINED, "not Shown"),
        (Omission::ForgetUnreachable, Some("pruning"), 94, EXPLAINED, "counts one twice"),
        (Omission::Reserved, Some("pruning"), 3871, EXPLAINED, "not Shown"),
        (Omission::Birth, None, 0, GROWS, "had seen"),
        (Omission::Birth, Some("births"), 2, GROWS, "had seen"),
        (Omission::MovedTo, Some("births"), 3, EXPLAINED, "counts one twice"),
    ] {
        is_noticed(profile, omission, std::iter::once(seed).chain(0..400), (promise, what));
    }
}

/// Scenario 86, for the clauses that judge stores.
#[test]
fn scenario_86_every_omission_of_the_gate_is_noticed() {
    let equal = "all replicas are equal after healing (ddata C1)";
    for (omission, promise, what) in [
        (Omission::StaleStore, EXPLAINED, "not Shown"),
        (Omission::OpenJudge, ACCEPTED, "StoreTooOld"),
        (Omission::AnyJudge, ACCEPTED, "StoreTooOld"),
        (Omission::EveryStart, equal, "never caught up"),
        (Omission::Horizon, ACCEPTED, "StoreTooOld"),
    ] {
        is_noticed(Some("gate"), omission, 0..60, (promise, what));
    }
}
