//! Replicators under faults, by the world of `greylag-ddata`'s own tests.

use crate::{Omission, Outcome, Violation, guarded};

#[path = "../../crates/greylag-ddata/tests/simulation/world.rs"]
#[allow(dead_code, reason = "the crate's own tests use the rest")]
mod world;

pub(crate) fn run(seed: u64, _without: Option<Omission>) -> Result<Outcome, Violation> {
    guarded("replicas agree, and keep what was acknowledged", || {
        let mut world = world::World::run(seed);
        world.check_healed();
        world.check_serves();
        Ok(Outcome {
            steps: world.steps as u64,
            faults: world.faults as u64,
            checked: world.acknowledged as u64,
            ..Outcome::default()
        })
    })
}
