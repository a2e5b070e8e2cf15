//! Setting types up, and the first messages to them: on one node, before the node is a member, beside nodes that
//! describe a type differently or run no sharding at all. Source: sharding §1.2 to §1.6, §2.3, §2.5, scenarios 6 to 18.

use std::collections::BTreeSet;
use std::io::Write;
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::common::nodes::*;
use greylag_cluster::{ClusterSettings, MemberStatus};
use greylag_codec::json;
use greylag_core::{DeadLetterReason, ReplyTo};
use greylag_persistence::Ctx;
use greylag_sharding::fingerprint::{Mismatch, StateStoreMode};
use greylag_sharding::ids::{EntityId, ShardId};
use greylag_sharding::settings::CoordinatorSingletonSettings;
use greylag_sharding::{
    AskError, Entity, EntityKey, EntityType, Event, Extractor, Failure, HashV1, InitError, Obstacle, Region,
    RegionEvent, RegionState, SendError, ShardingSettings,
};
use serde::{Deserialize, Serialize};

/// Answers its id and the messages that it was sent, in order.
struct Echo {
    id: String,
    seen: Vec<u64>,
}

#[derive(Serialize, Deserialize)]
enum Say {
    Number(u64),
    All(ReplyTo<(String, Vec<u64>)>),
}

impl Entity for Echo {
    type Message = Say;

    fn receive(&mut self, say: Say, _: &mut Ctx<'_, Say>) -> Result<(), Failure> {
        match say {
            Say::Number(number) => self.seen.push(number),
            Say::All(reply_to) => reply_to.reply((self.id.clone(), self.seen.clone())),
        }
        Ok(())
    }
}

fn echoes(name: &str) -> EntityType<Say> {
    let key = EntityKey::named(name);
    EntityType::new(key, |init| Ok(Echo { id: init.id.to_string(), seen: Vec::new() })).codec(json("say"))
}

async fn all(region: &Region<Say>, id: &str) -> (String, Vec<u64>) {
    region.entity_ref(id).ask(Say::All).timeout(PATIENCE).await.expect("it answers")
}

/// sharding 6: the same type again returns the same handle; the same name with other messages is refused.
#[tokio::test]
async fn scenario_6_a_name_has_one_message_type() {
    let world = World::new();
    let sharding = world.newcomer("a:1", "").await;
    let region = sharding.init(volatiles()).expect("fresh");
    assert_eq!(sharding.init(volatiles()).expect("the same type"), region);
    assert_eq!(sharding.region(VOLATILE).expect("it is set up"), region);
    let other = EntityType::new(EntityKey::new("Volatile"), |_| Ok(Echo { id: String::new(), seen: Vec::new() }));
    let refused = sharding.init(other.codec(json("say"))).expect_err("its messages are others");
    assert_eq!(refused, InitError::AlreadyInitialized { name: region.name().clone() });
    assert_ne!(sharding.init(counters()).expect("another type"), region);
}

/// sharding 7: types that are set up at once, by as many tasks. Within five seconds on an otherwise idle machine.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scenario_7_fifty_types_are_set_up_at_once() {
    let world = World::new();
    let sharding = world.newcomer("a:1", "").await;
    world.join(sharding.cluster().expect("it has one")).await;
    let began = Instant::now();
    let tasks: Vec<_> = (0..50)
        .map(|number| {
            let sharding = sharding.clone();
            tokio::spawn(async move {
                let region = sharding.init(echoes(&format!("type{number}"))).expect("fresh");
                region.entity_ref("one").tell(Say::Number(number)).expect("it is taken");
                (number, all(&region, "one").await)
            })
        })
        .collect();
    for task in tasks {
        let (number, answer) = within("a type", task).await.expect("no panic");
        assert_eq!(answer, ("one".to_owned(), vec![number]));
    }
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    assert_eq!(sharding.shard_type_names().len(), 50);
}

/// sharding 8: many senders, many entities, two nodes: each entity gets its own messages and no others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scenario_8_each_entity_sees_its_own_messages_alone() {
    each_entity_sees_its_own_messages_alone(World::new()).await;
}

/// sharding 8, over sockets.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scenario_8_each_entity_sees_its_own_messages_alone_over_sockets() {
    each_entity_sees_its_own_messages_alone(World::over_sockets()).await;
}

