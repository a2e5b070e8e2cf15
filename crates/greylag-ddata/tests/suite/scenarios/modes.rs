//! The same history with deltas and without. Source: ddata G16, scenario 57.

use std::fmt::Write as _;
use std::time::Duration;

use greylag_crdt::{GCounter, GSet, LwwMap, OrMultiMap, OrSet, PNCounter, PnCounterMap, ReplicatedData, UpdateCx};
use greylag_ddata::{Clause, Key, Omissions, ReplicatorSettings, WriteLevel};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::scenarios::world::World;

type Bindings = OrMultiMap<String, String>;
type Places = LwwMap<String, String>;
type Votes = PnCounterMap<String>;

/// Long enough for everything logged to reach all reachable nodes, even if it was lost before.
const SPREAD: Duration = Duration::from_secs(5);

fn key<T: ReplicatedData>() -> Key<T> {
    Key::new(format!("k-{}", T::TAG)).unwrap()
}

fn change<T: ReplicatedData>(world: &mut World, name: char, modify: impl FnOnce(&mut T, &mut UpdateCx<'_>)) {
    world.update(name, &key::<T>(), WriteLevel::Local, modify);
}

/// One operation on a counter, a set or a map at one node.
fn operate(world: &mut World, name: char, what: u32, (a, b): (u8, u8)) {
    let (by, other) = (i64::from(b) - 3, b.to_string());
    let a = a.to_string();
    match what {
        0 => change::<GCounter>(world, name, |counter, cx| counter.increment(cx, b.into()).unwrap()),
        1 => change::<PNCounter>(world, name, |counter, cx| counter.increment(cx, by).unwrap()),
        2 => change::<GSet<String>>(world, name, |set, _| set.add(a)),
        3 => change::<OrSet<String>>(world, name, |set, cx| set.add(cx, a)),
        4 => change::<OrSet<String>>(world, name, |set, cx| _ = set.remove(cx, &a)),
        5 => change::<OrSet<String>>(world, name, OrSet::clear),
        6 => change::<Bindings>(world, name, |map, cx| map.add_binding(cx, a, other)),
        7 => change::<Bindings>(world, name, |map, cx| _ = map.remove_binding(cx, &a, &other)),
        8 => change::<Bindings>(world, name, |map, cx| _ = map.remove(cx, &a)),
        9 => change::<Places>(world, name, |map, cx| map.put(cx, a, other).unwrap()),
        10 => change::<Places>(world, name, |map, cx| _ = map.remove(cx, &a)),
        11 => change::<Votes>(world, name, |map, cx| map.increment(cx, a, by).unwrap()),
        _ => change::<Votes>(world, name, |map, cx| _ = map.remove(cx, &a)),
    }
}

/// Everything that a node shows, in words.
fn shown(world: &World, name: char) -> String {
    fn of<T: ReplicatedData + std::fmt::Debug>(world: &World, name: char) -> T {
        world.held(name, &key::<T>())
    }
    let mut text = String::new();
    write!(text, "{} ", of::<GCounter>(world, name).value()).unwrap();
    write!(text, "{} ", of::<PNCounter>(world, name).value()).unwrap();
    write!(text, "{:?} ", of::<GSet<String>>(world, name).iter().collect::<Vec<_>>()).unwrap();
    write!(text, "{:?} ", of::<OrSet<String>>(world, name).iter().collect::<Vec<_>>()).unwrap();
    write!(text, "{:?} ", of::<Places>(world, name).iter().collect::<Vec<_>>()).unwrap();
    write!(text, "{:?} ", of::<Votes>(world, name).iter().collect::<Vec<_>>()).unwrap();
    let bindings = of::<Bindings>(world, name);
    let bindings: Vec<_> = bindings.iter().map(|(key, values)| (key, values.iter().collect::<Vec<_>>())).collect();
    write!(text, "{bindings:?}").unwrap();
    text
}

/// Random operations at three nodes between which links are cut now and then, without rounds: only the log brings
/// updates to others. Returns the texts of all nodes at each moment at which every update has reached every node, and
/// the number of full states sent.
fn history(seed: u64, delta_enabled: bool, without: Option<Clause>) -> (Vec<String>, u64) {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut world = World::with(
        "abc",
        ReplicatorSettings {
            delta_enabled,
            omissions: Omissions::of(without),
            gossip_interval: Duration::from_secs(36_000),
            delta_propagation_interval: Duration::from_millis(100),
            ..ReplicatorSettings::default()
        },
    );
    let mut all = Vec::new();
    for _ in 0..12 {
        match rng.random_range(0..4) {
            0 => world.split("a", "bc"),
            1 => world.split("ab", "c"),
            2 => world.split("b", "ac"),
            _ => {}
        }
        for _ in 0..3 {
            for _ in 0..rng.random_range(3..9) {
                let name = ['a', 'b', 'c'][rng.random_range(0..3)];
                let what = rng.random_range(0..13);
                operate(&mut world, name, what, (rng.random_range(0..6), rng.random_range(0..6)));
            }
            world.run(SPREAD);
        }
        world.mend();
        world.run(SPREAD);
        let texts = ['a', 'b', 'c'].map(|name| shown(&world, name));
        all.extend(texts);
    }
    let full_states = ['a', 'b', 'c'].iter().map(|name| world.core(*name).stats().full_states_sent).sum();
    (all, full_states)
}

/// ddata 57, G16: random operations on counters, sets and maps show the same with deltas and without, at every node and
/// whenever every update has reached all; and the test detects wrong deltas.
#[test]
fn scenario_57_deltas_and_full_states_show_the_same() {
    for seed in 0..12 {
        let (with, full_states) = history(seed, true, None);
        let (without, all_states) = history(seed, false, None);
        assert_eq!(with, without, "seed {seed}");
        for node in 1..3 {
            assert!(with.chunks(3).all(|texts| texts[node] == texts[0]), "seed {seed}: all show the same");
        }
        assert!(full_states * 20 < all_states, "{full_states} of {all_states}: deltas are what the one run sent");
    }
    let is_seen = |seed| history(seed, true, Some(Clause::RemovalContext)).0 != history(seed, false, None).0;
    assert!((0..12).any(is_seen), "deltas that do not say what they remove show something else");
}
