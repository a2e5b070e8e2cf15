//! Sharding scenario 79: a node is ready once the types named in its settings have registered, over a real cluster.

use std::sync::Arc;
use std::time::Duration;

use greylag_cluster::{Cluster, ClusterSettings};
use greylag_codec::json;
use greylag_core::{Registry, ReplyTo};
use greylag_persistence::Ctx;
use greylag_sharding::settings::HealthCheckSettings;
use greylag_sharding::{Entity, EntityKey, EntityType, Failure, Sharding, ShardingSettings};
use greylag_transport::memory::MemoryNetwork;

const PATIENCE: Duration = Duration::from_secs(60);
const CART: EntityKey<ReplyTo<u64>> = EntityKey::new("Cart");
const ORDER: EntityKey<ReplyTo<u64>> = EntityKey::new("Order");

struct Echo;

impl Entity for Echo {
    type Message = ReplyTo<u64>;

    fn receive(&mut self, reply_to: ReplyTo<u64>, _: &mut Ctx<'_, ReplyTo<u64>>) -> Result<(), Failure> {
        reply_to.reply(1);
        Ok(())
    }
}

fn echoes(key: EntityKey<ReplyTo<u64>>) -> EntityType<ReplyTo<u64>> {
    EntityType::new(key, |_| Ok(Echo)).codec(json("echo"))
}

async fn ready_at_last(cluster: &Cluster) {
    let ready = async {
        while !cluster.readiness().is_ready() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, ready).await.unwrap_or_else(|_| panic!("{:?}", cluster.readiness()));
}

#[tokio::test]
async fn scenario_79_a_node_is_ready_once_its_named_types_have_registered() {
    let remoting = MemoryNetwork::new().node("a:1#7901".parse().unwrap(), Arc::new(Registry::new()));
    let cluster = Cluster::start(ClusterSettings::test(), remoting).await.unwrap();
    let healthcheck = HealthCheckSettings {
        names: ["Cart", "Order"].map(str::to_owned).to_vec(),
        disabled_after: Duration::from_secs(3600),
        ..HealthCheckSettings::default()
    };
    let settings = ShardingSettings { healthcheck, ..ShardingSettings::test() };
    let sharding = Sharding::start(cluster.clone(), None, settings).await.unwrap();
    sharding.init(echoes(CART)).unwrap();
    let absent = "Order: this entity type is not set up here".to_owned();
    let early = cluster.readiness().not_ready;
    let waits = "Cart: no coordinator has taken its region yet".to_owned();
    assert!(early.contains(&waits) && early.contains(&absent), "{early:?}");
    cluster.join_seed_nodes(vec!["a:1".parse().unwrap()]).await.unwrap();
    cluster.wait_up().await.unwrap();
    let registered = async {
        while cluster.readiness().not_ready != [absent.clone()] {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, registered).await.expect("the region of Cart registers");
    let orders = sharding.init(echoes(ORDER)).unwrap();
    ready_at_last(&cluster).await;
    orders.stop().await;
    assert!(cluster.readiness().is_ready(), "for ever: {:?}", cluster.readiness());
}

#[tokio::test]
async fn scenario_79_a_type_that_never_comes_is_not_waited_for_for_ever() {
    let remoting = MemoryNetwork::new().node("a:1#7902".parse().unwrap(), Arc::new(Registry::new()));
    let cluster = Cluster::start(ClusterSettings::test(), remoting).await.unwrap();
    let healthcheck = HealthCheckSettings {
        names: vec!["Cart".to_owned()],
        disabled_after: Duration::from_millis(300),
        ..HealthCheckSettings::default()
    };
    let settings = ShardingSettings { healthcheck, ..ShardingSettings::test() };
    let _sharding = Sharding::start(cluster.clone(), None, settings).await.unwrap();
    cluster.join_seed_nodes(vec!["a:1".parse().unwrap()]).await.unwrap();
    cluster.wait_up().await.unwrap();
    assert_eq!(cluster.readiness().not_ready, ["Cart: this entity type is not set up here"]);
    ready_at_last(&cluster).await;
}
