//! Confirmed messages to entities of this node and of another one, compared with raw tells of the same payloads in the
//! same run.
//!
//! `cargo bench -p greylag-delivery --bench sharding`, or one half with `-- local` or `-- remote`. A message counts
//! once its entity has confirmed it. Payloads have 100 bytes; each number of entities is measured five times, tells and
//! deliveries in turn.

#![allow(clippy::print_stdout, missing_docs)]

#[path = "../../greylag-sharding/benches/as_is/mod.rs"]
mod as_is;
#[path = "../../greylag-transport/benches/bare/mod.rs"]
#[allow(dead_code, reason = "the transport's own benchmark uses the rest")]
mod bare;
#[path = "../../greylag-sharding/benches/support/mod.rs"]
mod support;

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use as_is::AsIs;
use bare::processor_time;
use bytes::Bytes;
use greylag_delivery::{
    Delivery, DeliveryEntity, DeliverySettings, DeliveryType, ProducerId, ProducerIdentity, ShardingProducer,
    WithDelivery,
};
use greylag_sharding::{Ctx, Entity, EntityKey, EntityType, Failure, Region, ShardingSettings};
use support::{Node, PATIENCE, is_measured, report};
use tokio::runtime::Runtime;
use tokio::sync::Notify;

const PAYLOAD: usize = 100;
const ROUNDS: usize = 5;
/// Concurrent senders; each waits until its message is accepted.
const SENDERS: u64 = 64;
/// Maximum number of tells under way: fewer than the capacity of a queue, so that none is refused.
const AHEAD: u64 = 3_000;
const STEP: u64 = 500;

const RAW: EntityKey<Bytes> = EntityKey::new("Raw");
const SURE: EntityKey<Bytes> = EntityKey::new("Sure");

/// Counts messages received by raw entities.
#[derive(Default)]
struct Handled {
    count: AtomicU64,
    some_more: Notify,
}

impl Handled {
    /// The number received, once no more arrive.
    async fn settled(&self) -> u64 {
        loop {
            let count = self.count.load(Ordering::Relaxed);
            tokio::time::sleep(Duration::from_millis(100)).await;
            if self.count.load(Ordering::Relaxed) == count {
                return count;
            }
        }
    }

    /// Waits until `count` messages were received.
    async fn wait_for(&self, count: u64) {
        loop {
            let more = self.some_more.notified();
            if self.count.load(Ordering::Relaxed) >= count {
                return;
            }
            tokio::time::timeout(Duration::from_millis(1), more).await.ok();
        }
    }
}

struct Raw(Arc<Handled>);

impl Entity for Raw {
    type Message = Bytes;

    fn receive(&mut self, _: Bytes, _: &mut Ctx<'_, Bytes>) -> Result<(), Failure> {
        if self.0.count.fetch_add(1, Ordering::Relaxed) % STEP == STEP - 1 {
            self.0.some_more.notify_one();
        }
        Ok(())
    }
}

/// An entity that confirms every delivery at once.
struct Sure;

impl DeliveryEntity<Bytes> for Sure {
    type Bypass = Infallible;

    fn on_delivery(
        &mut self,
        delivery: Delivery<Bytes>,
        _: &mut Ctx<'_, WithDelivery<Bytes, Infallible>>,
    ) -> Result<(), Failure> {
        delivery.confirm();
        Ok(())
    }

    fn on_bypass(
        &mut self,
        message: Infallible,
        _: &mut Ctx<'_, WithDelivery<Bytes, Infallible>>,
    ) -> Result<(), Failure> {
        match message {}
    }
}

/// Nodes of one cluster, and the regions of the first node.
struct Cluster {
    nodes: Vec<Node>,
    raw: Region<Bytes>,
    sure: Region<WithDelivery<Bytes, Infallible>>,
    handled: Arc<Handled>,
}

impl Cluster {
    async fn of(count: usize) -> Self {
        let handled = Arc::<Handled>::default();
        let settings = || ShardingSettings { number_of_shards: 64, ..ShardingSettings::default() };
        let mut nodes: Vec<Node> = Vec::new();
        let mut regions = Vec::new();
        for _ in 0..count {
            let node = Node::start(settings()).await;
            let counter = handled.clone();
            let raw = EntityType::new(RAW, move |_| Ok(Raw(counter.clone()))).codec(AsIs);
            let sure = DeliveryType::of(SURE, AsIs, |_| Ok(Sure));
            let raw = node.sharding.init(raw).expect("a fresh name");
            regions.push((raw, node.sharding.init(sure).expect("a fresh name")));
            nodes.push(node);
        }
        nodes[0].join(None).await;
        for node in &nodes[1..] {
            node.join(Some(nodes[0].address().address())).await;
        }
        let (raw, sure) = regions.swap_remove(0);
        let cluster = Self { nodes, raw, sure, handled };
        cluster.spread().await;
        cluster
    }

