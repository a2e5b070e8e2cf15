//! Entities started by request, without a message: on this node, on another one, and through a proxy.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use greylag_cluster::{Cluster, ClusterSettings};
use greylag_codec::json;
use greylag_core::{EntityError, Registry, ReplyTo, Uid, UniqueAddress};
use greylag_persistence::Ctx;
use greylag_sharding::{
    AskError, Entity, EntityInit, EntityKey, EntityType, Failure, Region, SendError, Sharding, ShardingSettings,
};
use greylag_testkit::uid::fresh_uid;
use greylag_transport::memory::MemoryNetwork;
use serde::{Deserialize, Serialize};

const PATIENCE: Duration = Duration::from_secs(30);

const JOB: EntityKey<Command> = EntityKey::new("Job");

#[derive(Serialize, Deserialize)]
enum Command {
    Add(u64),
    Get(ReplyTo<u64>),
    Pause,
}

/// How often each entity was made, on any node.
type Starts = Arc<Mutex<BTreeMap<String, u64>>>;

struct Job(u64);

impl Entity for Job {
    type Message = Command;

    fn receive(&mut self, command: Command, cx: &mut Ctx<'_, Command>) -> Result<(), Failure> {
        match command {
            Command::Add(by) => self.0 += by,
            Command::Get(reply_to) => reply_to.reply(self.0),
            Command::Pause => cx.suspend(tokio::time::sleep(Duration::from_millis(50)), |()| Command::Add(100))?,
        }
        Ok(())
    }
}

fn jobs(starts: &Starts) -> EntityType<Command> {
    let starts = starts.clone();
    let make = move |init: &EntityInit| {
        if init.id.as_str().starts_with("bad") {
            return Err(Failure::new("no such job"));
        }
        *starts.lock().unwrap().entry(init.id.to_string()).or_default() += 1;
        Ok(Job(0))
    };
    EntityType::new(JOB, make).codec(json("job")).role("host").ask_timeout(PATIENCE)
}

async fn alone() -> (Starts, Region<Command>, Sharding) {
    let starts = Starts::default();
    let remoting = MemoryNetwork::new().node("a:1#1".parse().unwrap(), Arc::new(Registry::new()));
    let sharding = Sharding::alone(remoting, None, ShardingSettings::test()).await.unwrap();
    let region = sharding.init(jobs(&starts)).unwrap();
    (starts, region, sharding)
}

#[tokio::test]
async fn an_entity_is_started_once_and_acked_each_time() {
    let (starts, jobs, _sharding) = alone().await;
    for _ in 0..3 {
        let ack = jobs.start_entity("nightly").await.unwrap();
        assert_eq!((ack.entity.as_str(), Some(ack.shard)), ("nightly", jobs.shard_of("nightly")));
    }
    assert_eq!(*starts.lock().unwrap(), BTreeMap::from([("nightly".to_owned(), 1)]));
}

/// The ack comes after the earlier messages are handled, even if one of them waits for asynchronous work.
#[tokio::test]
async fn a_request_keeps_its_place_among_the_messages() {
    let (starts, jobs, _sharding) = alone().await;
    let nightly = jobs.entity_ref("nightly");
    nightly.tell(Command::Add(1)).unwrap();
    nightly.tell(Command::Pause).unwrap();
    let ack = jobs.start_entity("nightly");
    nightly.tell(Command::Add(1_000)).unwrap();
    ack.await.unwrap();
    let total = nightly.ask(Command::Get).await.unwrap();
    assert_eq!((total, starts.lock().unwrap()["nightly"]), (1_101, 1));
}

#[tokio::test]
async fn failed_starts_are_reported_to_the_asker() {
    let (_starts, jobs, _sharding) = alone().await;
    let failed = jobs.start_entity("bad").await.unwrap_err();
    assert_eq!(failed, AskError::Entity(EntityError::StartFailed("no such job".to_owned())));
    assert_eq!(jobs.start_entity("").await, Err(AskError::Send(SendError::EmptyEntityId)));
    jobs.graceful_shutdown().await;
    assert_eq!(jobs.start_entity("nightly").await, Err(AskError::Send(SendError::RegionStopped)));
}

/// A node of a cluster; only those with the role `host` host.
async fn node(network: &MemoryNetwork, address: &str, role: &str, starts: &Starts) -> (Region<Command>, Sharding) {
    let uid = Uid::new(fresh_uid()).unwrap();
    let remoting = network.node(UniqueAddress::new(address.parse().unwrap(), uid), Arc::new(Registry::new()));
    let settings = ClusterSettings { roles: [role.to_owned()].into(), ..ClusterSettings::test() };
    let cluster = Cluster::start(settings, remoting).await.unwrap();
    let sharding = Sharding::start(cluster.clone(), None, ShardingSettings::test()).await.unwrap();
    let region = sharding.init(jobs(starts)).unwrap();
    cluster.join_seed_nodes(vec!["a:1".parse().unwrap()]).await.unwrap();
    cluster.wait_up().await.unwrap();
    (region, sharding)
}

#[tokio::test]
async fn an_entity_of_another_node_is_started_there_and_acked_from_there() {
    let (network, starts) = (MemoryNetwork::new(), Starts::default());
    let (proxy, _web) = node(&network, "a:1", "web", &starts).await;
    let (host, _host) = node(&network, "b:1", "host", &starts).await;
    for round in 1..=2 {
        for id in ["one", "two", "three"] {
            let ack = proxy.start_entity(id).await.unwrap();
            assert_eq!((ack.entity.as_str(), Some(ack.shard)), (id, proxy.shard_of(id)), "round {round}");
        }
    }
    let made = BTreeMap::from(["one", "two", "three"].map(|id| (id.to_owned(), 1)));
    assert_eq!(*starts.lock().unwrap(), made);
    let failed = proxy.start_entity("bad").await.unwrap_err();
    assert!(matches!(failed, AskError::Entity(EntityError::StartFailed(_))), "{failed}");
    assert_eq!(proxy.entity_ref("one").ask(Command::Get).await, Ok(0));
    assert_eq!(host.start_entity("one").await.unwrap().entity.as_str(), "one");
}
