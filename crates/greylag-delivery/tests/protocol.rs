//! The link machines against the scenarios of the specification, as plain text.
//!
//! The first case of a file names the machine under test: one side of a link (`producer`, `consumer`), both sides with
//! the messages between them (`link`), the producer controller of a link (`point-to-point`) or of many workers
//! (`work-pulling`), the controllers of sharding (`sharding-producer`, `sharding-consumer`), or the storing of a
//! producer (`storing`).

mod support;

use greylag_testkit::transcript::{self, Case};
use support::consumer::ConsumerWorld;
use support::link::LinkWorld;
use support::point_to_point::PointToPointWorld;
use support::producer::ProducerWorld;
use support::sharding::{ShardingConsumerWorld, ShardingProducerWorld};
use support::storing::StoringWorld;
use support::work_pulling::WorkPullingWorld;

enum World {
    Nothing,
    Producer(Box<ProducerWorld>),
    Consumer(Box<ConsumerWorld>),
    Link(Box<LinkWorld>),
    PointToPoint(Box<PointToPointWorld>),
    WorkPulling(Box<WorkPullingWorld>),
    ShardingProducer(Box<ShardingProducerWorld>),
    ShardingConsumer(Box<ShardingConsumerWorld>),
    Storing(Box<StoringWorld>),
}

impl World {
    fn run(&mut self, case: &Case<'_>) -> String {
        match (case.command, &mut *self) {
            ("producer", _) => *self = Self::Producer(Box::new(ProducerWorld::new(case))),
            ("consumer", _) => *self = Self::Consumer(Box::new(ConsumerWorld::new(case))),
            ("link", _) => *self = Self::Link(Box::new(LinkWorld::new(case))),
            ("point-to-point", _) => {
                let mut output = String::new();
                *self = Self::PointToPoint(Box::new(PointToPointWorld::new(case, &mut output)));
                return output;
            }
            ("work-pulling", _) => {
                let mut output = String::new();
                *self = Self::WorkPulling(Box::new(WorkPullingWorld::new(case, &mut output)));
                return output;
            }
            ("sharding-producer", _) => *self = Self::ShardingProducer(Box::new(ShardingProducerWorld::new(case))),
            ("sharding-consumer", _) => *self = Self::ShardingConsumer(Box::new(ShardingConsumerWorld::new(case))),
            ("storing", _) => *self = Self::Storing(Box::new(StoringWorld::new(case))),
            (_, Self::Storing(world)) => return world.run(case),
            (_, Self::ShardingProducer(world)) => return world.run(case),
            (_, Self::ShardingConsumer(world)) => return world.run(case),
            (_, Self::WorkPulling(world)) => return world.run(case),
            (_, Self::PointToPoint(world)) => return world.run(case),
            (_, Self::Producer(world)) => return world.run(case),
            (_, Self::Consumer(world)) => return world.run(case),
            (_, Self::Link(world)) => return world.run(case),
            (other, Self::Nothing) => panic!("line {}: {other} before anything is made", case.line),
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
