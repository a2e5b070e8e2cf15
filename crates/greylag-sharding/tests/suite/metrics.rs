//! Sharding §6.5: the events and counters of a type's handle, over a cluster of one.

use std::sync::Arc;
use std::time::Duration;

use greylag_cluster::{Cluster, ClusterSettings};
use greylag_codec::json;
use greylag_core::{DeadLetterReason, Registry, ReplyTo};
use greylag_persistence::Ctx;
use greylag_sharding::{
    AskError, CoordinatorEvent, CoordinatorMetrics, Directive, Entity, EntityKey, EntityType, Event, Failure,
    InMemoryRememberStore, Passivation, Region, RegionEvents, RegionMetrics, RememberStore, Sharding, ShardingSettings,
    ShardsByState, Supervision,
};
use greylag_transport::memory::MemoryNetwork;
use serde::{Deserialize, Serialize};

const PATIENCE: Duration = Duration::from_secs(60);
const ECHO: EntityKey<Command> = EntityKey::new("Echo");

#[derive(Serialize, Deserialize)]
enum Command {
    Echo(ReplyTo<u64>),
    Fail,
}

struct Echo;

impl Entity for Echo {
    type Message = Command;

    fn receive(&mut self, command: Command, _: &mut Ctx<'_, Command>) -> Result<(), Failure> {
        match command {
            Command::Echo(reply_to) => reply_to.reply(1),
            Command::Fail => return Err(Failure::new("as told")),
        }
        Ok(())
    }
}

/// "broken" cannot start; any other failure escalates to the shard.
fn echoes() -> EntityType<Command> {
    let made = EntityType::new(ECHO, |init| match init.id.as_str() {
        "broken" => Err(Failure::new("it cannot start")),
        _ => Ok(Echo),
    });
    made.codec(json("echo")).supervision(Supervision::always(Directive::Escalate))
}

async fn node(uid: u64) -> (Cluster, Sharding, Region<Command>, RegionEvents) {
    node_of(uid, echoes()).await
}

async fn node_of(uid: u64, echoes: EntityType<Command>) -> (Cluster, Sharding, Region<Command>, RegionEvents) {
    let remoting = MemoryNetwork::new().node(format!("a:1#{uid}").parse().unwrap(), Arc::new(Registry::new()));
    let cluster = Cluster::start(ClusterSettings::test(), remoting).await.unwrap();
    let settings = ShardingSettings { number_of_shards: 6, ask_timeout: PATIENCE, ..ShardingSettings::test() };
    let sharding = Sharding::start(cluster.clone(), None, settings).await.unwrap();
    let region = sharding.init(echoes).unwrap();
    let events = region.subscribe();
    cluster.join_seed_nodes(vec!["a:1".parse().unwrap()]).await.unwrap();
    cluster.wait_up().await.unwrap();
    (cluster, sharding, region, events)
}

async fn event(events: &mut RegionEvents, wanted: impl Fn(&Event) -> bool) -> Event {
    let next = async {
        loop {
            let event = events.next().await.expect("the region runs");
            if wanted(&event) {
                return event;
            }
        }
    };
    tokio::time::timeout(PATIENCE, next).await.expect("it is told")
}

async fn ask(region: &Region<Command>, id: &str) -> Result<u64, AskError> {
    region.entity_ref(id).ask(Command::Echo).await
}

#[tokio::test]
async fn decisions_and_failures_of_the_coordinator_are_events_of_the_handle() {
    let (_cluster, _sharding, region, mut events) = node(6501).await;
    assert_eq!(ask(&region, "1").await, Ok(1));
    let shard = region.shard_of("1").unwrap();
    let active = event(&mut events, |event| matches!(event, Event::Coordinator(CoordinatorEvent::Active { .. }))).await;
    assert!(matches!(active, Event::Coordinator(CoordinatorEvent::Active { shards: 0, .. })), "{active:?}");
    let allocated = |event: &Event| matches!(event, Event::Coordinator(CoordinatorEvent::ShardAllocated { .. }));
    let Event::Coordinator(CoordinatorEvent::ShardAllocated { shard: given, region: owner, .. }) =
        event(&mut events, allocated).await
    else {
        unreachable!("it was chosen so")
    };
    assert_eq!((given, owner), (shard.clone(), region.id().clone()));
    region.entity_ref("1").tell(Command::Fail).unwrap();
    let failed = event(&mut events, |event| matches!(event, Event::ShardFailed(_))).await;
    assert_eq!(failed, Event::ShardFailed(shard.clone()));
    assert_eq!(
        event(&mut events, |event| *event == Event::ShardStopped(shard.clone())).await,
        Event::ShardStopped(shard)
    );
    assert_eq!(ask(&region, "1").await, Ok(1), "it starts again");
}

