//! Remembered entities on real nodes: they start again without a message, wherever their shard lives next, until they
//! passivate. Source: sharding §4.7 to §4.9.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::nodes::{PATIENCE, SHARDS, World, event, until, within};
use greylag_cluster::{Cluster, ClusterSettings};
use greylag_codec::json;
use greylag_core::{DeadLetterReason, Registry, ReplyTo, UniqueAddress};
use greylag_ddata::MemoryStore;
use greylag_persistence::{Ctx, Stores};
use greylag_sharding::fingerprint::StateStoreMode;
use greylag_sharding::ids::{EntityId, ShardId};
use greylag_sharding::settings::{EntityRecovery, RememberSettings};
use greylag_sharding::{
    Entity, EntityInit, EntityKey, EntityType, Event, Extractor, Failure, InMemoryRememberStore, InitError, Region,
    RememberEntitiesStore, RememberError, RememberStore, ShardTerm, Sharding, ShardingSettings,
};
use greylag_transport::memory::MemoryNetwork;
use serde::{Deserialize, Serialize};

const JOB: EntityKey<Command> = EntityKey::new("Job");

#[derive(Serialize, Deserialize)]
enum Command {
    Add(u64),
    Get(ReplyTo<u64>),
    Stop,
    Passivate,
    Fail,
}

/// The live jobs and their nodes; how often each was started.
#[derive(Clone, Default)]
struct JobRegistry(Arc<Mutex<RegistryState>>);

#[derive(Default)]
struct RegistryState {
    living: BTreeMap<String, Vec<String>>,
    starts: BTreeMap<String, u64>,
}

impl JobRegistry {
    fn living(&self) -> BTreeSet<String> {
        self.0.lock().unwrap().living.keys().cloned().collect()
    }

    /// The nodes on which jobs live.
    fn nodes(&self) -> BTreeSet<String> {
        self.0.lock().unwrap().living.values().flatten().cloned().collect()
    }

    fn starts(&self, id: &str) -> u64 {
        self.0.lock().unwrap().starts.get(id).copied().unwrap_or_default()
    }
}

struct Job {
    count: u64,
    id: String,
    node: String,
    registry: JobRegistry,
}

impl Job {
    fn new(id: &str, node: &str, registry: &JobRegistry) -> Self {
        let mut state = registry.0.lock().unwrap();
        state.living.entry(id.to_owned()).or_default().push(node.to_owned());
        *state.starts.entry(id.to_owned()).or_default() += 1;
        drop(state);
        Self { count: 0, id: id.to_owned(), node: node.to_owned(), registry: registry.clone() }
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        let mut state = self.registry.0.lock().unwrap();
        let places = state.living.get_mut(&self.id).expect("it lived");
        let at = places.iter().position(|node| *node == self.node).expect("here");
        places.remove(at);
        if places.is_empty() {
            state.living.remove(&self.id);
        }
    }
}

impl Entity for Job {
    type Message = Command;

    fn receive(&mut self, command: Command, cx: &mut Ctx<'_, Command>) -> Result<(), Failure> {
        match command {
            Command::Add(by) => self.count += by,
            Command::Get(reply_to) => reply_to.reply(self.count),
            Command::Stop => cx.stop(),
            Command::Passivate => cx.passivate(),
            Command::Fail => return Err(Failure::new("asked to")),
        }
        Ok(())
    }
}

fn jobs(registry: &JobRegistry, node: &str) -> EntityType<Command> {
    let (registry, node) = (registry.clone(), node.to_owned());
    EntityType::new(JOB, move |init: &EntityInit| Ok(Job::new(init.id.as_str(), &node, &registry)))
        .codec(json("job"))
        .ask_timeout(PATIENCE)
}

fn names<const N: usize>(names: [&str; N]) -> BTreeSet<String> {
    names.into_iter().map(str::to_owned).collect()
}

async fn get(jobs: &Region<Command>, id: &str) -> u64 {
    jobs.entity_ref(id).ask(Command::Get).await.expect("it answers")
}

async fn alone(store: RememberStore, registry: &JobRegistry) -> (Sharding, Region<Command>) {
    let remoting = MemoryNetwork::new().node("a:1#1".parse().unwrap(), Arc::new(Registry::new()));
    let settings = ShardingSettings { number_of_shards: 1, ..ShardingSettings::test() };
    let sharding = Sharding::alone(remoting, None, settings).await.unwrap();
    let region = sharding.init(jobs(registry, "a").remember_entities(store)).unwrap();
    (sharding, region)
}

