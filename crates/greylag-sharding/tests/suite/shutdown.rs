//! Nodes that leave, alone and together, and clusters that end as a whole: the fate of their shards and of messages
//! sent meanwhile. Source: sharding §2.11 to §2.13, §2.18, scenarios 16 and 47 to 52.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::common::nodes::*;
use greylag_cluster::{ClusterEvent, ClusterEvents, MemberStatus, Phase, ShutdownReason};
use greylag_codec::json;
use greylag_core::{DeadLetterReason, ReplyTo, UniqueAddress};
use greylag_persistence::Ctx;
use greylag_sharding::fingerprint::StateStoreMode;
use greylag_sharding::{
    Entity, EntityKey, EntityType, Event, Failure, InitError, Region, RegionEvent, RegionState, RememberStore,
    SendError, ShardingSettings,
};
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

/// An entity that takes some time to stop.
struct Slow;

const SLOW: EntityKey<Work> = EntityKey::new("Slow");

#[derive(Serialize, Deserialize)]
enum Work {
    Where(ReplyTo<UniqueAddress>),
    Stop,
    Stopped,
}

impl Entity for Slow {
    type Message = Work;

    fn receive(&mut self, work: Work, cx: &mut Ctx<'_, Work>) -> Result<(), Failure> {
        use greylag_sharding::EntityCtx;
        match work {
            Work::Where(reply_to) => reply_to.reply(cx.node().expect("it lives in a shard").clone()),
            Work::Stop => cx.spawn(tokio::time::sleep(Duration::from_millis(300)), |()| Work::Stopped),
            Work::Stopped => cx.stop(),
        }
        Ok(())
    }
}

fn slow() -> EntityType<Work> {
    EntityType::new(SLOW, |_| Ok(Slow)).codec(json("slow")).stop_message(|| Work::Stop)
}

/// sharding §8: a node that shuts down sets up no entity type any more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_shuts_down_sets_up_no_type() {
    let world = World::new();
    let sharding = world.newcomer("a:1", "").await;
    let cluster = sharding.cluster().expect("it has one").clone();
    world.join(&cluster).await;
    assert!(!cluster.is_shutting_down());
    within("it ends", cluster.shutdown()).await;
    assert!(cluster.is_shutting_down());
    match sharding.init(slow()) {
        Err(InitError::ShuttingDown { name }) => assert_eq!(name.as_str(), "Slow"),
        other => panic!("{:?}", other.map(drop)),
    }
}

async fn whereabouts(region: &Region<Work>, id: usize) -> UniqueAddress {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match region.entity_ref(id.to_string()).ask(Work::Where).timeout(PATIENCE / 10).await {
            Ok(node) => return node,
            Err(error) => assert!(Instant::now() < deadline, "{id}: {error}"),
        }
    }
}

/// Ends two nodes at once.
fn both_end(one: &Node, other: &Node) -> tokio::task::JoinHandle<(ShutdownReason, ShutdownReason)> {
    let (one, other) = (one.cluster.clone(), other.cluster.clone());
    tokio::spawn(async move { tokio::join!(one.shutdown(), other.shutdown()) })
}

/// Waits for the registration with a coordinator on `node`.
async fn registered_with(events: &mut greylag_sharding::RegionEvents, node: &UniqueAddress) {
    let is_it = |event| match event {
        Event::Region(RegionEvent::Registered { coordinator, .. }) if coordinator == *node => Some(()),
        _ => None,
    };
    event("the next coordinator", events, is_it).await;
}

/// sharding 16: the oldest node and another one end at once. The other one sends a message to a shard without a home in
/// the last phase in which it is a full member; the oldest has handed its coordinator over by then, and is still a
/// member. The next oldest node's coordinator gives the shard its home.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scenario_16_a_node_that_ends_beside_the_oldest_is_served_by_the_next() {
    for mode in [StateStoreMode::Ddata, StateStoreMode::Persistence] {
        a_node_that_ends_beside_the_oldest_is_served_by_the_next(World::in_mode(mode)).await;
    }
}

