//! Four projections of one node and the reader that they share, over a simulated store.
//!
//! A seed draws the *profile*: whether the store orders by number or by time, whether it shows every event or
//! the newest state only, whether stores and handlers fail, the group sizes, and which projection stays paused in
//! the end. Then it draws the *fault phase*: writes, some of which are committed late, delayed answers,
//! pauses, resets and hints, at any point between two inputs. Afterwards nothing fails any more: *bursts* of
//! writes come while some projections still catch up, and then an *idle phase* without writes.
//!
//! - Every event is handled once, or again after a failure, never out of order or with a gap; exactly-once
//!   projections handle an event again only after a reset. Of states, revisions may be left out, and never go down.
//! - After the idle phase every projection that is not paused has handled everything, even if another is paused: none
//!   waits for ever.
//! - No machine loops: neither without end at one moment, nor by querying a store that has nothing new.
//!
//! `GREYLAG_SEEDS=2000` runs this number of seeds instead of the gate's; `GREYLAG_SEED=7` runs only this one.
//!
//! Source: persistence §5 (one reader, gap handling at the consumer), scenario 59.

mod projection_simulation {
    pub(crate) mod instance;
    pub(crate) mod seen;
    pub(crate) mod store;
    pub(crate) mod world;
}

#[path = "suite/support/record.rs"]
mod record;

use std::time::Duration;

use greylag_persistence::{OffsetKind, Shows};
use projection_simulation::world::World;
use rand::{Rng, RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Number of projections: two have halves of the slices, two have all of them.
const PROJECTIONS: usize = 4;
const QUICK_HANDLER: Duration = Duration::from_millis(50);
/// Slow enough for the reader to go on meanwhile, and to dismiss the projection from time to time.
const SLOW_HANDLER: Duration = Duration::from_secs(1);
const FAULT_PHASE: Duration = Duration::from_secs(60);
/// Number of bursts of writes after the fault phase, each within `BETWEEN_BURSTS` of the previous one.
const WRITE_BURSTS: u32 = 40;
const BETWEEN_BURSTS: Duration = Duration::from_secs(2);
/// Long enough for a slow projection to be dismissed, to catch up and to join again, and for backtracking passes.
const IDLE_PHASE: Duration = Duration::from_secs(150);
/// Time after the idle phase, when there is nothing new to find.
const QUIESCENT: Duration = Duration::from_secs(60);
/// Most queries during that time: each reader queries once a second, and backtracks from time to time.
const MAX_QUERIES: u64 = 2 * (PROJECTIONS as u64 + 1) * QUIESCENT.as_secs();

/// The properties of one run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Profile {
    seed: u64,
    kind: OffsetKind,
    shows: Shows,
    fails: bool,
    /// Group size of each projection.
    groups: [usize; PROJECTIONS],
    /// Longest time of each handler.
    handling: [Duration; PROJECTIONS],
    /// The projection that is paused throughout the idle phase.
    stays_paused: Option<usize>,
}

impl Profile {
    fn draw(seed: u64, rng: &mut impl Rng) -> Self {
        Self {
            seed,
            kind: if rng.random() { OffsetKind::Ordinal } else { OffsetKind::Timestamp },
            shows: if rng.random_bool(0.25) { Shows::Newest } else { Shows::Every },
            fails: rng.random_bool(0.4),
            groups: std::array::from_fn(|_| rng.random_range(1..=4)),
            handling: std::array::from_fn(|_| if rng.random_bool(0.4) { SLOW_HANDLER } else { QUICK_HANDLER }),
            stays_paused: rng.random_bool(0.4).then(|| rng.random_range(0..PROJECTIONS)),
        }
    }
}

/// The seeds to run.
fn seeds() -> Vec<u64> {
    let number = |name| std::env::var(name).ok().map(|text: String| text.parse().expect("a number"));
    match number("GREYLAG_SEED") {
        Some(seed) => vec![seed],
        None => (0..number("GREYLAG_SEEDS").unwrap_or(20)).collect(),
    }
}

/// Rule persistence §5 (one reader): a projection that is not paused handles everything in the end.
#[test]
fn scenario_59_after_random_faults_every_projection_has_seen_everything() {
    for seed in seeds() {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let profile = Profile::draw(seed, &mut rng);
        let mut world = World::new(profile, rng);
        world.run_for(FAULT_PHASE);
        world.stop_faults();
        for _ in 0..WRITE_BURSTS {
            world.write_up_to(5);
            world.hint_reader();
            world.run_within(BETWEEN_BURSTS);
        }
        world.run_for(IDLE_PHASE);
        world.assert_all_is_seen();
        let asked = world.queries();
        world.run_for(QUIESCENT);
        let asked = world.queries() - asked;
        assert!(asked <= MAX_QUERIES, "{asked} queries, and there is nothing new");
    }
}
