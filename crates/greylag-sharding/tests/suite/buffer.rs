//! The bound of a region's buffer, in bytes. Source: sharding §2.5, scenario 105.

use crate::common::machines;

use std::time::Instant;

use greylag_core::DeadLetterReason;
use greylag_sharding::ids::{RegionId, ShardId};
use greylag_sharding::machine::region::{Effect, Input, MessageInfo, Region, RegionConfig, RegionEvent, Token};
use greylag_sharding::settings::{BufferOverflow, ShardingSettings};

struct World {
    region: Region,
    now: Instant,
    last: u64,
    dead: Vec<u64>,
    fill: Vec<u8>,
}

impl World {
    fn new(buffer_overflow: BufferOverflow) -> Self {
        let now = Instant::now();
        let settings = ShardingSettings { buffer_bytes: 1_000, buffer_overflow, ..ShardingSettings::test() };
        let id = RegionId { node: "a:1#1".parse().unwrap(), incarnation: 1 };
        let config = RegionConfig { settings, ..machines::config(id) };
        Self { region: Region::new(config, now), now, last: 0, dead: Vec::new(), fill: Vec::new() }
    }

    /// Sends a message of `size` bytes; messages are numbered from 1 on.
    fn send(&mut self, size: u32) {
        self.last += 1;
        let message = MessageInfo { size, ..MessageInfo::of(Token(self.last)) };
        let mut out = Vec::new();
        self.region.handle(self.now, Input::LocalSend { shard: ShardId::from_index(1), message }, &mut out);
        for effect in out {
            match effect {
                Effect::DeadLetter { token, reason, .. } => {
                    assert_eq!(reason, DeadLetterReason::BufferFull);
                    self.dead.push(token.0);
                }
                Effect::Event(RegionEvent::BufferFill { percent }) => self.fill.push(percent),
                _ => {}
            }
        }
    }
}

#[test]
fn scenario_105_the_newest_is_dropped_when_its_bytes_do_not_fit() {
    let mut world = World::new(BufferOverflow::DropNew);
    [300, 300, 300, 300, 100, 1].into_iter().for_each(|size| world.send(size));
    assert_eq!(world.dead, [4, 6], "the fifth fitted");
    assert_eq!(world.fill, [30, 60, 90, 100]);
    assert_eq!(world.region.counters().buffered, 4);
}

#[test]
fn scenario_105_as_many_of_the_oldest_go_as_the_new_one_needs() {
    let mut world = World::new(BufferOverflow::DropOld);
    [300, 300, 300, 700].into_iter().for_each(|size| world.send(size));
    assert_eq!(world.dead, [1, 2], "600 bytes went for 700");
    world.send(5_000);
    assert_eq!(world.dead, [1, 2, 3, 4], "one that is larger than the buffer waits alone");
    world.send(1);
    assert_eq!(world.dead, [1, 2, 3, 4, 5]);
    assert_eq!(world.region.counters().buffered, 1);
}