async fn a_node_that_ends_beside_the_oldest_is_served_by_the_next(world: World) {
    let (a, b, c) = (world.node("a:1").await, world.node("b:1").await, world.node("c:1").await);
    increment(&c.volatile, 0..1);
    assert_eq!(get(&c.volatile, 0).await, 1);
    let mut events = c.volatile.subscribe();
    let new = (1..).find(|id| home_of(&c.volatile, *id).is_none()).expect("most shards have no home");

    let (say_over, over) = oneshot::channel();
    let (say_answer, answer) = oneshot::channel();
    a.cluster.raise_phase_timeout(Phase::ClusterExitingDone, 2 * PATIENCE);
    a.cluster.on_phase(Phase::ClusterExitingDone, "stays until the message is answered", move || {
        Box::pin(async move {
            say_over.send(()).expect("the other node waits for it");
            answer.await.is_ok()
        })
    });
    let (tell, told) = oneshot::channel();
    let (oldest, region) = (a.cluster.clone(), c.volatile.clone());
    c.cluster.raise_phase_timeout(Phase::BeforeClusterShutdown, 2 * PATIENCE);
    c.cluster.on_phase(Phase::BeforeClusterShutdown, "a late message", move || {
        Box::pin(async move {
            over.await.expect("the oldest hands over");
            increment(&region, new..new + 1);
            let count = get_at_last(&region, new).await;
            let is_member = oldest.self_member().map(|own| own.status);
            tell.send((count, is_member)).expect("the test waits for it");
            say_answer.send(()).is_ok()
        })
    });
    let both = both_end(&a, &c);
    registered_with(&mut events, &b.address).await;
    assert_eq!(within("the answer", told).await, Ok((1, Some(MemberStatus::Exiting))));
    assert_eq!(within("both end", both).await.expect("no panic"), (ShutdownReason::Left, ShutdownReason::Left));
    get_at_last(&b.volatile, new).await;
}

/// sharding 47: the newer of two nodes shuts down, and another task keeps it in the phase in which its region ends. Its
/// shards belong to the other node long before it has left.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scenario_47_shards_move_long_before_a_node_that_takes_its_time_has_left() {
    for mode in [StateStoreMode::Ddata, StateStoreMode::Persistence] {
        shards_move_long_before_a_node_has_left(World::in_mode(mode)).await;
    }
}

async fn shards_move_long_before_a_node_has_left(mut world: World) {
    const IDS: usize = 200;
    // Make retries so rare that waiting for one would be noticed.
    world.sharding.retry_interval = PATIENCE;
    let (a, b) = (world.node("a:1").await, world.node("b:1").await);
    let began = Instant::now();
    within("a region without shards ends", b.volatile.graceful_shutdown()).await;
    assert!(began.elapsed() < PATIENCE / 2, "at once: {:?}", began.elapsed());
    increment(&a.counters, 0..IDS);
    assert_all(&a.counters, IDS, 1).await;
    wait_for_shards(&a.counters, &b.address, 3).await;

    let (release, released) = oneshot::channel::<()>();
    b.cluster.raise_phase_timeout(Phase::ClusterShardingShutdownRegion, 4 * PATIENCE);
    b.cluster.on_phase(Phase::ClusterShardingShutdownRegion, "keeps the phase busy", move || {
        Box::pin(async move { released.await.is_ok() })
    });
    let left = tokio::spawn({
        let leaving = b.cluster.clone();
        async move { leaving.shutdown().await }
    });
    until("its region has stopped", || b.counters.state() == RegionState::Stopped).await;
    for id in 0..IDS {
        assert_eq!(get(&a.counters, id).await, 1, "counter {id}");
        assert_eq!(home_of(&a.counters, id).as_ref(), Some(&a.address), "counter {id}");
    }
    let regions = a.counters.inspect().current_regions(PATIENCE).await;
    assert_eq!((regions.addresses, regions.coordinator_missing), ([a.address.clone()].into(), false));
    let member = a.cluster.view().members.iter().find(|member| member.address == b.address).map(|member| member.status);
    assert_eq!(member, Some(MemberStatus::Up), "it has not begun to leave");
    assert!(!left.is_finished());
    release.send(()).expect("the phase waits for it");
    assert_eq!(within("it ends", left).await.expect("no panic"), ShutdownReason::Left);
}