/// An entity that stops by itself comes back without a message; an entity that passivates does not, nor does an entity
/// of a type that does not remember. A sibling keeps its state.
#[tokio::test]
async fn scenario_57_an_entity_that_stops_by_itself_comes_back_and_a_passivated_one_stays_away() {
    let registry = JobRegistry::default();
    let (_sharding, jobs) = alone(RememberStore::Ddata, &registry).await;
    for id in ["stops", "passivates", "sibling"] {
        jobs.entity_ref(id).tell(Command::Add(1)).unwrap();
        assert_eq!(get(&jobs, id).await, 1);
    }
    jobs.entity_ref("passivates").tell(Command::Passivate).unwrap();
    jobs.entity_ref("stops").tell(Command::Stop).unwrap();
    until("it comes back", || registry.starts("stops") == 2).await;
    until("it is gone", || registry.living() == names(["sibling", "stops"])).await;
    // Wait three times as long as the other one was away.
    tokio::time::sleep(Duration::from_millis(750)).await;
    assert_eq!((registry.starts("passivates"), get(&jobs, "sibling").await), (1, 1));
    assert_eq!((get(&jobs, "stops").await, get(&jobs, "passivates").await), (0, 0));
    assert_eq!(registry.starts("passivates"), 2, "with its next message it begins anew");

    let registry = JobRegistry::default();
    let remoting = MemoryNetwork::new().node("a:1#1".parse().unwrap(), Arc::new(Registry::new()));
    let sharding = Sharding::alone(remoting, None, ShardingSettings::test()).await.unwrap();
    let jobs = sharding.init(self::jobs(&registry, "a")).unwrap();
    assert_eq!(get(&jobs, "stops").await, 0);
    jobs.entity_ref("stops").tell(Command::Stop).unwrap();
    tokio::time::sleep(Duration::from_millis(750)).await;
    assert_eq!((registry.starts("stops"), registry.living()), (1, BTreeSet::new()));
}

/// The fault of one store call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    NoAnswer,
    Error,
    Stopped,
    Delay,
    Panic,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Op {
    Load,
    Start,
    Stop,
    AddShard,
}

/// A store whose next call of one kind fails.
#[derive(Clone)]
struct Flaky {
    store: InMemoryRememberStore,
    fault: Arc<Mutex<Option<(Op, Fault)>>>,
    met: Arc<AtomicUsize>,
}

impl Flaky {
    fn new(op: Op, fault: Fault) -> Self {
        let fault = Arc::new(Mutex::new(Some((op, fault))));
        Self { store: InMemoryRememberStore::new(), fault, met: Arc::default() }
    }

    async fn meet(&self, op: Op) -> Result<(), RememberError> {
        let met = self.fault.lock().unwrap().take_if(|(planned, _)| *planned == op);
        let Some((_, fault)) = met else { return Ok(()) };
        self.met.fetch_add(1, Ordering::Relaxed);
        match fault {
            Fault::NoAnswer => std::future::pending().await,
            Fault::Error => Err(RememberError::Unavailable("on purpose".into())),
            Fault::Stopped => Err(RememberError::Stopped("on purpose".into())),
            Fault::Delay => {
                tokio::time::sleep(Duration::from_millis(500)).await;
                Ok(())
            }
            Fault::Panic => panic!("on purpose"),
        }
    }
}

#[async_trait::async_trait]
impl RememberEntitiesStore for Flaky {
    async fn load(&self, of: &ShardTerm) -> Result<BTreeSet<EntityId>, RememberError> {
        self.meet(Op::Load).await?;
        self.store.load(of).await
    }

    async fn update(&self, of: &ShardTerm, starts: Vec<EntityId>, stops: Vec<EntityId>) -> Result<(), RememberError> {
        if !starts.is_empty() {
            self.meet(Op::Start).await?;
        }
        if !stops.is_empty() {
            self.meet(Op::Stop).await?;
        }
        self.store.update(of, starts, stops).await
    }

    async fn add_shard(&self, shard: &ShardId) -> Result<(), RememberError> {
        self.meet(Op::AddShard).await?;
        self.store.add_shard(shard).await
    }

    async fn shards(&self) -> Result<BTreeSet<ShardId>, RememberError> {
        self.store.shards().await
    }
}

