//! Delivery's machines under faults, by the worlds of `greylag-delivery`'s own tests.
//!
//! Each seed runs both: a sharding producer with entities that persist, and a producer with one
//! consumer at a time.

use crate::{Omission, Outcome, Violation};

#[path = "../../crates/greylag-delivery/tests/simulation/point_to_point.rs"]
mod point_to_point;
#[path = "../../crates/greylag-delivery/tests/simulation/sharding.rs"]
#[allow(dead_code, reason = "the crate's own tests use the rest")]
mod sharding;
#[path = "../../crates/greylag-delivery/tests/simulation/world.rs"]
mod world;

pub(crate) fn run(seed: u64, without: Option<Omission>) -> Result<Outcome, Violation> {
    let sabotage = match without {
        Some(Omission::DeliveryPosition) => sharding::Sabotage::Marks,
        _ => sharding::Sabotage::None,
    };
    let broken = |promise| move |what| Violation { promise, what };
    let tally = sharding::run(seed, sabotage).map_err(broken("every message is applied exactly once, in order"))?;
    point_to_point::run(seed).map_err(broken("every message arrives in order, twice only where a process died"))?;
    Ok(Outcome { steps: tally.events, faults: tally.deaths, checked: tally.applied, ..Outcome::default() })
}
