//! Sharding scenario 100: however many messages wait for one shard, no other shard waits for them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::common::machines::{config, up};
use greylag_core::{Generation, UniqueAddress};
use greylag_sharding::ids::{RegionId, ShardId};
use greylag_sharding::machine::membership::Members;
use greylag_sharding::machine::message::{
    Attempt, CoordinatorId, CoordinatorMessage, FromCoordinator, Home, Mark, RegionMessage,
};
use greylag_sharding::machine::region::{
    Effect, Input, MessageInfo, Provenance, Region, RegionConfig, Returned, Route, Token,
};
use greylag_sharding::settings::ShardingSettings;

const MESSAGES: u64 = 100_000;
/// Most messages moved in one turn.
const TURN: usize = 512;
/// The shard for which the messages wait, and another one.
const BUSY: u32 = 1;
const OTHER: u32 = 2;

fn node(n: u64) -> UniqueAddress {
    format!("n{n}:1#{n}").parse().unwrap()
}

fn region(n: u64) -> RegionId {
    RegionId { node: node(n), incarnation: 1 }
}

/// The region of `n1`, with a coordinator on `n2`.
struct World {
    region: Region,
    now: Instant,
    last: u64,
    /// Messages that left for the shard or for another region, in order.
    left: Vec<u64>,
    /// Most messages that left in one turn.
    most: usize,
    published: BTreeMap<ShardId, Route>,
    /// Shards that want another turn.
    turns: Vec<ShardId>,
    killed: bool,
    stopped: bool,
    told: Vec<RegionMessage>,
    /// Messages that had left when the last mark was sent.
    marked_after: Option<usize>,
}

impl World {
    fn new() -> Self {
        let now = Instant::now();
        let settings = ShardingSettings { buffer_size: 2 * MESSAGES as usize, ..ShardingSettings::test() };
        let config = RegionConfig { settings, ..config(region(1)) };
        let mut world = Self {
            region: Region::new(config, now),
            now,
            last: 0,
            left: Vec::new(),
            most: 0,
            published: BTreeMap::new(),
            turns: Vec::new(),
            killed: false,
            stopped: false,
            told: Vec::new(),
            marked_after: None,
        };
        let members = [(node(2), up(1)), (node(1), up(2)), (node(3), up(3))].into();
        world.input(Input::Membership(Arc::new(Members { members, removed: BTreeMap::new() })));
        world.order(CoordinatorMessage::RegisterAck { serial: 1 });
        world
    }

    fn input(&mut self, input: Input) {
        let mut out = Vec::new();
        self.region.handle(self.now, input, &mut out);
        let before = self.left.len();
        for effect in out {
            match effect {
                Effect::Deliver { token, .. } | Effect::SendData { token, .. } => self.left.push(token.0),
                Effect::RouteChange { shard, route } => drop(self.published.insert(shard, route)),
                Effect::Continue { shard } => self.turns.push(shard),
                Effect::KillShard { .. } => self.killed = true,
                Effect::StopShard { .. } => self.stopped = true,
                Effect::SendCoordinator { message, .. } => self.told.push(message),
                Effect::SendMark { mark: Mark::Leftover { .. } | Mark::Flush { .. }, .. } => {
                    self.marked_after = Some(self.left.len());
                }
                Effect::DeadLetter { reason, .. } => panic!("nothing is lost: {reason}"),
                _ => {}
            }
        }
        self.most = self.most.max(self.left.len() - before);
    }

    fn order(&mut self, message: CoordinatorMessage) {
        let coordinator = CoordinatorId { node: node(2), incarnation: 1 };
        let message = FromCoordinator { coordinator, epoch: 1, to: Some(region(1)), message };
        self.input(Input::FromCoordinator { node: node(2), message });
    }

    fn home(&mut self, shard: u32, at: u64) {
        let home = Home::new(ShardId::from_index(shard), region(at), Generation::new(1, u64::from(shard)).unwrap());
        let homes = vec![home];
        self.order(if at == 1 { CoordinatorMessage::HostShard(homes) } else { CoordinatorMessage::ShardHomes(homes) });
    }

    fn ready(&mut self, shard: u32) {
        let generation = Generation::new(1, u64::from(shard)).unwrap();
        self.input(Input::ShardInitialized { shard: ShardId::from_index(shard), generation });
    }

    fn send(&mut self, shard: u32) -> u64 {
        self.last += 1;
        let message = MessageInfo::of(Token(self.last));
        self.input(Input::LocalSend { shard: ShardId::from_index(shard), message });
        self.last
    }

