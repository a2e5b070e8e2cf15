//! Regions and coordinators under faults, by the world of `greylag-sharding`'s own tests.

use greylag_sharding::{coordinator, region};

use crate::{Omission, Outcome, Violation};

#[path = "../../crates/greylag-sharding/tests/simulation/letters.rs"]
mod letters;
#[path = "../../crates/greylag-sharding/tests/simulation/world.rs"]
#[allow(dead_code, reason = "the crate's own tests use the rest")]
pub(crate) mod world;

use world::{Faults, Sabotage, World};

pub(crate) fn run(seed: u64, without: Option<Omission>) -> Result<Outcome, Violation> {
    let sabotage = match without {
        Some(Omission::FlushMark) => Sabotage { region: Some(region::Sabotage::FlushMark), ..Sabotage::default() },
        Some(Omission::GenerationCheck) => Sabotage {
            region: Some(region::Sabotage::GenerationCheck),
            coordinator: Some(coordinator::Sabotage::GenerationCheck),
            ..Sabotage::default()
        },
        _ => Sabotage::default(),
    };
    let tally =
        World::new(seed, Faults::of(seed), sabotage).run(world::SAFETY, world::PATIENCE).map_err(|what| Violation {
            promise: "no shard lives twice, no sender's order is swapped, everything answers after healing",
            what: what.trim().to_owned(),
        })?;
    Ok(Outcome { steps: tally.steps, faults: tally.faults, checked: tally.handled, ..Outcome::default() })
}
