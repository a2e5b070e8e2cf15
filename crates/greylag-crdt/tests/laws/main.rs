//! The laws of ddata §1, L1 to L11, for every type, over random histories of several replicas: states and deltas are
//! lost, repeated, reordered and grouped; entries expire at one replica and are created again; replicators start anew;
//! replicas are removed and pruned, by one owner or by several, and their late copies arrive. The visible content
//! always equals a naive model.
//!
//! `GREYLAG_LAWS` sets how many histories each type gets; `cargo xtask laws --histories N` runs many, optimized. A
//! failing history is shortened as long as it fails, and printed.

mod causal_types;
mod composed;
mod model;
mod plain_types;
mod step;
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

use greylag_crdt::{
    CounterStore, Flag, FlagStore, GCounter, GSet, LwwMap, LwwRegister, LwwStore, MvRegister, OrMap, OrMapStore,
    OrMultiMap, OrSet, OrSetStore, PNCounter, Plain, PnCounterMap,
};
use model::Model;
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;
use step::Step;
use world::World;

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).map_or(default, |text| text.parse().expect("the variable is a number"))
}

/// Runs one history, and then damages its bytes at `damage`.
fn history<T: Model>(steps: &[Step], damage: Option<(usize, u8)>) {
    World::<T>::run(steps);
    if let Some((at, byte)) = damage {
        World::<T>::damage(steps, at, byte);
    }
}

fn laws<T: Model>() {
    let (from, count) = (number("GREYLAG_LAWS_FROM", 0), number("GREYLAG_LAWS", 120));
    let began = Instant::now();
    for seed in from..from + count {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let steps = step::steps(&mut rng);
        let damage = rng.random_bool(0.1).then(|| (rng.random_range(0..4_096), rng.random()));
        if catch_unwind(|| history::<T>(&steps, damage)).is_err() {
            let steps = shortest::<T>(steps, damage);
            let again = catch_unwind(AssertUnwindSafe(|| history::<T>(&steps, damage)));
            let shown: Vec<String> = steps.iter().map(|step| format!("{step:?}")).collect();
            panic!("{}, seed {seed}, {again:?}:\n  {}", T::TAG, shown.join("\n  "));
        }
    }
    if count >= 10_000 {
        let seconds = began.elapsed().as_secs_f64();
        #[expect(clippy::print_stdout, reason = "the figures of a long run")]
        let () = println!("{}: {count} histories in {seconds:.1} s", T::TAG);
    }
}

/// Leaves out steps as long as the rest still fails.
fn shortest<T: Model>(mut steps: Vec<Step>, damage: Option<(usize, u8)>) -> Vec<Step> {
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let mut at = 0;
    while at < steps.len() {
        let mut fewer = steps.clone();
        fewer.remove(at);
        if catch_unwind(|| history::<T>(&fewer, damage)).is_err() {
            (steps, at) = (fewer, 0);
        } else {
            at += 1;
        }
    }
    std::panic::set_hook(hook);
    steps
}

macro_rules! laws {
    ($(case $name:ident: $type:ty;)*) => {$(
        /// ddata L1–L11, K8, Z8.
        #[test]
        fn $name() {
            laws::<$type>();
        }
    )*};
}
laws! {
    case flag: Flag;
    case gcounter: GCounter;
    case pncounter: PNCounter;
    case gset: GSet<u8>;
    case orset: OrSet<u8>;
    case lww_register: LwwRegister<i8>;
    case mv_register: MvRegister<i8>;
    case lww_map: LwwMap<u8, i8>;
    case pn_counter_map: PnCounterMap<u8>;
    case or_multi_map: OrMultiMap<u8, u8>;
    case or_map_of_sets: OrMap<u8, OrSetStore<u8>>;
    case or_map_of_flags: OrMap<u8, FlagStore>;
    case or_map_of_counters: OrMap<u8, CounterStore>;
    case or_map_of_maps_of_registers: OrMap<u8, OrMapStore<u8, LwwStore<i8>>>;
    case or_map_of_plain_sets: OrMap<u8, Plain<GSet<u8>>>;
    case or_map_of_plain_counters: OrMap<u8, Plain<GCounter>>;
    case composed_pair: composed::Pair;
}
