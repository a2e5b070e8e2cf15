//! Performance of one node without a network: tells to 10,000 entities, and starts, memory and scattered tells of many
//! more.
//!
//! `cargo bench -p greylag-sharding --bench local` prints the median of several runs with the least and the greatest;
//! `-- tells`, `-- tick` or `-- memory` does one part alone. CPU time and memory are read from `/proc`, so figures need
//! Linux. Each memory run is a process of its own: what one run has freed would flatter the next.

#![allow(clippy::print_stdout, missing_docs)]

mod support;

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use greylag_cluster::{Cluster, ClusterSettings};
use greylag_core::{Registry, ReplyTo};
use greylag_sharding::settings::PassivationSettings;
use greylag_sharding::{Ctx, Entity, EntityKey, EntityRef, EntityType, Failure, Region, Sharding, ShardingSettings};
use greylag_transport::memory::MemoryNetwork;
use support::{PATIENCE, cpu_seconds, is_measured, report, resident_bytes};
use tokio::runtime::Runtime;

const RUNS: usize = 7;
const ENTITIES: usize = 10_000;
const ROUNDS: usize = 20;
const ROUND: usize = 200_000;
const BUFFER: usize = 1_000_000;
/// Argument of the process that has many entities.
const MANY: &str = "--entities";

enum Message {
    Add(u64),
    Get(ReplyTo<u64>),
}

#[derive(Default)]
struct Counter {
    count: u64,
}

impl Entity for Counter {
    type Message = Message;

    fn receive(&mut self, message: Message, _: &mut Ctx<'_, Message>) -> Result<(), Failure> {
        match message {
            Message::Add(by) => self.count += by,
            Message::Get(reply_to) => reply_to.reply(self.count),
        }
        Ok(())
    }
}

fn main() {
    let mut arguments = std::env::args().skip_while(|argument| argument != MANY).skip(1);
    if let Some(count) = arguments.next() {
        let figures = many_entities(count.parse().expect("a number"));
        return println!("{}", figures.map(|figure| figure.to_string()).join(" "));
    }
    for workers in [1, 2].into_iter().filter(|_| wanted("tells")) {
        let runs: Vec<_> = (0..RUNS).map(|_| tells(workers)).collect();
        let threads = format!("{workers} sending and {workers} shard thread(s)");
        report(&format!("local tells, {ENTITIES} entities, {threads}: messages/s"), runs.iter().map(|run| run.0));
        report(
            &format!("local tells, {ENTITIES} entities, {threads}: messages/s per core"),
            runs.iter().map(|run| run.1),
        );
    }
    if wanted("tick") {
        look_at_the_tick();
    }
    let sizes: &[usize] = if is_measured() { &[100_000, 1_000_000, 10_000_000] } else { &[10_000] };
    sizes.iter().filter(|_| wanted("memory")).for_each(|count| report_many(*count));
}

/// Whether a part of this program is requested: by its name, or because no part is named.
fn wanted(part: &str) -> bool {
    !std::env::args().any(|argument| argument != part && ["tells", "tick", "memory"].contains(&&*argument))
}

/// Runs each measurement in a process of its own: memory freed by one run would flatter the next.
fn report_many(count: usize) {
    let this = std::env::current_exe().expect("a running program has a path");
    let runs: Vec<Vec<f64>> = (0..3)
        .map(|_| {
            let output = Command::new(&this).args([MANY, &count.to_string()]).output().expect("this program runs");
            let text = String::from_utf8_lossy(&output.stdout);
            text.split_whitespace().map(|number| number.parse().expect("a number")).collect()
        })
        .collect();
    let of = |part: usize| runs.iter().map(move |run| run[part]);
    report(&format!("{count} idle entities: bytes of each, beyond id (16) and state (8)"), of(0));
    report(&format!("{count} idle entities: MiB of the process, with ids and states"), of(1));
    report(&format!("{count} entities started one after the other: starts/s"), of(2));
    report(&format!("{count} entities started one after the other: starts/s per core"), of(3));
    report(&format!("{count} entities told in scattered order, by their ids: messages/s"), of(4));
    report(&format!("{count} entities told in scattered order, by their ids: messages/s per core"), of(5));
}

