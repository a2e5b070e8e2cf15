//! Messages to a shard that is moved all the time, over real clusters of nodes that live in one process.
//!
//! Source: sharding §2.9, scenario 30.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use crate::common::nodes::*;
use greylag_codec::json;
use greylag_persistence::Ctx;
use greylag_sharding::{Entity, EntityKey, EntityRef, EntityType, ExternalAllocation, Failure, Region};
use serde::{Deserialize, Serialize};

/// A numbered message of a sender.
#[derive(Serialize, Deserialize)]
struct Numbered {
    sender: usize,
    number: u64,
}

const NUMBERED: EntityKey<Numbered> = EntityKey::new("Numbered");

/// The messages that the entities of the shard have handled, over all their incarnations.
#[derive(Debug, Default)]
struct Seen {
    /// The last number of each sender, by entity.
    last: [[u64; SENDERS]; ENTITIES],
    /// Numbers that were not the next ones of their senders.
    wrong: usize,
    /// Starts of entities.
    lives: usize,
}

impl Seen {
    /// Number of handled messages of a sender.
    fn of(&self, sender: usize) -> u64 {
        self.last.iter().map(|last| last[sender]).sum()
    }
}

/// An entity, with its number.
struct Listener(usize, Arc<Mutex<Seen>>);

impl Entity for Listener {
    type Message = Numbered;

    fn receive(&mut self, message: Numbered, _: &mut Ctx<'_, Numbered>) -> Result<(), Failure> {
        let Numbered { sender, number } = message;
        let mut seen = self.1.lock().expect("no holder panics");
        let last = std::mem::replace(&mut seen.last[self.0][sender], number);
        seen.wrong += usize::from(number != last + 1);
        Ok(())
    }
}

const SENDERS: usize = 4;
const ENTITIES: usize = 3;
const MOVES: usize = 100;

/// Most messages of each sender under way: fewer than any queue takes.
const WINDOW: u64 = 1_000;

/// Sends numbered messages to each entity, in turns, until `ends` is set. Returns how many were sent.
async fn send_numbered(to: Targets, sender: usize, seen: Arc<Mutex<Seen>>, ends: Arc<AtomicBool>) -> u64 {
    let mut sent = 0;
    while !ends.load(Ordering::Relaxed) {
        let seen = seen.lock().expect("no holder panics").of(sender);
        let until = (seen + WINDOW).min(sent + 50);
        while sent < until {
            let number = sent / ENTITIES as u64 + 1;
            to[sent as usize % ENTITIES].tell(Numbered { sender, number }).expect("it is taken");
            sent += 1;
        }
        tokio::task::yield_now().await;
    }
    sent
}

type Targets = [EntityRef<Numbered>; ENTITIES];

/// Ids in one shard.
fn ids_of_one_shard(region: &Region<Numbered>) -> [String; ENTITIES] {
    let shard = region.shard_of("0");
    let mut ids = (0..).map(|id: u32| id.to_string()).filter(|id| region.shard_of(id) == shard);
    std::array::from_fn(|_| ids.next().expect("each shard has many ids"))
}

/// sharding 30: four senders on three nodes, while one shard is moved a hundred times.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scenario_30_messages_of_four_senders_to_a_moving_shard_keep_their_order() {
    a_shard_that_moves_is_sent_to(World::new()).await;
}

/// sharding 30, over sockets, where lanes can overtake each other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scenario_30_messages_of_four_senders_to_a_moving_shard_keep_their_order_over_sockets() {
    a_shard_that_moves_is_sent_to(World::over_sockets()).await;
}

async fn a_shard_that_moves_is_sent_to(mut world: World) {
    world.sharding.rebalance_interval = Duration::from_millis(20);
    let seen = Arc::new(Mutex::new(Seen::default()));
    let (mut nodes, mut ids) = (Vec::new(), Vec::new());
    for address in ["a:1", "b:1", "c:1"] {
        let sharding = world.newcomer(address, "").await;
        let seen = seen.clone();
        let known = Arc::<OnceLock<[String; ENTITIES]>>::default();
        ids.push(known.clone());
        let listeners = EntityType::new(NUMBERED, move |init| {
            seen.lock().expect("no holder panics").lives += 1;
            let known = known.get().expect("they are known before the first message");
            let number = known.iter().position(|id| id == init.id.as_str()).expect("one of those");
            Ok(Listener(number, seen.clone()))
        });
        let listeners = listeners.codec(json("numbered")).allocation(ExternalAllocation::default());
        let region = sharding.init(listeners).expect("fresh");
        world.join(sharding.cluster().expect("it has one")).await;
        nodes.push((sharding, region));
    }
    let targets = ids_of_one_shard(&nodes[0].1);
    ids.iter().for_each(|known| known.set(targets.clone()).expect("set once"));
    let ends = Arc::new(AtomicBool::new(false));
    let senders: Vec<_> = (0..SENDERS)
        .map(|sender| {
            let to = targets.each_ref().map(|id| nodes[sender % 3].1.entity_ref(id.as_str()));
            tokio::spawn(send_numbered(to, sender, seen.clone(), ends.clone()))
        })
        .collect();
    let shard = nodes[0].1.shard_of(&targets[0]).expect("an id");
    let client = nodes[0].0.external_shards(&NUMBERED);
    for step in 0..MOVES {
        let region = &nodes[(step + 1) % 3].1;
        let node = &region.id().node;
        client.update_shard_location(shard.clone(), node.address().clone()).await.expect("it is written here");
        until("the shard moves", || region.shard_home(&shard).as_ref() == Some(node)).await;
    }
    ends.store(true, Ordering::Relaxed);
    let mut sent = [0; SENDERS];
    for (sender, task) in senders.into_iter().enumerate() {
        sent[sender] = task.await.expect("no panic");
    }
    let handled = || std::array::from_fn(|sender| seen.lock().expect("no holder panics").of(sender));
    until("all has arrived", || handled() == sent || seen.lock().expect("no holder panics").wrong > 0).await;
    let seen = seen.lock().expect("no holder panics");
    assert_eq!(seen.wrong, 0, "each sender's numbers come without a gap and without a swap: {seen:?}");
    assert!(seen.lives >= MOVES, "entities were started {} times", seen.lives);
    assert!(sent.iter().all(|sent| *sent > MOVES as u64), "each sends all the time: {sent:?}");
}
