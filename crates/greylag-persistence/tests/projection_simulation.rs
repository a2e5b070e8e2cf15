//! Four projections of one node and the reader that they share, over a store that only pretends.
//!
//! A seed draws the *profile*: whether the store orders by number or by time, whether it shows every event or
//! the newest state only, whether stores and handlers fail, how large groups are, and which projection stays paused in
//! the end. Then it draws the *storm*: writes, some of which are committed late, answers that take their time,
//! pauses, resets and hints, at any point between two inputs. After it nothing fails any more: *showers* of
//! writes come while some still catch up, and then a *calm*.
//!
//! - Every event is handled once, or again after a failure, never out of order or with a gap; exactly-once
//!   projections see none twice but after a reset. Of states, revisions may be left out, and never go down.
//! - After the calm every projection that may go on has seen everything, even if another is paused: none waits for
//!   ever.
//! - No machine spins: neither without an end at one moment, nor by asking a store that has nothing new.
//!
//! `GREYLAG_SEEDS=2000` runs so many seeds instead of the gate's number; `GREYLAG_SEED=7` runs this one.
//!
//! Source: persistence §5 (one reader, gap handling at the consumer), scenario 59.

mod projection_simulation {
    pub(crate) mod instance;
    pub(crate) mod seen;
    pub(crate) mod store;
    pub(crate) mod world;
}

#[path = "support/record.rs"]
mod record;

use std::time::Duration;

use greylag_persistence::{OffsetKind, Shows};
use projection_simulation::world::World;
use rand::{Rng, RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// How many projections there are: two have halves of the slices, two have all of them.
const PROJECTIONS: usize = 4;
const QUICK_HANDLER: Duration = Duration::from_millis(50);
/// Slow enough for the reader to go on meanwhile, and to dismiss it now and then.
const SLOW_HANDLER: Duration = Duration::from_secs(1);
const STORM: Duration = Duration::from_secs(60);
/// More writes come in so many showers after the storm, each within this time of the one before.
const SHOWERS: u32 = 40;
const BETWEEN_SHOWERS: Duration = Duration::from_secs(2);
/// Long enough for a slow one to be dismissed, to catch up and to join again, and for passes backwards.
const CALM: Duration = Duration::from_secs(150);
/// After the calm, when nothing new is there to find.
const SILENCE: Duration = Duration::from_secs(60);
/// Most questions that may be asked in the silence: each reader looks once a second, and goes back now and then.
const MOST_QUESTIONS: u64 = 2 * (PROJECTIONS as u64 + 1) * SILENCE.as_secs();

/// What one run is like.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Profile {
    seed: u64,
    kind: OffsetKind,
    shows: Shows,
    fails: bool,
    /// How many events each projection hands over at once.
    groups: [usize; PROJECTIONS],
    /// How long each handler takes at most.
    handling: [Duration; PROJECTIONS],
    /// The projection that is paused throughout the calm.
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

/// Which seeds are run.
fn seeds() -> Vec<u64> {
    let number = |name| std::env::var(name).ok().map(|text: String| text.parse().expect("a number"));
    match number("GREYLAG_SEED") {
        Some(seed) => vec![seed],
        None => (0..number("GREYLAG_SEEDS").unwrap_or(20)).collect(),
    }
}

/// Rule persistence §5 (one reader): whatever happens, a projection that may go on sees everything in the end.
#[test]
fn scenario_59_after_a_storm_every_projection_has_seen_everything() {
    for seed in seeds() {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let profile = Profile::draw(seed, &mut rng);
        let mut world = World::new(profile, rng);
        world.run_for(STORM);
        world.calm_down();
        for _ in 0..SHOWERS {
            world.write_up_to(5);
            world.hint_reader();
            world.run_within(BETWEEN_SHOWERS);
        }
        world.run_for(CALM);
        world.assert_all_is_seen();
        let asked = world.questions();
        world.run_for(SILENCE);
        let asked = world.questions() - asked;
        assert!(asked <= MOST_QUESTIONS, "{asked} questions, and there is nothing new");
    }
}
