//! Failovers over both stores of the coordinators' state, with real clusters of nodes that live in one process.
//!
//! A node that crashes here goes on by itself, cut off from the others, until it learns that it is downed: its
//! coordinator still reaches the journal, which is why the journal has a fence. Source: sharding §2.13 to §2.15.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::common::nodes::*;
use greylag_cluster::{JoinError, ShutdownReason};
use greylag_core::{Generation, UniqueAddress};
use greylag_persistence::{
    FaultyJournal, InMemoryJournal, PersistenceId, ReadRange, Scope, SeqNr, StoredEvent, Stores, Timestamp,
};
use greylag_sharding::fingerprint::StateStoreMode;
use greylag_sharding::horizon::Horizon;
use greylag_sharding::ids::ShardId;
use greylag_sharding::machine::coordinator::replay::{HistoryEvent, Replay};
use greylag_sharding::settings::StateJournalSettings;
use greylag_sharding::wire::history;
use greylag_sharding::{InitError, Region, RegionState, Sharding, ShardingSettings, remove_internal_sharding_data};

impl World {
    /// The records written by the coordinators of the counters, in order.
    async fn records(&self) -> Vec<StoredEvent> {
        let id = PersistenceId::unique("/sharding/CounterCoordinator").expect("valid");
        self.stores.journal.read(&id, ReadRange::all()).await.expect("it answers").records
    }

    async fn history(&self) -> Vec<HistoryEvent> {
        self.records().await.iter().map(decoded).collect()
    }

    /// The homes that the history yields; the history must not be contradictory.
    async fn homes(&self) -> BTreeMap<ShardId, (UniqueAddress, Generation)> {
        let mut replay = Replay::new(true);
        for event in self.history().await {
            replay.apply(event).expect("no contradiction");
        }
        let own = self.history().await.into_iter().find_map(|event| match event {
            HistoryEvent::FingerprintRecorded(fingerprint) => Some(fingerprint),
            _ => None,
        });
        let state = replay.state(&own.expect("it was recorded")).expect("no contradiction");
        let living = state.homes.into_iter().filter(|(_, home)| !home.deallocated);
        living.map(|(shard, home)| (shard, (home.region.node, home.generation))).collect()
    }

    async fn epochs(&self) -> Vec<u64> {
        let epoch = |event| match event {
            HistoryEvent::EpochStarted { epoch, .. } => Some(epoch),
            _ => None,
        };
        self.history().await.into_iter().filter_map(epoch).collect()
    }
}

fn decoded(record: &StoredEvent) -> HistoryEvent {
    history::decode_event(&record.payload, Horizon::after(4_000_000_000)).expect("it can be read")
}

/// A member that hosts nothing, and sends to both kinds of counters.
struct Sender {
    _sharding: Sharding,
    counters: Region<Command>,
    volatile: Region<Command>,
}

impl Sender {
    async fn join(world: &World, address: &str, seed: &UniqueAddress) -> Self {
        let sharding = world.newcomer(address, "").await;
        let counters = sharding.init_proxy(counters()).expect("fresh");
        let volatile = sharding.init_proxy(volatiles()).expect("fresh");
        let cluster = sharding.cluster().expect("it has one");
        cluster.join_seed_nodes(vec![seed.address().clone()]).await.expect("it joins");
        cluster.wait_up().await.expect("it comes up");
        Self { _sharding: sharding, counters, volatile }
    }
}

