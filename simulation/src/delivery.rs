//! Delivery's machines under faults, by the worlds of `greylag-delivery`'s own tests.
//!
//! Each seed runs all worlds: a sharding producer that runs over its input again, and one that keeps its messages in a
//! queue whose store fails, both with persistent entities; the two ends of a link, with repeats and with flow control
//! alone; controllers point to point, with senders and a queue; and a producer of work with workers that come and go.

use greylag_delivery::Clause;

use crate::{Omission, Outcome, Violation};

#[path = "../../crates/greylag-delivery/tests/simulation/content.rs"]
mod content;
#[path = "../../crates/greylag-delivery/tests/simulation/draws.rs"]
mod draws;
#[path = "../../crates/greylag-delivery/tests/simulation/durable.rs"]
mod durable;
#[path = "../../crates/greylag-delivery/tests/simulation/gaps.rs"]
mod gaps;
#[path = "../../crates/greylag-delivery/tests/simulation/link.rs"]
mod link;
#[path = "../../crates/greylag-delivery/tests/simulation/omission.rs"]
mod omission;
#[path = "../../crates/greylag-delivery/tests/simulation/point_to_point.rs"]
mod point_to_point;
#[path = "../../crates/greylag-delivery/tests/simulation/senders.rs"]
mod senders;
#[path = "../../crates/greylag-delivery/tests/simulation/sharding.rs"]
#[allow(dead_code, reason = "the crate's own tests use the rest")]
mod sharding;
#[path = "../../crates/greylag-delivery/tests/simulation/store.rs"]
mod store;
#[path = "../../crates/greylag-delivery/tests/simulation/work_pulling.rs"]
mod work_pulling;
#[path = "../../crates/greylag-delivery/tests/simulation/world.rs"]
mod world;

use omission::Without;

/// The omissions of delivery scenario 82.
pub(crate) const OMISSIONS: &[Omission] = &[
    Omission::Repeats,
    Omission::RepeatsAndResend,
    Omission::Resend,
    Omission::Dedupe,
    Omission::DeliveryPosition,
    Omission::QueueClaims,
    Omission::FencedAnswer,
    Omission::HandBack,
    Omission::ExactConfirmations,
    Omission::HalfWindow,
];

fn without(omission: Option<Omission>) -> Without {
    let clauses: &[Clause] = match omission {
        Some(Omission::Repeats) => &[Clause::Repeats],
        Some(Omission::RepeatsAndResend) => &[Clause::Repeats, Clause::Resend],
        Some(Omission::Resend) => &[Clause::Resend],
        Some(Omission::Dedupe) => &[Clause::Dedupe],
        Some(Omission::DeliveryPosition) => &[Clause::Marks],
        Some(Omission::FencedAnswer) => &[Clause::FencedAnswer],
        Some(Omission::HandBack) => &[Clause::HandBack],
        Some(Omission::ExactConfirmations) => &[Clause::ExactConfirmations],
        Some(Omission::HalfWindow) => &[Clause::HalfWindow],
        other => return Without { claims: other == Some(Omission::QueueClaims), ..Without::NOTHING },
    };
    Without::clauses(clauses)
}

pub(crate) fn run(seed: u64, omission: Option<Omission>) -> Result<Outcome, Violation> {
    let without = without(omission);
    let broken = |promise| move |what| Violation { promise, what };
    let tally = sharding::run(seed, without).map_err(broken("every message is applied exactly once, in order"))?;
    let kept = sharding::run_durable(seed, without);
    let kept =
        kept.map_err(broken("what is stored is applied exactly once, in order, and senders are told the truth"))?;
    link::run(seed, without).map_err(broken("every message arrives in order, twice only where a process died"))?;
    let arrives = "what arrives where only the flow is controlled is in order, and the link goes on";
    link::run_flow_control_only(seed, without).map_err(broken(arrives))?;
    let told = "what was accepted is processed in order, and senders are told the truth";
    point_to_point::run(seed, without).map_err(broken(told))?;
    work_pulling::run(seed, without).map_err(broken("every message is processed, and senders are told the truth"))?;
    let (steps, faults) = (tally.events + kept.events, tally.deaths + kept.deaths);
    Ok(Outcome { steps, faults, checked: tally.applied + kept.applied, ..Outcome::default() })
}
