//! Inspection of entity types over clusters of nodes that live in one process: sharding scenarios 3, 5, 14, 15 and 78.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use greylag_cluster::{Cluster, ClusterSettings};
use greylag_codec::json;
use greylag_core::{DeadLetterReason, Registry, ReplyTo, Uid, UniqueAddress};
use greylag_persistence::Ctx;
use greylag_sharding::ids::{EntityId, EntityTypeName, RegionId, ShardId};
use greylag_sharding::inspection::{ClusterStats, CurrentRegions, EntityCounts, EntityLocation};
use greylag_sharding::{Entity, EntityKey, EntityType, Failure, NotStarted, Region, Sharding, ShardingSettings};
use greylag_testkit::uid::fresh_uid;
use greylag_transport::memory::MemoryNetwork;
use serde::{Deserialize, Serialize};

const PATIENCE: Duration = Duration::from_secs(60);
const COUNTER: EntityKey<Command> = EntityKey::new("Counter");
const OTHER: EntityKey<Command> = EntityKey::new("Other");

#[derive(Serialize, Deserialize)]
enum Command {
    Add(ReplyTo<u64>),
    /// Blocks the thread until the gate of the process opens.
    Block,
}

/// Blocks threads until it is opened.
#[derive(Clone, Default)]
struct Gate(Arc<(Mutex<(bool, usize)>, Condvar)>);

impl Gate {
    fn pass(&self) {
        let mut state = self.0.0.lock().unwrap();
        state.1 += 1;
        self.0.1.notify_all();
        drop(self.0.1.wait_while(state, |(open, _)| !*open).unwrap());
    }

    fn open(&self) {
        self.0.0.lock().unwrap().0 = true;
        self.0.1.notify_all();
    }

    /// Number of blocked threads.
    fn waiting(&self) -> usize {
        self.0.0.lock().unwrap().1
    }
}

/// Opens the gate when a test ends, so that a failing test does not wait for blocked threads.
struct OpensAtLast(Gate);

impl Drop for OpensAtLast {
    fn drop(&mut self) {
        self.0.open();
    }
}

struct Counter {
    count: u64,
    gate: Gate,
}

impl Entity for Counter {
    type Message = Command;

    fn receive(&mut self, command: Command, _: &mut Ctx<'_, Command>) -> Result<(), Failure> {
        match command {
            Command::Add(reply_to) => {
                self.count += 1;
                reply_to.reply(self.count);
            }
            Command::Block => self.gate.pass(),
        }
        Ok(())
    }
}

fn counters(key: EntityKey<Command>, gate: &Gate) -> EntityType<Command> {
    let gate = gate.clone();
    EntityType::new(key, move |_| Ok(Counter { count: 0, gate: gate.clone() })).codec(json("counter"))
}

/// Gives each node another incarnation, since replicators are registered per process by it.
struct Node {
    cluster: Cluster,
    address: UniqueAddress,
    sharding: Sharding,
}

/// A node that has joined, and runs no type yet.
async fn node(network: &MemoryNetwork, address: &str, cluster: ClusterSettings, sharding: ShardingSettings) -> Node {
    let node = start(network, address, cluster, sharding).await;
    node.cluster.join_seed_nodes(vec!["a:1".parse().unwrap()]).await.unwrap();
    node.cluster.wait_up().await.unwrap();
    node
}

async fn start(network: &MemoryNetwork, address: &str, cluster: ClusterSettings, sharding: ShardingSettings) -> Node {
    let uid = Uid::new(fresh_uid()).unwrap();
    let address = UniqueAddress::new(address.parse().unwrap(), uid);
    let remoting = network.node(address.clone(), Arc::new(Registry::new()));
    let cluster = Cluster::start(cluster, remoting).await.unwrap();
    let sharding = ShardingSettings { ask_timeout: PATIENCE, ..sharding };
    let sharding = Sharding::start(cluster.clone(), None, sharding).await.unwrap();
    Node { cluster, address, sharding }
}

