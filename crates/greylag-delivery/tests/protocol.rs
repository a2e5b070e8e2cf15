//! The link machines against the scenarios of the specification, as plain text.
//!
//! The first case of a file says which side is looked at: `producer` or `consumer`.

mod support;

use greylag_testkit::transcript::{self, Case};
use support::consumer::ConsumerWorld;
use support::producer::ProducerWorld;

enum World {
    Nothing,
    Producer(Box<ProducerWorld>),
    Consumer(Box<ConsumerWorld>),
}

impl World {
    fn run(&mut self, case: &Case<'_>) -> String {
        match (case.command, &mut *self) {
            ("producer", _) => *self = Self::Producer(Box::new(ProducerWorld::new(case))),
            ("consumer", _) => *self = Self::Consumer(Box::new(ConsumerWorld::new(case))),
            (_, Self::Producer(world)) => return world.run(case),
            (_, Self::Consumer(world)) => return world.run(case),
            (other, Self::Nothing) => panic!("line {}: {other} before producer or consumer", case.line),
        }
        String::new()
    }
}

#[test]
fn transcripts() {
    transcript::run_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/protocol"), || {
        let mut world = World::Nothing;
        move |case: &Case<'_>| world.run(case)
    });
}
