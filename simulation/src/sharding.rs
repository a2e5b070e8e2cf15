//! Regions and coordinators under faults, by the world of `greylag-sharding`'s own tests.

use greylag_sharding::Clause;

use crate::{Omission, Outcome, Run, Violation};

#[path = "../../crates/greylag-sharding/tests/simulation/letters.rs"]
mod letters;
#[path = "../../crates/greylag-sharding/tests/simulation/world.rs"]
#[allow(dead_code, reason = "the crate's own tests use the rest")]
pub(crate) mod world;

use letters::Letters;
use world::{Faults, Sabotage, World};

/// The omissions of sharding scenario 96.
pub(crate) const OMISSIONS: &[Omission] = &[
    Omission::FlushMark,
    Omission::Attempt,
    Omission::GenerationCheck,
    Omission::Margin,
    Omission::EpochFence,
    Omission::RegionIncarnation,
    Omission::LeftoverMark,
    Omission::Floor,
    Omission::OldPath,
    Omission::Inventory,
];

fn sabotage(without: Option<Omission>) -> Sabotage {
    let none = Sabotage::default();
    let clause = |clause| Sabotage { clause: Some(clause), ..none };
    match without {
        Some(Omission::FlushMark) => clause(Clause::FlushMark),
        Some(Omission::Attempt) => clause(Clause::Attempt),
        Some(Omission::LeftoverMark) => clause(Clause::LeftoverMark),
        Some(Omission::Floor) => clause(Clause::Floor),
        Some(Omission::OldPath) => clause(Clause::OldPath),
        Some(Omission::EpochFence) => Sabotage { unfenced: true, ..clause(Clause::EpochFence) },
        Some(Omission::RegionIncarnation) => Sabotage { incarnation: true, ..none },
        Some(Omission::Margin) => clause(Clause::Margin),
        Some(Omission::Inventory) => clause(Clause::Inventory),
        Some(Omission::GenerationCheck) => clause(Clause::GenerationCheck),
        _ => none,
    }
}

/// Draws the world of a profile.
type Draw = fn(seed: u64, sabotage: Sabotage) -> World<Letters>;

/// The plain world and its variants: name, description, how it is drawn.
const PROFILES: &[(Option<&str>, &str, Draw)] = &[
    (
        None,
        "regions and coordinators: no shard lives twice, no order swapped, all answers after healing",
        |seed, sabotage| World::new(seed, Faults::of(seed), sabotage),
    ),
    (Some("journal"), "the same, over state in a journal", |seed, sabotage| {
        World::new(seed, Faults::of(seed), sabotage).over_journal()
    }),
    (Some("many"), "the same with 3 to 50 shards, over both stores", |seed, sabotage| {
        over_both(seed, World::new(seed, Faults::of(seed), sabotage).with_shards(3..=50))
    }),
    (Some("moved"), "the same with names of nodes that move to other hosts, over both stores", |seed, sabotage| {
        over_both(seed, World::new(seed, Faults::MOVED, sabotage))
    }),
    (
        Some("remembered"),
        "the same with remembered entities and ends of the whole cluster, over both stores",
        |seed, sabotage| {
            // `remembering` comes last, since it depends on the store.
            over_both(seed, World::new(seed, Faults::with_full_stops(seed), sabotage)).remembering()
        },
    ),
    (Some("stopped"), "the same with users who stop shards, over both stores", |seed, sabotage| {
        over_both(seed, World::new(seed, Faults::with_stopped_shards(seed), sabotage))
    }),
];

/// Runs eight seeds without a journal, then eight with one, in turns, since the kinds of faults repeat every eight
/// seeds.
fn over_both(seed: u64, world: World<Letters>) -> World<Letters> {
    if (seed / 8).is_multiple_of(2) { world } else { world.over_journal() }
}

pub(crate) fn worlds() -> Vec<crate::World> {
    let world = |(profile, about, draw): &(Option<&'static str>, &'static str, Draw)| {
        let draw = *draw;
        crate::World {
            name: "sharding",
            profile: *profile,
            about,
            omissions: if profile.is_none() { OMISSIONS } else { &[] },
            run: Run::Drawn(Box::new(move |seed, without| run(draw(seed, sabotage(without))))),
        }
    };
    PROFILES.iter().map(world).collect()
}

fn run(mut world: World<Letters>) -> Result<Outcome, Violation> {
    let tally = world.run(world::SAFETY, world::PATIENCE).map_err(|what| Violation {
        promise: "no shard lives twice, no sender's order is swapped, everything answers after healing",
        what: what.trim().to_owned(),
    })?;
    Ok(Outcome { steps: tally.steps, faults: tally.faults, checked: tally.handled, ..Outcome::default() })
}
