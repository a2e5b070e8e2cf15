//! Whole clusters under faults, by named profiles.
//!
//! A profile draws a plan from the seed: the cluster's size, its links and clocks, and a list of timed faults, which is
//! data. The world plays it over the real machines: membership, heartbeats, resolver, proofs, singleton manager, and
//! one association per peer. Invariants are checked at every step, and once the faults have stopped the world waits
//! until the members agree. A plan that breaks a promise is replayed with fewer and fewer faults until none can be left
//! out.

mod checks;
mod leases;
mod plan;
mod profiles;
mod streams;
mod walks;
mod world;

use greylag_cluster::{Clause, ShutdownReason, Strategy};

use crate::{Omission, Outcome, Run, Violation, World, guarded};
use plan::Plan;
use profiles::{PROFILES, Profile};

/// A world for each profile, and a world of gossip states alone.
pub(crate) fn worlds() -> Vec<World> {
    let of = |profile: &'static Profile| World {
        name: "cluster",
        profile: Some(profile.name),
        about: profile.about,
        omissions: omissions_found_by(profile.name),
        run: Run::Planned {
            run: Box::new(|seed, without| run(&profile.plan(seed), without)),
            explain: Box::new(|seed, without| explain(profile, seed, without)),
        },
    };
    let mut worlds: Vec<World> = PROFILES.iter().map(of).collect();
    worlds.push(World {
        name: "walks",
        profile: None,
        about: "gossip states in any order of joins, leaves, downs, removals and merges (cluster scenario 67)",
        omissions: &[],
        run: Run::Plain(walks::run),
    });
    worlds
}

/// The omissions that a profile finds within a few seeds, so that the tests need not search.
fn omissions_found_by(profile: &str) -> &'static [Omission] {
    match profile {
        "clean-cut" => &[Omission::StableAfter, Omission::Margin, Omission::TimeoutIsRefusal],
        "leave-then-cut" => &[Omission::Recheck],
        "several-leaves" => &[Omission::Clearance],
        "moved-name" => &[Omission::MovedName],
        "all-mixed" => &[Omission::Tombstones, Omission::Convergence],
        _ => &[],
    }
}

fn clause(omission: Omission) -> Option<Clause> {
    Some(match omission {
        Omission::Tombstones => Clause::Tombstones,
        Omission::Convergence => Clause::Convergence,
        Omission::StableAfter => Clause::StableAfter,
        Omission::Margin => Clause::Margin,
        Omission::Clearance => Clause::Clearance,
        Omission::Recheck => Clause::Recheck,
        Omission::TimeoutIsRefusal => Clause::TimeoutIsRefusal,
        Omission::MovedName => Clause::MovedName,
        _ => return None,
    })
}

fn run(plan: &Plan, without: Option<Omission>) -> Result<Outcome, Violation> {
    guarded("no machine panics", || {
        let mut world = world::World::new(plan.clone(), without.and_then(clause));
        world.run()?;
        judge(&world)
    })
}

/// The outcome of a run that broke no promise on its way.
fn judge(world: &world::World) -> Result<Outcome, Violation> {
    let plan = &world.plan;
    let touched = plan.touched();
    let downed = |process: &&world::Process| {
        matches!(process.ended, Some(ShutdownReason::Downed | ShutdownReason::LeaveIsolated))
    };
    let healthy = world.processes.iter().filter(downed).filter(|process| !touched[process.place]);
    let healthy: Vec<String> = healthy.map(|process| process.address.to_string()).collect();
    let lost = world.is_lost() && world.processes.iter().any(|process| downed(&process));
    if plan.promises.cluster_stays && lost {
        return world.broken("the cluster survives (cluster S6, S11)", "all members were downed".to_owned());
    }
    if plan.promises.healthy_stay && !healthy.is_empty() {
        let what = format!("{healthy:?} were downed, and no fault touched them");
        return world.broken("healthy members stay (cluster S11, S13)", what);
    }
    // Under `DownAll` the operator chose to down healthy members and to lose the cluster.
    let counts = plan.strategy != Strategy::DownAll;
    Ok(Outcome {
        steps: world.steps,
        faults: world.faults,
        checked: world.living().count() as u64,
        healthy_downed: if counts { healthy.len() as u64 } else { 0 },
        lost: u64::from(lost && counts),
        excused: u64::from(world.checks.overlapped) + world.checks.conflicts,
        ..Outcome::default()
    })
}

/// The plan of a seed that broke a promise, and its smallest part that still does.
fn explain(profile: &Profile, seed: u64, without: Option<Omission>) -> String {
    let plan = profile.plan(seed);
    let Err(violation) = run(&plan, without) else { return format!("{plan}\nbreaks nothing") };
    let kept = least(plan.faults.len(), |kept| {
        run(&plan.with_faults(kept), without).is_err_and(|other| other.promise == violation.promise)
    });
    let least = plan.with_faults(&kept);
    let mut world = world::World::new(least.clone(), without.and_then(clause)).traced();
    let what = world.run().and_then(|()| judge(&world)).err().map(|violation| violation.to_string());
    let (what, story) = (what.unwrap_or_default(), world.story());
    format!("{plan}\nthe least plan that breaks the same promise:\n{least}\nwhat happened:\n{story}{what}")
}