async fn each_entity_sees_its_own_messages_alone(world: World) {
    const TASKS: u64 = 20;
    const EACH: u64 = 100;
    let mut regions = Vec::new();
    for address in ["a:1", "b:1"] {
        let sharding = world.newcomer(address, "").await;
        regions.push(sharding.init(echoes("Echo")).expect("fresh"));
        world.join(sharding.cluster().expect("it has one")).await;
    }
    let tasks: Vec<_> = (0..TASKS)
        .map(|task| {
            let region = regions[task as usize % 2].clone();
            tokio::spawn(async move {
                let mut replies = 0;
                for id in task * EACH + 1..=(task + 1) * EACH {
                    let name = id.to_string();
                    region.entity_ref(name.as_str()).tell(Say::Number(id)).expect("it is taken");
                    assert_eq!(all(&region, &name).await, (name, vec![id]));
                    replies += 1;
                }
                replies
            })
        })
        .collect();
    let mut replies = 0;
    for task in tasks {
        replies += task.await.expect("no entity saw another's message");
    }
    assert_eq!(replies, TASKS * EACH);
    let shards: usize = regions[0].shard_homes().values().sum();
    assert_eq!(shards, SHARDS as usize, "over all shards");
}

/// The id of an entity is the number of its shard, so that each shard has one entity.
struct OneEach {
    version: u32,
}

impl OneEach {
    const SHARDS: u32 = 1000;
}

impl Extractor for OneEach {
    fn shard_id(&self, id: &EntityId) -> Result<ShardId, DeadLetterReason> {
        Ok(ShardId::from_index(self.shard_index(id).expect("the tests name their entities by numbers")))
    }

    fn shard_index(&self, id: &EntityId) -> Option<u32> {
        id.as_str().parse().ok().filter(|number| *number < Self::SHARDS)
    }

    fn number_of_shards(&self) -> Option<NonZeroU32> {
        NonZeroU32::new(Self::SHARDS)
    }

    fn identity(&self) -> (&'static str, u32) {
        ("one-each", self.version)
    }
}

/// sharding 9: with a shard for each entity, a node's crash moves its entities alone, each at its next message.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scenario_9_with_a_shard_for_each_entity_a_crash_moves_its_entities_alone() {
    const IDS: usize = 24;
    let mut world = World::new();
    // Disable rebalancing, so that all moves are due to the crash.
    world.sharding.rebalance_interval = Duration::from_secs(3600);
    let mut nodes = Vec::new();
    for address in ["a:1", "b:1", "c:1"] {
        let sharding = world.newcomer(address, "").await;
        let region = sharding.init(volatiles().extractor(OneEach { version: 1 })).expect("fresh");
        world.join(sharding.cluster().expect("it has one")).await;
        until("it takes its share", || region.state() == RegionState::Registered).await;
        nodes.push((sharding, region));
    }
    let region = &nodes[0].1;
    increment(region, 0..IDS);
    assert_all(region, IDS, 1).await;
    let shards: BTreeSet<_> = (0..IDS).map(|id| region.shard_of(&id.to_string()).expect("it is a number")).collect();
    assert_eq!(shards, (0..IDS as u32).map(ShardId::from_index).collect());
    let homes = homes_of(region, 0..IDS);
    let gone = nodes[2].1.id().node.clone();
    assert!(homes.contains(&gone), "{homes:?}");

    world.network.crash(&gone);
    until("the crashed node has no shard any more", || !region.shard_homes().contains_key(&gone)).await;
    for (id, home) in homes.iter().enumerate() {
        assert_eq!(home_of(region, id), Some(home.clone()).filter(|home| *home != gone), "{id} waits to be asked for");
    }
    for (id, home) in homes.iter().enumerate() {
        let count = get_at_last(region, id).await;
        // Messages that wait for a home leave before the route is published, and may be answered before that.
        until("its route is there", || home_of(region, id).is_some()).await;
        let now = home_of(region, id).expect("nothing moves any more");
        assert_eq!(count, i64::from(*home != gone), "counter {id}: a new one, or the one of before");
        assert!(if *home == gone { now != gone } else { now == *home }, "counter {id}: {home}, now {now}");
    }
    for (id, home) in homes.iter().enumerate() {
        assert_eq!(get(region, id).await, i64::from(*home != gone), "counter {id} stays");
    }
}

