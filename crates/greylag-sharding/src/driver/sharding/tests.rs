//! Setting entity types up, on one node.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::Event;
use crate::driver::{InitError, Sharding};
use crate::entity::{Entity, Failure, Supervision};
use crate::entity_ref::{AskError, EntityRef, SendError};
use crate::entity_type::EntityType;
use crate::extractor::HashV1;
use crate::key::EntityKey;
use crate::machine::region::RegionEvent;
use crate::passivation::Passivation;
use crate::settings::ShardingSettings;
use greylag_cluster::{Cluster, ClusterEvent};
use greylag_codec::json;
use greylag_core::{Registry, ReplyTo};
use greylag_persistence::Ctx;
use greylag_transport::memory::MemoryNetwork;

const ECHO: EntityKey<ReplyTo<i64>> = EntityKey::new("Echo");

struct Echo;

impl Entity for Echo {
    type Message = ReplyTo<i64>;

    fn receive(&mut self, reply_to: ReplyTo<i64>, _: &mut Ctx<'_, ReplyTo<i64>>) -> Result<(), Failure> {
        reply_to.reply(1);
        Ok(())
    }
}

fn echoes() -> EntityType<ReplyTo<i64>> {
    EntityType::new(ECHO, |_| Ok(Echo)).codec(json("echo")).role("worker")
}

async fn alone() -> Sharding {
    let node = MemoryNetwork::new().node("a:1#1".parse().unwrap(), Arc::new(Registry::new()));
    Sharding::alone(node, None, ShardingSettings::test()).await.unwrap()
}