/// With a store that does not answer, refuses, has stopped, or takes 500 ms: the message that waits for the store is
/// answered, and is not sent again.
#[tokio::test]
async fn scenario_72_messages_for_a_failing_store_are_answered_without_being_sent_again() {
    for op in [Op::Load, Op::Start, Op::Stop, Op::AddShard] {
        let faults = [Fault::NoAnswer, Fault::Error, Fault::Stopped, Fault::Delay, Fault::Panic];
        let runs = faults.map(|fault| tokio::spawn(goes_on_after(op, fault)));
        for (fault, run) in faults.into_iter().zip(runs) {
            within(&format!("{op:?} {fault:?}"), run).await.unwrap_or_else(|panic| panic!("{op:?} {fault:?}: {panic}"));
        }
    }
}

async fn goes_on_after(op: Op, fault: Fault) {
    let mut world = World::new();
    world.sharding.number_of_shards = 1;
    let (store, registry) = (Flaky::new(op, fault), JobRegistry::default());
    let cluster = world.process("a:1", world.cluster.clone()).await;
    let sharding = world.sharding_on(&cluster).await;
    let jobs = sharding.init(jobs(&registry, "a").remember_entities(RememberStore::custom(store.clone()))).unwrap();
    world.join(&cluster).await;
    assert_eq!(get(&jobs, "1").await, 0);
    jobs.entity_ref("1").tell(Command::Passivate).unwrap();
    // This ask is behind the passivation: it waits until that is stored, or for the shard that starts again.
    assert_eq!(get(&jobs, "1").await, 0);
    assert_eq!(store.met.load(Ordering::Relaxed), 1, "the fault was met");
    until("it is remembered", || store.store.entities(&ShardId::from_index(0)).len() == 1).await;
    assert_eq!(registry.living(), names(["1"]));
}

/// Shards by the last figure of an id, shifted by `shift`.
#[derive(Clone, Copy)]
struct LastFigure {
    shift: u32,
}

impl Extractor for LastFigure {
    fn shard_id(&self, id: &EntityId) -> Result<ShardId, DeadLetterReason> {
        Ok(ShardId::from_index(self.shard_index(id).unwrap()))
    }

    fn shard_index(&self, id: &EntityId) -> Option<u32> {
        Some((id.as_str().parse::<u32>().unwrap() + self.shift) % 10)
    }

    fn number_of_shards(&self) -> Option<NonZeroU32> {
        NonZeroU32::new(10)
    }

    fn identity(&self) -> (&'static str, u32) {
        ("last-figure", 1 + self.shift)
    }
}

/// After a stop of all nodes the mapping differs: entities live in their new shard alone, and the old shard's store is
/// empty the next time.
#[tokio::test]
async fn scenario_74_a_mapping_that_was_shifted_moves_remembered_entities_to_their_new_shard() {
    let store = InMemoryRememberStore::new();
    let ids = ["1", "11", "21"];
    let remembered = || ids.iter().map(|id| EntityId::new(*id).unwrap()).collect::<BTreeSet<_>>();
    let shard = ShardId::from_index;
    for (round, shift) in [(1, 0), (2, 1), (3, 1)] {
        let (world, registry) = (World::new(), JobRegistry::default());
        let cluster = world.process("a:1", world.cluster.clone()).await;
        let sharding = world.sharding_on(&cluster).await;
        let remember = RememberStore::custom(store.clone());
        let jobs = jobs(&registry, "a").extractor(LastFigure { shift }).remember_entities(remember);
        let jobs = sharding.init(jobs).unwrap();
        world.join(&cluster).await;
        match round {
            1 => {
                for id in ids {
                    assert_eq!(jobs.start_entity(id).await.unwrap().shard, shard(1));
                }
                assert_eq!(store.entities(&shard(1)), remembered());
            }
            2 => {
                until("they start", || registry.living() == names(ids)).await;
                until("they left the old shard", || store.entities(&shard(1)).is_empty()).await;
                assert_eq!(store.entities(&shard(2)), remembered());
            }
            _ => {
                until("they start", || registry.living() == names(ids)).await;
                assert_eq!((store.entities(&shard(1)), store.entities(&shard(2))), (BTreeSet::new(), remembered()));
            }
        }
        for id in ids {
            assert_eq!(registry.starts(id), 1, "in round {round}, {id} lives once");
        }
        within("the node ends", cluster.shutdown()).await;
    }
}

/// The three combinations of stores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Combination {
    DdataDdata,
    DdataJournal,
    PersistenceJournal,
}

/// The data that outlive a stop of all nodes.
struct Disks {
    combination: Combination,
    stores: Stores,
    replicated: Mutex<BTreeMap<String, MemoryStore>>,
}

