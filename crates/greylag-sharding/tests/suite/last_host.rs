//! Sharding scenario 99: the last hosting region stops without a handoff, at once, beside a proxy; and the proxy finds
//! the next hosting region.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use greylag_cluster::{Cluster, ClusterSettings};
use greylag_codec::json;
use greylag_core::{DeadLetterReason, Registry, ReplyTo};
use greylag_persistence::Ctx;
use greylag_sharding::{AskError, Entity, EntityKey, EntityType, Failure, Region, Sharding, ShardingSettings};
use greylag_transport::memory::MemoryNetwork;

const CART: EntityKey<ReplyTo<u64>> = EntityKey::new("Cart");
const PATIENCE: Duration = Duration::from_secs(20);

type Ended = Arc<Mutex<Vec<String>>>;

struct Cart(String, Ended);

impl Entity for Cart {
    type Message = ReplyTo<u64>;

    fn receive(&mut self, reply_to: ReplyTo<u64>, _: &mut Ctx<'_, ReplyTo<u64>>) -> Result<(), Failure> {
        reply_to.reply(1);
        Ok(())
    }
}

impl Drop for Cart {
    fn drop(&mut self) {
        self.1.lock().unwrap().push(std::mem::take(&mut self.0));
    }
}

async fn node(network: &MemoryNetwork, address: &str, role: &str) -> (Cluster, Sharding) {
    let remoting = network.node(address.parse().unwrap(), Arc::new(Registry::new()));
    let settings = ClusterSettings { roles: [role.to_owned()].into(), ..ClusterSettings::test() };
    let cluster = Cluster::start(settings, remoting).await.unwrap();
    let sharding = Sharding::start(cluster.clone(), None, ShardingSettings::test()).await.unwrap();
    (cluster, sharding)
}

async fn join(cluster: &Cluster) {
    cluster.join_seed_nodes(vec!["a:1".parse().unwrap()]).await.unwrap();
    cluster.wait_up().await.unwrap();
}

fn init(sharding: &Sharding, ended: &Ended) -> Region<ReplyTo<u64>> {
    let ended = ended.clone();
    let carts = EntityType::new(CART, move |init| Ok(Cart(init.id.to_string(), ended.clone())));
    sharding.init(carts.codec(json("cart")).role("carts").ask_timeout(PATIENCE)).unwrap()
}

async fn ask(region: &Region<ReplyTo<u64>>, id: &str) -> Result<u64, AskError> {
    region.entity_ref(id).ask(|reply_to| reply_to).await
}

#[tokio::test]
async fn scenario_99_the_last_host_ends_after_its_entities_and_a_later_host_is_found() {
    let network = MemoryNetwork::new();
    let ended = Ended::default();
    let (host, hosts) = node(&network, "a:1#2001", "carts").await;
    let (proxy, proxies) = node(&network, "b:1#2002", "web").await;
    join(&host).await;
    join(&proxy).await;
    let (region, beside) = (init(&hosts, &ended), init(&proxies, &ended));
    assert_eq!(ask(&beside, "1").await, Ok(1));
    tokio::time::timeout(PATIENCE, region.graceful_shutdown()).await.expect("nobody else could host: it stops here");
    assert_eq!(*ended.lock().unwrap(), ["1"], "its entity ended before it");
    let stopped = Err(AskError::Dropped(DeadLetterReason::RegionStopped));
    assert_eq!(ask(&beside, "1").await, stopped, "the proxy knows no other home");

    // The stopped region's node stays a member: only that region can tell that the old route is dead.
    let (third, thirds) = node(&network, "c:1#2003", "carts").await;
    join(&third).await;
    let _region = init(&thirds, &ended);
    assert_eq!(ask(&beside, "1").await, Ok(1));
}
