//! Delivery's machines under faults, by the worlds of `greylag-delivery`'s own tests.
//!
//! Each seed runs three: a sharding producer that runs over its input again, one that keeps its messages in a queue whose store
//! fails, both with entities that persist, and a producer with one consumer at a time.

use crate::{Omission, Outcome, Violation};

#[path = "../../crates/greylag-delivery/tests/simulation/durable.rs"]
mod durable;
#[path = "../../crates/greylag-delivery/tests/simulation/point_to_point.rs"]
mod point_to_point;
#[path = "../../crates/greylag-delivery/tests/simulation/sharding.rs"]
#[allow(dead_code, reason = "the crate's own tests use the rest")]
mod sharding;
#[path = "../../crates/greylag-delivery/tests/simulation/store.rs"]
mod store;
#[path = "../../crates/greylag-delivery/tests/simulation/world.rs"]
mod world;

pub(crate) fn run(seed: u64, without: Option<Omission>) -> Result<Outcome, Violation> {
    let sabotage = match without {
        Some(Omission::DeliveryPosition) => sharding::Sabotage::Marks,
        _ => sharding::Sabotage::None,
    };
    let broken = |promise| move |what| Violation { promise, what };
    let tally = sharding::run(seed, sabotage).map_err(broken("every message is applied exactly once, in order"))?;
    let kept = sharding::run_durable(seed, sabotage);
    let kept =
        kept.map_err(broken("what is stored is applied exactly once, in order, and senders are told the truth"))?;
    point_to_point::run(seed).map_err(broken("every message arrives in order, twice only where a process died"))?;
    let (steps, faults) = (tally.events + kept.events, tally.deaths + kept.deaths);
    Ok(Outcome { steps, faults, checked: tally.applied + kept.applied, ..Outcome::default() })
}