    fn fill(&mut self, messages: u64) {
        for _ in 0..messages {
            self.send(BUSY);
        }
    }

    fn turn(&mut self) -> bool {
        let Some(shard) = self.turns.pop() else { return false };
        self.input(Input::Continue { shard });
        true
    }

    fn route(&self, shard: u32) -> Option<&Route> {
        self.published.get(&ShardId::from_index(shard))
    }
}

#[test]
fn scenario_100_a_full_buffer_leaves_in_turns_and_others_have_theirs() {
    for at in [1, 3] {
        let mut world = World::new();
        world.fill(MESSAGES);
        world.home(BUSY, at);
        world.ready(BUSY);
        assert_eq!(world.most, TURN, "one turn");
        assert!(!matches!(world.route(BUSY), Some(Route::Local { .. } | Route::Remote { .. })), "the rest goes first");
        world.home(OTHER, at);
        world.ready(OTHER);
        assert!(world.route(OTHER).is_some(), "another shard's route opens between two turns");
        let behind = world.send(BUSY);
        while world.turn() {}
        let expected: Vec<_> = (1..=behind).collect();
        assert_eq!(world.left, expected, "in the order of sending");
        assert_eq!(world.most, TURN);
        assert!(matches!(world.route(BUSY), Some(Route::Local { .. } | Route::Remote { .. })), "at {at}");
        assert_eq!(world.region.counters().buffered, 0);
    }
}

/// A handoff in the middle of a flush: the shard has messages, so it is stopped as a serving shard; waiting messages
/// are leftovers.
#[test]
fn scenario_100_a_handoff_in_the_midst_of_a_flush_stops_the_shard_in_order() {
    let mut world = World::new();
    world.fill(2_000);
    world.home(BUSY, 1);
    world.ready(BUSY);
    assert_eq!(world.left.len(), TURN);
    let (shard, generation) = (ShardId::from_index(BUSY), Generation::new(1, 1).unwrap());
    let attempt = Attempt(Generation::new(1, 1).unwrap().as_u64());
    world.order(CoordinatorMessage::HandOff { shard: shard.clone(), generation, attempt, flush_from: Vec::new() });
    assert!(world.stopped && !world.killed, "entities get their stop message");
    while world.turn() {}
    assert_eq!(world.left.len(), TURN, "nothing more goes to a shard that stops");
    world.input(Input::ShardStopped { shard, generation, leftovers: Vec::new() });
    let leftovers = world.told.iter().any(|told| matches!(told, RegionMessage::ShardStopped { leftovers: true, .. }));
    assert!(leftovers, "the next owner waits for what is left: {:?}", world.told.last());
    assert_eq!(world.region.counters().buffered, 2_000 - TURN as u64);
}

/// A route that is left in the middle of a flush: the rest leaves first and the mark follows all of it. Entries left
/// behind would wait for a new home with the probes of other regions among them, and that home may wait for their echo
/// (found by the simulation: seed 3036 of the world `sharding`).
#[test]
fn scenario_100_a_route_left_in_the_midst_of_a_flush_is_flushed_first() {
    let mut world = World::new();
    world.fill(2_000);
    world.home(BUSY, 3);
    assert_eq!(world.left.len(), TURN);
    let (shard, generation) = (ShardId::from_index(BUSY), Generation::new(1, 1).unwrap());
    let attempt = Attempt(Generation::new(1, 1).unwrap().as_u64());
    world.order(CoordinatorMessage::BeginHandOff { shard, generation, attempt, owner: region(3) });
    let acked = world.told.iter().any(|told| matches!(told, RegionMessage::BeginHandOffAck { flushed: true, .. }));
    assert!(acked, "a mark follows what was sent");
    assert_eq!(world.marked_after, Some(2_000), "and follows all of it");
    world.send(BUSY);
    while world.turn() {}
    assert_eq!(world.left, (1..=2_000).collect::<Vec<_>>());
    assert_eq!(world.region.counters().buffered, 1, "what comes later waits for the next home");
}

/// The same on a node that cannot trust its own view: no message leaves the node, and waiting ones go to the next home.
#[test]
fn a_route_left_by_a_suspect_node_in_the_midst_of_a_flush_sends_nothing() {
    let mut world = World::new();
    world.fill(2_000);
    world.home(BUSY, 3);
    world.input(Input::SelfSuspect);
    let (shard, generation) = (ShardId::from_index(BUSY), Generation::new(1, 1).unwrap());
    let attempt = Attempt(generation.as_u64());
    world.order(CoordinatorMessage::BeginHandOff { shard, generation, attempt, owner: region(3) });
    while world.turn() {}
    assert_eq!(world.left.len(), TURN, "what had left before");
    assert_eq!(world.region.counters().buffered, 2_000 - TURN as u64);
}