/// Lets the oldest of two nodes leave while its entities take long to stop.
async fn the_oldest_leaves_slowly(world: World) {
    const IDS: usize = 100;
    let mut nodes = Vec::new();
    for address in ["a:1", "b:1"] {
        let sharding = world.newcomer(address, "").await;
        let region = sharding.init(slow()).expect("fresh");
        world.join(sharding.cluster().expect("it has one")).await;
        nodes.push((sharding.cluster().expect("it has one").clone(), region));
    }
    let ((oldest, ends), (other, stays)) = (&nodes[0], &nodes[1]);
    for id in 0..IDS {
        whereabouts(ends, id).await;
    }
    let mut events = stays.subscribe();
    let left = tokio::spawn({
        let oldest = oldest.clone();
        async move { oldest.shutdown().await }
    });
    // The coordinator of the node that stays begins when that of the node that leaves has ended.
    registered_with(&mut events, other.self_address()).await;
    assert_eq!(ends.state(), RegionState::Stopped, "the region ends before its coordinator");
    for id in 0..IDS {
        assert_eq!(whereabouts(stays, id).await, *other.self_address(), "{id}");
    }
    assert_eq!(within("it ends", left).await.expect("no panic"), ShutdownReason::Left);
}

/// sharding 48, mode persistence.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scenario_48_the_region_of_the_oldest_ends_before_its_coordinator_and_homes_are_in_a_journal() {
    the_oldest_leaves_slowly(World::in_mode(StateStoreMode::Persistence)).await;
}

/// sharding 48, mode ddata.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scenario_48_the_region_of_the_oldest_ends_before_its_coordinator_and_homes_are_replicated() {
    the_oldest_leaves_slowly(World::in_mode(StateStoreMode::Ddata)).await;
}

/// sharding 48, over sockets.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scenario_48_the_region_of_the_oldest_ends_before_its_coordinator_over_sockets() {
    the_oldest_leaves_slowly(World::over_sockets()).await;
}

/// The coordinator's node is removed by another node; a third one goes on.
async fn the_coordinators_node_goes(world: World, goes: impl FnOnce(&Node, &UniqueAddress), reason: ShutdownReason) {
    let (a, b, c) = (world.node("a:1").await, world.node("b:1").await, world.node("c:1").await);
    increment(&a.counters, 0..20);
    assert_all(&a.counters, 20, 1).await;
    assert!(homes_of(&a.counters, 0..20).contains(&a.address), "it hosts some of them");
    let went = Instant::now();
    goes(&b, &a.address);
    for id in 0..40 {
        assert_eq!(get_at_last(&c.counters, id).await, i64::from(id < 20), "counter {id}");
    }
    assert_eq!(within("its process ends", a.cluster.terminated()).await, reason);
    until("its shards are elsewhere", || !c.counters.shard_homes().contains_key(&a.address)).await;
    // The removed node may have answered for some of them until here.
    for id in 0..40 {
        assert_eq!(get_at_last(&c.counters, id).await, i64::from(id < 20), "counter {id}");
        assert_ne!(home_of(&c.counters, id).as_ref(), Some(&a.address), "counter {id}");
    }
    assert!(went.elapsed() < Duration::from_secs(10), "all answer: {:?}", went.elapsed());
}

/// sharding 49, the node is told to leave.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scenario_49_entities_go_on_when_the_coordinators_node_leaves() {
    for world in [World::new(), World::over_sockets()] {
        let leave = |by: &Node, node: &UniqueAddress| by.cluster.leave(node.clone()).expect("it is a member");
        the_coordinators_node_goes(world, leave, ShutdownReason::Left).await;
    }
}

/// sharding 49, the node is downed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scenario_49_entities_go_on_when_the_coordinators_node_is_downed() {
    for world in [World::new(), World::over_sockets()] {
        let down = |by: &Node, node: &UniqueAddress| by.cluster.down(node.clone()).expect("it is a member");
        the_coordinators_node_goes(world, down, ShutdownReason::Downed).await;
    }
}

/// Whether every member has heard that the cluster ends.
fn all_prepare(nodes: &[&Node]) -> bool {
    let prepares = |status| matches!(status, MemberStatus::PreparingForShutdown | MemberStatus::ReadyForShutdown);
    nodes.iter().all(|node| node.cluster.view().members.iter().all(|member| prepares(member.status)))
}

