//! Sharding over real clusters of nodes that live in one process and talk over an in-process network.

use crate::common::machines;

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use crate::common::nodes::*;
use greylag_cluster::{Clock, Cluster, ShutdownReason};
use greylag_codec::json;
use greylag_core::{CodecId, Generation, Registry, ReplyTo, UniqueAddress};
use greylag_persistence::Ctx;
use greylag_sharding::fingerprint::Fingerprint;
use greylag_sharding::horizon::Horizon;
use greylag_sharding::ids::{RegionId, ShardId};
use greylag_sharding::machine::message::{
    Claim, ClaimState, CoordinatorMessage, FromCoordinator, RegionMessage, Register,
};
use greylag_sharding::parts::Cutter;
use greylag_sharding::wire::{self, Control};
use greylag_sharding::{Entity, EntityKey, EntityRef, EntityType, Failure, RegionState, SendError};
use greylag_transport::{Destination, Envelope, Inbound, Receiver, Recipient, Remoting};
use serde::{Deserialize, Serialize};

/// sharding 1, over a cluster of one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_node_hosts_everything() {
    let world = World::new();
    let a = world.node("a:1").await;
    for _ in 0..3 {
        increment_all(&a.counters, 10);
    }
    for id in 0..10 {
        a.counters.entity_ref(id.to_string()).tell(Command::Decrement).expect("it is taken");
    }
    assert_all(&a.counters, 10, 2).await;
    let regions = a.counters.inspect().current_regions(PATIENCE).await;
    assert_eq!((regions.addresses, regions.coordinator_missing), ([a.address.clone()].into(), false));
    assert_eq!(a.counters.shard_homes().into_keys().collect::<Vec<_>>(), [a.address]);
}

/// cluster F9, sharding §4.1: entities of a process that slept handle nothing before its node has checked how long that
/// was, and nothing at all if they may have been started elsewhere meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn entities_that_slept_answer_only_once_their_node_is_confirmed() {
    let world = World::new();
    let clock = Clock::for_test();
    let a = world.node_by("a:1", clock.clone()).await;
    increment_all(&a.volatile, 10);
    assert_all(&a.volatile, 10, 1).await;
    let b = world.node("b:1").await;
    let on_a = |id: usize| a.volatile.shard_home(&a.volatile.shard_of(&id.to_string()).expect("an id"));
    let stays = (0..10).find(|id| on_a(*id).as_ref() == Some(&a.address)).expect("it keeps some");
    assert_eq!(get(&b.volatile, stays).await, 1);

    // Confirmed by the other node, the entity goes on with its state.
    clock.jump(Duration::from_secs(60));
    assert!(!a.cluster.pulse().is_fresh());
    assert_eq!(get(&a.volatile, stays).await, 1);
    assert!(a.cluster.pulse().is_fresh(), "it was confirmed first");

    // No other member confirms the node: it ends without an answer.
    world.network.cut(a.address.address(), b.address.address());
    clock.jump(Duration::from_secs(60));
    let ask =
        a.volatile.entity_ref(stays.to_string()).ask(|reply_to| Command::Get { reply_to }).timeout(PATIENCE).send();
    let answer = ask.await;
    assert!(answer.is_err(), "{answer:?}");
    let ended = tokio::time::timeout(PATIENCE, a.cluster.terminated()).await.expect("it ends");
    assert_eq!(ended, ShutdownReason::Downed);
}

/// cluster 85: a shard reads the tick of its node once per run and not once per message. A run checks its time after 32
/// messages first, so even a slow machine reads at most once in 32; for a machine of usual speed, and for the cost, see
/// `cargo bench -p greylag-sharding --bench local`. On one thread, so that the tells have queued up when the shard
/// runs; the margin between 32 and 20 is for the reads of the node itself.
#[tokio::test]
async fn scenario_85_a_flood_of_tells_reads_the_tick_once_in_a_run() {
    const TELLS: u64 = 100_000;
    let world = World::new();
    let clock = Clock::for_test();
    let a = world.node_by("a:1", clock.clone()).await;
    assert_eq!(get(&a.volatile, 0).await, 0);
    let before = clock.reads();
    let counter = a.volatile.entity_ref("0");
    (0..TELLS).for_each(|_| counter.tell(Command::Increment).expect("the inbox has room"));
    assert_eq!(get(&a.volatile, 0).await, TELLS as i64);
    let reads = clock.reads() - before;
    assert!((1..=TELLS / 20).contains(&reads), "{reads} reads of the clock for {TELLS} tells");
}