async fn counters(shards: u32) -> Region<Message> {
    let remoting = MemoryNetwork::new().node("bench:1#1".parse().expect("valid"), Arc::new(Registry::new()));
    let settings = ShardingSettings {
        number_of_shards: shards,
        buffer_size: BUFFER,
        passivation: PassivationSettings::none(),
        ..ShardingSettings::default()
    };
    let sharding = Sharding::alone(remoting, None, settings).await.expect("valid settings");
    sharding
        .init(EntityType::new(EntityKey::new("Counter"), |_| Ok(Counter::default())).local_only())
        .expect("a fresh name")
}

/// Messages per second of wall time, and per second of CPU time.
fn tells(threads: usize) -> (f64, f64) {
    flood(threads, |runtime| runtime.block_on(counters(64)))
}

fn flood(threads: usize, counters: impl FnOnce(&Runtime) -> Region<Message>) -> (f64, f64) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(threads).enable_all().build();
    let runtime = runtime.expect("threads can be started");
    let region = counters(&runtime);
    let refs: Vec<_> = (0..ENTITIES).map(|n| region.entity_ref(format!("customer-{n}"))).collect();
    runtime.block_on(count_all(&refs));

    let lap = Lap::begin();
    std::thread::scope(|scope| {
        for part in refs.chunks(ENTITIES.div_ceil(threads)) {
            let handle = runtime.handle();
            scope.spawn(move || send(part, ROUNDS * ROUND / threads, handle));
        }
    });
    let sum = runtime.block_on(count_all(&refs));
    let rates = lap.rates(ROUNDS * ROUND);
    assert_eq!(sum, (ROUNDS * ROUND) as u64, "every message was handled once");
    rates
}

/// Sends round robin, and never runs ahead by more than a round.
fn send(refs: &[EntityRef<Message>], messages: usize, runtime: &tokio::runtime::Handle) {
    for n in 0..messages {
        let counter = &refs[n % refs.len()];
        counter.tell(Message::Add(1)).expect("the inbox has room for a round");
        if n % ROUND == ROUND - 1 {
            runtime.block_on(counter.ask(Message::Get).timeout(PATIENCE).send()).expect("it answers");
        }
    }
}

/// Sends all asks before it awaits the first answer: asks one at a time would cost a third of the tells.
async fn count_all(refs: &[EntityRef<Message>]) -> u64 {
    let answers: Vec<_> = refs.iter().map(|counter| counter.ask(Message::Get).timeout(PATIENCE).send()).collect();
    let mut sum = 0;
    for answer in answers {
        sum += answer.await.expect("every entity answers");
    }
    sum
}

/// Measures the cost of reading the node's tick before each run of a shard (cluster F9): one read by itself, and as a
/// part of a tell and of a lone ask (which takes at least one run of its own).
fn look_at_the_tick() {
    const LOOKS: u32 = 2_000_000;
    const ASKS: u32 = 100_000;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let runtime = runtime.expect("threads can be started");
    let (cluster, region) = runtime.block_on(counters_in_a_cluster(64));
    let pulse = cluster.pulse();
    let nanos = |began: Instant, count: u32| began.elapsed().as_nanos() as f64 / f64::from(count);
    let mut looks: Vec<f64> = Vec::new();
    let mut asks: Vec<f64> = Vec::new();
    for _ in 0..RUNS {
        let began = Instant::now();
        assert!((0..LOOKS).all(|_| std::hint::black_box(&pulse).is_fresh()), "the node ticks");
        looks.push(nanos(began, LOOKS));
        let counter = region.entity_ref("customer");
        let began = Instant::now();
        runtime.block_on(async {
            for _ in 0..ASKS {
                counter.ask(Message::Get).timeout(PATIENCE).await.expect("it answers");
            }
        });
        asks.push(nanos(began, ASKS));
    }
    report("a look at the tick: ns", looks.iter().copied());
    report("a lone ask on one node: ns", asks.iter().copied());
    let shares = looks.iter().zip(&asks).map(|(look, ask)| look / ask * 1e4);
    report("a look as a part of a lone ask: hundredths of a percent", shares);

    // Run the same flood with the read and without, in turns; compare by CPU time.
    let mut shares: Vec<f64> = Vec::new();
    for _ in 0..RUNS {
        let without = 1.0 / flood(1, |runtime| runtime.block_on(counters(64))).1;
        let with = 1.0 / flood(1, |runtime| runtime.block_on(counters_in_a_cluster(64)).1).1;
        shares.push((with - without) / without * 1e4);
    }
    report("tells with the look against tells without: hundredths of a percent more time", shares);
}

