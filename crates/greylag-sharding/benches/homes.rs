//! Many shards: how long it takes to allocate 100,000 of them, and how much memory their homes take in a region.
//!
//! `cargo bench -p greylag-sharding --bench homes`. Memory is what a separate process, which hosts nothing, has
//! allocated and not freed: its resident set says little, since homes reuse memory freed by earlier asks.

#![allow(clippy::print_stdout, missing_docs)]

mod support;

use std::collections::BTreeSet;
use std::process::Command;
use std::time::{Duration, Instant};

use greylag_codec::cbor;
use greylag_core::{DeadLetterReason, NodeAddress, ReplyTo};
use greylag_sharding::{AskError, Ctx, Entity, EntityKey, EntityType, Failure, Region, ShardingSettings};
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};
use support::{Node, PATIENCE, is_measured};
use tokio::runtime::Runtime;

#[global_allocator]
static ALLOCATOR: &StatsAlloc<std::alloc::System> = &INSTRUMENTED_SYSTEM;

type Question = ReplyTo<u64>;

const ECHO: EntityKey<Question> = EntityKey::new("Echo");
/// Argument of the process that only asks.
const ASK: &str = "--learn-homes";

struct Echo;

impl Entity for Echo {
    type Message = Question;

    fn receive(&mut self, reply_to: Question, _: &mut Ctx<'_, Question>) -> Result<(), Failure> {
        reply_to.reply(1);
        Ok(())
    }
}

fn echoes() -> EntityType<Question> {
    EntityType::new(ECHO, |_| Ok(Echo)).codec(cbor("bench.question"))
}

fn settings(shards: u32) -> ShardingSettings {
    // Nodes ask for every shard at once. A node without the role holds homes as a region does, and no replica of the
    // store.
    let role = "host".to_owned();
    ShardingSettings { number_of_shards: shards, buffer_size: 2_000_000, role, ..ShardingSettings::default() }
}

fn main() {
    let mut arguments = std::env::args().skip_while(|argument| argument != ASK).skip(1);
    let runtime = Runtime::new().expect("a runtime starts");
    if let (Some(seed), Some(shards)) = (arguments.next(), arguments.next()) {
        let (seed, shards) = (seed.parse().expect("an address"), shards.parse().expect("a number"));
        return println!("{}", runtime.block_on(bytes_of_homes(&seed, shards)));
    }
    let sizes: &[u32] = if is_measured() { &[10_000, 100_000, 1_000_000] } else { &[1_000] };
    for &shards in sizes {
        let (took, memory) = runtime.block_on(allocate(shards));
        println!("{shards} shards get homes on two nodes, and an entity of each answers: {took:.2} s");
        println!(
            "{shards} homes, known to a node that hosts none: {:.2} MiB, {:.0} bytes each",
            memory / f64::from(1 << 20),
            memory / f64::from(shards)
        );
    }
}

/// One id in each shard, in the order of finding.
fn one_in_each(region: &Region<Question>, shards: u32) -> Vec<String> {
    let (mut found, mut ids) = (vec![false; shards as usize], Vec::with_capacity(shards as usize));
    for n in 0.. {
        let id = format!("entity-{n}");
        let shard = region.shard_of(&id).and_then(|shard| shard.index()).expect("shards are numbered");
        if !std::mem::replace(&mut found[shard as usize], true) {
            ids.push(id);
        }
        if ids.len() == shards as usize {
            break;
        }
    }
    ids
}

/// Asks for every shard, `at_once` at a time, and returns once the homes of all are known here.
async fn learn(region: &Region<Question>, ids: &[String], at_once: usize) -> f64 {
    let begun = Instant::now();
    for some in ids.chunks(at_once) {
        let ask = |id: &String| region.entity_ref(id.as_str()).ask(|reply_to| reply_to).timeout(5 * PATIENCE).send();
        let mut asked: Vec<_> = some.iter().collect();
        while !asked.is_empty() {
            let mut again = Vec::new();
            for (id, answer) in asked.iter().zip(asked.iter().map(|id| ask(id)).collect::<Vec<_>>()) {
                match answer.await {
                    Ok(_) => {}
                    // Ask again: more messages wait for homes than fit into the queue to the other node.
                    Err(AskError::Dropped(DeadLetterReason::QueueFull)) => again.push(*id),
                    Err(error) => panic!("{id} does not answer: {error}"),
                }
            }
            asked = again;
        }
    }
    while region.shard_homes().values().sum::<usize>() < ids.len() {
        assert!(begun.elapsed() < 5 * PATIENCE, "not all shards have a home: {:?}", region.shard_homes());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    begun.elapsed().as_secs_f64()
}

/// How long two nodes need to give homes to all shards and to answer from each, and the memory of the homes on a third
/// node.
async fn allocate(shards: u32) -> (f64, f64) {
    let nodes = [Node::start(settings(shards)).await, Node::start(settings(shards)).await];
    for node in &nodes {
        node.sharding.init(echoes()).expect("a fresh name");
    }
    nodes[0].join(None).await;
    let seed = nodes[0].address().address().clone();
    nodes[1].join(Some(&seed)).await;
    nodes[0].cluster.wait_for(|view| view.members.len() == 2).await.expect("it runs");
    let region = nodes[1].sharding.region(ECHO).expect("it was started");
    let took = learn(&region, &one_in_each(&region, shards), usize::MAX).await;
    let this = std::env::current_exe().expect("a running program has a path");
    let output = tokio::task::spawn_blocking(move || {
        Command::new(&this).args([ASK, &seed.to_string(), &shards.to_string()]).output()
    });
    let output = output.await.expect("it waits").expect("this program runs");
    let memory = String::from_utf8_lossy(&output.stdout).trim().parse();
    let memory = memory.unwrap_or_else(|_| panic!("no number: {}", String::from_utf8_lossy(&output.stderr)));
    let [first, second] = nodes;
    second.end().await;
    first.end().await;
    (took, memory)
}

/// How much the memory of this process grows when it learns the homes of all shards.
async fn bytes_of_homes(seed: &NodeAddress, shards: u32) -> f64 {
    let node = Node::with_roles(BTreeSet::new(), settings(shards)).await;
    let region = node.sharding.init_proxy(echoes()).expect("a fresh name");
    let ids = one_in_each(&region, shards);
    // A region gets all homes once it has registered.
    let before = allocated_bytes();
    node.join(Some(seed)).await;
    learn(&region, &ids, 1_000).await;
    // Wait until answers are forgotten, which happens a while after they have come.
    tokio::time::sleep(Duration::from_secs(2)).await;
    allocated_bytes() - before
}

/// Bytes that this process has allocated and not freed: live memory, without memory that the allocator keeps for later.
fn allocated_bytes() -> f64 {
    let stats = ALLOCATOR.stats();
    stats.bytes_allocated as f64 - stats.bytes_deallocated as f64
}
