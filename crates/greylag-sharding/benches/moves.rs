//! The longest wait of an ask while shards move under load: one shard with idle entities is handed over, a node with
//! many shards leaves, a process with many shards is killed. All over loopback, with default settings except for the
//! interval of rebalancing.
//!
//! `cargo bench -p greylag-sharding --bench moves`

#![allow(clippy::print_stdout, missing_docs)]

mod support;

use std::collections::BTreeMap;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use greylag_codec::cbor;
use greylag_core::{NodeAddress, ReplyTo, UniqueAddress};
use greylag_sharding::ids::ShardId;
use greylag_sharding::{
    Ctx, Entity, EntityKey, EntityRef, EntityType, ExternalAllocation, Failure, Region, ShardingSettings,
};
use support::{Node, PATIENCE, is_measured};
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;

type Question = ReplyTo<u64>;

const ECHO: EntityKey<Question> = EntityKey::new("Echo");
/// Argument of the process that is to be killed.
const HOST: &str = "--host-until-killed";

#[derive(Default)]
struct Echo(u64);

impl Entity for Echo {
    type Message = Question;

    fn receive(&mut self, reply_to: Question, _: &mut Ctx<'_, Question>) -> Result<(), Failure> {
        self.0 += 1;
        reply_to.reply(self.0);
        Ok(())
    }
}

fn echoes() -> EntityType<Question> {
    EntityType::new(ECHO, |_| Ok(Echo::default())).codec(cbor("bench.question"))
}

fn settings(shards: u32) -> ShardingSettings {
    let rebalance_interval = Duration::from_millis(200);
    ShardingSettings { number_of_shards: shards, rebalance_interval, ..ShardingSettings::default() }
}

fn main() {
    let mut arguments = std::env::args().skip_while(|argument| argument != HOST).skip(1);
    let runtime = Runtime::new().expect("a runtime starts");
    if let (Some(seed), Some(shards)) = (arguments.next(), arguments.next()) {
        let (seed, shards) = (seed.parse().expect("an address"), shards.parse().expect("a number"));
        return runtime.block_on(host_until_killed(&seed, shards));
    }
    let scale = if is_measured() { 1 } else { 10 };
    for idle in [100, 1_000, 10_000] {
        let gaps = runtime.block_on(handovers(idle / scale, 20 / scale));
        tell(&format!("hand-over of a shard of {} idle entities: longest wait of an ask, ms", idle / scale), gaps);
    }
    for shards in [30, 300, 3_000] {
        let gaps = (0..5_usize.div_ceil(scale)).map(|_| runtime.block_on(leave(shards / scale as u32)));
        let what = format!("leave of a node with {} shards: longest wait of an ask, ms", shards / scale as u32);
        support::report(&what, gaps);
    }
    for shards in [30, 300, 3_000] {
        let times: Vec<_> =
            (0..5_usize.div_ceil(scale)).map(|_| runtime.block_on(kill(shards / scale as u32))).collect();
        let what = format!("a process with {} shards is killed", shards / scale as u32);
        support::report(&format!("{what}: first answer of what lived there, s"), times.iter().map(|times| times.0));
        support::report(&format!("{what}: answers of all that lived there, s"), times.iter().map(|times| times.1));
    }
}

fn tell(what: &str, mut gaps: Vec<f64>) {
    gaps.sort_by(f64::total_cmp);
    let at = |part: usize| gaps[(gaps.len() * part / 100).min(gaps.len() - 1)];
    println!("{what}: p50 {:.1}, p99 {:.1}, most {:.1} (of {})", at(50), at(99), at(100), gaps.len());
}

/// Ids, each in another shard.
fn one_in_each(region: &Region<Question>, shards: usize) -> BTreeMap<ShardId, String> {
    let mut ids = BTreeMap::new();
    for n in 0.. {
        let id = format!("entity-{n}");
        ids.entry(region.shard_of(&id).expect("it has one")).or_insert(id);
        if ids.len() == shards {
            break;
        }
    }
    ids
}

/// Tasks that ask one entity after the other, and note the longest wait.
struct Load {
    is_over: Arc<AtomicBool>,
    longest: Arc<Mutex<Duration>>,
    askers: Vec<JoinHandle<()>>,
}

