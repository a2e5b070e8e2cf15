//! Sharding scenario 40: shards that are stopped on request, and a region that is stopped at once.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use greylag_cluster::{Cluster, ClusterSettings};
use greylag_codec::json;
use greylag_core::{DeadLetterReason, Registry, ReplyTo, UniqueAddress};
use greylag_persistence::Ctx;
use greylag_sharding::ids::ShardId;
use greylag_sharding::{
    AskError, Entity, EntityKey, EntityType, Failure, InMemoryRememberStore, Region, RememberStore, SendError,
    Sharding, ShardingSettings, Signal, StopShardsError,
};
use greylag_transport::memory::MemoryNetwork;

const PATIENCE: Duration = Duration::from_secs(60);
const ECHO: EntityKey<ReplyTo<u64>> = EntityKey::new("Echo");

/// How often each entity has started, and how often it got `PostStop`.
type Seen = Arc<Mutex<BTreeMap<String, (u64, u64)>>>;

struct Echo {
    id: String,
    start: u64,
    seen: Seen,
}

impl Entity for Echo {
    type Message = ReplyTo<u64>;

    fn receive(&mut self, reply_to: ReplyTo<u64>, _: &mut Ctx<'_, ReplyTo<u64>>) -> Result<(), Failure> {
        reply_to.reply(self.start);
        Ok(())
    }

    fn on_signal(&mut self, signal: Signal, _: &mut Ctx<'_, ReplyTo<u64>>) -> Result<(), Failure> {
        if signal == Signal::PostStop {
            self.seen.lock().unwrap().entry(self.id.clone()).or_default().1 += 1;
        }
        Ok(())
    }
}

fn echoes(seen: &Seen) -> EntityType<ReplyTo<u64>> {
    let seen = seen.clone();
    let made = EntityType::new(ECHO, move |init| {
        let id = init.id.to_string();
        let mut all = seen.lock().unwrap();
        let starts = &mut all.entry(id.clone()).or_default().0;
        *starts += 1;
        Ok(Echo { id, start: *starts, seen: seen.clone() })
    });
    made.codec(json("echo"))
}

struct Node {
    _cluster: Cluster,
    address: UniqueAddress,
    region: Region<ReplyTo<u64>>,
}

async fn node(network: &MemoryNetwork, address: &str, seen: &Seen) -> Node {
    let address: UniqueAddress = address.parse().unwrap();
    let remoting = network.node(address.clone(), Arc::new(Registry::new()));
    let cluster = Cluster::start(ClusterSettings::test(), remoting).await.unwrap();
    let settings = ShardingSettings { number_of_shards: 10, ask_timeout: PATIENCE, ..ShardingSettings::test() };
    let sharding = Sharding::start(cluster.clone(), None, settings).await.unwrap();
    let region = sharding.init(echoes(seen)).unwrap();
    cluster.join_seed_nodes(vec!["a:1".parse().unwrap()]).await.unwrap();
    cluster.wait_up().await.unwrap();
    Node { _cluster: cluster, address, region }
}

/// One id for each of the ten shards.
fn ids(region: &Region<ReplyTo<u64>>) -> BTreeMap<ShardId, String> {
    let mut ids = BTreeMap::new();
    for id in (0..1000).map(|id: u32| id.to_string()) {
        ids.entry(region.shard_of(&id).unwrap()).or_insert(id);
    }
    assert_eq!(ids.len(), 10);
    ids
}

async fn start_of(region: &Region<ReplyTo<u64>>, id: &str) -> u64 {
    region.entity_ref(id).ask(|reply_to| reply_to).await.unwrap()
}

