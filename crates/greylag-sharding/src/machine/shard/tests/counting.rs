//! Counting the entities of a shard by their state. Source: sharding §6.1.

use super::World;
use crate::entity::{Backoff, Directive, Supervision};
use crate::inspection::EntityCounts;
use crate::machine::shard::EntityScan;

impl World {
    /// All that there are, and the names of those that live.
    fn counted(&self) -> (EntityCounts, Vec<String>) {
        let mut scan = EntityScan::of_entities(None, usize::MAX);
        while !self.shard.count_some(&mut scan) {}
        let counts = scan.counts();
        (counts, scan.into_entities().0.iter().map(ToString::to_string).collect())
    }
}

#[test]
fn entities_are_counted_by_their_state_and_named_while_they_live() {
    let mut world = World::supervised(
        Supervision::always(Directive::Backoff(Backoff { jitter: 0.0, ..Backoff::default() })),
        |_| {},
    );
    assert_eq!(world.counted(), (EntityCounts::default(), Vec::new()));
    world.stubborn = vec!["stays"];
    for (id, message) in
        [("active", "a"), ("waits", "suspend"), ("stays", "passivate"), ("gone", "stop"), ("fails", "fail")]
    {
        world.send(id, message);
    }
    world.turns();
    let counts = EntityCounts { active: 2, passivating: 1, remembered_not_started: 0, waiting_restart: 1 };
    assert_eq!(world.counted(), (counts, ["active", "stays", "waits"].map(str::to_owned).to_vec()));
    assert_eq!(counts.total(), 4);
    world.resume("waits", "r");
    world.advance(Backoff::default().min);
    assert_eq!(world.counted().0, EntityCounts { active: 3, passivating: 1, ..EntityCounts::default() });
}

#[test]
fn many_entities_are_counted_some_at_a_time() {
    let mut world = World::new(|_| {});
    for id in 0..5000 {
        world.send(&id.to_string(), "a");
    }
    let (mut scan, mut steps) = (EntityScan::of_counts(), 1);
    while !world.shard.count_some(&mut scan) {
        steps += 1;
    }
    assert_eq!((scan.counts().active, steps), (5000, 3));
}
