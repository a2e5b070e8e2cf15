//! Counters that are created again: after an expiry, or at a replicator that restarted without a copy.

use std::time::Duration;

use greylag_crdt::{CounterOverflow, DotSource, GCounter, PNCounter, UpdateCx};
use greylag_ddata::ReplicaStatus;

use crate::pruning::world::{SOON, World, replica, settings};

/// The lifetime of counters at nodes where they expire.
const LIFETIME: Duration = Duration::from_secs(900);

/// Three replicas; counters expire at a and r, and stay at b. Markers outlive every test.
fn world(deltas: bool) -> World {
    let mut settings = settings();
    settings.delta_enabled = deltas;
    settings.pruning_marker_time_to_live = LIFETIME * 10;
    settings.durable.pruning_marker_time_to_live = LIFETIME * 10;
    let mut world = World::with("b", settings);
    world.settings.expire_keys_after_inactivity = [("c".to_owned(), LIFETIME), ("p".to_owned(), LIFETIME)].into();
    for name in ['a', 'r'] {
        world.start_with(name, 0, ReplicaStatus::Up, DotSource::new());
    }
    world.publish();
    world.settle();
    world
}

/// Adds to the counter `c`, and the same amount to `p` as a difference of two.
fn count(world: &mut World, name: char, by: u32) {
    world.count(name, "c", by.into());
    world.update::<PNCounter>(name, "p", |counter: &mut PNCounter, cx: &mut UpdateCx<'_>| {
        counter.increment(cx, i64::from(by) * 3)?;
        counter.decrement(cx, i64::from(by) * 2)?;
        Ok::<_, CounterOverflow>(())
    });
}

fn all_show(world: &World, value: u32) {
    world.all_count("c", value.into());
    for name in world.nodes.keys() {
        assert_eq!(world.value::<PNCounter>(*name, "p").value(), value.into(), "p at {name}");
    }
}

fn cut(world: &mut World, name: char) {
    let others: Vec<char> = world.nodes.keys().copied().filter(|other| *other != name).collect();
    others.into_iter().for_each(|other| world.cut(name, other));
}

/// Lets the counters of a node expire while it is cut off from all others.
fn expire_alone(world: &mut World, name: char) {
    cut(world, name);
    world.lose();
    world.advance(LIFETIME + SOON);
    let gone = world.nodes[&name].core.value(&greylag_ddata::Key::<GCounter>::new("c").unwrap());
    assert!(gone.is_none(), "c has expired at {name}");
}

/// ddata 91, Y4, A9, E3: increments after an expiry, after a restart in the process, and by an owner whose copy expired
/// after it performed count in addition to the earlier ones; no increment is swallowed or counted twice.
#[test]
fn scenario_91_every_life_of_a_counter_counts() {
    for deltas in [true, false] {
        let mut world = world(deltas);
        count(&mut world, 'r', 5);
        world.advance(SOON);
        expire_alone(&mut world, 'r');
        count(&mut world, 'r', 2);
        assert_eq!(world.counter('r', "c"), 2, "a new life");
        world.mend();
        world.advance(SOON);
        all_show(&world, 7);

        let former = world.kill('r');
        world.start_with('r', 0, ReplicaStatus::Up, former.numbers);
        cut(&mut world, 'r');
        world.publish();
        world.settle();
        count(&mut world, 'r', 1);
        world.mend();
        world.advance(Duration::from_secs(40));
        all_show(&world, 8);

        let old = ["c", "p"].map(|id| (id, world.envelope('b', id)));
        world.remove('r');
        world.until_pruned::<GCounter>("c", replica('r'));
        world.until_pruned::<PNCounter>("p", replica('r'));
        all_show(&world, 8);
        expire_alone(&mut world, 'a');
        for (id, envelope) in &old {
            world.turns_up('a', id, envelope);
        }
        let performed = world.performed('a').0;
        world.advance(crate::pruning::world::TICK * 3);
        assert_eq!(world.performed('a').0, performed + 2, "both again");
        assert_eq!(world.counter('a', "c"), 8);
        world.mend();
        world.advance(SOON);
        all_show(&world, 8);
    }
}