/// Six shards, none of which moves by itself.
fn still() -> ShardingSettings {
    let rebalance_interval = Duration::from_secs(3600);
    ShardingSettings { number_of_shards: 6, rebalance_interval, ..ShardingSettings::test() }
}

async fn add(region: &Region<Command>, id: &str) -> u64 {
    region.entity_ref(id).ask(Command::Add).await.unwrap()
}

/// One id for each shard, in the order of the shards.
fn ids(region: &Region<Command>, count: usize) -> Vec<(ShardId, String)> {
    let mut ids = BTreeMap::new();
    for id in (0..10_000).map(|id: u32| id.to_string()) {
        ids.entry(region.shard_of(&id).unwrap()).or_insert(id);
    }
    ids.into_iter().take(count).collect()
}

/// Asks until the answer satisfies `is_right`.
async fn stats_at_last(region: &Region<Command>, is_right: impl Fn(&ClusterStats) -> bool) -> ClusterStats {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let stats = region.inspect().cluster_stats(PATIENCE).await;
        if is_right(&stats) {
            return stats;
        }
        assert!(Instant::now() < deadline, "{stats:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn total(stats: &ClusterStats) -> u64 {
    stats.regions.values().map(|region| region.entities().total()).sum()
}

fn addresses<'a>(nodes: impl IntoIterator<Item = &'a Node>) -> BTreeSet<UniqueAddress> {
    nodes.into_iter().map(|node| node.address.clone()).collect()
}

#[tokio::test]
async fn scenario_5_types_are_known_once_they_are_set_up() {
    let (network, gate) = (MemoryNetwork::new(), Gate::default());
    let one = node(&network, "a:1", ClusterSettings::test(), still()).await;
    let unknown = |known: &[&str]| NotStarted {
        name: "Counter".to_owned(),
        known: known.iter().map(ToString::to_string).collect(),
    };
    assert_eq!(one.sharding.shard_type_names(), []);
    assert_eq!(one.sharding.region(COUNTER).err(), Some(unknown(&[])));
    assert_eq!(one.sharding.inspect("Counter").err(), Some(unknown(&[])));
    one.sharding.init(counters(OTHER, &gate)).unwrap();
    assert_eq!(one.sharding.region(COUNTER).err(), Some(unknown(&["Other"])));
    let region = one.sharding.init(counters(COUNTER, &gate)).unwrap();
    assert_eq!(one.sharding.region(COUNTER).unwrap().id(), region.id());
    assert_eq!(one.sharding.inspect("Counter").unwrap().name().as_str(), "Counter");
    let names = ["Counter", "Other"].map(|name| EntityTypeName::new(name).unwrap());
    assert_eq!(one.sharding.shard_type_names(), names);
}

#[tokio::test]
async fn scenario_3_a_proxy_reads_what_others_host_and_hosts_nothing() {
    let (network, gate) = (MemoryNetwork::new(), Gate::default());
    let host = node(&network, "a:1", ClusterSettings::test(), still()).await;
    let counts = host.sharding.init(counters(COUNTER, &gate)).unwrap();
    assert_eq!((add(&counts, "1").await, add(&counts, "1").await), (1, 2));
    let other = node(&network, "b:1", ClusterSettings::test(), still()).await;
    let proxy = other.sharding.init_proxy(COUNTER.proxy().codec(json("counter"))).unwrap();
    assert_eq!(add(&proxy, "1").await, 3);
    for id in 0..20 {
        add(&proxy, &id.to_string()).await;
    }
    assert_eq!(proxy.inspect().region_stats().await.shards.len(), 0);
    let regions = CurrentRegions { addresses: addresses([&host]), coordinator_missing: false };
    for asked in [&counts, &proxy] {
        assert_eq!(asked.inspect().current_regions(PATIENCE).await, regions, "a proxy is no region");
        assert_eq!(total(&asked.inspect().cluster_stats(PATIENCE).await), 20);
    }
    // Beside a region of the same type, a proxy is that region.
    let beside = host.sharding.init_proxy(COUNTER.proxy().codec(json("counter"))).unwrap();
    assert_eq!((beside.id(), add(&beside, "1").await), (counts.id(), 5));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 6)]