/// Notes the ids that it is asked for, and rejects one id.
struct Noting(HashV1, Arc<Mutex<Vec<String>>>);

impl Extractor for Noting {
    fn shard_id(&self, id: &EntityId) -> Result<ShardId, DeadLetterReason> {
        Ok(ShardId::from_index(self.shard_index(id).expect("it has one")))
    }

    fn shard_index(&self, id: &EntityId) -> Option<u32> {
        self.1.lock().expect("it panics without the lock").push(id.to_string());
        assert_ne!(id.as_str(), "unknown", "no shard is known");
        self.0.shard_index(id)
    }

    fn number_of_shards(&self) -> Option<NonZeroU32> {
        Some(self.0.0)
    }

    fn identity(&self) -> (&'static str, u32) {
        ("noting", 1)
    }
}

/// The entity that a number is for.
fn of_number(say: &Say) -> Option<Arc<str>> {
    match say {
        Say::Number(13) => panic!("nobody has this number"),
        Say::Number(number) => Some(number.to_string().into()),
        Say::All(_) => None,
    }
}

/// sharding 10: an extractor is asked for the shards of entities and for nothing else, whether a message comes with an
/// id, names its entity itself, or is a request to start; neither answers nor acks reach it. An id that it rejects, and
/// a panic in it, cost only that message.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scenario_10_an_extractor_is_asked_for_entities_alone() {
    let (world, asked) = (World::new(), Arc::default());
    let noting = || Noting(HashV1(NonZeroU32::new(SHARDS).expect("not zero")), Arc::clone(&asked));
    let mut nodes = Vec::new();
    for address in ["a:1", "b:1"] {
        let sharding = world.newcomer(address, "").await;
        let region = sharding.init(echoes("Echo").extractor(noting()).addressed_by(of_number)).expect("fresh");
        world.join(sharding.cluster().expect("it has one")).await;
        nodes.push((sharding, region));
    }
    for id in 1..=4 {
        for (_, region) in &nodes {
            let name = id.to_string();
            region.entity_ref(name.as_str()).tell(Say::Number(100 + id)).expect("it is taken");
            region.send(Say::Number(id)).expect("it is taken");
            let ack = within("the ack", region.start_entity(name.as_str())).await.expect("it runs");
            assert_eq!((ack.entity.as_str(), Some(ack.shard)), (name.as_str(), region.shard_of(&name)));
        }
        let (name, mut seen) = all(&nodes[0].1, &id.to_string()).await;
        seen.sort_unstable();
        assert_eq!((name, seen), (id.to_string(), vec![id, id, 100 + id, 100 + id]));
    }
    let region = &nodes[0].1;
    let mut events = region.subscribe();
    let panicked = Err(SendError::Dropped(DeadLetterReason::ExtractorPanicked));
    assert_eq!(region.entity_ref("unknown").tell(Say::Number(1)), panicked);
    assert_eq!(region.send(Say::Number(13)), panicked);
    let remoting = nodes[0].0.cluster().expect("it has one").remoting().clone();
    let question = remoting.open_ask(PATIENCE);
    let token = ReplyTo::<(String, Vec<u64>)>::new(question.address, remoting.reply_port());
    assert_eq!(region.send(Say::All(token)), Err(SendError::Dropped(DeadLetterReason::ExtractorRejected)));
    assert!(within("its asker hears", question.answer).await.is_err());
    let dead = remoting.dead_letter_totals();
    let dead = [DeadLetterReason::ExtractorPanicked, DeadLetterReason::ExtractorRejected].map(|reason| dead[&reason]);
    assert_eq!(dead, [2, 1]);
    let unaddressed = |event| match event {
        Event::Unaddressed { reason, .. } => Some(reason),
        _ => None,
    };
    // An id for which the extractor panics has no shard, a message by content no id.
    let (panicked, rejected) = (DeadLetterReason::ExtractorPanicked, DeadLetterReason::ExtractorRejected);
    for expected in [panicked, panicked, rejected] {
        let told = event("a message that belongs to no shard is told of", &mut events, unaddressed).await;
        assert_eq!(told, expected);
    }
    assert_eq!(all(region, "1").await.1.len(), 4, "the region goes on");
    let asked: BTreeSet<_> = asked.lock().expect("it panics without the lock").iter().cloned().collect();
    assert_eq!(asked, ["1", "2", "3", "4", "unknown"].map(String::from).into());
}