/// Loses one of three hosting nodes. Entities of the other nodes go on as they are, entities of the lost node from
/// their events, new shards get homes; a fourth node that hosts nothing finds all of them, and so does one that joins
/// later. In mode persistence the coordinator that is cut off writes nothing any more.
async fn homes_go_on_without(lost: usize, mode: StateStoreMode) {
    let world = World::in_mode(mode);
    let nodes = [world.node("a:1").await, world.node("b:2").await, world.node("c:3").await];
    let sender = Sender::join(&world, "d:4", &nodes[0].address).await;
    let is_registered = |region: &Region<Command>| region.state() == RegionState::Registered;
    until("each can be given shards", || {
        nodes.iter().all(|n| is_registered(&n.counters) && is_registered(&n.volatile))
    })
    .await;
    // Use few ids, so that some shards have no home. The first counter has the value 4, the others 1.
    (0..3).for_each(|_| increment(&nodes[0].counters, 0..1));
    let count = |id: usize| if id == 0 { 4 } else { 1 };
    increment(&nodes[0].counters, 0..6);
    increment(&nodes[0].volatile, 0..6);
    for id in 0..6 {
        assert_eq!(get_at_last(&nodes[0].counters, id).await, count(id), "counter {id}");
        assert_eq!(get_at_last(&nodes[0].volatile, id).await, 1, "volatile {id}");
    }
    let (homes, gone) = (homes_of(&nodes[0].volatile, 0..6), nodes[lost].address.clone());
    assert!(homes.iter().any(|home| *home != gone) && homes.contains(&gone), "{homes:?}");
    assert!(homes_of(&nodes[0].counters, 0..6).contains(&gone), "it hosts some of them too");
    let before = if mode == StateStoreMode::Persistence { world.homes().await } else { BTreeMap::new() };
    world.network.crash(&gone);
    let (one, other) = (&nodes[(lost + 1) % 3], &nodes[(lost + 2) % 3]);
    for (id, home) in homes.iter().enumerate() {
        let stays = *home != gone;
        for region in [&one.volatile, &sender.volatile] {
            assert_eq!(get_at_last(region, id).await, i64::from(stays), "volatile {id}: is it the same instance?");
            // A route may be closed for a moment after the answer.
            let is_there = |at: UniqueAddress| if stays { at == *home } else { at != gone };
            until("it stays, or has another home", || home_of(region, id).is_some_and(is_there)).await;
        }
        assert_eq!(get_at_last(&other.counters, id).await, count(id), "counter {id}");
    }
    increment(&other.counters, 0..6);
    let late = within("it joins", Sender::join(&world, "e:5", &other.address)).await;
    for (id, home) in homes.iter().enumerate() {
        // Ask `other` first, so that its tells are handled before the other asks.
        get(&other.counters, id).await;
        for region in [&sender.counters, &late.counters] {
            assert_eq!(get_at_last(region, id).await, count(id) + 1, "counter {id}");
        }
        assert_eq!(get_at_last(&late.volatile, id).await, i64::from(*home != gone), "volatile {id}");
    }
    increment(&other.counters, 6..40);
    for id in 6..40 {
        assert_eq!(get_at_last(&other.counters, id).await, 1, "counter {id}");
    }
    for region in [&one.counters, &other.counters, &one.volatile, &other.volatile] {
        assert!(!region.shard_homes().contains_key(&gone), "{:?}", region.shard_homes());
    }
    if mode == StateStoreMode::Persistence {
        assert_history_goes_on(&world, &before, &gone, lost == 0).await;
    }
}

async fn assert_history_goes_on(
    world: &World,
    before: &BTreeMap<ShardId, (UniqueAddress, Generation)>,
    gone: &UniqueAddress,
    fails_over: bool,
) {
    let after = world.homes().await;
    for (shard, (node, generation)) in before {
        assert_eq!(after[shard] == (node.clone(), *generation), node != gone, "shard {shard}");
        assert!(after[shard].1 >= *generation && after[shard].0 != *gone, "shard {shard}");
    }
    assert!(after.len() > before.len(), "new shards have homes");
    let epochs = world.epochs().await;
    assert!(epochs.is_sorted(), "{epochs:?}");
    assert_eq!(epochs.last() > epochs.first(), fails_over, "{epochs:?}");
}

/// sharding 19, 20, 21, 27, mode persistence: the coordinator's node is lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scenario_20_homes_in_a_journal_go_on_without_the_coordinators_node() {
    homes_go_on_without(0, StateStoreMode::Persistence).await;
}

/// sharding 19, 20, 21, 27, mode ddata.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scenario_20_replicated_homes_go_on_without_the_coordinators_node() {
    homes_go_on_without(0, StateStoreMode::Ddata).await;
}

/// sharding 19, 22, mode persistence: another node is lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scenario_22_homes_in_a_journal_go_on_without_another_node() {
    homes_go_on_without(2, StateStoreMode::Persistence).await;
}

/// sharding 19, 22, mode ddata.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scenario_22_replicated_homes_go_on_without_another_node() {
    homes_go_on_without(2, StateStoreMode::Ddata).await;
}