/// sharding 50: a cluster that prepares to end keeps everything in place; nothing moves, whatever a strategy would
/// choose, and a node that leaves hands nothing over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scenario_50_a_cluster_that_prepares_to_end_moves_nothing() {
    let world = World::new();
    let a = world.node("a:1").await;
    // All shards are on one node, so the two that join would normally get many.
    increment(&a.counters, 0..100);
    increment(&a.volatile, 0..6);
    assert_all(&a.counters, 100, 1).await;
    assert_all(&a.volatile, 6, 1).await;
    let (b, c) = (world.node("b:1").await, world.node("c:1").await);
    wait_for_shards(&a.counters, &c.address, 1).await;
    b.cluster.prepare_for_full_shutdown().expect("it is a member");
    until("all prepare", || all_prepare(&[&a, &b, &c])).await;
    // All moves that were under way have ended.
    assert_all(&b.counters, 100, 1).await;
    let homes = homes_of(&b.counters, 0..100);
    assert!(homes.iter().filter(|home| **home == a.address).count() > 50, "most are where they were: {homes:?}");
    let mut moves = b.counters.subscribe();
    tokio::time::sleep(4 * world.sharding.rebalance_interval).await;
    increment(&b.counters, 0..100);
    settle(&b.counters, 100).await;
    assert_all(&a.counters, 100, 2).await;
    assert_eq!(homes_of(&b.counters, 0..100), homes);
    // New shards get homes, and so do the shards of a node that has left.
    increment(&b.volatile, 6..10);
    settle(&b.volatile, 10).await;
    within("it ends", c.cluster.shutdown()).await;
    assert_eq!(c.counters.state(), RegionState::Stopped);
    for id in 0..100 {
        assert_eq!(get_at_last(&b.counters, id).await, 2, "counter {id}");
    }
    for (id, home) in homes.iter().enumerate().filter(|(_, home)| **home != c.address) {
        assert_eq!(home_of(&b.counters, id).as_ref(), Some(home), "counter {id} stays");
    }
    let new = (10..).find(|id| home_of(&b.volatile, *id).is_none()).expect("half of the shards have no home yet");
    assert_eq!(get(&b.volatile, new).await, 0);
    assert!([Some(&a.address), Some(&b.address)].contains(&home_of(&b.volatile, new).as_ref()));
    let moved = std::iter::from_fn(|| futures::FutureExt::now_or_never(moves.next()).flatten());
    let moved = moved.filter_map(|event| match event {
        Event::Region(RegionEvent::ShardMoved { from, .. }) => Some(from.node),
        _ => None,
    });
    assert_eq!(moved.collect::<BTreeSet<_>>(), [c.address.clone()].into(), "only what its region gave up moved");
    let began = Instant::now();
    let ended = within("all end", both_end(&a, &b)).await.expect("no panic");
    assert!(began.elapsed() < Duration::from_secs(15), "{:?}", began.elapsed());
    assert_eq!(ended, (ShutdownReason::Left, ShutdownReason::Left));
}

/// sharding 51: the last region ends as soon as its shards have, without waiting for any retry; messages sent meanwhile
/// end with a reason.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scenario_51_the_only_region_ends_with_its_shards_under_traffic() {
    the_only_region_ends_under_traffic(slow()).await;
}

/// sharding 51, of a type that remembers its entities.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scenario_51_the_only_region_of_remembered_entities_ends_with_its_shards_under_traffic() {
    the_only_region_ends_under_traffic(slow().remember_entities(RememberStore::EventSourced)).await;
}