impl Load {
    /// Starts one asking task for each list.
    fn start(lists: Vec<Vec<EntityRef<Question>>>) -> Self {
        let (is_over, longest) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(Duration::ZERO)));
        let askers = lists.into_iter().map(|entities| {
            let (is_over, longest) = (is_over.clone(), longest.clone());
            tokio::spawn(async move {
                for entity in entities.iter().cycle() {
                    if is_over.load(Ordering::Relaxed) {
                        return;
                    }
                    let begun = Instant::now();
                    entity.ask(|reply_to| reply_to).timeout(PATIENCE).await.expect("an answer, late or not");
                    note(&longest, begun.elapsed());
                    tokio::time::sleep(Duration::from_micros(500)).await;
                }
            })
        });
        let askers = askers.collect();
        Self { is_over, longest, askers }
    }

    /// The longest wait since the last call, in milliseconds.
    fn take_longest(&self) -> f64 {
        std::mem::take(&mut *self.longest.lock().expect("no panic under the lock")).as_secs_f64() * 1e3
    }

    async fn end(self) {
        self.is_over.store(true, Ordering::Relaxed);
        for asker in self.askers {
            asker.await.expect("every ask is answered");
        }
    }
}

fn note(longest: &Mutex<Duration>, wait: Duration) {
    let mut longest = longest.lock().expect("no panic under the lock");
    *longest = longest.max(wait);
}