/// Lets the two oldest of five nodes leave at once.
async fn the_oldest_leave_at_once(mode: StateStoreMode) {
    let world = World::in_mode(mode);
    let mut nodes = Vec::new();
    for name in ["a:1", "b:2", "c:3", "d:4", "e:5"] {
        nodes.push(world.node(name).await);
    }
    let last = &nodes[4];
    increment(&last.volatile, 0..10);
    for id in 0..10 {
        assert_eq!(get_at_last(&last.volatile, id).await, 1);
    }
    let homes = homes_of(&last.volatile, 0..10);
    for leaver in &nodes[..2] {
        assert!(homes.contains(&leaver.address), "{} hosts some of them: {homes:?}", leaver.address);
    }
    let began = Instant::now();
    let leaving = [nodes[0].cluster.clone(), nodes[1].cluster.clone()];
    let leave = tokio::spawn(async move { tokio::join!(leaving[0].shutdown(), leaving[1].shutdown()) });
    let stays = |home: &UniqueAddress| nodes[2..].iter().any(|node| node.address == *home);
    let all_answer = async || {
        for (id, home) in homes.iter().enumerate() {
            let count = get_at_last(&last.volatile, id).await;
            assert!(count == 1 || !stays(home), "volatile {id} has moved, or was started again");
        }
    };
    all_answer().await;
    tokio::time::timeout(PATIENCE, leave).await.expect("they leave").expect("no panic");
    // The nodes that left may have answered for some of them until here. A new home for another shard shows that the
    // next coordinator has completed the inventory.
    let new = (10..).find(|id| home_of(&last.volatile, *id).is_none()).expect("most shards have no home");
    assert_eq!(get_at_last(&last.volatile, new).await, 0);
    all_answer().await;
    assert!(began.elapsed() < Duration::from_secs(15), "all answer: {:?}", began.elapsed());
    for node in &nodes[..2] {
        assert_eq!(node.volatile.state(), RegionState::Stopped);
    }
    let moved = homes_of(&last.volatile, 0..10);
    for (id, (before, after)) in homes.iter().zip(&moved).enumerate() {
        assert!(if stays(before) { before == after } else { stays(after) }, "{id}");
    }
}

/// sharding 23, mode persistence.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scenario_23_the_oldest_leave_at_once_and_homes_in_a_journal_follow() {
    the_oldest_leave_at_once(StateStoreMode::Persistence).await;
}

/// sharding 23, mode ddata.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scenario_23_the_oldest_leave_at_once_and_replicated_homes_follow() {
    the_oldest_leave_at_once(StateStoreMode::Ddata).await;
}

/// sharding 12: nodes compare their state store mode and number of shards when they join.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scenario_12_a_node_of_another_mode_or_count_is_refused() {
    let world = World::in_mode(StateStoreMode::Persistence);
    let a = world.node("a:1").await;
    let more = SHARDS + 1;
    let others = [
        (settings(StateStoreMode::Ddata), "sharding.state_store_mode", ["Persistence".to_owned(), "Ddata".to_owned()]),
        (
            ShardingSettings { number_of_shards: more, ..settings(StateStoreMode::Persistence) },
            "sharding.number_of_shards",
            [SHARDS.to_string(), more.to_string()],
        ),
    ];
    for ((other, key, values), name) in others.into_iter().zip(["b:2", "c:3"]) {
        let cluster = world.process(name, world.cluster.clone()).await;
        let _sharding = Sharding::start(cluster.clone(), Some(world.stores.clone()), other).await.expect("valid");
        let refused = cluster.join_seed_nodes(vec![a.address.address().clone()]).await.expect_err("it is refused");
        let JoinError::IncompatibleConfig { keys, .. } = refused else { panic!("{refused}") };
        let says = |said: &String| said.contains(key) && values.iter().all(|value| said.contains(value.as_str()));
        assert!(keys.iter().any(says), "{key} with {values:?}: {keys:?}");
        let ended = tokio::time::timeout(PATIENCE, cluster.terminated()).await.expect("it ends");
        assert_eq!(ended, ShutdownReason::IncompatibleConfig);
    }
}