/// sharding 4: coordinators on nodes of one role, entities on nodes of another one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scenario_4_coordinators_and_entities_live_on_nodes_of_their_roles() {
    for mode in [StateStoreMode::Ddata, StateStoreMode::Persistence] {
        let mut world = World::in_mode(mode);
        world.sharding.coordinator_singleton = CoordinatorSingletonSettings {
            role_override: false,
            role: "coordinators".to_owned(),
            ..CoordinatorSingletonSettings::default()
        };
        let mut nodes = Vec::new();
        for (address, role) in [("a:1", "coordinators"), ("b:1", "coordinators"), ("c:1", "shards"), ("d:1", "web")] {
            let sharding = world.newcomer(address, role).await;
            let region = sharding.init(counters().role("shards")).expect("fresh");
            let events = region.subscribe();
            world.join(sharding.cluster().expect("it has one")).await;
            nodes.push((sharding.cluster().expect("it has one").clone(), region, events));
        }
        for (cluster, _, events) in &mut nodes {
            let registered = |event| match event {
                Event::Region(RegionEvent::Registered { coordinator, .. }) => Some(coordinator),
                _ => None,
            };
            let coordinator = event("it is registered", events, registered).await;
            assert_eq!(coordinator.address().to_string(), "a:1", "of {}", cluster.self_address());
        }
        let [a, b, c, d] = &nodes[..] else { unreachable!("there are four") };
        for (_, region, _) in [a, b, c, d] {
            increment(region, 0..40);
            settle(region, 40).await;
        }
        for (_, region, _) in [a, b, c, d] {
            assert_all(region, 40, 4).await;
            let homes = region.shard_homes();
            assert_eq!(homes.keys().collect::<Vec<_>>(), [c.0.self_address()], "role mismatch: a proxy");
        }
        // The hosting node leaves beside a new one with its role.
        let sharding = world.newcomer("e:1", "shards").await;
        let region = sharding.init(counters().role("shards")).expect("fresh");
        world.join(sharding.cluster().expect("it has one")).await;
        until("it takes its share", || region.state() == RegionState::Registered).await;
        within("it leaves", c.0.shutdown()).await;
        assert_all(&d.1, 40, 4).await;
        assert_eq!(
            d.1.shard_homes().keys().collect::<Vec<_>>(),
            [sharding.cluster().expect("it has one").self_address()]
        );
        // The coordinator's node leaves: the other node with its role takes over, and no other.
        within("it leaves", a.0.shutdown()).await;
        increment(&d.1, 40..80);
        settle(&d.1, 80).await;
        for id in 40..80 {
            assert_eq!(get(&region, id).await, 1);
        }
        let hosting = b.1.shard_homes().into_keys().collect::<Vec<_>>();
        assert!(hosting.iter().all(|node| *node == region.id().node), "{hosting:?}");
    }
}

/// Nodes that disagree on where coordinators run would run two: the later node cannot join.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_looks_for_coordinators_elsewhere_is_refused() {
    let mut world = World::new();
    let a = world.node("a:1").await;
    world.sharding.coordinator_singleton.role_override = false;
    let other = world.newcomer("b:1", "").await;
    let refused = other.cluster().expect("it has one").join_seed_nodes(vec![a.address.address().clone()]).await;
    let refused = format!("{:?}", refused.expect_err("it is refused"));
    assert!(refused.contains("sharding.coordinator_singleton.role"), "{refused}");
}

/// Settings that nodes compare when they join are the same for all types of a node.
#[tokio::test]
async fn a_type_does_not_change_where_coordinators_run() {
    let sharding = World::new().newcomer("a:1", "").await;
    let changes: [(_, fn(&mut ShardingSettings)); 3] = [
        ("role", |settings| settings.role = "web".to_owned()),
        ("coordinator_singleton.role", |settings| settings.coordinator_singleton.role = "web".to_owned()),
        ("coordinator_singleton.role", |settings| settings.coordinator_singleton.role_override = false),
    ];
    for (key, change) in changes {
        let refused = sharding.init(volatiles().settings(change)).expect_err("it is refused");
        assert!(matches!(&refused, InitError::InvalidSetting(setting) if setting.key == key), "{refused}");
    }
    sharding.init(volatiles().settings(|settings| settings.buffer_size = 5)).expect("any other may differ");
}

