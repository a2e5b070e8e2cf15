//! Shards that the program places, and custom strategies, over real clusters of nodes that live in one process.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use greylag_cluster::{AppVersion, Cluster, ClusterSettings, SbrSettings};
use greylag_codec::json;
use greylag_core::{NodeAddress, Registry, ReplyTo, Uid, UniqueAddress};
use greylag_persistence::Ctx;
use greylag_sharding::allocation::{AllocationFailed, View};
use greylag_sharding::ids::{RegionId, ShardId};
use greylag_sharding::settings::ExternalSettings;
use greylag_sharding::{
    AllocationStrategy, Entity, EntityCtx, EntityKey, EntityType, ExternalAllocation, ExternalShardsError, Failure,
    Region, Sharding, ShardingSettings,
};
use greylag_testkit::uid::fresh_uid;
use greylag_transport::memory::MemoryNetwork;

const PATIENCE: Duration = Duration::from_secs(30);
const SHARDS: u32 = 20;

/// Asks an entity for its node.
type Where = ReplyTo<UniqueAddress>;

const PET: EntityKey<Where> = EntityKey::new("Pet");

struct Pet;

impl Entity for Pet {
    type Message = Where;

    fn receive(&mut self, reply_to: Where, cx: &mut Ctx<'_, Where>) -> Result<(), Failure> {
        reply_to.reply(cx.node().expect("it lives in a shard").clone());
        Ok(())
    }
}

fn pets(strategy: impl AllocationStrategy) -> EntityType<Where> {
    EntityType::new(PET, |_| Ok(Pet)).codec(json("where")).allocation(strategy)
}

/// Gives each node another incarnation, since replicators are registered per process by it.
struct Node {
    address: UniqueAddress,
    cluster: Cluster,
    sharding: Sharding,
    pets: Option<Region<Where>>,
}

impl Node {
    /// A member of the cluster to which the node `a:1` belongs, without entity types.
    async fn joined(network: &MemoryNetwork, address: &str, change: impl FnOnce(&mut ClusterSettings)) -> Self {
        let uid = Uid::new(fresh_uid()).expect("not zero");
        let address = UniqueAddress::new(address.parse().expect("an address"), uid);
        let remoting = network.node(address.clone(), Arc::new(Registry::new()));
        let resolver = SbrSettings { stable_after: Duration::from_secs(20), ..SbrSettings::default() };
        let mut settings = ClusterSettings::test().with_resolver(resolver);
        change(&mut settings);
        let cluster = Cluster::start(settings, remoting).await.expect("it starts");
        let external = ExternalSettings { client_timeout: Duration::from_secs(2) };
        let settings = ShardingSettings { number_of_shards: SHARDS, external, ..ShardingSettings::test() };
        let sharding = Sharding::start(cluster.clone(), None, settings).await.expect("valid");
        cluster.join_seed_nodes(vec!["a:1".parse().expect("an address")]).await.expect("it joins");
        cluster.wait_up().await.expect("it comes up");
        Self { address, cluster, sharding, pets: None }
    }

    /// A member that hosts pets.
    async fn hosting(network: &MemoryNetwork, address: &str, strategy: impl AllocationStrategy) -> Self {
        let mut node = Self::joined(network, address, |_| ()).await;
        node.pets = Some(node.sharding.init(pets(strategy)).expect("fresh"));
        node
    }

    fn pets(&self) -> &Region<Where> {
        self.pets.as_ref().expect("it hosts pets")
    }

    fn shard_of(&self, pet: &str) -> ShardId {
        self.pets().shard_of(pet).expect("an id")
    }

    fn plain_address(&self) -> NodeAddress {
        self.address.address().clone()
    }

    /// The node of a pet, as the pet answers.
    async fn home_of(&self, pet: &str) -> UniqueAddress {
        self.pets().entity_ref(pet).ask(|reply_to| reply_to).timeout(PATIENCE).await.expect("it answers")
    }