/// cluster T33: the node's port must outlive its shards.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shards_count_as_running_until_they_have_stopped() {
    let world = World::new();
    let a = world.node("a:1").await;
    increment_all(&a.counters, 10);
    assert_all(&a.counters, 10, 1).await;
    let running = a.cluster.running_here();
    assert!(running.count() > 0, "its shards run");
    a.cluster.shutdown().await;
    tokio::time::timeout(PATIENCE, running.ended()).await.expect("they stop");
}

/// sharding 2: a second node takes its share, and the counts go on, whichever node asks.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shards_move_to_a_node_that_joins_and_the_counts_go_on() {
    let world = World::new();
    let a = world.node("a:1").await;
    increment_all(&a.counters, 60);
    assert_all(&a.counters, 60, 1).await;
    let b = world.node("b:2").await;
    for _ in 0..5 {
        increment_all(&a.counters, 60);
        increment_all(&b.counters, 60);
    }
    wait_for_shards(&a.counters, &b.address, 6).await;
    for _ in 0..2 {
        increment_all(&b.counters, 60);
    }
    let regions = b.counters.inspect().current_regions(PATIENCE).await;
    let both = [a.address.clone(), b.address.clone()].into();
    assert_eq!((regions.addresses, regions.coordinator_missing), (both, false), "as the second node sees it");
    settle(&a.counters, 60).await;
    assert_all(&b.counters, 60, 13).await;
    increment_all(&a.counters, 60);
    assert_all(&a.counters, 60, 14).await;
    increment_all(&b.volatile, 60);
    for id in 0..60 {
        assert_eq!(get(&b.volatile, id).await, 1, "volatile {id}");
    }
}

/// sharding 75, 84: when a node dies no stored event is lost, and its entities go on elsewhere.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn entities_of_a_lost_node_go_on_at_the_others() {
    let world = World::new();
    let a = world.node("a:1").await;
    let b = world.node("b:2").await;
    let c = world.node("c:3").await;
    increment_all(&a.counters, 60);
    assert_all(&a.counters, 60, 1).await;
    wait_for_shards(&a.counters, &c.address, 3).await;
    world.network.crash(&c.address);
    for id in 0..60 {
        assert_eq!(get_at_last(&b.counters, id).await, 1, "counter {id}");
    }
    increment_all(&b.counters, 60);
    settle(&b.counters, 60).await;
    assert_all(&a.counters, 60, 2).await;
    drop(c);
}

/// sharding 47: a node that leaves hands its shards over first; no message is lost meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leaving_node_hands_its_shards_over() {
    let world = World::new();
    let a = world.node("a:1").await;
    let b = world.node("b:2").await;
    increment_all(&a.counters, 60);
    assert_all(&a.counters, 60, 1).await;
    wait_for_shards(&a.counters, &b.address, 3).await;
    let leaving = b.cluster.clone();
    let left = tokio::spawn(async move { leaving.shutdown().await });
    for _ in 0..20 {
        increment_all(&a.counters, 60);
        tokio::task::yield_now().await;
    }
    tokio::time::timeout(PATIENCE, left).await.expect("it leaves in time").expect("no panic");
    assert_all(&a.counters, 60, 21).await;
    assert_eq!(a.counters.shard_homes().keys().collect::<Vec<_>>(), [&a.address]);
}

