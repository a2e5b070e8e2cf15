//! What is sent to a shard that is moved all the time, over real clusters of nodes that live in one process.
//!
//! Source: sharding §2.9, scenario 30.

#[path = "common/nodes.rs"]
mod nodes;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use greylag_codec::json;
use greylag_persistence::Ctx;
use greylag_sharding::{Entity, EntityKey, EntityRef, EntityType, ExternalAllocation, Failure};
use nodes::*;
use serde::{Deserialize, Serialize};

/// One of the numbers of a sender.
#[derive(Serialize, Deserialize)]
struct Numbered {
    sender: usize,
    number: u64,
}

const NUMBERED: EntityKey<Numbered> = EntityKey::new("Numbered");

/// The messages that an entity has handled, over all its incarnations.
#[derive(Debug, Default)]
struct Seen {
    /// The last number of each sender.
    last: [u64; SENDERS],
    /// How many numbers were not the next ones of their senders.
    wrong: usize,
    /// How often it was started.
    lives: usize,
}

struct Listener(Arc<Mutex<Seen>>);

impl Entity for Listener {
    type Message = Numbered;

    fn receive(&mut self, message: Numbered, _: &mut Ctx<'_, Numbered>) -> Result<(), Failure> {
        let Numbered { sender, number } = message;
        let mut seen = self.0.lock().expect("no holder panics");
        let last = std::mem::replace(&mut seen.last[sender], number);
        seen.wrong += usize::from(number != last + 1);
        Ok(())
    }
}

const SENDERS: usize = 4;
const MOVES: usize = 100;

/// Messages of each sender that may be on their way at once: fewer than any queue takes.
const WINDOW: u64 = 1_000;

/// Numbers its messages until `ends`. The last number that was sent.
async fn send_numbered(to: EntityRef<Numbered>, sender: usize, seen: Arc<Mutex<Seen>>, ends: Arc<AtomicBool>) -> u64 {
    let mut number = 0;
    while !ends.load(Ordering::Relaxed) {
        let seen = seen.lock().expect("no holder panics").last[sender];
        let until = (seen + WINDOW).min(number + 50);
        while number < until {
            number += 1;
            to.tell(Numbered { sender, number }).expect("it is taken");
        }
        tokio::task::yield_now().await;
    }
    number
}

/// sharding 30: four senders on three nodes, while one shard is moved a hundred times.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scenario_30_what_four_senders_send_to_a_shard_that_moves_keeps_its_order() {
    a_shard_that_moves_is_sent_to(World::new()).await;
}

/// sharding 30, over sockets, where lanes overtake each other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scenario_30_what_four_senders_send_to_a_shard_that_moves_keeps_its_order_over_sockets() {
    a_shard_that_moves_is_sent_to(World::over_sockets()).await;
}

async fn a_shard_that_moves_is_sent_to(mut world: World) {
    world.sharding.rebalance_interval = Duration::from_millis(20);
    let seen = Arc::new(Mutex::new(Seen::default()));
    let mut nodes = Vec::new();
    for address in ["a:1", "b:1", "c:1"] {
        let sharding = world.newcomer(address, "").await;
        let seen = seen.clone();
        let listeners = EntityType::new(NUMBERED, move |_| {
            seen.lock().expect("no holder panics").lives += 1;
            Ok(Listener(seen.clone()))
        });
        let listeners = listeners.codec(json("numbered")).allocation(ExternalAllocation::default());
        let region = sharding.init(listeners).expect("fresh");
        world.join(sharding.cluster().expect("it has one")).await;
        nodes.push((sharding, region));
    }
    let ends = Arc::new(AtomicBool::new(false));
    let senders: Vec<_> = (0..SENDERS)
        .map(|sender| {
            let to = nodes[sender % 3].1.entity_ref("one");
            tokio::spawn(send_numbered(to, sender, seen.clone(), ends.clone()))
        })
        .collect();
    let shard = nodes[0].1.shard_of("one").expect("an id");
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
    let last = || seen.lock().expect("no holder panics").last;
    until("all has arrived", || last() == sent || seen.lock().expect("no holder panics").wrong > 0).await;
    let seen = seen.lock().expect("no holder panics");
    assert_eq!(seen.wrong, 0, "each sender's numbers come without a gap and without a swap: {seen:?}");
    assert!(seen.lives >= MOVES, "it moved {} times", seen.lives);
    assert!(sent.iter().all(|sent| *sent > MOVES as u64), "each sends all the time: {sent:?}");
}