async fn the_only_region_ends_under_traffic(entities: EntityType<Work>) {
    let mut world = World::new();
    // Make retries so rare that waiting for one would be noticed.
    let retry_interval = Duration::from_secs(5);
    world.sharding = ShardingSettings { retry_interval, ..world.sharding };
    let sharding = world.newcomer("a:1", "").await;
    let cluster = sharding.cluster().expect("it has one");
    let region = sharding.init(entities).expect("fresh");
    world.join(cluster).await;
    for id in 0..20 {
        whereabouts(&region, id).await;
    }
    let ended = Arc::new(AtomicBool::new(false));
    let senders = [0, 1].map(|sender| {
        let (region, ended) = (region.clone(), ended.clone());
        tokio::spawn(async move {
            let mut errors = Vec::new();
            for id in (0..1000).cycle() {
                if ended.load(Ordering::Relaxed) {
                    break;
                }
                // Send half of them to existing entities, half to others.
                let told = region.entity_ref((id * 2 + sender).to_string()).tell(Work::Stopped);
                errors.extend(told.err().filter(|error| errors.last() != Some(error)));
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            errors
        })
    });
    let mut events = region.subscribe();
    let stop = tokio::spawn({
        let region = region.clone();
        async move { region.graceful_shutdown().await }
    });
    let (mut last, mut shards) = (None, region.shard_homes().values().sum::<usize>());
    assert!(shards > 0);
    let one_stopped = |event| matches!(event, Event::ShardStopped(_)).then_some(());
    while shards > 0 {
        event("a shard stops", &mut events, one_stopped).await;
        (last, shards) = (Some(Instant::now()), shards - 1);
    }
    within("the region ends", stop).await.expect("no panic");
    let took = last.expect("there were shards").elapsed();
    assert!(took < retry_interval / 2, "it waited {took:?} after its last shard");
    ended.store(true, Ordering::Relaxed);
    let late = SendError::Dropped(DeadLetterReason::NoOtherRegion);
    for sender in senders {
        let errors = sender.await.expect("no panic");
        assert!(errors.is_empty() || errors[0] == late, "what ends first: {errors:?}");
        assert!(errors.iter().all(|error| *error == late || *error == SendError::RegionStopped), "{errors:?}");
    }
    let dead = cluster.remoting().dead_letter_totals();
    assert!(dead.get(&DeadLetterReason::NoOtherRegion).is_some_and(|count| *count > 0), "{dead:?}");
    let now = region.counters();
    assert_eq!((now.submitted, now.buffered), (now.delivered + now.forwarded + now.dead_lettered, 0));
}

/// Whether each removal was clean.
async fn removals(events: &mut ClusterEvents, count: usize) -> BTreeMap<UniqueAddress, bool> {
    let mut removed = BTreeMap::new();
    while removed.len() < count {
        if let ClusterEvent::MemberRemoved { member, clean, .. } = events.next().await.expect("the node runs") {
            removed.insert(member.address.clone(), clean);
        }
    }
    removed
}

/// sharding 52: two of three nodes end at once, the coordinator's among them. Both hand over in time, which makes their
/// removal clean; no message to an entity is lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scenario_52_two_of_three_nodes_end_at_once_and_nothing_is_lost() {
    two_of_three_nodes_end_at_once(World::new()).await;
}

/// sharding 52, over sockets.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scenario_52_two_of_three_nodes_end_at_once_and_nothing_is_lost_over_sockets() {
    two_of_three_nodes_end_at_once(World::over_sockets()).await;
}

async fn two_of_three_nodes_end_at_once(world: World) {
    const IDS: usize = 60;
    let (a, b, c) = (world.node("a:1").await, world.node("b:1").await, world.node("c:1").await);
    increment(&a.counters, 0..IDS);
    assert_all(&a.counters, IDS, 1).await;
    for node in [&b, &c] {
        wait_for_shards(&a.counters, &node.address, 3).await;
    }
    let mut events = c.cluster.subscribe();
    let both = both_end(&a, &b);
    let mut rounds = 1;
    while !both.is_finished() {
        increment(&c.counters, 0..IDS);
        rounds += 1;
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    within("both end", both).await.expect("no panic");
    settle(&c.counters, IDS).await;
    assert_all(&c.counters, IDS, rounds).await;
    let removed = within("both are removed", removals(&mut events, 2)).await;
    assert_eq!(removed, [(a.address.clone(), true), (b.address.clone(), true)].into());
    for node in [&a, &b] {
        assert_eq!((node.counters.state(), node.volatile.state()), (RegionState::Stopped, RegionState::Stopped));
    }
    assert_eq!(c.counters.shard_homes().keys().collect::<Vec<_>>(), [&c.address]);
}