#[tokio::test]
async fn dropped_messages_are_reported_one_by_one_and_counted_by_reason() {
    let (_cluster, _sharding, region, mut events) = node(6502).await;
    for id in 0..50 {
        ask(&region, &id.to_string()).await.unwrap();
    }
    let before = region.metrics();
    assert_eq!((before.homes, before.dropped(), before.inbox_depth), (6, 0, 0), "{before:?}");
    assert_eq!(before.shards, ShardsByState { running: 6, ..ShardsByState::default() });
    assert_eq!(before.messages.buffered, 0);
    assert!(before.messages.submitted > 0, "the first messages waited for a home");

    let dead = |event: &Event| matches!(event, Event::DeadLetter { .. });
    region.entity_ref("broken").ask(Command::Echo).await.unwrap_err();
    let told = event(&mut events, dead).await;
    let Event::DeadLetter { reason, shard, entity, .. } = told else { unreachable!("it was chosen so") };
    assert_eq!((reason, entity.as_str()), (DeadLetterReason::EntityStartFailed, "broken"));
    assert_eq!(shard, region.shard_of("broken"));

    region.stop().await;
    let after = region.metrics();
    assert_eq!((after.shards, after.homes), (ShardsByState::default(), 0), "{after:?}");
    ask(&region, "1").await.unwrap_err();
    let told = event(&mut events, dead).await;
    let Event::DeadLetter { reason, entity, message, .. } = told else { unreachable!("it was chosen so") };
    assert_eq!((reason, entity.as_str(), &*message), (DeadLetterReason::RegionStopped, "1", "echo"));
    let counted = region.metrics();
    let reasons = [(DeadLetterReason::EntityStartFailed, 1), (DeadLetterReason::RegionStopped, 1)];
    assert_eq!(counted.dead_letters, reasons.into());
    assert_eq!((counted.dropped(), counted.handlers.failed), (2, 1), "{counted:?}");
}

/// Waits until the metrics satisfy `holds`: shards report after each turn.
async fn until(region: &Region<Command>, what: &str, holds: impl Fn(&RegionMetrics) -> bool) -> RegionMetrics {
    let waiting = async {
        loop {
            let metrics = region.metrics();
            if holds(&metrics) {
                return metrics;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let late = |_| panic!("{what}: {:?}", region.metrics());
    tokio::time::timeout(PATIENCE, waiting).await.unwrap_or_else(late)
}

/// Counts of handlers, entities in memory, and passivations.
#[tokio::test]
async fn entities_and_the_times_of_their_handlers_are_counted() {
    let idle = Passivation::idle_after(Duration::from_secs(2));
    let (_cluster, _sharding, region, _events) = node_of(6503, echoes().passivation(idle)).await;
    for _ in 0..2 {
        for id in 0..50 {
            ask(&region, &id.to_string()).await.unwrap();
        }
    }
    let used = until(&region, "all live", |metrics| metrics.entities == 50).await;
    assert_eq!((used.passivation.hits, used.passivation.misses, used.passivation.evicted), (50, 50, 0));
    assert_eq!(used.passivation.hit_rate(), Some(0.5));
    // Each entity's start counts two handlers: the factory, and the entity's own.
    let handled =
        until(&region, "all are measured", |metrics| metrics.handler_times.count() >= 200).await.handler_times;
    assert!(handled.mean() <= handled.quantile(1.0) && handled.total() > Duration::ZERO, "{handled:?}");
    assert_eq!(handled.buckets().map(|(_, count)| count).sum::<u64>(), handled.count());

    let gone = until(&region, "all are idle", |metrics| metrics.entities == 0).await;
    assert_eq!((gone.passivation.evicted, gone.buffer_percent), (50, 0));
    region.stop().await;
    assert_eq!(region.metrics().passivation.misses, 50, "what was counted stays");
}

/// Metrics of the coordinator on this node: commits, choices of homes, handoffs.
#[tokio::test]
async fn the_coordinator_counts_its_commits_and_measures_its_handoffs() {
    let (cluster, _sharding, region, _events) = node(6504).await;
    for id in 0..50 {
        ask(&region, &id.to_string()).await.unwrap();
    }
    let begun = region.metrics().coordinator;
    assert_eq!((begun.is_here, begun.regions, begun.recovery_repairs), (true, 1, 0));
    assert!(begun.commits.items >= 7, "an epoch, and six homes: {begun:?}");
    assert!(begun.commits.mean_batch().is_some_and(|mean| mean >= 1.0) && begun.allocations.count() > 0, "{begun:?}");
    let handoffs =
        |of: &CoordinatorMetrics| [of.handoff_acks, of.handoff_stops, of.handoff_homes].map(|times| times.count());
    assert_eq!(handoffs(&begun), [0, 0, 0]);

    region.stop_shards([region.shard_of("1").unwrap()]).all().await.unwrap();
    ask(&region, "1").await.unwrap();
    let moved =
        until(&region, "a handoff ended", |metrics| handoffs(&metrics.coordinator) == [1, 1, 1]).await.coordinator;
    assert!(moved.commits.items >= begun.commits.items + 2, "a tombstone, and the next home: {moved:?}");

    cluster.shutdown().await;
    let gone = until(&region, "it has left", |metrics| !metrics.coordinator.is_here).await.coordinator;
    assert_eq!((gone.regions, handoffs(&gone)), (0, [1, 1, 1]), "what was counted stays");
}

/// Metrics of remembered entities: writes, and the ids in them.
#[tokio::test]
async fn writes_of_remembered_entities_are_measured() {
    let store = RememberStore::custom(InMemoryRememberStore::new());
    let (_cluster, _sharding, region, _events) = node_of(6505, echoes().remember_entities(store)).await;
    for id in 0..50 {
        ask(&region, &id.to_string()).await.unwrap();
    }
    let remembered = region.metrics().remembered;
    assert_eq!(remembered.items, 50, "{remembered:?}");
    assert!((1..=50).contains(&remembered.times.count()));
}
