//! Regions and coordinators under faults, by the world of `greylag-sharding`'s own tests.

use greylag_sharding::{coordinator, region};

use crate::{Omission, Outcome, Violation};

#[path = "../../crates/greylag-sharding/tests/simulation/letters.rs"]
mod letters;
#[path = "../../crates/greylag-sharding/tests/simulation/world.rs"]
#[allow(dead_code, reason = "the crate's own tests use the rest")]
pub(crate) mod world;

use world::{Faults, Sabotage, World};

/// The clauses of sharding scenario 96.
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
    use coordinator::Sabotage as OfCoordinator;
    use region::Sabotage as OfRegion;
    let none = Sabotage::default();
    let region = |sabotage| Sabotage { region: Some(sabotage), ..none };
    let coordinator = |sabotage| Sabotage { coordinator: Some(sabotage), ..none };
    match without {
        Some(Omission::FlushMark) => region(OfRegion::FlushMark),
        Some(Omission::Attempt) => region(OfRegion::Attempt),
        Some(Omission::LeftoverMark) => region(OfRegion::LeftoverMark),
        Some(Omission::Floor) => region(OfRegion::Floor),
        Some(Omission::OldPath) => region(OfRegion::OldPath),
        Some(Omission::EpochFence) => {
            Sabotage { unfenced: true, coordinator: Some(OfCoordinator::EpochFence), ..region(OfRegion::EpochFence) }
        }
        Some(Omission::RegionIncarnation) => Sabotage { incarnation: true, ..none },
        Some(Omission::Margin) => coordinator(OfCoordinator::Margin),
        Some(Omission::Inventory) => coordinator(OfCoordinator::Inventory),
        Some(Omission::GenerationCheck) => {
            Sabotage { coordinator: Some(OfCoordinator::GenerationCheck), ..region(OfRegion::GenerationCheck) }
        }
        _ => none,
    }
}

pub(crate) fn run(seed: u64, without: Option<Omission>) -> Result<Outcome, Violation> {
    let tally =
        World::new(seed, Faults::of(seed), sabotage(without)).run(world::SAFETY, world::PATIENCE).map_err(|what| {
            Violation {
                promise: "no shard lives twice, no sender's order is swapped, everything answers after healing",
                what: what.trim().to_owned(),
            }
        })?;
    Ok(Outcome { steps: tally.steps, faults: tally.faults, checked: tally.handled, ..Outcome::default() })
}
