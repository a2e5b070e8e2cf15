//! Nodes of a cluster in one process, over an in-process network or over sockets, and counters for them to host.

use std::num::NonZeroU64;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use greylag_cluster::{Clock, Cluster, ClusterSettings, SbrSettings};
use greylag_codec::json;
use greylag_core::{NodeAddress, Registry, ReplyTo, Uid, UniqueAddress};
use greylag_persistence::{Ctx, Effect, EventSourced, EventSourcedSettings, Stores};
use greylag_sharding::fingerprint::StateStoreMode;
use greylag_sharding::{
    ByEvents, Entity, EntityKey, EntityType, Event, Failure, Region, RegionEvents, Sharding, ShardingSettings,
};
use greylag_testkit::uid::fresh_uid;
use greylag_transport::memory::MemoryNetwork;
use greylag_transport::{GrpcTransport, TransportSettings};
use serde::{Deserialize, Serialize};

/// A timeout that no working step exceeds, even on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// Shards of each type.
pub(crate) const SHARDS: u32 = 20;

pub(crate) const COUNTER: EntityKey<Command> = EntityKey::new("Counter");
pub(crate) const VOLATILE: EntityKey<Command> = EntityKey::new("Volatile");

#[derive(Serialize, Deserialize)]
pub(crate) enum Command {
    Increment,
    Decrement,
    Passivate,
    Get { reply_to: ReplyTo<i64> },
}

/// A counter that forgets when its shard ends.
#[derive(Default)]
pub(crate) struct Volatile(i64);

impl Entity for Volatile {
    type Message = Command;

    fn receive(&mut self, command: Command, cx: &mut Ctx<'_, Command>) -> Result<(), Failure> {
        match command {
            Command::Increment => self.0 += 1,
            Command::Decrement => self.0 -= 1,
            Command::Passivate => cx.passivate(),
            Command::Get { reply_to } => reply_to.reply(self.0),
        }
        Ok(())
    }
}

/// A counter that persists its count.
pub(crate) struct Counter;

#[derive(Serialize, Deserialize)]
pub(crate) struct Changed(pub i64);

impl EventSourced for Counter {
    type Command = Command;
    type Event = Changed;
    type State = i64;

    fn settings(&self, node: &EventSourcedSettings) -> EventSourcedSettings {
        EventSourcedSettings { snapshot_every: NonZeroU64::new(10), ..node.clone() }
    }

    fn on_command(&mut self, _: &mut Ctx<'_, Command>, count: &i64, command: Command) -> Effect<Self> {
        match command {
            Command::Increment => Effect::persist(Changed(1)),
            Command::Decrement => Effect::persist(Changed(-1)),
            Command::Passivate => Effect::passivate(),
            Command::Get { reply_to } => Effect::reply(reply_to, *count),
        }
    }

    fn apply(count: &mut i64, changed: &Changed) {
        *count += changed.0;
    }
}

pub(crate) fn counters() -> EntityType<Command, ByEvents<Counter>> {
    EntityType::event_sourced(COUNTER, |_| Ok(Counter))
        .commands(json("counter.command"))
        .events(json("counter.changed"))
        .snapshots(json("counter.state"))
}

pub(crate) fn volatiles() -> EntityType<Command> {
    EntityType::new(VOLATILE, |_| Ok(Volatile::default())).codec(json("volatile.command"))
}

/// The settings of tests, in one of the two state store modes.
pub(crate) fn settings(mode: StateStoreMode) -> ShardingSettings {
    ShardingSettings { number_of_shards: SHARDS, state_store_mode: mode, ..ShardingSettings::test() }
}

/// A member that hosts both kinds of counters.
pub(crate) struct Node {
    pub(crate) address: UniqueAddress,
    pub(crate) cluster: Cluster,
    pub(crate) sharding: Sharding,
    pub(crate) counters: Region<Command>,
    pub(crate) volatile: Region<Command>,
}

/// Gives each node another incarnation, since replicators are registered per process by it.
/// The network of the nodes, and their settings.
pub(crate) struct World {
    pub(crate) network: MemoryNetwork,
    pub(crate) stores: Stores,
    /// Whether nodes have ports of this host, instead of the in-memory network.
    pub(crate) has_sockets: bool,
    /// The first node that joins.
    pub(crate) seed: OnceLock<NodeAddress>,
    pub(crate) cluster: ClusterSettings,
    pub(crate) sharding: ShardingSettings,
}

impl World {
    /// Homes are replicated, and members that are cut off for three seconds are downed.
    pub(crate) fn new() -> Self {
        Self::over(Stores::in_memory_shared(), StateStoreMode::Ddata)
    }

    pub(crate) fn in_mode(mode: StateStoreMode) -> Self {
        Self::over(Stores::in_memory_shared(), mode)
    }

    pub(crate) fn over(stores: Stores, mode: StateStoreMode) -> Self {
        // `RUST_LOG=greylag=debug` shows what the nodes do.
        tracing_subscriber::fmt().with_env_filter(tracing_subscriber::EnvFilter::from_default_env()).try_init().ok();
        let resolver = SbrSettings { stable_after: Duration::from_secs(3), ..SbrSettings::default() };
        Self {
            network: MemoryNetwork::new(),
            stores,
            has_sockets: false,
            seed: OnceLock::new(),
            cluster: ClusterSettings::test().with_resolver(resolver),
            sharding: settings(mode),
        }
    }

    /// As `new`, but no member is downed automatically.
    pub(crate) fn without_resolver() -> Self {
        Self { cluster: ClusterSettings::test(), ..Self::new() }
    }

    /// As `new`, over sockets: nodes have other addresses than the given ones.
    pub(crate) fn over_sockets() -> Self {
        Self { has_sockets: true, ..Self::new() }
    }

