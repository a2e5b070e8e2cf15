//! What one node does without a network: tells to 10,000 entities, and memory per idle entity.
//!
//! `cargo bench -p greylag-sharding --bench local` prints the median of several runs with the least
//! and the greatest. CPU time and memory are read from `/proc`, so figures need Linux. Each memory
//! run is a process of its own: what one run has freed would flatter the next.

#![allow(clippy::print_stdout, missing_docs)]

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use greylag_cluster::{Cluster, ClusterSettings};
use greylag_core::{Registry, ReplyTo};
use greylag_sharding::settings::PassivationSettings;
use greylag_sharding::{Ctx, Entity, EntityKey, EntityRef, EntityType, Failure, Region, Sharding, ShardingSettings};
use greylag_transport::memory::MemoryNetwork;
use tokio::runtime::Runtime;

const RUNS: usize = 7;
const ENTITIES: usize = 10_000;
const ROUNDS: usize = 20;
const ROUND: usize = 200_000;
const IDLE_ENTITIES: usize = 1_000_000;
const PATIENCE: Duration = Duration::from_secs(60);

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
    if std::env::args().any(|arg| arg == "--idle-entities") {
        return println!("{}", bytes_per_idle_entity());
    }
    for workers in [1, 2] {
        let runs: Vec<_> = (0..RUNS).map(|_| tells(workers)).collect();
        let threads = format!("{workers} sending and {workers} shard thread(s)");
        report(&format!("local tells, {ENTITIES} entities, {threads}: messages/s"), runs.iter().map(|run| run.0));
        report(
            &format!("local tells, {ENTITIES} entities, {threads}: messages/s per core"),
            runs.iter().map(|run| run.1),
        );
    }
    look_at_the_tick();
    let this = std::env::current_exe().expect("a running program has a path");
    let idle = (0..3).map(|_| {
        let output = Command::new(&this).arg("--idle-entities").output().expect("this program runs");
        String::from_utf8_lossy(&output.stdout).trim().parse().expect("it prints a number")
    });
    report(&format!("memory per idle entity at {IDLE_ENTITIES}, beyond id (16) and state (8): bytes"), idle);
}

fn report(what: &str, runs: impl Iterator<Item = f64>) {
    let mut runs: Vec<_> = runs.collect();
    runs.sort_by(f64::total_cmp);
    println!(
        "{what}: median {:.0} (of {}: {:.0} to {:.0})",
        runs[runs.len() / 2],
        runs.len(),
        runs[0],
        runs[runs.len() - 1]
    );
}

async fn counters(shards: u32) -> Region<Message> {
    let remoting = MemoryNetwork::new().node("bench:1#1".parse().expect("valid"), Arc::new(Registry::new()));
    let settings = ShardingSettings {
        number_of_shards: shards,
        buffer_size: IDLE_ENTITIES,
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
    runtime.block_on(count(&refs));

    let (wall, cpu) = (Instant::now(), cpu_seconds());
    std::thread::scope(|scope| {
        for part in refs.chunks(ENTITIES.div_ceil(threads)) {
            let handle = runtime.handle();
            scope.spawn(move || send(part, ROUNDS * ROUND / threads, handle));
        }
    });
    let sum = runtime.block_on(count(&refs));
    let (wall, cpu) = (wall.elapsed().as_secs_f64(), cpu_seconds() - cpu);
    assert_eq!(sum, (ROUNDS * ROUND) as u64, "every message was handled once");
    let messages = (ROUNDS * ROUND) as f64;
    (messages / wall, messages / cpu)
}

/// Sends round robin, and never runs further ahead than a round.
fn send(refs: &[EntityRef<Message>], messages: usize, runtime: &tokio::runtime::Handle) {
    for n in 0..messages {
        let counter = &refs[n % refs.len()];
        counter.tell(Message::Add(1)).expect("the inbox has room for a round");
        if n % ROUND == ROUND - 1 {
            runtime.block_on(counter.ask(Message::Get).timeout(PATIENCE).send()).expect("it answers");
        }
    }
}

async fn count(refs: &[EntityRef<Message>]) -> u64 {
    let mut sum = 0;
    for counter in refs {
        sum += counter.ask(Message::Get).timeout(PATIENCE).await.expect("every entity answers");
    }
    sum
}

/// What it costs that each run of a shard reads the tick of its node first (cluster F9): one look by itself,
/// and as a part of a tell and of a lone ask (which takes at least one run of its own).
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

    // The same flood with the look and without, in turns; the clock of the processor is the judge.
    let mut shares: Vec<f64> = Vec::new();
    for _ in 0..RUNS {
        let without = 1.0 / flood(1, |runtime| runtime.block_on(counters(64))).1;
        let with = 1.0 / flood(1, |runtime| runtime.block_on(counters_in_a_cluster(64)).1).1;
        shares.push((with - without) / without * 1e4);
    }
    report("tells with the look against tells without: hundredths of a percent more time", shares.into_iter());
}

/// The same on a node of a cluster of one, which ticks.
async fn counters_in_a_cluster(shards: u32) -> (Cluster, Region<Message>) {
    // Replicators are known per process, by the incarnation of their node.
    static LAST_UID: AtomicU64 = AtomicU64::new(1);
    let uid = LAST_UID.fetch_add(1, Ordering::Relaxed) + 1;
    let address = format!("bench:1#{uid}").parse().expect("valid");
    let remoting = MemoryNetwork::new().node(address, Arc::new(Registry::new()));
    let cluster = Cluster::start(ClusterSettings::default(), remoting).await.expect("valid settings");
    let settings = ShardingSettings {
        number_of_shards: shards,
        buffer_size: IDLE_ENTITIES,
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

fn bytes_per_idle_entity() -> f64 {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let runtime = runtime.expect("threads can be started");
    runtime.block_on(async {
        let region = counters(64).await;
        count(&(0..2000).map(|n| region.entity_ref(format!("warm-{n}"))).collect::<Vec<_>>()).await;
        let before = resident_bytes();
        for n in 0..IDLE_ENTITIES {
            // Sixteen bytes.
            let counter = region.entity_ref(format!("entity-{n:09}"));
            if n % 1000 == 0 {
                counter.ask(Message::Get).timeout(PATIENCE).await.expect("it answers");
            } else {
                counter.tell(Message::Add(1)).expect("the inbox has room");
            }
        }
        for n in (0..IDLE_ENTITIES).step_by(997) {
            let counter = region.entity_ref(format!("entity-{n:09}"));
            counter.ask(Message::Get).timeout(PATIENCE).await.expect("it answers");
        }
        let used = resident_bytes() - before;
        used / IDLE_ENTITIES as f64 - 16.0 - size_of::<Counter>() as f64
    })
}

fn resident_bytes() -> f64 {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("Linux");
    let pages: f64 = statm.split(' ').nth(1).and_then(|pages| pages.parse().ok()).expect("the second number");
    pages * 4096.0
}

/// User and system time of this process.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").expect("Linux");
    let fields: Vec<&str> = stat.rsplit(')').next().expect("a name in parentheses").split_whitespace().collect();
    let ticks: f64 = [fields[11], fields[12]].iter().map(|field| field.parse::<f64>().expect("a number")).sum();
    ticks / 100.0
}