impl Disks {
    fn world(&self) -> World {
        let mode = match self.combination {
            Combination::PersistenceJournal => StateStoreMode::Persistence,
            _ => StateStoreMode::Ddata,
        };
        let mut world = World::over(self.stores.clone(), mode);
        // Allow more time on a busy machine; other tests cover stores that fail.
        world.sharding.waiting_for_state_timeout = Duration::from_secs(3);
        world.sharding.updating_state_timeout = Duration::from_secs(10);
        world
    }

    fn remember(&self) -> RememberStore {
        match self.combination {
            Combination::DdataDdata => RememberStore::Ddata,
            _ => RememberStore::EventSourced,
        }
    }

    /// A member that hosts jobs.
    async fn node(self: &Arc<Self>, world: &World, name: &str, registry: &JobRegistry) -> Member {
        let address = format!("{name}:1");
        let cluster = world.process(&address, world.cluster.clone()).await;
        let disks = self.clone();
        let sharding = world.sharding_on(&cluster).await;
        let place = address.clone();
        let sharding = sharding.durable_store(move |replicator| {
            let mut replicated = disks.replicated.lock().unwrap();
            Arc::new(replicated.entry(format!("{place}/{replicator}")).or_default().clone())
        });
        let jobs = sharding.init(jobs(registry, name).remember_entities(self.remember())).unwrap();
        world.join(&cluster).await;
        Member { address: cluster.self_address().clone(), cluster, jobs, _sharding: sharding }
    }
}

struct Member {
    address: UniqueAddress,
    cluster: Cluster,
    jobs: Region<Command>,
    _sharding: Sharding,
}

async fn entities_are_remembered_over_everything(combination: Combination) {
    let (stores, replicated) = (Stores::in_memory_shared(), Mutex::default());
    let disks = Arc::new(Disks { combination, stores, replicated });
    let (world, registry) = (disks.world(), JobRegistry::default());
    let all: BTreeSet<String> = (0..30).map(|id| format!("job-{id}")).collect();
    let left: BTreeSet<String> = all.iter().filter(|id| !id.ends_with('0')).cloned().collect();
    let are_left = || registry.living() == left;
    let [a, b] = [disks.node(&world, "a", &registry).await, disks.node(&world, "b", &registry).await];
    for id in &all {
        b.jobs.start_entity(id.as_str()).await.unwrap_or_else(|error| panic!("{combination:?} {id}: {error}"));
    }
    for id in all.difference(&left) {
        b.jobs.entity_ref(id.as_str()).tell(Command::Passivate).unwrap();
    }
    until("some passivate", are_left).await;

    // A rebalance: a third node comes.
    let c = disks.node(&world, "c", &registry).await;
    until("some live on the new node", || registry.nodes().contains("c") && are_left()).await;

    // The coordinator's node crashes, and with it a region.
    world.network.crash(&a.address);
    until("all live on the others", || registry.nodes() == names(["b", "c"]) && are_left()).await;
    drop(a);

    // Another node leaves in order.
    within("it leaves", b.cluster.shutdown()).await;
    until("all live on the last", || registry.nodes() == names(["c"]) && are_left()).await;
    drop(b);
    within("it leaves", c.cluster.shutdown()).await;
    until("nobody is left", || registry.living().is_empty()).await;
    drop((c, world));

    // All nodes have stopped. The last one starts again.
    let (world, registry) = (disks.world(), JobRegistry::default());
    let c = disks.node(&world, "c", &registry).await;
    until("all are back", || registry.living() == left).await;
    assert_eq!(get(&c.jobs, "job-1").await, 0);
    for id in &left {
        assert_eq!(registry.starts(id), 1, "{combination:?}: {id} was started without a message, and once");
    }
}

#[tokio::test]
async fn scenario_75_replicated_homes_and_replicated_entities() {
    entities_are_remembered_over_everything(Combination::DdataDdata).await;
}

#[tokio::test]
async fn scenario_75_replicated_homes_and_entities_in_a_journal() {
    entities_are_remembered_over_everything(Combination::DdataJournal).await;
}

#[tokio::test]
async fn scenario_75_homes_and_entities_in_a_journal() {
    entities_are_remembered_over_everything(Combination::PersistenceJournal).await;
}

