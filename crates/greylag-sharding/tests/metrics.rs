//! Sharding §6.5: what the handle of a type tells and counts, over a cluster of one.

use std::sync::Arc;
use std::time::Duration;

use greylag_cluster::{Cluster, ClusterSettings};
use greylag_codec::json;
use greylag_core::{DeadLetterReason, Registry, ReplyTo};
use greylag_persistence::Ctx;
use greylag_sharding::{
    AskError, CoordinatorEvent, Directive, Entity, EntityKey, EntityType, Event, Failure, Region, RegionEvents,
    Sharding, ShardingSettings, ShardsByState, Supervision,
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

async fn node(uid: u64) -> (Cluster, Sharding, Region<Command>, RegionEvents) {
    let remoting = MemoryNetwork::new().node(format!("a:1#{uid}").parse().unwrap(), Arc::new(Registry::new()));
    let cluster = Cluster::start(ClusterSettings::test(), remoting).await.unwrap();
    let settings = ShardingSettings { number_of_shards: 6, ask_timeout: PATIENCE, ..ShardingSettings::test() };
    let sharding = Sharding::start(cluster.clone(), None, settings).await.unwrap();
    // "broken" cannot start; what fails otherwise takes its shard along.
    let made = EntityType::new(ECHO, |init| match init.id.as_str() {
        "broken" => Err(Failure::new("it cannot start")),
        _ => Ok(Echo),
    });
    let echoes = made.codec(json("echo")).supervision(Supervision::always(Directive::Escalate));
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
async fn what_the_coordinator_decides_and_what_fails_is_told_on_the_handle() {
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
async fn dropped_messages_are_told_one_by_one_and_counted_by_reason() {
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