    /// Asks until a pet lives at `home`.
    async fn wait_for_home(&self, pet: &str, home: &UniqueAddress) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let at = self.home_of(pet).await;
            if at == *home {
                return;
            }
            assert!(Instant::now() < deadline, "{pet} is still at {at}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

/// Ids of different shards, one for each number.
fn ids(node: &Node, count: usize) -> Vec<String> {
    let mut shards = BTreeSet::new();
    let all = (0..).map(|number: u32| format!("pet-{number}"));
    all.filter(|id| shards.insert(node.shard_of(id))).take(count).collect()
}

/// Scenario sharding 37.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scenario_37_shards_go_where_the_program_says_at_once_or_once_the_node_has_come() {
    let network = MemoryNetwork::new();
    let first = Node::hosting(&network, "a:1", ExternalAllocation::default()).await;
    let second = Node::hosting(&network, "b:1", ExternalAllocation::default()).await;
    let pets = ids(&first, 4);
    let [bird, mouse, cats, dogs] = &pets[..] else { unreachable!("four were asked for") };

    // Without an entry a shard goes to the node that asks.
    assert_eq!(first.home_of(bird).await, first.address);
    assert_eq!(second.home_of(mouse).await, second.address);

    // An entry is obeyed whichever node asks first. The coordinator's node knows everything that a majority knows.
    let said = first.sharding.external_shards(&PET);
    let heard = second.sharding.external_shards(&PET);
    let entry = (first.shard_of(cats), first.plain_address());
    heard.update_shard_location(entry.0.clone(), entry.1.clone()).await.expect("it is written here");
    assert_eq!(said.shard_locations().await.expect("both answer"), BTreeMap::from([entry.clone()]));
    assert_eq!(second.home_of(cats).await, first.address);

    // An entry for a node that has not joined is applied once it has.
    let later: NodeAddress = "c:1".parse().expect("an address");
    let entries = [(first.shard_of(dogs), later.clone()), (first.shard_of(mouse), second.plain_address())];
    said.update_shard_locations(entries.clone()).await.expect("it is written here");
    assert_eq!(second.home_of(dogs).await, second.address, "who asks");
    let third = Node::hosting(&network, "c:1", ExternalAllocation::default()).await;
    second.wait_for_home(dogs, &third.address).await;
    let known = third.sharding.external_shards(&PET).shard_locations().await.expect("a majority answers");
    assert_eq!(known, entries.into_iter().chain([entry]).collect());

    // Moving the entry moves its shard, and no other one.
    third
        .sharding
        .external_shards(&PET)
        .update_shard_location(first.shard_of(dogs), first.plain_address())
        .await
        .expect("it is written here");
    second.wait_for_home(dogs, &first.address).await;
    let homes = [first.home_of(bird).await, first.home_of(mouse).await, first.home_of(cats).await];
    assert_eq!(homes, [first.address.clone(), second.address.clone(), first.address.clone()]);
}

/// Scenario sharding 38: the client; the strategy's own tests cover queries without an answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scenario_38_the_client_knows_nothing_before_the_type_is_set_up_and_says_when_others_are_silent() {
    let network = MemoryNetwork::new();
    let mut first = Node::joined(&network, "a:1", |_| ()).await;
    let client = first.sharding.external_shards(&PET);
    assert_eq!(client.shard_locations().await, Ok(BTreeMap::new()), "nothing is set up");
    let shard = ShardId::from_index(3);
    let early = client.update_shard_location(shard.clone(), first.plain_address()).await;
    assert_eq!(early, Err(ExternalShardsError::NotStarted { entity_type: "Pet".to_owned() }));

    first.pets = Some(first.sharding.init(pets(ExternalAllocation::default())).expect("fresh"));
    assert_eq!(client.shard_locations().await, Ok(BTreeMap::new()), "nothing was said");
    let unknown = client.update_shard_location(ShardId::from_index(SHARDS), first.plain_address()).await.unwrap_err();
    assert_eq!(unknown.to_string(), "Pet has no shard 20: its shards are numbered from 0 to 19");
    assert_eq!(client.shard_locations().await, Ok(BTreeMap::new()), "nothing of it was written");

    // Without an entry a shard goes to the asking node; shards with a home stay.
    let second = Node::hosting(&network, "b:1", ExternalAllocation::default()).await;
    let pets = ids(&first, 4);
    for (number, pet) in pets.iter().enumerate() {
        let asks = [&first, &second][number % 2];
        assert_eq!(asks.home_of(pet).await, asks.address);
    }

    // A write waits for this node alone, a read for a majority.
    network.cut(&first.plain_address(), &second.plain_address());
    client.update_shard_location(shard.clone(), first.plain_address()).await.expect("it is written here");
    let silent = client.shard_locations().await;
    let timeout = Duration::from_secs(2);
    assert_eq!(silent, Err(ExternalShardsError::ClientTimeout { entity_type: "Pet".to_owned(), timeout }));
}