/// sharding 82 and §2.14: after a full stop the recorded homes are read back, and generations rise above them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn homes_are_read_back_after_a_full_stop_and_generations_rise() {
    let world = World::in_mode(StateStoreMode::Persistence);
    let nodes = [world.node("a:1").await, world.node("b:2").await, world.node("c:3").await];
    increment(&nodes[0].counters, 0..30);
    for id in 0..30 {
        assert_eq!(get_at_last(&nodes[0].counters, id).await, 1);
    }
    let (before, events) = (world.homes().await, world.history().await.len());
    assert!(!before.is_empty());
    // Stop the newest node first, as an operator would.
    for node in nodes.into_iter().rev() {
        tokio::time::timeout(PATIENCE, node.cluster.shutdown()).await.expect("it ends");
    }
    let nodes = [world.node("a:1").await, world.node("b:2").await, world.node("c:3").await];
    increment(&nodes[1].counters, 0..30);
    for id in 0..30 {
        assert_eq!(get_at_last(&nodes[1].counters, id).await, 2, "counter {id}");
    }
    let after = world.homes().await;
    for (shard, (_, generation)) in &before {
        assert!(after[shard].1 > *generation, "shard {shard}: {} after {generation}", after[shard].1);
    }
    let history = world.history().await;
    let fingerprints = history.iter().filter(|event| matches!(event, HistoryEvent::FingerprintRecorded(_))).count();
    assert_eq!(fingerprints, 1, "what the type is was read back");
    let gates = history.iter().filter(|event| **event == HistoryEvent::Initialized).count();
    assert_eq!(gates, 1, "the gate that was passed once is open");
    // The ended home is known: otherwise the smallest generation of the epoch would be here.
    let follows = |event: &HistoryEvent| match event {
        HistoryEvent::ShardHomeAllocated { previous: Some(previous), .. } => previous.seq() > 0,
        _ => false,
    };
    assert!(history[events..].iter().filter(|event| follows(event)).count() >= before.len());
}

/// Homes cannot be stored while `is_away` is set. Known homes go on, a new shard waits, and nothing is lost; entities
/// start and stop as usual.
async fn known_homes_go_on(region: &Region<Command>, set_away: impl Fn(bool)) {
    increment(region, 0..1);
    assert_eq!(get_at_last(region, 0).await, 1);
    let other = (1..).find(|id| region.shard_of(&id.to_string()) != region.shard_of("0")).expect("there is one");
    let passivate = |id: usize| region.entity_ref(id.to_string()).tell(Command::Passivate).expect("it is taken");
    set_away(true);
    for _ in 0..4 {
        increment(region, other..other + 1);
    }
    let new = region.entity_ref(other.to_string());
    let early = new.ask(|reply_to| Command::Get { reply_to }).timeout(Duration::from_millis(600)).await;
    assert!(early.is_err(), "a home was told that is not stored");
    increment(region, 0..1);
    assert_eq!(get(region, 0).await, 2, "what is known goes on");
    passivate(0);
    assert_eq!(get(region, 0).await, 0, "and starts again");
    assert!(!region.is_routed(&region.shard_of(&other.to_string()).expect("it has one")), "it waits still");
    set_away(false);
    assert_eq!(get_at_last(region, other).await, 4, "what was told meanwhile is not lost");
    passivate(other);
    assert_eq!(get(region, other).await, 0);
    passivate(0);
    assert_eq!(get(region, 0).await, 0);
}

/// sharding 24, mode persistence: the journal accepts nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scenario_24_known_homes_go_on_while_the_journal_takes_nothing() {
    let below = Stores::in_memory_shared();
    let journal = Arc::new(FaultyJournal::new(below.journal.clone()));
    let world = World::over(Stores::new(journal.clone(), below.snapshots), StateStoreMode::Persistence);
    let a = world.node("a:1").await;
    known_homes_go_on(&a.volatile, |is_away| journal.set_away(is_away)).await;
    let of_coordinator = PersistenceId::unique("/sharding/VolatileCoordinator").expect("valid");
    let records = world.stores.journal.read(&of_coordinator, ReadRange::all()).await.expect("it answers").records;
    let epochs = records.iter().filter(|record| matches!(decoded(record), HistoryEvent::EpochStarted { .. })).count();
    assert_eq!(epochs, 1, "it was the same coordinator that tried again");
}

/// sharding 24, mode ddata: no majority of the replicas can be reached.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scenario_24_known_homes_go_on_while_most_replicas_are_out_of_reach() {
    let world = World::without_resolver();
    let a = world.node("a:1").await;
    // These nodes keep homes, and host nothing: all shards are on the coordinator's node.
    let mut others = Vec::new();
    for address in ["b:1", "c:1"] {
        let sharding = world.newcomer(address, "").await;
        sharding.init_proxy(volatiles()).expect("fresh");
        world.join(sharding.cluster().expect("it has one")).await;
        others.push(sharding);
    }
    known_homes_go_on(&a.volatile, |is_away| {
        for other in &others {
            let other = other.remoting().self_address().address();
            if is_away {
                world.network.cut(a.address.address(), other);
            } else {
                world.network.heal(a.address.address(), other);
            }
        }
    })
    .await;
}