/// sharding 102: a region that stopped is started again while its node stays, and takes shards again.
#[tokio::test]
async fn scenario_102_a_region_is_started_again_beside_another_node() {
    let world = World::new();
    let a = world.node("a:1").await;
    let b = world.node("b:1").await;
    increment_all(&a.counters, 40);
    wait_for_shards(&a.counters, &b.address, 1).await;
    assert_all(&a.counters, 40, 1).await;

    tokio::time::timeout(PATIENCE, b.counters.graceful_shutdown()).await.expect("its shards move");
    let refused = b.counters.entity_ref("1").tell(Command::Increment);
    assert_eq!(refused, Err(SendError::RegionStopped));
    assert_all(&a.counters, 40, 1).await;

    let again = b.sharding.init(counters()).expect("the same type");
    assert_ne!(again.id(), b.counters.id());
    wait_for_shards(&a.counters, &b.address, 1).await;
    increment_all(&again, 40);
    assert_all(&again, 40, 2).await;
    assert_all(&a.counters, 40, 2).await;
}

/// Receives numbers, and counts those that are not the next one.
#[derive(Default)]
struct Sequence {
    last: u64,
    wrong: u64,
}

const SEQUENCE: EntityKey<Numbered> = EntityKey::new("Sequence");

#[derive(Serialize, Deserialize)]
enum Numbered {
    Next(u64),
    Seen(ReplyTo<(u64, u64)>),
}

impl Entity for Sequence {
    type Message = Numbered;

    fn receive(&mut self, message: Numbered, _: &mut Ctx<'_, Numbered>) -> Result<(), Failure> {
        match message {
            Numbered::Next(number) => {
                self.wrong += u64::from(number != self.last + 1);
                self.last = number;
            }
            Numbered::Seen(reply_to) => reply_to.reply((self.last, self.wrong)),
        }
        Ok(())
    }
}

/// Sends `count` numbers, with an ask often enough that no queue overflows.
async fn send_numbers(to: EntityRef<Numbered>, count: u64) {
    for number in 1..=count {
        to.tell(Numbered::Next(number)).expect("it is taken");
        if number % 1_000 == 0 || number == count {
            let seen = to.ask(Numbered::Seen).timeout(PATIENCE).await.expect("it answers");
            assert_eq!(seen, (number, 0), "none lost, none out of its order");
        }
    }
}

/// sharding 25: while no coordinator can be reached, known homes are served as before, near and far, and messages for a
/// shard without a home wait until a coordinator can be reached.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scenario_25_known_homes_go_on_without_a_coordinator() {
    const MESSAGES: u64 = 50_000;
    let mut world = World::without_resolver();
    world.sharding.rebalance_interval = Duration::from_secs(3600);
    let mut regions = Vec::new();
    for address in ["a:1", "b:1", "c:1"] {
        let sharding = world.newcomer(address, "").await;
        let entities = EntityType::new(SEQUENCE, |_| Ok(Sequence::default())).codec(json("numbered"));
        let region = sharding.init(entities).expect("fresh");
        world.join(sharding.cluster().expect("it has one")).await;
        until("it takes its share", || region.state() == RegionState::Registered).await;
        regions.push(region);
    }
    let [a, b, c] = &regions[..] else { unreachable!("there are three") };
    let id_of = async |home: &UniqueAddress| {
        for id in 0.. {
            let id = id.to_string();
            b.entity_ref(id.as_str()).ask(Numbered::Seen).timeout(PATIENCE).await.expect("it answers");
            if b.shard_home(&b.shard_of(&id).expect("an id")).as_ref() == Some(home) {
                return id;
            }
        }
        unreachable!("each of three regions is given shards")
    };
    let (near, far) = (id_of(&b.id().node).await, id_of(&c.id().node).await);
    let near_from_c = c.entity_ref(near.as_str());
    assert_eq!(near_from_c.ask(Numbered::Seen).timeout(PATIENCE).await, Ok((0, 0)));
    let is_unknown = |id: &usize| !b.is_routed(&b.shard_of(&id.to_string()).expect("an id"));
    let unknown = (0..1_000).find(is_unknown).expect("some shard has no home yet").to_string();

    for other in [b, c] {
        world.network.cut(a.id().node.address(), other.id().node.address());
    }
    let waiting = b.entity_ref(unknown.as_str());
    waiting.tell(Numbered::Next(1)).expect("it is taken");
    let senders = [&near, &far].map(|id| tokio::spawn(send_numbers(b.entity_ref(id.as_str()), MESSAGES)));
    for sender in senders {
        sender.await.expect("in order");
    }
    assert_eq!(b.counters().buffered, 1, "nobody gave its shard a home");
    world.network.heal_all();
    assert_eq!(waiting.ask(Numbered::Seen).timeout(PATIENCE).await, Ok((1, 0)));
    assert_eq!(near_from_c.ask(Numbered::Seen).timeout(PATIENCE).await, Ok((MESSAGES, 0)), "the same incarnation");
}

