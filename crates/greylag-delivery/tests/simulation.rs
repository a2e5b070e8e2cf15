//! Random faults against the real machines, with a virtual clock and a printed seed.
//!
//! `GREYLAG_SEEDS=10000` runs that many seeds per profile in place of 200, `GREYLAG_SEED=7` runs one.
//! Source: delivery §11, "Fuzz": invariants I1 to I5, I7 to I11.

mod simulation {
    pub(crate) mod durable;
    pub(crate) mod point_to_point;
    pub(crate) mod sharding;
    pub(crate) mod store;
    pub(crate) mod work_pulling;
    pub(crate) mod world;
}

use simulation::{point_to_point, sharding, work_pulling};

fn seeds() -> Vec<u64> {
    let number = |name| std::env::var(name).ok().and_then(|text: String| text.parse().ok());
    match number("GREYLAG_SEED") {
        Some(seed) => vec![seed],
        None => (0..number("GREYLAG_SEEDS").unwrap_or(200)).collect(),
    }
}

/// Every message is applied exactly once and in order, whatever dies.
#[test]
fn sharding_applies_every_message_exactly_once() {
    for seed in seeds() {
        if let Err(violation) = sharding::run(seed, sharding::Sabotage::None) {
            panic!(
                "seed {seed}: {violation}\nreplay: GREYLAG_SEED={seed} cargo test -p greylag-delivery --test simulation sharding_applies"
            );
        }
    }
}

/// What a durable producer stored is applied exactly once and in order, whatever dies, and however its store fails.
#[test]
fn a_durable_producer_delivers_what_it_stored_and_nothing_else() {
    for seed in seeds() {
        if let Err(violation) = sharding::run_durable(seed, sharding::Sabotage::None) {
            panic!(
                "seed {seed}: {violation}\nreplay: GREYLAG_SEED={seed} cargo test -p greylag-delivery --test simulation a_durable"
            );
        }
    }
}

/// Every message arrives in order; twice only where a process died.
#[test]
fn point_to_point_delivers_every_message_in_order() {
    for seed in seeds() {
        if let Err(violation) = point_to_point::run(seed) {
            panic!(
                "seed {seed}: {violation}\nreplay: GREYLAG_SEED={seed} cargo test -p greylag-delivery --test simulation point_to_point"
            );
        }
    }
}

/// Every message is processed by some worker, whatever dies, and each ask is answered once.
#[test]
fn work_pulling_has_every_message_processed() {
    for seed in seeds() {
        if let Err(violation) = work_pulling::run(seed) {
            panic!(
                "seed {seed}: {violation}\nreplay: GREYLAG_SEED={seed} cargo test -p greylag-delivery --test simulation work_pulling"
            );
        }
    }
}

/// Without the stored positions the checker must find a message applied twice.
#[test]
fn forgetting_the_marks_is_noticed() {
    let caught = seeds().into_iter().filter(|seed| sharding::run(*seed, sharding::Sabotage::Marks).is_err()).count();
    assert!(caught > 0, "no seed noticed that the marks are gone");
}

/// The same seed gives the same run, message by message.
#[test]
fn runs_are_reproducible() {
    assert_eq!(sharding::trace(3), sharding::trace(3));
}
