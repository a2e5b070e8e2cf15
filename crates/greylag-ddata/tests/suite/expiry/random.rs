//! Random use of a few keys at replicas whose clocks differ: no key is found that was not used for its lifetime, and
//! all replicas end equal. Source: ddata E1, E2, O6.

use std::collections::BTreeMap;
use std::time::Duration;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::expiry::world::{SECOND, World, settings};

const LIFETIME: Duration = Duration::from_secs(20);
/// The greatest difference between the clocks of any two nodes.
const SKEW: Duration = Duration::from_secs(4);

fn history(seed: u64) {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let nodes: Vec<(char, i64)> = "abc".chars().map(|name| (name, rng.random_range(-2_000..=2_000))).collect();
    let mut world = World::new(&nodes, &settings(&[("*", LIFETIME.as_secs())]));
    // When a key was last used at any replica, in true time.
    let mut used: BTreeMap<String, Duration> = BTreeMap::new();
    let mut deleted: BTreeMap<String, Duration> = BTreeMap::new();
    for step in 0..120 {
        let (name, _) = nodes[rng.random_range(0..nodes.len())];
        let id = format!("s{}", rng.random_range(0..4));
        match rng.random_range(0..12) {
            0..=3 => {
                if world.read(name, &id) != "deleted" {
                    world.add(name, &id, &(step % 10).to_string());
                    used.insert(id, world.now);
                }
            }
            4 => {
                if world.read(name, &id) != "deleted" {
                    world.delete(name, &id);
                    deleted.insert(id, world.now);
                }
            }
            5 => world.cut('a', 'b'),
            6 => world.mend(),
            _ => {
                let found = world.read(name, &id);
                let over = |at: Option<&Duration>| at.is_none_or(|at| *at + LIFETIME + SKEW < world.now);
                match found.as_str() {
                    "nothing" => {}
                    "deleted" => assert!(!over(deleted.get(&id)), "seed {seed}: {name} finds {id} deleted"),
                    _ => {
                        assert!(!over(used.get(&id)), "seed {seed}: {name} finds {id}");
                        used.insert(id, world.now);
                    }
                }
            }
        }
        world.run(Duration::from_millis(rng.random_range(0..4_000)));
    }
    world.mend();
    for (name, _) in &nodes {
        if world.read(*name, "s0") != "deleted" {
            world.add(*name, "s0", "last");
        }
    }
    world.run(SECOND * 5);
    let at_once = world.core('a').digests().get("s0").copied();
    assert_eq!(at_once, world.core('c').digests().get("s0").copied(), "seed {seed}");
    world.run(LIFETIME + SKEW * 2);
    world.all_equal();
    assert!(world.core('a').digests().is_empty(), "seed {seed}: everything has expired");
}

/// ddata E2, O5: whatever is used where, and however the clocks differ, no overdue entry is ever found.
#[test]
fn nothing_overdue_is_ever_found() {
    for seed in 0..40 {
        history(seed);
    }
}