/// Starts entities in every shard, spread over both nodes.
async fn spread(one: &Node, two: &Node) -> BTreeMap<ShardId, String> {
    let ids = ids(&one.region);
    let begun = Instant::now();
    loop {
        for id in ids.values() {
            start_of(&one.region, id).await;
            start_of(&two.region, id).await;
        }
        let homes = one.region.shard_homes();
        if [one, two].iter().all(|node| homes.get(&node.address).is_some_and(|shards| *shards >= 4)) {
            return ids;
        }
        assert!(begun.elapsed() < PATIENCE, "{homes:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn scenario_40_shards_on_two_nodes_stop_on_request_and_start_with_the_next_message() {
    let (network, seen) = (MemoryNetwork::new(), Seen::default());
    let one = node(&network, "a:1#4001", &seen).await;
    let two = node(&network, "b:1#4002", &seen).await;
    let ids = spread(&one, &two).await;
    let before = seen.lock().unwrap().clone();

    let unknown: ShardId = ShardId::new("no shard of this type").unwrap();
    let asked: BTreeSet<_> = ids.keys().cloned().chain([unknown.clone()]).collect();
    let mut stopping = two.region.stop_shards(asked.clone());
    let first = tokio::time::timeout(PATIENCE, stopping.next()).await.unwrap();
    assert_eq!(first, Some(Ok(unknown)), "a shard that nothing is known of is told at once");
    let mut told = BTreeSet::new();
    while let Some(shard) = tokio::time::timeout(PATIENCE, stopping.next()).await.unwrap() {
        assert!(told.insert(shard.unwrap()), "told twice");
    }
    assert_eq!(told, ids.keys().cloned().collect::<BTreeSet<_>>());
    for (id, (starts, stops)) in &*seen.lock().unwrap() {
        assert_eq!((*starts, *stops), (before[id].0, before[id].1 + 1), "{id} heard PostStop once");
    }
    // Stopped shards are reported at once, and none of them starts by itself: rebalance checks pass meanwhile.
    tokio::time::timeout(PATIENCE, one.region.stop_shards(asked).all()).await.unwrap().unwrap();
    tokio::time::sleep(ShardingSettings::test().rebalance_interval * 3).await;
    assert_eq!(one.region.shard_homes().len() + two.region.shard_homes().len(), 0);
    for id in ids.values() {
        assert_eq!(start_of(&one.region, id).await, before[id].0 + 1, "{id} starts again with a message");
    }
}

/// Sharding scenario 40: a type that remembers its entities keeps its shards, whichever node asks.
#[tokio::test]
async fn scenario_40_shards_of_a_type_that_remembers_stay() {
    let (network, seen) = (MemoryNetwork::new(), Seen::default());
    let remoting = network.node("a:1#4007".parse().unwrap(), Arc::new(Registry::new()));
    let cluster = Cluster::start(ClusterSettings::test(), remoting).await.unwrap();
    let settings = ShardingSettings { number_of_shards: 10, ask_timeout: PATIENCE, ..ShardingSettings::test() };
    let sharding = Sharding::start(cluster.clone(), None, settings).await.unwrap();
    let store = RememberStore::custom(InMemoryRememberStore::new());
    let region = sharding.init(echoes(&seen).remember_entities(store)).unwrap();
    cluster.join_seed_nodes(vec!["a:1".parse().unwrap()]).await.unwrap();
    cluster.wait_up().await.unwrap();
    assert_eq!(start_of(&region, "1").await, 1);
    let refused = region.stop_shards([region.shard_of("1").unwrap()]).all().await;
    assert_eq!(refused, Err(StopShardsError::NotAllowedWithRememberEntities));
    assert_eq!((start_of(&region, "1").await, seen.lock().unwrap()["1"]), (1, (1, 0)), "it goes on");
}

#[tokio::test]
async fn a_node_without_a_cluster_stops_shards_on_request_too() {
    let (network, seen) = (MemoryNetwork::new(), Seen::default());
    let remoting = network.node("a:1#4003".parse().unwrap(), Arc::new(Registry::new()));
    let settings = ShardingSettings { number_of_shards: 10, ask_timeout: PATIENCE, ..ShardingSettings::test() };
    let sharding = Sharding::alone(remoting, None, settings).await.unwrap();
    let region = sharding.init(echoes(&seen)).unwrap();
    let ids = ids(&region);
    for id in ids.values().take(5) {
        assert_eq!(start_of(&region, id).await, 1);
    }
    tokio::time::timeout(PATIENCE, region.stop_shards(ids.keys().cloned()).all()).await.unwrap().unwrap();
    assert_eq!(seen.lock().unwrap().values().copied().collect::<Vec<_>>(), [(1, 1); 5]);
    for id in ids.values().take(5) {
        assert_eq!(start_of(&region, id).await, 2);
    }
}

/// Sharding §2.11: an abrupt stop kills, waiting messages are dead letters, and another region hosts the shards
/// afterwards.
#[tokio::test]
async fn a_region_that_is_stopped_at_once_hands_nothing_over() {
    let (network, seen) = (MemoryNetwork::new(), Seen::default());
    let one = node(&network, "a:1#4004", &seen).await;
    let two = node(&network, "b:1#4005", &seen).await;
    let ids = spread(&one, &two).await;
    let hosted = |node: &Node, shard: &ShardId| one.region.shard_home(shard) == Some(node.address.clone());
    let (here, there): (Vec<_>, Vec<_>) = ids.iter().partition(|(shard, _)| hosted(&two, shard));
    let before = seen.lock().unwrap().clone();
    tokio::time::timeout(PATIENCE, two.region.stop()).await.unwrap();
    let refused = two.region.entity_ref("1").ask(|reply_to| reply_to).await;
    assert_eq!(refused, Err(AskError::Send(SendError::RegionStopped)));
    assert_eq!(two.region.stop_shards(ids.keys().cloned()).all().await, Err(StopShardsError::RegionStopped));
    let after = seen.lock().unwrap().clone();
    for (_, id) in &here {
        assert_eq!(after[*id].1, before[*id].1, "{id} was killed and heard no PostStop");
    }
    for (_, id) in &there {
        assert_eq!(start_of(&one.region, id).await, before[*id].0, "{id} goes on");
    }
    for (_, id) in &here {
        // Messages sent before the other region hears of the end are dropped, with the reason.
        let start = loop {
            match one.region.entity_ref(id.as_str()).ask(|reply_to| reply_to).await {
                Ok(start) => break start,
                Err(error) => assert_eq!(error, AskError::Dropped(DeadLetterReason::RegionStopped)),
            }
        };
        assert_eq!(start, before[*id].0 + 1, "{id} starts elsewhere");
    }
}

/// Sharding §2.5: messages in a region that stops at once end as `RegionStopped`, in buffers and in shards.
#[tokio::test]
async fn waiting_messages_of_a_region_stopped_at_once_are_dropped_as_region_stopped() {
    struct Waits;

    impl Entity for Waits {
        type Message = ReplyTo<u64>;

        fn receive(&mut self, reply_to: ReplyTo<u64>, cx: &mut Ctx<'_, ReplyTo<u64>>) -> Result<(), Failure> {
            // Suspend for ever, so that later messages wait in the queue.
            cx.suspend(std::future::pending(), |()| unreachable!("it never ends")).ok();
            drop(reply_to);
            Ok(())
        }
    }

    let network = MemoryNetwork::new();
    let remoting = network.node("a:1#4006".parse().unwrap(), Arc::new(Registry::new()));
    let settings = ShardingSettings { ask_timeout: PATIENCE, ..ShardingSettings::test() };
    let sharding = Sharding::alone(remoting, None, settings).await.unwrap();
    let region = sharding.init(EntityType::new(ECHO, |_| Ok(Waits))).unwrap();
    let entity = region.entity_ref("1");
    entity.ask(|reply_to| reply_to).await.unwrap_err();
    let waiting: Vec<_> = (0..3).map(|_| entity.ask(|reply_to| reply_to).send()).collect();
    tokio::time::timeout(PATIENCE, region.stop()).await.unwrap();
    for answer in waiting {
        assert_eq!(answer.await, Err(AskError::Dropped(DeadLetterReason::RegionStopped)));
    }
}