    /// Waits until every shard has a home, before the measurement.
    async fn spread(&self) {
        let begun = Instant::now();
        let fair = 64 / self.nodes.len() / 2;
        loop {
            for n in 0..1_000 {
                self.raw.entity_ref(format!("entity-{n}")).tell(Bytes::new()).ok();
                drop(self.sure.start_entity(format!("entity-{n}")));
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
            let is_spread = |homes: std::collections::BTreeMap<_, usize>| {
                homes.values().sum::<usize>() == 64 && homes.values().all(|shards| *shards >= fair)
            };
            if is_spread(self.raw.shard_homes()) && is_spread(self.sure.shard_homes()) {
                return;
            }
            assert!(begun.elapsed() < PATIENCE, "the shards are not spread");
        }
    }

    /// The ids of `count` entities on the last node.
    fn ids<M: Send + 'static>(&self, region: &Region<M>, count: usize) -> Vec<Arc<str>> {
        let there = self.nodes[self.nodes.len() - 1].address();
        let ids = (0..).map(|n| format!("entity-{n}"));
        let lives_there =
            |id: &String| region.shard_of(id).and_then(|shard| region.shard_home(&shard)).as_ref() == Some(there);
        ids.filter(lives_there).take(count).map(Into::into).collect()
    }

    /// Tells per second.
    async fn tells(&self, ids: &[Arc<str>], messages: u64) -> f64 {
        let refs: Vec<_> = ids.iter().map(|id| self.raw.entity_ref(id.clone())).collect();
        let payload = Bytes::from_static(&[7; PAYLOAD]);
        let (first, start) = (self.handled.settled().await, Instant::now());
        for n in 0..messages {
            refs[n as usize % refs.len()].tell(payload.clone()).expect("there is room");
            if n % STEP == 0 {
                self.handled.wait_for(first + (n + STEP).saturating_sub(AHEAD)).await;
            }
        }
        self.handled.wait_for(first + messages).await;
        messages as f64 / start.elapsed().as_secs_f64()
    }

    /// Confirmed messages per second, and processor nanoseconds per message. The last message to each entity requests
    /// its confirmation, since an entity that receives nothing more otherwise confirms only after
    /// `delayed_ack_timeout`.
    async fn deliveries(&self, ids: &[Arc<str>], messages: u64) -> (f64, f64) {
        let mut settings = DeliverySettings::default();
        settings.sharding.buffer_size = settings.sharding.buffer_size.max(ids.len());
        let identity = ProducerIdentity::in_memory(ProducerId::new("bench").expect("a name"));
        let sharding = &self.nodes[0].sharding;
        let producer = ShardingProducer::start(sharding, identity, self.sure.clone(), AsIs, settings);
        let producer = producer.expect("valid settings");
        let payload = Bytes::from_static(&[7; PAYLOAD]);
        let (before, start) = (processor_time(), Instant::now());
        let senders = (0..SENDERS).map(|sender| {
            let (producer, payload, ids) = (producer.clone(), payload.clone(), ids.to_vec());
            tokio::spawn(async move {
                let mut asks = tokio::task::JoinSet::new();
                for n in (sender..messages).step_by(SENDERS as usize) {
                    let id = ids[n as usize % ids.len()].clone();
                    if n + ids.len() as u64 >= messages {
                        let (producer, payload) = (producer.clone(), payload.clone());
                        asks.spawn(async move { producer.ask(id, payload).await.expect("it is confirmed") });
                    } else {
                        producer.send(id, payload.clone()).await.expect("it is accepted");
                    }
                }
                asks.join_all().await;
            })
        });
        for sender in senders.collect::<Vec<_>>() {
            sender.await.expect("it ends");
        }
        producer.drain(PATIENCE).await.expect("all are confirmed");
        let (took, cost) = (start.elapsed().as_secs_f64(), processor_time() - before);
        assert_eq!(producer.stats().confirmed, messages);
        producer.close().await;
        (messages as f64 / took, cost / messages as f64)
    }

    async fn end(self) {
        for node in self.nodes.into_iter().rev() {
            node.end().await;
        }
    }
}

fn main() {
    let scale = if is_measured() { 1 } else { 100 };
    let wanted = |half: &str| !std::env::args().any(|arg| arg != half && ["local", "remote"].contains(&&*arg));
    let runtime = Runtime::new().expect("a runtime starts");
    for (half, nodes) in [("local", 1), ("remote", 2)].into_iter().filter(|(half, _)| wanted(half)) {
        let cluster = runtime.block_on(Cluster::of(nodes));
        for entities in [1_usize, 100, 1_000, 10_000, 100_000] {
            let entities = (entities / scale).max(1);
            measure(&runtime, &cluster, half, entities, (500_000 / scale) as u64);
        }
        runtime.block_on(cluster.end());
    }
}

fn measure(runtime: &Runtime, cluster: &Cluster, half: &str, entities: usize, messages: u64) {
    let (raw, sure) = (cluster.ids(&cluster.raw, entities), cluster.ids(&cluster.sure, entities));
    let (mut rates, mut costs, mut parts) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let tells = runtime.block_on(cluster.tells(&raw, messages));
        let (rate, cost) = runtime.block_on(cluster.deliveries(&sure, messages));
        rates.push(rate);
        costs.push(cost);
        parts.push(rate / tells);
    }
    let what = format!("{half} deliveries of {PAYLOAD} bytes to {entities} entities");
    report(&format!("{what}: confirmed/s"), rates);
    report(&format!("{what}: ns of a processor each"), costs);
    report(&format!("{what}: part of the rate of raw tells"), parts);
}
