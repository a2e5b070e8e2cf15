//! Tests of the resolver's strategies: a table of cases, every small view, and random partitions.
//!
//! The long forms are `cargo bench -p greylag-cluster --bench resolver`.

mod exhaustive;
mod random;
mod sides;
mod table;

use exhaustive::Count;
use random::Views;

/// cluster S6, S7, S8, G1. All views of three members, and every 773rd of five; all of five by
/// `cargo bench -p greylag-cluster --bench resolver`.
#[test]
fn scenario_69_two_sides_with_views_one_step_apart_never_both_survive() {
    for (members, stride) in [(2, 1), (3, 1), (5, 773)] {
        let strategies = exhaustive::strategies(members);
        let mut counts = vec![Count::default(); strategies.len()];
        for code in (0..exhaustive::views(members)).step_by(stride) {
            exhaustive::check(members, code, &strategies, &mut counts).unwrap();
        }
        for (strategy, count) in strategies.iter().zip(&counts) {
            assert!(count.pairs > 100 && count.none < count.pairs, "{strategy}: {count:?}");
        }
    }
}

/// cluster S6 to S10, G1. 30,000 by `cargo bench -p greylag-cluster --bench resolver`.
#[test]
fn random_partitions_leave_at_most_one_side() {
    for views in [Views::Same, Views::OneStepApart, Views::StaleRecords] {
        for (name, count) in random::count(0..300, views) {
            assert_eq!(count.several, 0, "{name}, {views:?}: {count:?}");
            assert!(count.one > 0, "{name}: {count:?}");
        }
    }
}