/// sharding §2.14, §6.3: an unreadable history is never taken for an empty one; once it is removed, the next
/// coordinator begins anew.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_history_that_cannot_be_read_holds_up_new_shards_until_it_is_removed() {
    let journal = InMemoryJournal::new(Scope::Shared, || Timestamp::from_micros(1));
    let shared = Stores::in_memory_shared();
    let stores = Stores::new(Arc::new(journal.clone()), shared.snapshots);
    let world = World::over(stores.clone(), StateStoreMode::Persistence);
    let a = world.node("a:1").await;
    increment(&a.volatile, 0..1);
    assert_eq!(get_at_last(&a.volatile, 0).await, 1);
    tokio::time::timeout(PATIENCE, a.cluster.shutdown()).await.expect("it ends");
    let id = PersistenceId::unique("/sharding/VolatileCoordinator").expect("valid");
    assert!(journal.corrupt(&id, SeqNr::FIRST));
    let a = world.node("a:1").await;
    increment(&a.volatile, 0..1);
    let asked = a.volatile.entity_ref("0").ask(|reply_to| Command::Get { reply_to });
    assert!(asked.timeout(Duration::from_secs(1)).await.is_err(), "it was given a home");
    let removed = remove_internal_sharding_data(&stores, &["Volatile"], true).await.expect("it is removed");
    assert!(removed[0].events, "{removed:?}");
    assert_eq!(get_at_last(&a.volatile, 0).await, 1, "what waited is handled");
}

fn local() -> Stores {
    Stores::in_memory()
}

/// A journal that only one node reaches, or no journal, is refused before anything is started.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn homes_are_only_kept_in_a_journal_that_every_node_reaches() {
    let world = World::in_mode(StateStoreMode::Persistence);
    let settings = || settings(StateStoreMode::Persistence);
    let ports = std::cell::Cell::new(0_u16);
    let init = async |stores: Option<Stores>, settings: ShardingSettings| {
        ports.set(ports.get() + 1);
        let cluster = world.process(&format!("n:{}", ports.get()), world.cluster.clone()).await;
        let sharding = Sharding::start(cluster, stores, settings).await.expect("valid");
        sharding.init(volatiles()).map(drop)
    };
    let refused = init(None, settings()).await.unwrap_err();
    assert!(matches!(refused, InitError::NoCoordinatorJournal { .. }), "{refused}");
    let refused = refused.to_string();
    assert!(refused.contains("name a journal") && refused.contains("\"ddata\""), "{refused}");
    let refused = init(Some(local()), settings()).await.unwrap_err();
    assert!(matches!(refused, InitError::JournalNotShared { what: "homes of shards", .. }), "{refused}");
    assert!(refused.to_string().contains("allow_local_journal"), "{refused}");
    let mixed = Stores::new(Stores::in_memory_shared().journal, local().snapshots);
    let refused = init(Some(mixed), settings()).await.unwrap_err();
    assert!(matches!(refused, InitError::JournalNotShared { what: "snapshots", .. }), "{refused}");
    assert_eq!(init(Some(local()), ShardingSettings { allow_local_journal: true, ..settings() }).await, Ok(()));
    let named = |id: &str| {
        let journal = StateJournalSettings { journal_plugin_id: id.to_owned(), ..StateJournalSettings::default() };
        ShardingSettings { journal, ..settings() }
    };
    let stores = || local().with_plugin("shared", Stores::in_memory_shared());
    let refused = init(Some(stores()), named("shard")).await.unwrap_err().to_string();
    assert!(refused.contains("journal_plugin_id") && refused.contains("shard"), "{refused}");
    let refused = init(Some(stores()), named("shared")).await.unwrap_err();
    assert!(matches!(refused, InitError::JournalNotShared { what: "snapshots", .. }), "{refused}");
    let both = StateJournalSettings { snapshot_plugin_id: "shared".to_owned(), ..named("shared").journal };
    assert_eq!(init(Some(stores()), ShardingSettings { journal: both, ..settings() }).await, Ok(()));
}