/// sharding 29: a node that joins gets shards of the one that has them all, and no value is lost meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scenario_29_shards_move_to_a_node_that_joins() {
    const IDS: usize = 100;
    let mut world = World::new();
    world.sharding.number_of_shards = 10;
    let a = world.node("a:1").await;
    for id in 0..IDS {
        (0..=id % 7).for_each(|_| increment(&a.counters, id..id + 1));
    }
    settle(&a.counters, IDS).await;
    assert_eq!(a.counters.shard_homes(), [(a.address.clone(), 10)].into());
    let b = world.node("b:1").await;
    wait_for_shards(&a.counters, &b.address, 2).await;
    for id in 0..IDS {
        assert_eq!(get(&b.counters, id).await, id as i64 % 7 + 1, "counter {id}");
    }
}

/// Passes on the control messages that a node without a region gets.
struct ControlReceiver(tokio::sync::mpsc::UnboundedSender<Control>);

impl Receiver for ControlReceiver {
    fn receive(&self, message: Inbound) {
        let horizon = Horizon::after(4_000_000_000);
        self.0.send(wire::decode(&message.manifest, message.payload, horizon).expect("it is readable")).ok();
    }
}

/// A node without sharding that sends hand-made messages to the coordinator of the counters.
struct Speaker {
    region: RegionId,
    remoting: Arc<dyn Remoting>,
    told: tokio::sync::mpsc::UnboundedReceiver<Control>,
    cluster: Option<Cluster>,
}

impl Speaker {
    /// As a member, or as a non-member.
    async fn new(world: &World, address: &str, member: bool) -> Self {
        let node: UniqueAddress = address.parse().expect("an address");
        let remoting = world.network.node(node.clone(), Arc::new(Registry::new()));
        let (sender, told) = tokio::sync::mpsc::unbounded_channel();
        remoting.register(&Self::path(), Arc::new(ControlReceiver(sender)));
        let mut cluster = None;
        if member {
            let started = Cluster::start(world.cluster.clone(), remoting.clone()).await.expect("it starts");
            world.join(&started).await;
            cluster = Some(started);
        }
        Self { region: RegionId { node, incarnation: 1 }, remoting, told, cluster }
    }

    fn path() -> String {
        format!("{}sharding/Counter", Recipient::CONTROL_PREFIX)
    }

    /// Sends a message; returns the number of frames.
    fn say(&self, to: &UniqueAddress, message: &RegionMessage) -> usize {
        let (manifest, bytes) = wire::encode_region(message);
        let frames = Cutter::default().frames(manifest, bytes);
        let count = frames.len();
        for (manifest, frame) in frames {
            assert!(frame.len() <= 64 * 1024, "a frame of {} bytes", frame.len());
            let envelope = Envelope::new(Recipient::new(Self::path()), CodecId::INTERNAL, manifest, frame);
            self.remoting.send(&Destination::Incarnation(to.clone()), envelope.to_uid(to.uid())).expect("taken");
        }
        count
    }

