//! Tells to entities of another node and asks of them, over loopback, compared in the same run with bare tonic streams
//! that carry the same envelopes.
//!
//! `cargo bench -p greylag-sharding --bench remote`, or only one half with `-- tells` or `-- asks`.

#![allow(clippy::print_stdout, missing_docs)]

mod as_is;
#[path = "../../greylag-transport/benches/bare/mod.rs"]
#[allow(dead_code, reason = "the transport's own benchmark uses the rest")]
mod bare;
mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use as_is::AsIs;
use bare::{BareBatch, Raw, bare_round_trips, bare_stream, percentiles, processor_time};
use bytes::Bytes;
use greylag_codec::cbor;
use greylag_core::ReplyTo;
use greylag_sharding::{Ctx, Entity, EntityKey, EntityRef, EntityType, Failure, Region, ShardingSettings};
use serde::{Deserialize, Serialize};
use support::{Node, PATIENCE, is_measured};
use tokio::runtime::Runtime;
use tokio::sync::Notify;

const PAYLOAD: usize = 100;
const ROUNDS: usize = 5;
/// Tells under way at a time: fewer than the queue to the other node takes, so that none is refused.
const AHEAD: u64 = 3_000;
/// After this many tells the sender checks how many are under way, and is woken after as many.
const STEP: u64 = 500;

const SINK: EntityKey<Bytes> = EntityKey::new("Sink");
const ECHO: EntityKey<Question> = EntityKey::new("Echo");

/// Counts the messages that all entities of this process receive.
#[derive(Default)]
struct Handled {
    count: AtomicU64,
    some_more: Notify,
}

impl Handled {
    /// The number of received messages, once no more come.
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
            // Time out: the last messages complete no step, and a node may have been asked before it counted.
            tokio::time::timeout(Duration::from_millis(1), more).await.ok();
        }
    }
}

struct Sink(Arc<Handled>);

impl Entity for Sink {
    type Message = Bytes;

    fn receive(&mut self, message: Bytes, _: &mut Ctx<'_, Bytes>) -> Result<(), Failure> {
        assert_eq!(message.len(), PAYLOAD);
        if self.0.count.fetch_add(1, Ordering::Relaxed) % STEP == STEP - 1 {
            self.0.some_more.notify_one();
        }
        Ok(())
    }
}

#[derive(Serialize, Deserialize)]
struct Question {
    filling: Vec<u8>,
    reply_to: ReplyTo<u64>,
}

#[derive(Default)]
struct Echo(u64);

impl Entity for Echo {
    type Message = Question;

    fn receive(&mut self, question: Question, _: &mut Ctx<'_, Question>) -> Result<(), Failure> {
        self.0 += 1;
        question.reply_to.reply(self.0);
        Ok(())
    }
}

/// Two members. Messages go from the first to entities that live on the second.
struct Pair {
    here: Node,
    there: Node,
    sinks: Region<Bytes>,
    echoes: Region<Question>,
    handled: Arc<Handled>,
}

impl Pair {
    async fn start() -> Self {
        let handled = Arc::<Handled>::default();
        let types = |node: &Node| {
            let counter = handled.clone();
            let sinks = EntityType::new(SINK, move |_| Ok(Sink(counter.clone()))).codec(AsIs);
            let echoes = EntityType::new(ECHO, |_| Ok(Echo::default())).codec(cbor("bench.question"));
            let sinks = node.sharding.init(sinks).expect("a fresh name");
            (sinks, node.sharding.init(echoes).expect("a fresh name"))
        };
        let here = Node::start(ShardingSettings { number_of_shards: 64, ..ShardingSettings::default() }).await;
        let there = Node::start(ShardingSettings { number_of_shards: 64, ..ShardingSettings::default() }).await;
        let (sinks, echoes) = types(&here);
        types(&there);
        here.join(None).await;
        there.join(Some(here.address().address())).await;
        here.cluster.wait_for(|view| view.members.len() == 2).await.expect("it runs");
        Self { here, there, sinks, echoes, handled }
    }