/// The log output of this thread, from one level on.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().expect("nothing panics").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Log {
    fn keep(level: tracing::Level) -> (Self, tracing::subscriber::DefaultGuard) {
        let log = Self::default();
        let writer = log.clone();
        let to_log = move || writer.clone();
        let subscriber = tracing_subscriber::fmt().with_ansi(false).with_max_level(level).with_writer(to_log).finish();
        (log, tracing::subscriber::set_default(subscriber))
    }

    fn has(&self, text: &str) -> bool {
        String::from_utf8_lossy(&self.0.lock().expect("nothing panics")).contains(text)
    }
}

/// sharding 11: one of two members runs no sharding, so the coordinator's state cannot be read: an error gives a hint,
/// and everything goes on once the other member starts sharding. The coordinator runs entirely on the thread of this
/// test.
#[tokio::test]
async fn scenario_11_a_member_without_sharding_is_hinted_at() {
    let mut world = World::new();
    world.sharding = ShardingSettings { waiting_for_state_timeout: Duration::from_millis(100), ..world.sharding };
    let (errors, _until_then) = Log::keep(tracing::Level::ERROR);
    let a = world.newcomer("a:1", "").await;
    world.join(a.cluster().expect("it has one")).await;
    let b = world.process("b:1", world.cluster.clone()).await;
    world.join(&b).await;
    let region = a.init(volatiles()).expect("fresh");
    increment(&region, 0..1);
    until("the error", || errors.has("is sharding started on all nodes?")).await;
    assert_eq!(region.counters().buffered, 1, "it waits");

    let sharding = world.sharding_on(&b).await;
    let beside = sharding.init(volatiles()).expect("fresh");
    assert_eq!(get(&region, 0).await, 1, "it waited");
    assert_eq!(get(&beside, 0).await, 1);
}

fn refused(event: Event) -> Option<Mismatch> {
    if let Event::Region(RegionEvent::Refused(mismatch)) = event { Some(mismatch) } else { None }
}

/// sharding 13: of nodes with different extractors of a type the later one is refused, for that type alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scenario_13_another_version_of_an_extractor_is_refused_for_its_type_alone() {
    let world = World::new();
    let placed = |version| volatiles().extractor(OneEach { version });
    let a = world.newcomer("a:1", "").await;
    let (placed_a, counters_a) = (a.init(placed(1)).expect("fresh"), a.init(counters()).expect("fresh"));
    world.join(a.cluster().expect("it has one")).await;
    increment(&placed_a, 0..10);
    assert_all(&placed_a, 10, 1).await;

    let b = world.newcomer("b:1", "").await;
    let (placed_b, counters_b) = (b.init(placed(2)).expect("fresh"), b.init(counters()).expect("fresh"));
    let mut events = placed_b.subscribe();
    increment(&placed_b, 0..3);
    assert_eq!(placed_b.counters().buffered, 3);
    world.join(b.cluster().expect("it has one")).await;
    let mismatch = event("it is refused", &mut events, refused).await;
    assert_eq!(mismatch.field, "extractor");
    assert_eq!(placed_b.state(), RegionState::Refused);
    let now = placed_b.counters();
    assert_eq!((now.submitted, now.dead_lettered, now.buffered), (3, 3, 0), "what waited ends");
    let remoting = b.cluster().expect("it has one").remoting().clone();
    let dead = || remoting.dead_letter_totals().get(&DeadLetterReason::Refused).copied();
    until("the dead letters", || dead() == Some(3)).await;
    assert_eq!(placed_b.entity_ref("1").tell(Command::Increment), Err(SendError::Refused));
    let asked = placed_b.entity_ref("1").ask(|reply_to| Command::Get { reply_to }).timeout(PATIENCE).await;
    assert_eq!(asked, Err(AskError::Send(SendError::Refused)));
    let not_ready = b.cluster().expect("it has one").readiness().not_ready;
    assert!(not_ready.iter().any(|reason| reason.contains("extractor")), "{not_ready:?}");

    assert_all(&placed_a, 10, 1).await;
    increment(&counters_b, 0..20);
    assert_all(&counters_b, 20, 1).await;
    assert_all(&counters_a, 20, 1).await;
    let shards: usize = counters_a.shard_homes().values().sum();
    wait_for_shards(&counters_a, &counters_b.id().node, 1).await;
    assert!(shards > 0 && !placed_a.shard_homes().contains_key(&placed_b.id().node), "it hosts the other type alone");
}

