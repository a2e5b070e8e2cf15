//! Persistent entities under faults, a few seeds; `cargo xtask sim persistence --seeds 10000` plays many.

use greylag_simulation::{Outcome, World, worlds};

fn world() -> World {
    worlds().into_iter().find(|world| world.name == "persistence").expect("the world is registered")
}

/// Scenarios persistence 61 to 67 and 69 in every mixture; rules persistence J3, J4, J10, §2.4, §2.5, §6.
#[test]
fn entities_keep_their_promises() {
    let (world, mut all) = (world(), Outcome::default());
    for seed in 0..30 {
        let outcome = world.check(seed, None).unwrap_or_else(|violation| panic!("seed {seed}: {violation}"));
        assert_eq!(Ok(outcome), world.check(seed, None), "seed {seed} is one history");
        all += outcome;
    }
    // A simulation without failures and comparisons proves nothing.
    assert!(all.checked > 2_000 && all.faults > 500, "{all:?}");
}

/// Scenario persistence 68: without any one of these clauses a promise is broken.
#[test]
fn scenario_68_every_omission_is_noticed() {
    let world = world();
    for omission in world.omissions {
        let found = (0..400).find(|seed| world.check(*seed, Some(*omission)).is_err());
        assert!(found.is_some(), "{omission:?} is not missed");
    }
}