/// The smallest part of `count` things, by their numbers, that is still `bad`: halves are dropped first, then smaller
/// pieces, until no single thing can be dropped.
fn least(count: usize, bad: impl Fn(&[usize]) -> bool) -> Vec<usize> {
    let mut kept: Vec<usize> = (0..count).collect();
    let mut piece = count.div_ceil(2).max(1);
    loop {
        let mut start = 0;
        let before = kept.len();
        while start < kept.len() {
            let end = (start + piece).min(kept.len());
            let rest: Vec<usize> = [&kept[..start], &kept[end..]].concat();
            if bad(&rest) {
                kept = rest;
            } else {
                start = end;
            }
        }
        if piece > 1 {
            piece = piece.div_ceil(2);
        } else if kept.len() == before {
            return kept;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::plan::{Fault, LeaseUse, Link, Promises, Timed};
    use super::*;

    #[test]
    fn the_least_plan_keeps_only_the_needed_faults() {
        let needed = [3, 11, 12];
        let found = least(20, |kept| needed.iter().all(|index| kept.contains(index)));
        assert_eq!(found, needed);
        assert_eq!(least(4, |_| true), Vec::<usize>::new());
    }

    fn plan(places: usize, faults: Vec<(u64, Fault)>, quiet_ms: u64) -> Plan {
        let timed = |(ms, fault)| Timed { at: Duration::from_millis(ms), fault };
        Plan {
            seed: 1,
            places,
            strategy: Strategy::KeepMajority { role: None },
            resolver: true,
            margin: None,
            leases: LeaseUse::default(),
            provable: false,
            stop_delay: Duration::from_millis(200),
            link: Link::GOOD,
            clock_ppm: vec![0; places],
            faults: faults.into_iter().map(timed).collect(),
            quiet_at: Duration::from_millis(quiet_ms),
            promises: Promises { healthy_stay: true, cluster_stays: true, excuse: None },
        }
    }

    /// Cluster F9, G1, scenario 64: a singleton's host, alone on the losing side, is paused before its decision. It is
    /// suspect when it wakes, since it exchanged gossip with no other node for long; the verdict against itself is
    /// carried out all the same, before the winner's margin is over.
    #[test]
    fn scenario_64_a_paused_lone_host_downs_itself_before_the_margin_ends() {
        for second in 16..24 {
            let pause = Fault::Pause { place: 0, time: Duration::from_secs(10) };
            let plan = plan(3, vec![(0, Fault::Cut(vec![0])), (second * 1_000, pause)], 90_000);
            assert_eq!(run(&plan, None).err(), None, "paused at {second} s");
        }
    }

    /// Scenario 76: under `none` a member that is cut off runs its instance for as long as it lives. If a moved name
    /// downs the old member at once, a second instance runs beside the first, whatever the margin; if not, the instance
    /// starts elsewhere only after its host is gone, an operator has downed it, and the margin has passed.
    #[test]
    fn scenario_76_down_at_once_makes_two_instances_whatever_the_margin() {
        for seconds in [20, 60, 120] {
            let ended = (seconds + 60) * 1_000;
            let faults = vec![
                (0, Fault::Cut(vec![0])),
                (2_000, Fault::Move { place: 0, beside: 1, told: true }),
                (ended, Fault::EndOld(0)),
                (ended + 5_000, Fault::DownOld(0)),
            ];
            let margin = Some(Duration::from_secs(seconds));
            let promises = Promises { cluster_stays: true, ..Promises::default() };
            let plan = Plan { resolver: false, margin, promises, ..plan(3, faults, ended + 6_000) };
            assert_eq!(run(&plan, None).err(), None, "{seconds} s");
            let broken = run(&plan, Some(Omission::MovedName)).expect_err("the old process runs on");
            assert!(broken.promise.contains("two singletons"), "{seconds} s: {broken}");
        }
    }

    /// Cluster M15, S13, scenario 66: a node that misses all responses downs itself and says so: the other nodes need
    /// not detect it, and none of them is downed with it.
    #[test]
    fn scenario_66_a_node_that_finds_all_others_unreachable_says_that_it_is_down() {
        for sick in 0..5 {
            let deaf = (0..5).filter(|to| *to != sick).map(|to| (200, Fault::Deaf { place: sick, to })).collect();
            let outcome = run(&plan(5, deaf, 60_000), None);
            assert_eq!(outcome.map(|outcome| outcome.checked), Ok(4), "sick: {sick}");
        }
    }

    /// C6: one seed gives the same run, to the last step.
    #[test]
    fn one_seed_is_one_plan_and_one_history() {
        for profile in &PROFILES {
            let plan = profile.plan(5);
            assert_eq!(plan, profile.plan(5));
            assert!(!plan.faults.is_empty(), "{} has faults", profile.name);
            assert_eq!(run(&plan, None), run(&plan, None), "{}", profile.name);
        }
    }
}