/// The same counters on a node of a cluster of one, which has a tick.
async fn counters_in_a_cluster(shards: u32) -> (Cluster, Region<Message>) {
    // Give each node another incarnation, since replicators are registered per process by it.
    static LAST_UID: AtomicU64 = AtomicU64::new(1);
    let uid = LAST_UID.fetch_add(1, Ordering::Relaxed) + 1;
    let address = format!("bench:1#{uid}").parse().expect("valid");
    let remoting = MemoryNetwork::new().node(address, Arc::new(Registry::new()));
    let cluster = Cluster::start(ClusterSettings::default(), remoting).await.expect("valid settings");
    let settings = ShardingSettings {
        number_of_shards: shards,
        buffer_size: BUFFER,
        passivation: PassivationSettings::none(),
        ..ShardingSettings::default()
    };
    let sharding = Sharding::start(cluster.clone(), None, settings).await.expect("valid settings");
    let region = sharding
        .init(EntityType::new(EntityKey::new("Counter"), |_| Ok(Counter::default())).local_only())
        .expect("a fresh name");
    cluster.join_self().await.expect("alone");
    cluster.wait_up().await.expect("alone");
    (cluster, region)
}

/// The cost of `count` entities that are started one after the other, and the rate of messages to them afterwards.
fn many_entities(count: usize) -> [f64; 6] {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let runtime = runtime.expect("threads can be started");
    runtime.block_on(async {
        let region = counters(64).await;
        count_all(&(0..2000).map(|n| region.entity_ref(format!("warm-{n}"))).collect::<Vec<_>>()).await;
        // Ids of sixteen bytes.
        let entity = |n: usize| region.entity_ref(format!("entity-{n:09}"));
        let before = resident_bytes();
        let started = Lap::begin();
        for n in 0..count {
            tell_or_ask(&entity(n), n).await;
        }
        settle(count, &entity).await;
        let (starts, starts_per_core) = started.rates(count);
        let used = resident_bytes() - before;
        let each = used / count as f64 - 16.0 - size_of::<Counter>() as f64;
        let tells = count.min(2_000_000);
        let told = Lap::begin();
        for n in 0..tells {
            // Take an entity far from the previous one.
            tell_or_ask(&entity(n.wrapping_mul(2_654_435_761) % count), n).await;
        }
        settle(count, &entity).await;
        let (cold, cold_per_core) = told.rates(tells);
        [each, used / f64::from(1 << 20), starts, starts_per_core, cold, cold_per_core]
    })
}

/// Wall time and CPU time of a measurement.
struct Lap {
    wall: Instant,
    cpu: f64,
}

impl Lap {
    fn begin() -> Self {
        Self { wall: Instant::now(), cpu: cpu_seconds() }
    }

    /// Things per second of wall time and of CPU time.
    fn rates(&self, things: usize) -> (f64, f64) {
        let things = things as f64;
        (things / self.wall.elapsed().as_secs_f64(), things / (cpu_seconds() - self.cpu))
    }
}

/// Tells; asks once in a thousand times, so that the sender does not run further ahead.
async fn tell_or_ask(counter: &EntityRef<Message>, n: usize) {
    if n.is_multiple_of(1000) {
        counter.ask(Message::Get).timeout(PATIENCE).await.expect("it answers");
    } else {
        counter.tell(Message::Add(1)).expect("the inbox has room");
    }
}

/// Waits for answers of some entities of every shard.
async fn settle(count: usize, entity: &impl Fn(usize) -> EntityRef<Message>) {
    for n in (0..count).step_by((count / 1000).max(1)) {
        entity(n).ask(Message::Get).timeout(PATIENCE).await.expect("it answers");
    }
}