/// Sharding scenario 102: a stopped region is started again, and the handle of the stopped one sends nothing.
#[tokio::test]
async fn scenario_102_a_stopped_region_is_started_again() {
    let sharding = alone().await;
    let timeout = Duration::from_secs(60);
    let mut ids = BTreeSet::new();
    for _ in 0..3 {
        let region = sharding.init(echoes()).unwrap();
        assert!(ids.insert(region.id().clone()), "a new incarnation");
        assert_eq!(region.entity_ref("e").ask(|reply_to| reply_to).timeout(timeout).await.unwrap(), 1);
        let mut shared = Arc::downgrade(&region.0);
        region.graceful_shutdown().await;
        let refused = region.entity_ref("e").ask(|reply_to| reply_to).timeout(timeout).await.unwrap_err();
        assert_eq!(refused, AskError::Send(SendError::RegionStopped));
        drop(region);
        let next = sharding.init(echoes()).unwrap();
        assert!(ids.insert(next.id().clone()));
        let ends = async {
            while shared.upgrade().is_some() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(timeout, ends).await.expect("a stopped region ends once another one has taken over");
        shared = Arc::downgrade(&next.0);
        next.graceful_shutdown().await;
        assert!(shared.upgrade().is_some(), "the newest stays");
    }
}

/// Sharding scenario 109: a second description that differs is refused, whatever part differs.
#[tokio::test]
async fn scenario_109_a_second_description_that_differs_is_refused() {
    let sharding = alone().await;
    let region = sharding.init(echoes()).unwrap();
    assert_eq!(sharding.init(echoes()).unwrap().id(), region.id(), "the same type again");
    for proxy in [ECHO.proxy(), ECHO.proxy().codec(json("echo")).role("worker")] {
        assert_eq!(sharding.init_proxy(proxy).unwrap().id(), region.id(), "what a proxy says is the same");
    }
    let shards = |count: u32| HashV1(count.try_into().unwrap());
    let others = [
        ("codec", echoes().codec(json("other"))),
        ("codec", EntityType::new(ECHO, |_| Ok(Echo)).role("worker")),
        ("extractor", echoes().extractor(shards(7))),
        ("role", echoes().role("another")),
        ("factory", EntityType::new(ECHO, |_| Ok(Echo)).codec(json("echo")).role("worker")),
        ("persistence", echoes().persistent()),
        ("stop_message", echoes().stop_message(|| unreachable!("it is not set up"))),
        ("is_activity", echoes().is_activity(|_| false)),
        ("addressed_by", echoes().addressed_by(|_| None)),
        ("supervision", echoes().supervision(Supervision { max_restarts: 3, ..Supervision::default() })),
        ("passivation", echoes().passivation(Passivation::none())),
        ("ask_timeout", echoes().ask_timeout(Duration::from_secs(1))),
        ("settings", echoes().settings(|settings| settings.buffer_size = 7)),
    ];
    for (field, other) in others {
        let refused = sharding.init(other).err();
        assert_eq!(refused, Some(InitError::Differs { name: region.name().clone(), field }));
    }
    let proxies = [("codec", ECHO.proxy().codec(json("other"))), ("role", ECHO.proxy().role("another"))];
    for (field, other) in proxies {
        let refused = sharding.init(other).err();
        assert_eq!(refused, Some(InitError::Differs { name: region.name().clone(), field }));
    }
    let sharding = alone().await;
    sharding.init_proxy(ECHO.proxy().codec(json("echo")).role("worker")).unwrap();
    let late = sharding.init(echoes()).unwrap_err().to_string();
    assert_eq!(late, "entity type Echo is initialised already, with another factory");
}

/// Sharding scenario 102: a type that is set up while the node cannot trust its view holds its messages.
#[tokio::test]
async fn scenario_102_a_type_set_up_while_the_node_is_suspect_holds_its_messages() {
    let sharding = alone().await;
    sharding.0.on_cluster_event(&ClusterEvent::SelfSuspect);
    let echoes = sharding.init(EntityType::new(ECHO, |_| Ok(Echo))).unwrap();
    let mut answer = echoes.entity_ref("e").ask(|reply_to| reply_to).timeout(Duration::from_secs(60)).send();
    let early = tokio::time::timeout(Duration::from_millis(300), &mut answer).await;
    assert!(early.is_err(), "a node that is suspect handled a message");
    let stats = echoes.inspect().region_stats().await;
    assert_eq!((stats.shards.len(), stats.failed.len()), (1, 0), "looking runs no handler");
    sharding.0.on_cluster_event(&ClusterEvent::SelfTrusted);
    assert_eq!(answer.await.unwrap(), 1);
}

/// Sharding scenario 102: in a cluster, the type's coordinator decides nothing either.
#[tokio::test]
async fn scenario_102_the_coordinator_of_a_type_set_up_while_the_node_is_suspect_waits() {
    let node = MemoryNetwork::new().node("a:1#1".parse().unwrap(), Arc::new(Registry::new()));
    let cluster = Cluster::start(greylag_cluster::ClusterSettings::test(), node).await.unwrap();
    cluster.join_seed_nodes(vec!["a:1".parse().unwrap()]).await.unwrap();
    cluster.wait_up().await.unwrap();
    let sharding = Sharding::start(cluster, None, ShardingSettings::test()).await.unwrap();
    sharding.0.on_cluster_event(&ClusterEvent::SelfSuspect);
    let echoes = sharding.init(EntityType::new(ECHO, |_| Ok(Echo)).codec(json("echo"))).unwrap();
    let mut events = echoes.subscribe();
    let answer = echoes.entity_ref("e").ask(|reply_to| reply_to).timeout(Duration::from_secs(60)).send();
    let registered = async {
        loop {
            if let Some(Event::Region(RegionEvent::Registered { .. })) = events.next().await {
                return;
            }
        }
    };
    let mut registered = std::pin::pin!(registered);
    let early = tokio::time::timeout(Duration::from_millis(500), &mut registered).await;
    assert!(early.is_err(), "the coordinator of a suspect node took a region");
    assert_eq!(echoes.shard_homes(), BTreeMap::new(), "and none of its shards has a home");
    sharding.0.on_cluster_event(&ClusterEvent::SelfTrusted);
    assert_eq!(answer.await.unwrap(), 1);
    tokio::time::timeout(Duration::from_secs(60), registered).await.expect("it goes on once it is trusted");
}

/// Entities behind a layer get its users' messages under the same name; references in messages find them.
#[tokio::test]
async fn entities_behind_a_layer_are_sent_messages_of_its_users() {
    /// The layer's form of a question.
    const COVERED: EntityKey<(u8, ReplyTo<i64>)> = EntityKey::new("Covered");
    const USERS: EntityKey<ReplyTo<i64>> = EntityKey::new("Covered");

    struct Covered;

    impl Entity for Covered {
        type Message = (u8, ReplyTo<i64>);

        fn receive(&mut self, (layer, reply_to): Self::Message, _: &mut Ctx<'_, Self::Message>) -> Result<(), Failure> {
            reply_to.reply(layer.into());
            Ok(())
        }
    }

    let sharding = alone().await;
    let unknown = sharding.entity_ref(USERS, "e").ask(|reply_to| reply_to).await.unwrap_err();
    assert_eq!(unknown, AskError::Send(SendError::NotStarted));
    let covered = EntityType::new(COVERED, |_| Ok(Covered)).on_set_up(|sharding, region| {
        sharding.add_view(region, |reply_to: ReplyTo<i64>| (7, reply_to));
    });
    sharding.init(covered).unwrap();
    let entity = sharding.entity_ref(USERS, "e");
    let timeout = Duration::from_secs(60);
    assert_eq!(entity.ask(|reply_to| reply_to).timeout(timeout).await.unwrap(), 7);
    assert_eq!(format!("{entity:?}").split(' ').next(), Some("EntityRef(Covered/e"));
    let nameless = sharding.entity_ref(USERS, "").ask(|reply_to| reply_to).await.unwrap_err();
    assert_eq!(nameless, AskError::Send(SendError::EmptyEntityId));
    let written = serde_json::to_string(&entity).unwrap();
    let scope = greylag_core::ReplyScope::enter(sharding.remoting().reply_port());
    let read: EntityRef<ReplyTo<i64>> = serde_json::from_str(&written).unwrap();
    drop(scope);
    assert_eq!(read.ask(|reply_to| reply_to).timeout(timeout).await.unwrap(), 7);
}

/// Functions of `before_set_up` run before the first entity starts; if one fails, the type is not set up.
#[tokio::test]
async fn a_layer_prepares_a_type_or_refuses_it() {
    const QUICK: EntityKey<()> = EntityKey::new("Quick");

    struct Quick;

    impl Entity for Quick {
        type Message = ();

        fn receive(&mut self, (): (), _: &mut Ctx<'_, ()>) -> Result<(), Failure> {
            Ok(())
        }
    }

    let sharding = alone().await;
    let refused = EntityType::new(QUICK, |_| Ok(Quick)).before_set_up(|_| Err(Failure::new("the moon is full")));
    let error = sharding.init(refused).unwrap_err();
    assert_eq!(error.to_string(), "entity type Quick: the moon is full");
    assert!(sharding.region(QUICK).is_err(), "nothing was started");
    let prepared = Arc::new(AtomicBool::new(false));
    let (prepare, is_prepared) = (prepared.clone(), prepared.clone());
    let quick = EntityType::new(QUICK, move |_| {
        assert!(is_prepared.load(Ordering::SeqCst));
        Ok(Quick)
    });
    let quick = quick.before_set_up(move |sharding| {
        assert!(sharding.region(QUICK).is_err());
        prepare.store(true, Ordering::SeqCst);
        Ok(())
    });
    sharding.init(quick).unwrap();
    assert!(prepared.load(Ordering::SeqCst));
}