async fn scenario_78_stats_name_regions_and_shards_and_are_partial_rather_than_empty() {
    let (network, gate) = (MemoryNetwork::new(), Gate::default());
    let _opens = OpensAtLast(gate.clone());
    let query = Duration::from_millis(300);
    let settings = ShardingSettings { shard_region_query_timeout: query, ..still() };
    let mut nodes = Vec::new();
    for address in ["a:1", "b:1", "c:1"] {
        let node = node(&network, address, ClusterSettings::test(), settings.clone()).await;
        let region = node.sharding.init(counters(COUNTER, &gate)).unwrap();
        nodes.push((node, region));
    }
    let all = addresses(nodes.iter().map(|(node, _)| node));
    let (_, first) = &nodes[0];
    let empty = stats_at_last(first, |stats| stats.regions.len() == 3).await;
    assert_eq!(empty.regions.keys().cloned().collect::<BTreeSet<_>>(), all, "keys are full addresses");
    assert!(empty.failed_regions.is_empty() && !empty.coordinator_missing, "{empty:?}");
    assert_eq!(empty.regions.values().map(|region| region.shards.len()).sum::<usize>(), 0);

    let six = ids(first, 6);
    for (_, id) in &six[..4] {
        add(first, id).await;
    }
    for (_, region) in &nodes {
        let stats = region.inspect().cluster_stats(PATIENCE).await;
        assert_eq!((stats.regions.len(), total(&stats)), (3, 4), "whoever asks: {stats:?}");
    }
    for (_, id) in &six {
        add(first, id).await;
    }
    let stats = first.inspect().cluster_stats(PATIENCE).await;
    let hosted: BTreeMap<_, _> =
        stats.regions.iter().map(|(node, region)| (node.clone(), region.shards.len())).collect();
    assert_eq!(hosted, all.iter().map(|node| (node.clone(), 2)).collect(), "two shards on each node");
    let one = EntityCounts { active: 1, ..EntityCounts::default() };
    assert!(stats.regions.values().flat_map(|region| region.shards.values()).all(|counts| *counts == one));

    // Both shards of the last node stop answering, one after the other: each costs only its own answer.
    let (busy, _) = &nodes[2];
    let stuck: BTreeSet<_> = stats.regions[&busy.address].shards.keys().cloned().collect();
    let of_stuck = six.iter().filter(|(shard, _)| stuck.contains(shard));
    for (blocked, (_, id)) in of_stuck.enumerate().map(|(before, of)| (before + 1, of)) {
        first.entity_ref(id.as_str()).tell(Command::Block).unwrap();
        while gate.waiting() < blocked {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let stats = first.inspect().cluster_stats(PATIENCE).await;
        assert_eq!(stats.regions.values().map(|region| region.shards.len()).sum::<usize>(), 6 - blocked);
        assert_eq!(stats.regions[&busy.address].failed.len(), blocked);
        assert!(stats.regions[&busy.address].failed.is_subset(&stuck));
        assert!(stats.failed_regions.is_empty(), "the region itself answers: {stats:?}");
    }
    let page = first.inspect().entities_of(&busy.address, None, PATIENCE).await.unwrap();
    assert_eq!((page.shards.len(), page.failed, page.next), (0, stuck, None));
    gate.open();
    let stats = stats_at_last(first, |stats| total(stats) == 6).await;
    assert!(stats.regions.values().all(|region| region.failed.is_empty()), "{stats:?}");

    // One node leaves: its region is gone, and its shards go on elsewhere.
    let (gone, _) = nodes.pop().unwrap();
    gone.cluster.shutdown().await;
    let (_, first) = &nodes[0];
    for (_, id) in &six[..4] {
        add(first, id).await;
    }
    let left = addresses(nodes.iter().map(|(node, _)| node));
    let stats = stats_at_last(first, |stats| stats.regions.len() == 2).await;
    assert_eq!(stats.regions.keys().cloned().collect::<BTreeSet<_>>(), left);
    assert!(total(&stats) >= 4, "{stats:?}");
}

/// sharding 78: with four entities, each in a shard of its own, the sum stays four when a node leaves.
#[tokio::test]
async fn scenario_78_the_entities_of_a_node_that_has_left_count_elsewhere() {
    let (network, gate) = (MemoryNetwork::new(), Gate::default());
    let mut nodes = Vec::new();
    for address in ["a:1", "b:1", "c:1"] {
        let node = node(&network, address, ClusterSettings::test(), still()).await;
        let region = node.sharding.init(counters(COUNTER, &gate)).unwrap();
        nodes.push((node, region));
    }
    let first = nodes[0].1.clone();
    stats_at_last(&first, |stats| stats.regions.len() == 3).await;
    let four = ids(&first, 4);
    for (_, id) in &four {
        add(&first, id).await;
    }
    let stats = first.inspect().cluster_stats(PATIENCE).await;
    assert_eq!(total(&stats), 4, "{stats:?}");
    let (gone, _) = nodes.pop().unwrap();
    assert!(stats.regions[&gone.address].entities().total() > 0, "it has some of them: {stats:?}");
    gone.cluster.shutdown().await;
    for (_, id) in &four {
        add(&first, id).await;
    }
    let stats = stats_at_last(&first, |stats| stats.regions.len() == 2).await;
    let left = addresses(nodes.iter().map(|(node, _)| node));
    assert_eq!((stats.regions.keys().cloned().collect::<BTreeSet<_>>(), total(&stats)), (left, 4), "{stats:?}");
}

#[tokio::test]
async fn a_region_that_does_not_answer_is_named_and_the_others_are_reported() {
    let (network, gate) = (MemoryNetwork::new(), Gate::default());
    let one = node(&network, "a:1", ClusterSettings::test(), still()).await;
    let other = node(&network, "b:1", ClusterSettings::test(), still()).await;
    let region = one.sharding.init(counters(COUNTER, &gate)).unwrap();
    other.sharding.init(counters(COUNTER, &gate)).unwrap();
    stats_at_last(&region, |stats| stats.regions.len() == 2).await;
    for (_, id) in ids(&region, 6) {
        add(&region, &id).await;
    }
    network.cut(one.address.address(), other.address.address());
    let stats = region.inspect().cluster_stats(Duration::from_millis(300)).await;
    assert_eq!(stats.failed_regions, addresses([&other]), "{stats:?}");
    assert_eq!(stats.regions.keys().cloned().collect::<BTreeSet<_>>(), addresses([&one]));
    assert_eq!(total(&stats), 3);
}

#[tokio::test]
async fn entities_are_listed_page_by_page_from_any_node_and_located_without_being_started() {
    let (network, gate) = (MemoryNetwork::new(), Gate::default());
    let one = node(&network, "a:1", ClusterSettings::test(), still()).await;
    let region = one.sharding.init(counters(COUNTER, &gate)).unwrap();
    const ALL: usize = 25_000;
    for id in 0..100 {
        add(&region, &format!("{id:05}")).await;
    }
    assert_eq!(region.shard_homes().get(&one.address), Some(&6), "nothing has to wait for a home");
    for id in 0..ALL {
        drop(region.entity_ref(format!("{id:05}")).ask(Command::Add).send());
    }
    for id in 0..ALL {
        // Tells are handled in order before the ask.
        if id % 1000 == 999 {
            add(&region, &format!("{id:05}")).await;
        }
    }
    let other = node(&network, "b:1", ClusterSettings::test(), still()).await;
    let proxy = other.sharding.init_proxy(COUNTER.proxy().codec(json("counter"))).unwrap();
    for inspect in [region.inspect(), proxy.inspect()] {
        let mut found: BTreeMap<ShardId, BTreeSet<EntityId>> = BTreeMap::new();
        let (mut from, mut sizes) = (None, Vec::new());
        loop {
            let page = inspect.entities_of(&one.address, from, PATIENCE).await.expect("it answers");
            sizes.push(page.shards.values().map(BTreeSet::len).sum::<usize>());
            for (shard, ids) in page.shards {
                found.entry(shard).or_default().extend(ids);
            }
            from = page.next;
            if from.is_none() {
                break;
            }
        }
        assert_eq!((sizes, found.len()), (vec![10_000, 10_000, 5_000], 6));
        for (shard, ids) in &found {
            assert!(ids.iter().all(|id| region.shard_of(id.as_str()).as_ref() == Some(shard)), "{shard}");
        }
        assert_eq!(found.values().map(BTreeSet::len).sum::<usize>(), ALL);
    }

    // An id without messages is located by its shard, and its entity is not started.
    let shard = region.shard_of("nobody").unwrap();
    let here = EntityLocation { shard, region: Some(region.id().clone()) };
    assert_eq!(region.inspect().entity_location("nobody"), Ok(here.clone()));
    add(&proxy, "nobody's neighbour").await;
    let known = async {
        while proxy.inspect().entity_location("nobody") != Ok(here.clone()) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, known).await.expect("the table comes with the registration");
    assert_eq!(region.inspect().entity_location(""), Err(DeadLetterReason::EmptyEntityId));
    let counted = region.inspect().region_stats().await.entities().total();
    assert_eq!(counted, ALL as u64 + 1, "nothing was started by looking");
}

#[tokio::test]
async fn without_a_coordinator_nothing_is_known_and_that_is_said() {
    let (network, gate) = (MemoryNetwork::new(), Gate::default());
    let alone = start(&network, "z:1", ClusterSettings::test(), still()).await;
    let region = alone.sharding.init(counters(COUNTER, &gate)).unwrap();
    let missing = CurrentRegions { coordinator_missing: true, ..CurrentRegions::default() };
    assert_eq!(region.inspect().current_regions(PATIENCE).await, missing);
    let missing = ClusterStats { coordinator_missing: true, ..ClusterStats::default() };
    assert_eq!(region.inspect().cluster_stats(PATIENCE).await, missing);
    let shard = region.shard_of("1").unwrap();
    assert_eq!(region.inspect().entity_location("1"), Ok(EntityLocation { shard, region: None }));
    // A node that does not exist does not answer.
    let nowhere = "y:1#9".parse().unwrap();
    assert_eq!(region.inspect().stats_of(&nowhere, Duration::from_millis(50)).await, None);
}

#[tokio::test]
async fn a_node_that_stands_alone_is_its_only_region() {
    let (network, gate) = (MemoryNetwork::new(), Gate::default());
    let remoting = network.node("a:1#7700".parse().unwrap(), Arc::new(Registry::new()));
    let settings = ShardingSettings { ask_timeout: PATIENCE, ..ShardingSettings::test() };
    let sharding = Sharding::alone(remoting, None, settings).await.unwrap();
    let region = sharding.init(counters(COUNTER, &gate)).unwrap();
    add(&region, "1").await;
    let stats = region.inspect().cluster_stats(PATIENCE).await;
    let RegionId { node, .. } = region.id().clone();
    assert_eq!(stats.regions.keys().collect::<Vec<_>>(), [&node]);
    assert_eq!(total(&stats), 1);
}

/// Members with these roles, and a minimum of members for the cluster or for roles.
fn with(roles: &[&str], least: usize, of_roles: &[(&str, usize)]) -> ClusterSettings {
    ClusterSettings {
        roles: roles.iter().map(ToString::to_string).collect(),
        min_number_of_members: least,
        role_min_number_of_members: of_roles.iter().map(|(role, least)| (role.to_string(), *least)).collect(),
        ..ClusterSettings::test()
    }
}

#[tokio::test]
async fn scenario_14_the_first_shard_waits_for_as_many_regions_as_the_cluster_for_members() {
    let (network, gate) = (MemoryNetwork::new(), Gate::default());
    let mut nodes = Vec::new();
    for address in ["a:1", "b:1", "c:1"] {
        let node = start(&network, address, with(&[], 3, &[]), still()).await;
        node.cluster.join_seed_nodes(vec!["a:1".parse().unwrap()]).await.unwrap();
        nodes.push(node);
    }
    for node in &nodes {
        tokio::time::timeout(PATIENCE, node.cluster.wait_up()).await.unwrap().unwrap();
    }
    let first = nodes[0].sharding.init(counters(COUNTER, &gate)).unwrap();
    nodes[1].sharding.init(counters(COUNTER, &gate)).unwrap();
    // Another type runs on the third node, so that it keeps its part of the coordinators' state.
    nodes[2].sharding.init(counters(OTHER, &gate)).unwrap();
    let three = ids(&first, 3);
    let mut waiting = first.entity_ref(three[0].1.as_str()).ask(Command::Add).send();
    let registered = async {
        while first.inspect().current_regions(PATIENCE).await.addresses.len() < 2 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, registered).await.expect("two regions register");
    let early = tokio::time::timeout(Duration::from_secs(2), &mut waiting).await;
    assert!(early.is_err(), "two regions of three: {early:?}");
    nodes[2].sharding.init(counters(COUNTER, &gate)).unwrap();
    assert_eq!(tokio::time::timeout(PATIENCE, waiting).await.unwrap(), Ok(1));
    for (_, id) in &three[1..] {
        add(&first, id).await;
    }
    let stats = first.inspect().cluster_stats(PATIENCE).await;
    let hosted: Vec<_> = stats.regions.values().map(|region| region.shards.len()).collect();
    assert_eq!(hosted, [1, 1, 1], "{stats:?}");
}

#[tokio::test]
async fn scenario_15_types_of_two_roles_are_hosted_apart_and_wait_for_their_own_minimum() {
    for (least, of_roles) in [(2, &[][..]), (1, &[("R1", 3), ("R2", 2)])] {
        let (network, gate) = (MemoryNetwork::new(), Gate::default());
        let mut nodes = Vec::new();
        for (address, role) in [("a:1", "R1"), ("b:1", "R1"), ("c:1", "R1"), ("d:1", "R2"), ("e:1", "R2")] {
            let settings = ShardingSettings { number_of_shards: 20, ..still() };
            let node = start(&network, address, with(&[role], least, of_roles), settings).await;
            node.sharding.init(counters(COUNTER, &gate).role("R1")).unwrap();
            node.sharding.init(counters(OTHER, &gate).role("R2")).unwrap();
            node.cluster.join_seed_nodes(vec!["a:1".parse().unwrap()]).await.unwrap();
            nodes.push(node);
        }
        for node in &nodes {
            tokio::time::timeout(PATIENCE, node.cluster.wait_up()).await.unwrap().unwrap();
        }
        let other = nodes[0].sharding.region(OTHER).unwrap();
        stats_at_last(&other, |stats| stats.regions.len() == 2).await;
        for (_, id) in ids(&other, 20) {
            assert_eq!(add(&other, &id).await, 1);
        }
        let stats = other.inspect().cluster_stats(PATIENCE).await;
        assert_eq!(stats.regions.keys().cloned().collect::<BTreeSet<_>>(), addresses(&nodes[3..]), "only the role's");
        assert_eq!(total(&stats), 20);
        let counts = nodes[4].sharding.region(COUNTER).unwrap();
        add(&counts, "1").await;
        let stats = stats_at_last(&counts, |stats| stats.regions.len() == 3).await;
        assert_eq!((stats.regions.into_keys().collect::<BTreeSet<_>>()), addresses(&nodes[..3]));
    }
}