async fn until(what: &str, holds: impl Fn() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < PATIENCE, "{what}: not within {PATIENCE:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Moves one shard from one node to another and back while one of its entities is asked from a third.
async fn handovers(idle: usize, moves: usize) -> Vec<f64> {
    let (here, first, second) = (Node::start(settings(64)), Node::start(settings(64)), Node::start(settings(64)));
    let (here, hosts) = (here.await, [first.await, second.await]);
    for node in [&here, &hosts[0], &hosts[1]] {
        node.sharding.init(echoes().allocation(ExternalAllocation::default())).expect("a fresh name");
    }
    here.join(None).await;
    for host in &hosts {
        host.join(Some(here.address().address())).await;
    }
    let region = here.sharding.region(ECHO).expect("it was started");
    let shard = region.shard_of("entity-0").expect("it has one");
    let ids = (0..).map(|n: u32| format!("entity-{n}")).filter(|id| region.shard_of(id).as_ref() == Some(&shard));
    let entities: Vec<_> = ids.take(idle + 1).map(|id| region.entity_ref(id)).collect();
    let external = here.sharding.external_shards(&ECHO);
    let place = async |host: usize| {
        let address = hosts[host].address().address().clone();
        external.update_shard_location(shard.clone(), address).await.expect("a majority");
        until("the shard moves", || region.shard_home(&shard).as_ref() == Some(hosts[host].address())).await;
    };
    wake(&entities).await;
    place(0).await;
    let load = Load::start(vec![vec![entities[0].clone()]]);
    let mut gaps = Vec::new();
    for n in 0..moves {
        wake(&entities).await;
        tokio::time::sleep(Duration::from_millis(300)).await;
        load.take_longest();
        place((n + 1) % 2).await;
        tokio::time::sleep(Duration::from_millis(300)).await;
        gaps.push(load.take_longest());
    }
    load.end().await;
    let [first, second] = hosts;
    for node in [first, second, here] {
        node.end().await;
    }
    gaps
}

async fn wake(entities: &[EntityRef<Question>]) {
    for some in entities.chunks(100) {
        let asks: Vec<_> = some.iter().map(|e| e.ask(|reply_to| reply_to).timeout(PATIENCE).send()).collect();
        for ask in asks {
            ask.await.expect("an answer");
        }
    }
}

/// Lets one of three nodes with `shards` shards each leave while the entities of all are asked.
async fn leave(shards: u32) -> f64 {
    let all = 3 * shards;
    let nodes = [Node::start(settings(all)).await, Node::start(settings(all)).await, Node::start(settings(all)).await];
    for node in &nodes {
        node.sharding.init(echoes()).expect("a fresh name");
    }
    nodes[0].join(None).await;
    for node in &nodes[1..] {
        node.join(Some(nodes[0].address().address())).await;
    }
    nodes[0].cluster.wait_for(|view| view.members.len() == 3).await.expect("it runs");
    let region = nodes[0].sharding.region(ECHO).expect("it was started");
    let ids = one_in_each(&region, all as usize);
    let entities: Vec<_> = ids.into_values().map(|id| region.entity_ref(id)).collect();
    wake(&entities).await;
    let leaving = nodes[1].address().clone();
    until("the shards are spread", || {
        let homes = region.shard_homes();
        homes.get(&leaving).is_some_and(|count| *count + count.div_ceil(10) >= shards as usize)
    })
    .await;
    let load = Load::start(entities.chunks(entities.len().div_ceil(8)).map(<[_]>::to_vec).collect());
    tokio::time::sleep(Duration::from_secs(1)).await;
    load.take_longest();
    let [first, second, third] = nodes;
    second.end().await;
    until("the shards have moved", || !region.shard_homes().contains_key(&leaving)).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    let longest = load.take_longest();
    load.end().await;
    third.end().await;
    first.end().await;
    longest
}

/// Runs a member that hosts until it is killed.
async fn host_until_killed(seed: &NodeAddress, shards: u32) {
    let node = Node::start(settings(shards)).await;
    node.sharding.init(echoes()).expect("a fresh name");
    node.join(Some(seed)).await;
    println!("up");
    std::future::pending::<()>().await;
}

/// A process that is ended with the benchmark, whatever the outcome.
struct Host(Child);

impl Host {
    fn start(seed: &NodeAddress, shards: u32) -> Self {
        let this = std::env::current_exe().expect("a running program has a path");
        let mut command = Command::new(this);
        command.args([HOST, &seed.to_string(), &shards.to_string()]).stdout(Stdio::null());
        Self(command.spawn().expect("this program runs"))
    }

    fn kill(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Kills the one of three nodes that is another process: seconds until the first entity that lived there answers, and
/// until all have.
async fn kill(shards: u32) -> (f64, f64) {
    let all = 3 * shards;
    let nodes = [Node::start(settings(all)).await, Node::start(settings(all)).await];
    for node in &nodes {
        node.sharding.init(echoes()).expect("a fresh name");
    }
    nodes[0].join(None).await;
    let seed = nodes[0].address().address().clone();
    nodes[1].join(Some(&seed)).await;
    let mut host = Host::start(&seed, all);
    nodes[0].cluster.wait_for(|view| view.members.len() == 3).await.expect("it runs");
    let region = nodes[0].sharding.region(ECHO).expect("it was started");
    let ids = one_in_each(&region, all as usize);
    let entities: BTreeMap<_, _> = ids.into_iter().map(|(shard, id)| (shard, region.entity_ref(id))).collect();
    let own: Vec<UniqueAddress> = nodes.iter().map(|node| node.address().clone()).collect();
    let lives_there = |shard: &ShardId| region.shard_home(shard).is_some_and(|home| !own.contains(&home));
    wake(&entities.values().cloned().collect::<Vec<_>>()).await;
    until("the shards are spread", || {
        let there = entities.keys().filter(|shard| lives_there(shard)).count();
        there + there.div_ceil(10) >= shards as usize
    })
    .await;
    let orphans: Vec<_> =
        entities.iter().filter(|(shard, _)| lives_there(shard)).map(|(_, entity)| entity.clone()).collect();
    host.kill();
    let killed = Instant::now();
    let answers = orphans.into_iter().map(|entity| {
        tokio::spawn(async move {
            let ask = || entity.ask(|reply_to| reply_to).timeout(Duration::from_millis(200)).send();
            while ask().await.is_err() {
                assert!(killed.elapsed() < PATIENCE, "it lives nowhere");
            }
            killed.elapsed().as_secs_f64()
        })
    });
    let mut times = Vec::new();
    for answer in answers.collect::<Vec<_>>() {
        times.push(answer.await.expect("it answers at last"));
    }
    times.sort_by(f64::total_cmp);
    let [first, second] = nodes;
    second.end().await;
    first.end().await;
    (times[0], times[times.len() - 1])
}