/// Homes move from the journal to replicated data: entities stay remembered. There is no way back.
#[tokio::test]
async fn scenario_76_remembered_entities_stay_when_homes_leave_the_journal_for_good() {
    let (stores, replicated) = (Stores::in_memory_shared(), Mutex::default());
    let mut disks = Disks { combination: Combination::PersistenceJournal, stores, replicated };
    let ids = ["1", "2", "3", "4"];
    for round in 0..3 {
        let (shared, registry) = (Arc::new(disks), JobRegistry::default());
        let world = shared.world();
        let a = shared.node(&world, "a", &registry).await;
        match round {
            0 => {
                for id in ids {
                    a.jobs.start_entity(id).await.unwrap();
                }
            }
            1 => until("they are back", || registry.living() == names(ids)).await,
            _ => {
                // Wait longer than the restart took before: no coordinator decides anything.
                tokio::time::sleep(Duration::from_secs(3)).await;
                assert_eq!((registry.living(), a.jobs.shard_homes()), (BTreeSet::new(), BTreeMap::new()));
            }
        }
        within("it leaves", a.cluster.shutdown()).await;
        drop((a, world));
        let (stores, next) = (shared.stores.clone(), [Combination::DdataJournal, Combination::PersistenceJournal]);
        disks = Disks { combination: next[round % 2], stores, replicated: Mutex::default() };
    }
}

/// Coordinators on nodes of one role, shards on nodes of another: remembered entities start again on the next node of
/// that role. The set of shards is kept where coordinators may run, the entities where they are hosted.
#[tokio::test]
async fn scenario_4_remembered_entities_start_again_on_the_next_node_of_their_role() {
    let world = World::new();
    let registry = JobRegistry::default();
    let start = async |name: &str, role: &str| {
        let settings = ClusterSettings { roles: [role.to_owned()].into(), ..world.cluster.clone() };
        let cluster = world.process(&format!("{name}:1"), settings).await;
        let mut settings = world.sharding.clone();
        settings.coordinator_singleton.role_override = false;
        settings.coordinator_singleton.role = "coordinates".to_owned();
        let sharding = Sharding::start(cluster.clone(), None, settings).await.unwrap();
        let jobs = jobs(&registry, name).role("hosts").remember_entities(RememberStore::Ddata);
        let jobs = sharding.init(jobs).unwrap();
        world.join(&cluster).await;
        (cluster, jobs, sharding)
    };
    let (_coordinator, proxy, _sharding) = start("c", "coordinates").await;
    let (first, _jobs, _first_sharding) = start("a", "hosts").await;
    let ids = ["1", "2", "3"];
    for id in ids {
        proxy.start_entity(id).await.unwrap();
    }
    let (_next, _jobs, _next_sharding) = start("b", "hosts").await;
    within("it leaves", first.shutdown()).await;
    until("they live on the next node", || registry.nodes() == names(["b"]) && registry.living() == names(ids)).await;
}

/// The only node ends under traffic, although its type remembers: late messages are dropped, and entities stay
/// remembered.
#[tokio::test]
async fn scenario_51_the_only_region_of_a_type_that_remembers_ends_in_time() {
    let (world, store, registry) = (World::new(), InMemoryRememberStore::new(), JobRegistry::default());
    let cluster = world.process("a:1", world.cluster.clone()).await;
    let sharding = world.sharding_on(&cluster).await;
    let jobs = sharding.init(jobs(&registry, "a").remember_entities(RememberStore::custom(store.clone()))).unwrap();
    world.join(&cluster).await;
    let job = jobs.entity_ref("1");
    assert_eq!(job.ask(Command::Get).await, Ok(0));
    jobs.entity_ref("2").tell(Command::Passivate).unwrap();
    let traffic = {
        let job = job.clone();
        tokio::spawn(async move {
            while job.tell(Command::Add(1)).is_ok() {
                tokio::task::yield_now().await;
            }
        })
    };
    within("it stops", jobs.graceful_shutdown()).await;
    within("late messages are refused", traffic).await.unwrap();
    assert_eq!(registry.living(), BTreeSet::new());
    let shard = jobs.shard_of("1").unwrap();
    assert!(store.entities(&shard).contains(&EntityId::new("1").unwrap()), "it starts again with its shard");
    within("the node ends", cluster.shutdown()).await;
}

