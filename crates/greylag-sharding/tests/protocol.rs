//! The machines as text: their inputs, and their effects.
//!
//! The first case of a file selects the world: `regions`, or one `shard`; without either it is a coordinator.
//! Source: sharding §2, §4.

#[path = "protocol/coordinator.rs"]
mod coordinator;
#[path = "suite/common/machines.rs"]
mod machines;
#[path = "protocol/regions.rs"]
mod regions;
#[path = "protocol/shard.rs"]
mod shard;

use coordinator::CoordinatorWorld;
use greylag_testkit::transcript::{self, Case};
use regions::RegionsWorld;
use shard::ShardWorld;

/// The world of a file.
enum World {
    Unknown,
    Coordinator(Box<CoordinatorWorld>),
    Regions(Box<RegionsWorld>),
    Shard(Box<ShardWorld>),
}

impl World {
    fn run(&mut self, case: &Case<'_>) -> String {
        match (case.command, &mut *self) {
            ("regions", Self::Unknown) => {
                let mut world = RegionsWorld::new(case);
                let said = world.take();
                *self = Self::Regions(Box::new(world));
                said
            }
            ("shard", Self::Unknown) => {
                let mut world = ShardWorld::new(case);
                let said = world.take();
                *self = Self::Shard(Box::new(world));
                said
            }
            (_, Self::Unknown) => {
                *self = Self::Coordinator(Box::new(CoordinatorWorld::new()));
                self.run(case)
            }
            (_, Self::Coordinator(world)) => world.run(case),
            (_, Self::Regions(world)) => world.run(case),
            (_, Self::Shard(world)) => world.run(case),
        }
    }
}

#[test]
fn transcripts() {
    transcript::run_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/protocol"), || {
        let mut world = World::Unknown;
        move |case: &Case<'_>| world.run(case)
    });
}