/// A strategy controlled by the test: the homes to choose, and the shards to move.
#[derive(Clone, Default)]
struct ScriptedStrategy(Arc<Mutex<(BTreeMap<ShardId, NodeAddress>, BTreeSet<ShardId>)>>);

#[async_trait]
impl AllocationStrategy for ScriptedStrategy {
    async fn allocate(&self, shard: &ShardId, _: Option<&RegionId>, view: &View) -> Result<RegionId, AllocationFailed> {
        let told = self.0.lock().expect("no holder panics");
        let wanted = told.0.get(shard).ok_or_else(|| AllocationFailed("not told".to_owned()))?;
        let found = view.regions.iter().find(|region| region.address() == wanted);
        found.map(|region| region.region.clone()).ok_or_else(|| AllocationFailed("it is not there".to_owned()))
    }

    async fn rebalance(&self, _: &View, _: &BTreeSet<ShardId>) -> Result<BTreeSet<ShardId>, AllocationFailed> {
        Ok(std::mem::take(&mut self.0.lock().expect("no holder panics").1))
    }
}

/// Scenario sharding 36.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scenario_36_a_custom_strategy_moves_the_shard_that_it_is_told_to_move() {
    let network = MemoryNetwork::new();
    let told = ScriptedStrategy::default();
    let first = Node::hosting(&network, "a:1", told.clone()).await;
    let second = Node::hosting(&network, "b:1", told.clone()).await;
    let pets = ids(&first, 3);
    let shards: Vec<ShardId> = pets.iter().map(|pet| first.shard_of(pet)).collect();
    let place = |shard: usize, node: &Node| {
        told.0.lock().expect("no holder panics").0.insert(shards[shard].clone(), node.plain_address());
    };
    for (shard, node) in [(0, &first), (1, &first), (2, &second)] {
        place(shard, node);
    }
    for (pet, home) in pets.iter().zip([&first, &first, &second]) {
        assert_eq!(second.home_of(pet).await, home.address);
    }

    // Both shards could move: only the second one is named.
    place(0, &second);
    place(1, &second);
    told.0.lock().expect("no holder panics").1.insert(shards[1].clone());
    first.wait_for_home(&pets[1], &second.address).await;
    assert_eq!(first.home_of(&pets[0]).await, first.address);
    assert_eq!(first.home_of(&pets[2]).await, second.address);
}

/// A node with a version of the application, with the default allocation strategy.
async fn of_version(network: &MemoryNetwork, address: &str, version: &str) -> Node {
    let version: AppVersion = version.parse().expect("a version");
    let mut node = Node::joined(network, address, |settings| settings.app_version = version).await;
    let pets = EntityType::new(PET, |_| Ok(Pet)).codec(json("where"));
    node.pets = Some(node.sharding.init(pets).expect("fresh"));
    node
}

/// Scenario sharding 39.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scenario_39_a_rolling_update_fills_new_nodes_and_moves_nothing_until_versions_agree() {
    let network = MemoryNetwork::new();
    let old = [of_version(&network, "a:1", "1").await, of_version(&network, "b:1", "1").await];
    let pets = ids(&old[0], 16);
    // Distribute so unevenly that shards would move if versions agreed.
    let (early, late) = pets.split_at(12);
    let mut homes = BTreeMap::new();
    for pet in early {
        homes.insert(pet.as_str(), old[0].home_of(pet).await);
    }

    let new = [of_version(&network, "c:1", "2").await, of_version(&network, "d:1", "2").await];
    let of_new: BTreeSet<_> = new.iter().map(|node| node.address.clone()).collect();
    for pet in late {
        let home = old[1].home_of(pet).await;
        assert!(of_new.contains(&home), "a new shard went to {home}");
        homes.insert(pet.as_str(), home);
    }
    // Wait several rounds, in each of which least-shard would move a shard if versions agreed.
    tokio::time::sleep(ShardingSettings::test().rebalance_interval * 4).await;
    for (pet, home) in &homes {
        assert_eq!(old[0].home_of(pet).await, *home, "{pet} moved while versions differed");
    }

    for node in &old {
        node.cluster.shutdown().await;
    }
    for pet in &pets {
        let home = new[0].home_of(pet).await;
        assert!(of_new.contains(&home), "{pet} lives at {home}");
    }
}