/// Leftovers are valid for the next home alone, so all of them leave for it at once: if the route were left halfway,
/// the rest would be dropped, with every link up.
#[test]
fn scenario_100_leftovers_leave_in_one_turn_and_the_mark_behind_them() {
    let mut world = World::new();
    world.home(BUSY, 1);
    world.ready(BUSY);
    let (shard, generation) = (ShardId::from_index(BUSY), Generation::new(1, 1).unwrap());
    let attempt = Attempt(generation.as_u64());
    world.order(CoordinatorMessage::HandOff { shard: shard.clone(), generation, attempt, flush_from: Vec::new() });
    let leftovers =
        (1..=2_000).map(|token| Returned { message: MessageInfo::of(Token(token)), provenance: Provenance::Own });
    world.last = 2_000;
    world.input(Input::ShardStopped { shard: shard.clone(), generation, leftovers: leftovers.collect() });
    world.fill(2_000);
    let home = Home::new(shard, region(3), Generation::new(1, 9).unwrap());
    world.order(CoordinatorMessage::ShardHomes(vec![home]));
    assert_eq!(world.marked_after, Some(2_000), "the mark follows all leftovers, in the same turn");
    assert_eq!(world.left.len(), 2_000 + TURN, "and the others have begun");
    while world.turn() {}
    assert_eq!(world.left, (1..=4_000).collect::<Vec<_>>());
}

/// The processor time of this thread, which other processes do not lengthen. `None`: the system does not tell.
fn processor_time() -> Option<Duration> {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    stat.split_whitespace().next()?.parse().ok().map(Duration::from_nanos)
}

/// The smallest cost of `work` in several tries.
fn least_cost(mut work: impl FnMut()) -> Duration {
    let cost = |work: &mut dyn FnMut()| {
        let (processor, wall) = (processor_time(), Instant::now());
        work();
        processor.zip(processor_time()).map_or_else(|| wall.elapsed(), |(before, after)| after - before)
    };
    (0..3).map(|_| cost(&mut work)).min().expect("three tries")
}

/// Buffers `messages` messages for a shard that starts, and lets them leave.
fn buffer_and_leave(messages: u64) {
    let mut world = World::new();
    world.fill(messages);
    world.home(BUSY, 1);
    world.ready(BUSY);
    while world.turn() {}
    assert_eq!(world.left.len() as u64, messages);
}

/// Makes leftovers of `messages` messages in a shard, and lets them leave for its next home.
fn give_back_and_leave(messages: u64) {
    let mut world = World::new();
    world.home(BUSY, 1);
    world.ready(BUSY);
    let (shard, generation) = (ShardId::from_index(BUSY), Generation::new(1, 1).unwrap());
    let attempt = Attempt(generation.as_u64());
    world.order(CoordinatorMessage::HandOff { shard: shard.clone(), generation, attempt, flush_from: Vec::new() });
    let leftovers =
        (1..=messages).map(|token| Returned { message: MessageInfo::of(Token(token)), provenance: Provenance::Own });
    world.input(Input::ShardStopped { shard: shard.clone(), generation, leftovers: leftovers.collect() });
    let home = Home::new(shard, region(3), Generation::new(1, 9).unwrap());
    world.order(CoordinatorMessage::ShardHomes(vec![home]));
    assert_eq!(world.marked_after, Some(messages as usize));
}

/// A message costs the same however many others wait: all at once cost as much as the same number in sixteen parts,
/// give or take memory effects. If the cost grew with the number of others, it would be sixteen times as much.
#[test]
fn scenario_100_a_message_costs_the_same_however_many_wait() {
    const PARTS: u64 = 16;
    let kinds: [(&str, fn(u64)); 2] = [("buffered", buffer_and_leave), ("leftover", give_back_and_leave)];
    for (kind, work) in kinds {
        let in_parts = least_cost(|| (0..PARTS).for_each(|_| work(MESSAGES / PARTS)));
        let at_once = least_cost(|| work(MESSAGES));
        assert!(at_once < in_parts * 5, "{kind}: {at_once:?} at once, {in_parts:?} in parts");
    }
}
