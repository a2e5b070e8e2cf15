//! How long a region waits before it starts a failed shard again. Source: sharding §4.8, §4.12.

use crate::common::machines;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use greylag_core::Generation;
use greylag_sharding::ids::{RegionId, ShardId};
use greylag_sharding::machine::membership::Members;
use greylag_sharding::machine::message::{CoordinatorId, CoordinatorMessage, FromCoordinator, Home};
use greylag_sharding::machine::region::{
    Effect, Input, MessageInfo, Provenance, Region, RegionConfig, Returned, Token,
};
use greylag_sharding::settings::{RememberSettings, ShardingSettings};

const SECOND: Duration = Duration::from_secs(1);

/// A region whose only shard fails, and gives a message back, as soon as it is started.
struct World {
    region: Region,
    now: Instant,
    last_token: u64,
}

impl World {
    fn new(remembers: bool) -> Self {
        let now = Instant::now();
        let remember = RememberSettings { enabled: remembers, ..RememberSettings::default() };
        let settings = ShardingSettings { shard_failure_backoff: SECOND, remember, ..ShardingSettings::test() };
        let id = RegionId { node: "a:1#1".parse().unwrap(), incarnation: 1 };
        let region = Region::new(RegionConfig { settings, ..machines::config(id.clone()) }, now);
        let mut world = Self { region, now, last_token: 0 };
        let members = BTreeMap::from([(id.node.clone(), machines::up(1))]);
        world.tell(Input::Membership(Arc::new(Members { members, removed: BTreeMap::new() })));
        let home = Home::new(shard(), id.clone(), generation());
        let order = |message| {
            let coordinator = CoordinatorId { node: id.node.clone(), incarnation: 1 };
            let message = FromCoordinator { coordinator, epoch: 5, to: Some(id.clone()), message };
            Input::FromCoordinator { node: id.node.clone(), message }
        };
        world.tell(order(CoordinatorMessage::RegisterAck { serial: 1 }));
        assert!(world.tell(order(CoordinatorMessage::HostShard(vec![home]))), "it starts at once");
        world
    }

    /// Passes an input; returns whether the shard is started.
    fn tell(&mut self, input: Input) -> bool {
        let mut out = Vec::new();
        self.region.handle(self.now, input, &mut out);
        out.iter().any(|effect| matches!(effect, Effect::StartShard { .. }))
    }

    fn message(&mut self) -> MessageInfo {
        self.last_token += 1;
        MessageInfo::of(Token(self.last_token))
    }

    /// How long it takes until the shard is started again after a failure, while another message comes.
    fn fails(&mut self) -> Duration {
        let unprocessed = vec![Returned { message: self.message(), provenance: Provenance::Own }];
        assert!(!self.tell(Input::ShardFailed { shard: shard(), generation: generation(), unprocessed }));
        let message = self.message();
        assert!(!self.tell(Input::LocalSend { shard: shard(), message }));
        let began = self.now;
        loop {
            self.now = self.region.next_deadline().expect("it is started again").max(self.now);
            assert!(self.now < began + SECOND * 60);
            if self.tell(Input::Tick) {
                return self.now - began;
            }
        }
    }
}

fn shard() -> ShardId {
    ShardId::from_index(3)
}

fn generation() -> Generation {
    Generation::new(5, 1).unwrap()
}

#[test]
fn a_shard_that_remembers_its_entities_waits_longer_each_time_whatever_waits_for_it() {
    let mut world = World::new(true);
    assert_eq!([(); 6].map(|()| world.fails()), [1, 2, 4, 8, 8, 8].map(|seconds| SECOND * seconds));
    world.now += SECOND * 20;
    assert_eq!(world.fails(), SECOND, "it went well for a while");
}

#[test]
fn another_shard_starts_at_once_if_a_message_waits() {
    let mut world = World::new(false);
    assert_eq!([(); 3].map(|()| world.fails()), [SECOND / 10; 3]);
}
