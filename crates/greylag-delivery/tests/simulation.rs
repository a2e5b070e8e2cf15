//! Random faults against the real machines, with a virtual clock and a printed seed.
//!
//! `GREYLAG_SEEDS=10000` runs that many seeds per profile in place of 200, `GREYLAG_SEED=7` runs one.
//! Source: delivery §11, "Fuzz": invariants I1 to I12. Negative controls: delivery 82.

mod simulation {
    pub(crate) mod content;
    pub(crate) mod draws;
    pub(crate) mod durable;
    pub(crate) mod gaps;
    pub(crate) mod link;
    pub(crate) mod omission;
    pub(crate) mod point_to_point;
    pub(crate) mod senders;
    pub(crate) mod sharding;
    pub(crate) mod store;
    pub(crate) mod work_pulling;
    pub(crate) mod world;
}

use greylag_delivery::Clause;
use simulation::omission::Without;
use simulation::{link, point_to_point, sharding, work_pulling};

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|text| text.parse().ok())
}

/// Runs the seeds; a failure names the seed that violated an invariant, and the command to run it again.
fn play(name: &str, run: impl Fn(u64) -> Result<(), String>) {
    let seeds = match number("GREYLAG_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("GREYLAG_SEEDS").unwrap_or(200),
    };
    for seed in seeds {
        if let Err(violation) = run(seed) {
            panic!(
                "seed {seed}: {violation}\nreplay: GREYLAG_SEED={seed} cargo test -p greylag-delivery --test simulation {name}"
            );
        }
    }
}

/// Every message is applied exactly once and in order, whichever parts die.
#[test]
fn sharding_applies_every_message_exactly_once() {
    play("sharding_applies", |seed| sharding::run(seed, Without::NOTHING).map(drop));
}

/// delivery K7: entities get messages without bytes, and such messages are left out when an entity moves.
#[test]
fn messages_without_bytes_are_handed_over_and_left_behind() {
    let runs = (0..50).map(|seed| sharding::run(seed, Without::NOTHING).expect("no promise is broken"));
    let (handed_over, left_behind) =
        runs.fold((0, 0), |(sum, left), counters| (sum + counters.handed_over, left + counters.left_behind));
    assert!(handed_over > 500 && left_behind > 10, "{handed_over} handed over, {left_behind} batches left some behind");
}

/// Messages stored by a durable producer are applied exactly once and in order, whichever parts die, and however the
/// store fails.
#[test]
fn a_durable_producer_delivers_what_it_stored_and_nothing_else() {
    play("a_durable", |seed| sharding::run_durable(seed, Without::NOTHING).map(drop));
}

/// Every message arrives in order; twice only if a process died.
#[test]
fn a_link_delivers_every_message_in_order() {
    play("a_link", |seed| link::run(seed, Without::NOTHING));
}

/// Every accepted message is processed, in order and once, under any replacement of producers and consumers, and
/// senders get true answers.
#[test]
fn point_to_point_keeps_its_promises() {
    play("point_to_point", |seed| point_to_point::run(seed, Without::NOTHING));
}

/// With flow control only, frames that arrive are delivered in order and once, and the link goes on.
#[test]
fn a_link_that_only_controls_the_flow_goes_on() {
    play("only_controls", |seed| link::run_flow_control_only(seed, Without::NOTHING));
}

/// Every message is processed by some worker, whichever parts die, and each ask is answered once.
#[test]
fn work_pulling_has_every_message_processed() {
    play("work_pulling", |seed| work_pulling::run(seed, Without::NOTHING));
}

/// delivery 82: with a clause omitted, some seed violates an invariant. `--nocapture` shows which one.
fn detected(name: &str, run: impl Fn(u64) -> Result<(), String>) {
    let found = (0..2000).find_map(|seed| run(seed).err().map(|violation| (seed, violation)));
    let Some((seed, violation)) = found else { panic!("no seed misses {name}") };
    let said = format!("without {name}: seed {seed}: {violation}\n");
    std::io::Write::write_all(&mut std::io::stdout(), said.as_bytes()).expect("a terminal");
}

#[test]
fn missing_repeats_are_detected() {
    detected("P8 and P9", |seed| link::run(seed, Without::clauses(&[Clause::Repeats])));
}

#[test]
fn missing_repeats_and_resend_requests_are_detected() {
    detected("P8, P9 and Resend", |seed| link::run(seed, Without::clauses(&[Clause::Repeats, Clause::Resend])));
}

/// The link recovers all the same, by P9 and C10; only the delay of each lost frame reveals the omission.
#[test]
fn missing_resend_requests_are_detected() {
    detected("Resend", |seed| {
        let found = link::run(seed, Without::clauses(&[Clause::Resend]));
        found.map_err(|violation| if violation.starts_with("I7: frame") { violation } else { panic!("{violation}") })
    });
}

#[test]
fn missing_dedupe_is_detected() {
    detected("C8", |seed| link::run(seed, Without::clauses(&[Clause::Dedupe])));
}

#[test]
fn forgotten_marks_are_detected() {
    detected("marks", |seed| sharding::run(seed, Without::clauses(&[Clause::Marks])).map(drop));
}

#[test]
fn unchecked_claims_are_detected() {
    detected("claims", |seed| sharding::run_durable(seed, Without { claims: true, ..Without::NOTHING }).map(drop));
}

#[test]
fn missing_answers_to_fenced_producers_are_detected() {
    detected("C2a's answer", |seed| sharding::run(seed, Without::clauses(&[Clause::FencedAnswer])).map(drop));
}

#[test]
fn missing_return_of_jobs_is_detected() {
    detected("W5", |seed| work_pulling::run(seed, Without::clauses(&[Clause::HandBack])));
}

#[test]
fn confirmations_up_to_a_number_are_detected() {
    detected("W8", |seed| work_pulling::run(seed, Without::clauses(&[Clause::ExactConfirmations])));
}

#[test]
fn window_granted_at_exactly_half_is_detected() {
    detected("C9", |seed| link::run(seed, Without::clauses(&[Clause::HalfWindow])));
}

/// The same seed gives the same run, message by message.
#[test]
fn runs_are_reproducible() {
    assert_eq!(sharding::trace(3), sharding::trace(3));
}