    /// A registration that will be refused, since any region gets such an answer with its serial.
    fn register(&self, serial: u64, highest_epoch: u64, hosted: Vec<Claim>) -> RegionMessage {
        let fingerprint = Fingerprint { type_name: "Another".into(), ..machines::fingerprint(10_000) };
        let region = self.region.clone();
        RegionMessage::Register(Register { region, proxy: false, serial, fingerprint, highest_epoch, hosted })
    }

    /// Repeats a registration until it is refused, since a coordinator that does not know this member yet answers
    /// nothing. Returns the serial in the refusal, and the coordinator's epoch.
    async fn refused(&mut self, by: &UniqueAddress, register: &RegionMessage) -> (u64, u64) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            assert!(Instant::now() < deadline, "the coordinator does not answer");
            self.say(by, register);
            let refusal = async {
                loop {
                    let message = self.told.recv().await.expect("the receiver lives as long as its node");
                    if let Control::FromCoordinator(FromCoordinator { epoch, message, .. }) = message
                        && let CoordinatorMessage::RegisterRefused { serial, .. } = message
                    {
                        return (serial, epoch);
                    }
                }
            };
            if let Ok(refusal) = tokio::time::timeout(PATIENCE / 40, refusal).await {
                return refusal;
            }
        }
    }
}

/// sharding 98: an inventory that takes several frames reaches the coordinator.
#[tokio::test]
async fn scenario_98_an_inventory_in_pieces_is_answered() {
    let world = World::new();
    let a = world.node("a:1").await;
    let mut b = Speaker::new(&world, "b:1#77", true).await;
    let claim = |index| Claim {
        shard: ShardId::from_index(index),
        generation: Generation::new(1, 1).expect("in range"),
        state: ClaimState::Running,
    };
    let inventory = b.register(5, 0, (0..10_000).map(claim).collect());
    let frames = b.say(&a.address, &inventory);
    assert!(frames > 2, "{frames} frames");
    assert_eq!(b.refused(&a.address, &inventory).await.0, 5, "it was read whole");
}

/// sharding 103: the coordinator accepts no epoch that no coordinator can have reached, from a member or from a
/// non-member, and keeps its own.
#[tokio::test]
async fn scenario_103_a_coordinator_stores_no_number_beyond_reach_and_goes_on() {
    let world = World::new();
    let a = world.node("a:1").await;
    increment_all(&a.counters, 10);
    assert_all(&a.counters, 10, 1).await;
    let mut member = Speaker::new(&world, "b:1#78", true).await;
    let stranger = Speaker::new(&world, "c:1#79", false).await;
    let (_, before) = member.refused(&a.address, &member.register(1, 0, Vec::new())).await;
    let wall = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("after 1970").as_secs();
    for epoch in [u64::MAX, Generation::MAX_EPOCH - 1, wall + 200 * 365 * 24 * 60 * 60] {
        for speaker in [&member, &stranger] {
            speaker.say(&a.address, &speaker.register(2, epoch, Vec::new()));
            let claim = |shard| Claim {
                shard: ShardId::from_index(shard),
                generation: Generation::new(epoch.min(Generation::MAX_EPOCH), 1).expect("in range"),
                state: ClaimState::Running,
            };
            speaker.say(&a.address, &speaker.register(3, before, (0..20).map(claim).collect()));
            speaker.say(&a.address, &RegionMessage::StaleEpoch { region: speaker.region.clone(), epoch });
        }
    }
    // Behind all earlier messages on the same lane.
    let last = member.refused(&a.address, &member.register(4, 0, Vec::new())).await;
    assert_eq!(last, (4, before), "nothing in between was answered, and it is the same coordinator");
    // The member without the type keeps no part of the coordinator's state: while it is a member, nothing new is
    // decided.
    let leaver = member.cluster.take().expect("it is a member");
    leaver.leave(member.region.node.clone()).expect("it is one of its cluster");
    tokio::time::timeout(PATIENCE, leaver.terminated()).await.expect("it leaves");
    increment_all(&a.counters, 40);
    assert_eq!(get(&a.counters, 5).await, 2);
    assert_eq!(get(&a.counters, 35).await, 1, "an entity that is new");
}
