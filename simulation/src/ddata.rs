//! Replicators under faults, with a model that knows neither dots nor deltas.
//!
//! Every ledger lists the operations that it has seen, so at every moment, on every replica, the model says which value
//! the replica must show ([`ledger`]). Checked after every step: every value shown is explained by operations, nothing
//! seen is lost, no update of an origin shows without its earlier ones (ddata L7, Z8, C3, C5). Checked at every
//! acknowledgement: as many replicas hold the update as were promised (C2). Checked once faults have stopped: all
//! replicas are equal, byte by byte, name no replica that is gone, and serve (C1, Z8).
//!
//! Source: ddata O6, scenario 86.

mod acts;
mod catch_up;
mod checks;
mod disks;
mod faults;
mod fence;
mod gate;
mod ledger;
mod membership;
mod pruning;
mod world;

use greylag_ddata::Clause;

use crate::{Omission, Outcome, Run, Violation, World, guarded};

/// The profiles, each with the omissions that it finds within a few seeds, so that tests need not search.
pub(crate) fn worlds() -> Vec<World> {
    let of = |profile: Option<&'static str>, about, omissions| World {
        name: "ddata",
        profile,
        about,
        omissions,
        run: Run::Planned {
            run: Box::new(move |seed, without| run_of(profile, seed, without)),
            explain: Box::new(move |seed, without| story_of(profile, seed, without)),
        },
    };
    vec![
        of(
            None,
            "replicators: what is shown is what was done, acknowledged means held, all equal in the end",
            &[
                Omission::Marker,
                Omission::RemovalContext,
                Omission::Gap,
                Omission::DurableFlush,
                Omission::DeltaMarkers,
                Omission::StartFloor,
                Omission::ClaimStart,
                Omission::Birth,
            ],
        ),
        of(
            Some("pruning"),
            "removed replicas: owners die, stores return, members vanish, others join, two believe that they lead",
            &[
                Omission::Marker,
                Omission::DeltaMarkers,
                Omission::Collection,
                Omission::ForgetUnreachable,
                Omission::StartFloor,
                Omission::Reserved,
            ],
        ),
        of(
            Some("births"),
            "counters that expire here and there and are created again, while removed replicas are pruned",
            &[Omission::Birth, Omission::MovedTo],
        ),
        of(
            Some("fence"),
            "coordinators of sharding over replicators: no two decisions are announced (sharding §2.15)",
            &[Omission::FenceRead, Omission::BucketReRead],
        ),
        of(
            Some("gate"),
            "stores of different ages after a full stop: what was forgotten stays so, and no gate stays closed",
            &[Omission::StaleStore, Omission::OpenJudge, Omission::AnyJudge, Omission::EveryStart, Omission::Horizon],
        ),
        of(Some("catch-up"), "a new replica says that it has caught up: it holds everything", &[]),
    ]
}

/// Plays one history of a profile; answers its outcome.
pub(crate) fn run_of(
    profile: Option<&'static str>,
    seed: u64,
    without: Option<Omission>,
) -> Result<Outcome, Violation> {
    guarded("no replicator panics", || judge(history(profile, seed, without, false)))
}

/// The story of a history, line by line.
pub(crate) fn story_of(profile: Option<&'static str>, seed: u64, without: Option<Omission>) -> String {
    history(profile, seed, without, true).story.unwrap_or_default().join("\n")
}

fn history(profile: Option<&str>, seed: u64, without: Option<Omission>, story: bool) -> world::World {
    let clause = without.and_then(clause);
    match profile {
        Some("pruning") => pruning::history(seed, clause, story),
        Some("births") => pruning::births(seed, clause, story),
        Some("gate") => gate::history(seed, clause, story),
        Some("catch-up") => catch_up::history(seed),
        Some("fence") => fence::history(seed, without),
        _ => faults::history(seed, clause, story),
    }
}

fn judge(world: world::World) -> Result<Outcome, Violation> {
    if let Some(violation) = world.broken {
        return Err(violation);
    }
    Ok(Outcome {
        steps: world.steps,
        faults: world.faults,
        checked: world.acknowledged,
        performed: world.performed(),
        ..Outcome::default()
    })
}

fn clause(omission: Omission) -> Option<Clause> {
    Some(match omission {
        Omission::Marker => Clause::Marker,
        Omission::RemovalContext => Clause::RemovalContext,
        Omission::Gap => Clause::Gap,
        Omission::DurableFlush => Clause::Flush,
        Omission::DeltaMarkers => Clause::DeltaMarkers,
        Omission::Collection => Clause::Collection,
        Omission::Shown => Clause::Shown,
        Omission::Afresh => Clause::Afresh,
        Omission::StaleStore => Clause::StaleStore,
        Omission::ForgetUnreachable => Clause::Unreachable,
        Omission::StartFloor => Clause::StartFloor,
        Omission::ClaimStart => Clause::ClaimStart,
        Omission::Reserved => Clause::Reserved,
        Omission::Birth => Clause::Birth,
        Omission::MovedTo => Clause::MovedTo,
        Omission::OpenJudge => Clause::OpenJudge,
        Omission::AnyJudge => Clause::AnyJudge,
        Omission::EveryStart => Clause::EveryStart,
        Omission::Horizon => Clause::Horizon,
        _ => return None,
    })
}