    /// A process that has not joined and runs no sharding.
    pub(crate) async fn process(&self, address: &str, settings: ClusterSettings) -> Cluster {
        if self.has_sockets {
            let transport =
                GrpcTransport::bind_closed(TransportSettings::test(), Arc::default()).await.expect("it binds");
            let cluster = Cluster::start_on(transport.control_runtime(), settings, transport.clone()).await;
            transport.open();
            return cluster.expect("it starts");
        }
        let uid = Uid::new(fresh_uid()).expect("not zero");
        let address = UniqueAddress::new(address.parse().expect("an address"), uid);
        let remoting = self.network.node(address, Arc::new(Registry::new()));
        Cluster::start(settings, remoting).await.expect("it starts")
    }

    /// Sharding on a process that has not joined.
    pub(crate) async fn sharding_on(&self, cluster: &Cluster) -> Sharding {
        let (stores, settings) = (Some(self.stores.clone()), self.sharding.clone());
        Sharding::start(cluster.clone(), stores, settings).await.expect("valid")
    }

    /// A process with this role that has not joined, and its sharding without any type.
    pub(crate) async fn newcomer(&self, address: &str, role: &str) -> Sharding {
        let roles = Some(role.to_owned()).filter(|role| !role.is_empty()).into_iter().collect();
        let cluster = self.process(address, ClusterSettings { roles, ..self.cluster.clone() }).await;
        self.sharding_on(&cluster).await
    }

    /// Joins, and returns once it is Up.
    pub(crate) async fn join(&self, cluster: &Cluster) {
        let seed = self.seed.get_or_init(|| cluster.self_address().address().clone());
        cluster.join_seed_nodes(vec![seed.clone()]).await.expect("it joins");
        cluster.wait_up().await.expect("it comes up");
    }

    pub(crate) async fn node(&self, address: &str) -> Node {
        self.node_by(address, Clock::system()).await
    }

    /// A node with its own clock.
    pub(crate) async fn node_by(&self, address: &str, clock: Clock) -> Node {
        let cluster = self.process(address, ClusterSettings { clock, ..self.cluster.clone() }).await;
        let sharding = self.sharding_on(&cluster).await;
        let counters = sharding.init(counters()).expect("fresh");
        let volatile = sharding.init(volatiles()).expect("fresh");
        self.join(&cluster).await;
        Node { address: cluster.self_address().clone(), cluster, sharding, counters, volatile }
    }
}

/// Awaits a future, and panics after `PATIENCE`.
pub(crate) async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future).await.unwrap_or_else(|_| panic!("{what}: not within {PATIENCE:?}"))
}

/// Checks again until `holds` is true.
pub(crate) async fn until(what: &str, holds: impl Fn() -> bool) {
    within(what, async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
}

/// The first event that `wanted` selects.
pub(crate) async fn event<T>(what: &str, events: &mut RegionEvents, wanted: impl Fn(Event) -> Option<T>) -> T {
    within(what, async {
        loop {
            let event = events.next().await.expect("the region runs");
            assert!(!matches!(event, Event::Lagged { .. }), "{what}: events were missed");
            if let Some(found) = wanted(event) {
                return found;
            }
        }
    })
    .await
}

pub(crate) async fn get(region: &Region<Command>, id: usize) -> i64 {
    region
        .entity_ref(id.to_string())
        .ask(|reply_to| Command::Get { reply_to })
        .timeout(PATIENCE)
        .await
        .expect("it answers")
}

/// Asks again while the answer is lost: messages under way to a dead node are.
pub(crate) async fn get_at_last(region: &Region<Command>, id: usize) -> i64 {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let ask =
            region.entity_ref(id.to_string()).ask(|reply_to| Command::Get { reply_to }).timeout(PATIENCE / 10).send();
        match ask.await {
            Ok(count) => return count,
            Err(error) => assert!(Instant::now() < deadline, "counter {id}: {error}"),
        }
    }
}

pub(crate) fn increment(region: &Region<Command>, ids: std::ops::Range<usize>) {
    ids.for_each(|id| region.entity_ref(id.to_string()).tell(Command::Increment).expect("it is taken"));
}

pub(crate) fn increment_all(region: &Region<Command>, count: usize) {
    increment(region, 0..count);
}

pub(crate) async fn assert_all(region: &Region<Command>, count: usize, expected: i64) {
    for id in 0..count {
        assert_eq!(get(region, id).await, expected, "counter {id}");
    }
}

/// Waits until everything told through `region` before has been handled: an ask follows a tell of the same sender in
/// order, while an ask of another node may overtake both.
pub(crate) async fn settle(region: &Region<Command>, count: usize) {
    for id in 0..count {
        get(region, id).await;
    }
}

/// The node of an entity, as a region knows it.
pub(crate) fn home_of(region: &Region<Command>, id: usize) -> Option<UniqueAddress> {
    region.shard_home(&region.shard_of(&id.to_string()).expect("it has one"))
}

/// The nodes of several entities, all of which must be known.
pub(crate) fn homes_of(region: &Region<Command>, ids: std::ops::Range<usize>) -> Vec<UniqueAddress> {
    ids.map(|id| home_of(region, id).expect("it is known")).collect()
}

/// Waits until `node` has at least `at_least` shards, as `region` sees it.
pub(crate) async fn wait_for_shards(region: &Region<Command>, node: &UniqueAddress, at_least: usize) {
    let mut events = region.subscribe();
    let deadline = Instant::now() + PATIENCE;
    while region.shard_homes().get(node).copied().unwrap_or_default() < at_least {
        let left = deadline.saturating_duration_since(Instant::now());
        tokio::time::timeout(left, events.next())
            .await
            .unwrap_or_else(|_| panic!("{node} hosts too little: {:?}", region.shard_homes()));
    }
}