/// sharding 17: a node that cannot come up yet keeps its messages.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scenario_17_a_node_that_is_weakly_up_keeps_what_is_sent() {
    // Keep homes in a journal, since replicas that are cut off from each other would agree on none.
    let world = World { cluster: ClusterSettings::test(), ..World::in_mode(StateStoreMode::Persistence) };
    let (a, b) = (world.node("a:1").await, world.node("b:1").await);
    world.network.cut(a.address.address(), b.address.address());
    within("b is unreachable", a.cluster.wait_for(|view| view.unreachable.contains(&b.address)))
        .await
        .expect("it stays");
    let sharding = world.newcomer("c:1", "").await;
    let volatile = sharding.init(volatiles()).expect("fresh");
    let mut events = volatile.subscribe();
    for number in 1..=3 {
        volatile.entity_ref("0").tell(Command::Increment).expect("it is taken");
        assert_eq!(volatile.counters().buffered, number);
    }
    let cluster = sharding.cluster().expect("it has one");
    within("it joins", cluster.join_seed_nodes(vec![a.address.address().clone()])).await.expect("a lets it in");
    let has_status = |status| cluster.self_member().is_some_and(|own| own.status == status);
    until("it is WeaklyUp", || has_status(MemberStatus::WeaklyUp)).await;
    let tried = |event| match event {
        Event::Region(RegionEvent::StillUnregistered { buffered, candidates, obstacle }) => {
            Some((buffered, candidates, obstacle))
        }
        Event::Region(RegionEvent::Registered { .. }) => panic!("a node that is WeaklyUp was registered"),
        _ => None,
    };
    // By then the region has tried to register five times.
    let told = event("it is not registered", &mut events, tried).await;
    assert_eq!(told, (3, vec![a.address.clone()], Obstacle::Silent));
    assert!(has_status(MemberStatus::WeaklyUp));
    assert_eq!((volatile.state(), volatile.counters().buffered), (RegionState::Unregistered, 3));
    assert_eq!(get(&a.volatile, 0).await, 0, "nothing was delivered");

    world.network.heal_all();
    within("it comes up", cluster.wait_up()).await.expect("it stays");
    assert_eq!(get(&volatile, 0).await, 3);
    assert_eq!(get(&a.volatile, 0).await, 3);
}

/// sharding 18: a full buffer keeps the oldest messages, refuses the others to their sender, and counts all.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scenario_18_a_full_buffer_keeps_the_oldest_and_refuses_the_rest() {
    let mut world = World::new();
    world.sharding = ShardingSettings { buffer_size: 10, ..world.sharding };
    let sharding = world.newcomer("a:1", "").await;
    let region = sharding.init(echoes("Echo")).expect("fresh");
    let one = region.entity_ref("one");
    for number in 1..=15 {
        let taken = if number <= 10 { Ok(()) } else { Err(SendError::BufferFull) };
        assert_eq!(one.tell(Say::Number(number)), taken, "tell {number}");
    }
    let cluster = sharding.cluster().expect("it has one");
    let full = || cluster.remoting().dead_letter_totals().get(&DeadLetterReason::BufferFull).copied();
    let sums = || {
        let now = region.counters();
        assert_eq!(now.submitted, now.delivered + now.forwarded + now.dead_lettered + now.buffered);
        (now.submitted, now.delivered, now.dead_lettered, now.buffered)
    };
    assert_eq!((full(), sums()), (Some(5), (15, 0, 5, 10)));

    world.join(cluster).await;
    let shard = region.shard_of("one").expect("an id");
    until("its shard runs", || region.is_routed(&shard)).await;
    assert_eq!(all(&region, "one").await, ("one".to_owned(), (1..=10).collect()));
    assert_eq!((full(), sums()), (Some(5), (15, 10, 5, 0)));
}