/// A constant rate holds for all shards of a node together.
#[tokio::test]
async fn scenario_73_a_constant_rate_is_kept_over_all_shards() {
    let (store, registry) = (InMemoryRememberStore::new(), JobRegistry::default());
    for id in 0..12 {
        let entity = EntityId::new(id.to_string()).unwrap();
        let shard = ShardId::from_index(id % 4);
        let generation = greylag_core::Generation::new(1, 1).unwrap();
        let entity_type = greylag_sharding::ids::EntityTypeName::new("Job").unwrap();
        let term = ShardTerm { entity_type, shard: shard.clone(), generation };
        store.add_shard(&shard).await.unwrap();
        store.update(&term, vec![entity], Vec::new()).await.unwrap();
    }
    let remoting = MemoryNetwork::new().node("a:1#1".parse().unwrap(), Arc::new(Registry::new()));
    let remember = RememberSettings {
        recovery: EntityRecovery::Constant,
        number_of_entities: NonZeroU32::new(4).unwrap(),
        frequency: Duration::from_millis(400),
        ..RememberSettings::default()
    };
    let settings = ShardingSettings { remember, ..ShardingSettings::test() };
    let began = std::time::Instant::now();
    let sharding = Sharding::alone(remoting, None, settings).await.unwrap();
    let jobs = jobs(&registry, "a").extractor(ByRest).remember_entities(RememberStore::custom(store));
    let _jobs = sharding.init(jobs).unwrap();
    until("the first lot starts", || registry.living().len() >= 4).await;
    until("all start", || registry.living().len() == 12).await;
    assert!(began.elapsed() >= Duration::from_millis(800), "two pauses lie between three lots: {:?}", began.elapsed());
}

/// Four shards by the remainder of the id by four.
struct ByRest;

impl Extractor for ByRest {
    fn shard_id(&self, id: &EntityId) -> Result<ShardId, DeadLetterReason> {
        Ok(ShardId::from_index(self.shard_index(id).unwrap()))
    }

    fn shard_index(&self, id: &EntityId) -> Option<u32> {
        Some(id.as_str().parse::<u32>().unwrap() % 4)
    }

    fn number_of_shards(&self) -> Option<NonZeroU32> {
        NonZeroU32::new(4)
    }

    fn identity(&self) -> (&'static str, u32) {
        ("by-rest", 1)
    }
}

/// A remembered entity that fails is supervised, and an entity that cannot start is reported.
#[tokio::test]
async fn an_entity_that_cannot_start_is_reported_once_it_is_given_up() {
    static STARTS: AtomicU64 = AtomicU64::new(0);
    let remoting = MemoryNetwork::new().node("a:1#1".parse().unwrap(), Arc::new(Registry::new()));
    let remember = RememberSettings {
        max_start_failures: 3,
        entity_restart_backoff: Duration::from_millis(10),
        ..RememberSettings::default()
    };
    let settings = ShardingSettings { remember, number_of_shards: SHARDS, ..ShardingSettings::test() };
    let sharding = Sharding::alone(remoting, None, settings).await.unwrap();
    let broken = EntityType::new(JOB, |_| -> Result<Job, Failure> {
        STARTS.fetch_add(1, Ordering::Relaxed);
        Err(Failure::new("no such job"))
    });
    let jobs = sharding.init(broken.remember_entities(RememberStore::Ddata)).unwrap();
    let mut events = jobs.subscribe();
    assert!(jobs.start_entity("1").await.is_err());
    let given_up = event("it is given up", &mut events, |event| match event {
        Event::EntityGivenUp { entity, failures, forgotten } => Some((entity.to_string(), failures, forgotten)),
        _ => None,
    });
    assert_eq!(given_up.await, ("1".to_owned(), 3, false));
    assert_eq!(STARTS.load(Ordering::Relaxed), 3);
}

/// A journal that other nodes do not reach, or no journal, is an error when the type is set up.
#[tokio::test]
async fn a_type_that_remembers_in_a_journal_needs_one_that_all_nodes_reach() {
    let registry = JobRegistry::default();
    let remembering = || jobs(&registry, "a").remember_entities(RememberStore::EventSourced);
    for (stores, expected) in [(None, "remember_entities_store"), (Some(Stores::in_memory()), "only this node")] {
        let world = World::new();
        let cluster = world.process("a:1", world.cluster.clone()).await;
        let sharding = Sharding::start(cluster, stores, ShardingSettings::test()).await.unwrap();
        let refused = sharding.init(remembering()).expect_err("it is refused");
        let text = refused.to_string();
        assert!(text.contains(expected) && text.contains("remembered entities"), "{text}");
        let kinds = matches!(refused, InitError::NoCoordinatorJournal { .. } | InitError::JournalNotShared { .. });
        assert!(kinds, "{refused}");
    }
}