    /// `count` entities whose shards live on the other node.
    async fn there<M: Send + 'static>(&self, region: &Region<M>, count: usize) -> Vec<EntityRef<M>> {
        let mut found = Vec::new();
        for n in 0.. {
            let id = format!("entity-{n}");
            let shard = region.shard_of(&id).expect("it has one");
            if region.shard_home(&shard).as_ref() == Some(self.there.address()) {
                found.push(region.entity_ref(id));
            }
            if found.len() == count {
                break;
            }
        }
        found
    }

    /// Gives every shard a home before the measurement, half of them on the other node.
    async fn spread<M: Send + 'static>(&self, region: &Region<M>, wake: impl Fn(&EntityRef<M>)) {
        let begun = Instant::now();
        loop {
            for n in 0..1_000 {
                wake(&region.entity_ref(format!("entity-{n}")));
            }
            let homes = region.shard_homes();
            if homes.values().sum::<usize>() == 64 && homes.get(self.there.address()).is_some_and(|there| *there >= 16)
            {
                return;
            }
            assert!(begun.elapsed() < PATIENCE, "the shards are not spread: {homes:?}");
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    /// Tells per second, CPU nanoseconds of each, and messages per frame.
    async fn tells(&self, entities: usize, messages: u64) -> (f64, f64, u64) {
        let refs = self.there(&self.sinks, entities).await;
        let payload = Bytes::from_static(&[7; PAYLOAD]);
        let first = self.handled.settled().await;
        let (stats, before, start) = (self.here.transport.stats(), processor_time(), Instant::now());
        for n in 0..messages {
            let entity = &refs[n as usize % refs.len()];
            entity.tell(payload.clone()).expect("there is room");
            if n % STEP == 0 {
                self.handled.wait_for(first + (n + STEP).saturating_sub(AHEAD)).await;
            }
        }
        self.handled.wait_for(first + messages).await;
        let (wall, cost) = (start.elapsed().as_secs_f64(), (processor_time() - before) / messages as f64);
        let now = self.here.transport.stats();
        let frames = now.sent_frames - stats.sent_frames;
        (messages as f64 / wall, cost, (now.sent_envelopes - stats.sent_envelopes) / frames.max(1))
    }

    /// Asks one after the other, and returns the durations.
    async fn asks(&self, entities: usize, count: u64) -> Vec<Duration> {
        let refs = self.there(&self.echoes, entities).await;
        let mut trips = Vec::new();
        for n in 0..count + 100 {
            let start = Instant::now();
            let entity = &refs[n as usize % refs.len()];
            let ask = |reply_to| Question { filling: vec![7; PAYLOAD], reply_to };
            entity.ask(ask).timeout(PATIENCE).await.expect("an answer");
            if n >= 100 {
                trips.push(start.elapsed());
            }
        }
        trips
    }
}

fn main() {
    let scale = if is_measured() { 1 } else { 100 };
    let runtime = Runtime::new().expect("a runtime starts");
    let pair = runtime.block_on(Pair::start());
    runtime.block_on(async {
        pair.spread(&pair.sinks, |entity| {
            entity.tell(Bytes::from_static(&[7; PAYLOAD])).ok();
        })
        .await;
        let wake = |entity: &EntityRef<Question>| {
            drop(entity.ask(|reply_to| Question { filling: Vec::new(), reply_to }).timeout(PATIENCE).send());
        };
        pair.spread(&pair.echoes, wake).await;
    });
    let wanted = |half: &str| !std::env::args().any(|arg| arg != half && ["tells", "asks"].contains(&&*arg));
    for entities in [1_000, 10_000, 100_000].into_iter().filter(|_| wanted("tells")) {
        tells(&runtime, &pair, entities / scale, 1_000_000 / scale as u64);
    }
    for entities in [100, 1_000, 10_000].into_iter().filter(|_| wanted("asks")) {
        asks(&runtime, &pair, entities / scale, 10_000 / scale as u64);
    }
    runtime.block_on(async {
        pair.there.end().await;
        pair.here.end().await;
    });
}

fn tells(runtime: &Runtime, pair: &Pair, entities: usize, messages: u64) {
    let (mut ours, mut costs, mut ratios, mut cost_ratios) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let mut per_frames = Vec::new();
    for _ in 0..ROUNDS {
        let (rate, cost, per_frame) = runtime.block_on(pair.tells(entities, messages));
        let per_frame = per_frame.max(1);
        let batch = BareBatch::of(usize::try_from(per_frame).unwrap_or(1), PAYLOAD);
        let frames = messages / per_frame;
        let (bare, bare_cost) = runtime.block_on(bare_stream(frames, batch, Raw::<BareBatch>::default()));
        per_frames.push(per_frame as f64);
        ours.push(rate);
        costs.push(cost);
        ratios.push(rate / (bare * per_frame as f64));
        cost_ratios.push(bare_cost / per_frame as f64 / cost);
    }
    let what = format!("remote tells of {PAYLOAD} bytes to {entities} entities");
    support::report(&format!("{what}: messages in a frame"), per_frames);
    support::report(&format!("{what}: messages/s"), ours);
    support::report(&format!("{what}: ns of a processor each"), costs);
    support::report(&format!("{what}: part of a bare tonic stream's rate"), ratios);
    support::report(&format!("{what}: a bare tonic stream's processor time as a part of ours"), cost_ratios);
}

fn asks(runtime: &Runtime, pair: &Pair, entities: usize, count: u64) {
    let mut rounds = Vec::new();
    for _ in 0..ROUNDS {
        let ours = percentiles(runtime.block_on(pair.asks(entities, count)));
        rounds.push((ours, percentiles(runtime.block_on(bare_round_trips(count, PAYLOAD)))));
    }
    let what = format!("a remote ask of one of {entities} entities");
    let of = |part: fn(&((f64, f64), (f64, f64))) -> f64| rounds.iter().map(part).collect::<Vec<_>>();
    support::report(&format!("{what}: p50 in us"), of(|(ours, _)| ours.0));
    support::report(&format!("{what}: p99 in us"), of(|(ours, _)| ours.1));
    support::report(&format!("{what}: p50 over that of a bare tonic stream"), of(|(ours, bare)| ours.0 / bare.0));
    support::report(&format!("{what}: p99 over that of a bare tonic stream"), of(|(ours, bare)| ours.1 / bare.1));
}
