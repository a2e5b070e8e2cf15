//! Sharding scenario 101: user code (codecs, destructors, functions of a type's description) runs under no lock of a
//! region, and a panic in it costs one message or one entity.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use greylag_cluster::{Cluster, ClusterSettings};
use greylag_codec::json;
use greylag_core::{
    Codec, CodecId, DeadLetterReason, DecodeError, EncodeError, Manifest, Registry, ReplyTo, Uid, UniqueAddress,
};
use greylag_persistence::Ctx;
use greylag_sharding::{
    AskError, Directive, Entity, EntityKey, EntityRef, EntityType, Failure, Plain, Region, SendError, Sharding,
    ShardingSettings, Supervision,
};
use greylag_testkit::uid::fresh_uid;
use greylag_transport::memory::MemoryNetwork;
use serde::{Deserialize, Serialize};

const PATIENCE: Duration = Duration::from_secs(60);

const ECHO: EntityKey<Message> = EntityKey::new("Echo");

#[derive(Serialize, Deserialize)]
enum Message {
    Get(ReplyTo<u64>),
    /// A message for which the test chooses the codec's behaviour.
    Odd(ReplyTo<u64>),
    Fail,
    #[serde(skip)]
    SendsOnDrop(SendsOnDrop),
}

/// Sends a message to its own type when it is dropped.
struct SendsOnDrop(EntityRef<Message>, Arc<AtomicU64>);

impl Drop for SendsOnDrop {
    fn drop(&mut self) {
        let again = self.0.tell(Message::Fail);
        assert_eq!(again, Err(SendError::BufferFull));
        self.1.fetch_add(1, Ordering::Relaxed);
    }
}

struct Echo;

impl Entity for Echo {
    type Message = Message;

    fn receive(&mut self, message: Message, _: &mut Ctx<'_, Message>) -> Result<(), Failure> {
        match message {
            Message::Get(reply_to) | Message::Odd(reply_to) => reply_to.reply(1),
            Message::Fail => return Err(Failure::new("asked to")),
            Message::SendsOnDrop(sends_on_drop) => drop(sends_on_drop),
        }
        Ok(())
    }
}

fn echoes() -> EntityType<Message, Plain<Message>> {
    EntityType::new(ECHO, |_| Ok(Echo)).ask_timeout(PATIENCE)
}

async fn alone<K: greylag_sharding::Kind<Message>>(entity_type: EntityType<Message, K>) -> Region<Message> {
    let remoting = MemoryNetwork::new().node("a:1#1".parse().unwrap(), Arc::new(Registry::new()));
    let settings = ShardingSettings { number_of_shards: 1, ..ShardingSettings::test() };
    // The region's task keeps it alive.
    Sharding::alone(remoting, None, settings).await.unwrap().init(entity_type).unwrap()
}

/// A door in user code, which a test opens.
#[derive(Clone, Default)]
struct Door(Arc<(Mutex<bool>, Condvar)>, Arc<AtomicU64>);

impl Door {
    fn pass(&self) {
        self.1.fetch_add(1, Ordering::SeqCst);
        let (open, opened) = &*self.0;
        let open = open.lock().unwrap();
        drop(opened.wait_while(open, |open| !*open).unwrap());
    }

    fn open(&self) {
        *self.0.0.lock().unwrap() = true;
        self.0.1.notify_all();
    }
}

/// JSON, except for [`Message::Odd`].
#[derive(Clone)]
enum Odd {
    WaitsToRead(Door),
    WaitsToName(Door),
    PanicsToRead,
}

impl Codec<Message> for Odd {
    fn id(&self) -> CodecId {
        CodecId::JSON
    }

    fn manifest(&self, message: &Message) -> Manifest {
        if let (Self::WaitsToName(door), Message::Odd(_)) = (self, message) {
            door.pass();
        }
        "message".into()
    }

    fn manifests(&self) -> Vec<Manifest> {
        vec!["message".into()]
    }

    fn encode(&self, message: &Message, buffer: &mut BytesMut) -> Result<(), EncodeError> {
        json("message").encode(message, buffer)
    }

    fn decode(&self, manifest: &str, bytes: Bytes) -> Result<Message, DecodeError> {
        if bytes.starts_with(br#"{"Odd""#) {
            match self {
                Self::WaitsToRead(door) => door.pass(),
                Self::PanicsToRead => panic!("on a peer's bytes"),
                Self::WaitsToName(_) => {}
            }
        }
        json("message").decode(manifest, bytes)
    }
}

/// Two nodes; the second hosts, the first sends.
async fn pair(codec: &Odd) -> (Vec<Cluster>, Region<Message>, UniqueAddress) {
    let network = MemoryNetwork::new();
    let (mut clusters, mut regions) = (Vec::new(), Vec::new());
    for (address, role) in [("a:1", "web"), ("b:1", "echo")] {
        let uid = Uid::new(fresh_uid()).unwrap();
        let remoting = network.node(UniqueAddress::new(address.parse().unwrap(), uid), Arc::new(Registry::new()));
        let settings = ClusterSettings { roles: [role.to_owned()].into(), ..ClusterSettings::test() };
        let cluster = Cluster::start(settings, remoting).await.unwrap();
        let settings = ShardingSettings { number_of_shards: 8, ..ShardingSettings::test() };
        let sharding = Sharding::start(cluster.clone(), None, settings).await.unwrap();
        regions.push(sharding.init(echoes().codec(codec.clone()).role("echo")).unwrap());
        cluster.join_seed_nodes(vec!["a:1".parse().unwrap()]).await.unwrap();
        cluster.wait_up().await.unwrap();
        clusters.push(cluster);
    }
    let host = clusters[1].self_address().clone();
    (clusters, regions.swap_remove(0), host)
}

/// One id in each shard.
fn ids(region: &Region<Message>) -> Vec<String> {
    let mut shards = std::collections::BTreeMap::new();
    for id in 0..100 {
        shards.entry(region.shard_of(&id.to_string()).unwrap()).or_insert_with(|| id.to_string());
    }
    shards.into_values().collect()
}

/// The first message of a region to a shard goes through the owner's machine, which must not decode it under its lock.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn scenario_101_a_codec_that_waits_to_read_holds_up_its_own_shard_alone() {
    let door = Door::default();
    let (_clusters, region, _) = pair(&Odd::WaitsToRead(door.clone())).await;
    let ids = ids(&region);
    let slow = region.entity_ref(ids[0].as_str()).ask(Message::Odd).send();
    for id in &ids[1..] {
        assert_eq!(region.entity_ref(id.as_str()).ask(Message::Get).await, Ok(1), "while {:?} waits", ids[0]);
    }
    door.open();
    assert_eq!(slow.await, Ok(1));
}

/// The region asks the codec for a message's manifest before taking its lock, so that a slow codec holds up no other shard.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn scenario_101_a_codec_that_waits_to_name_a_message_holds_up_its_sender_alone() {
    let door = Door::default();
    let (_clusters, region, _) = pair(&Odd::WaitsToName(door.clone())).await;
    let ids = ids(&region);
    let to = region.entity_ref(ids[0].as_str());
    // No route is open yet, so the message goes through the machine.
    let slow = tokio::task::spawn_blocking(move || to.ask(Message::Odd).send());
    for id in &ids[1..] {
        assert_eq!(region.entity_ref(id.as_str()).ask(Message::Get).await, Ok(1), "while {:?} waits", ids[0]);
    }
    door.open();
    assert_eq!(slow.await.unwrap().await, Ok(1));
}

/// On an open route the manifest is computed before the route is entered: closing the route does not wait for the
/// codec.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn scenario_101_a_codec_that_waits_on_an_open_route_holds_up_no_flip() {
    let door = Door::default();
    let (clusters, region, host) = pair(&Odd::WaitsToName(door.clone())).await;
    let echo = region.entity_ref("1");
    assert_eq!(echo.ask(Message::Get).await, Ok(1));
    let shard = region.shard_of("1").unwrap();
    // The answer may have come before the route is published.
    while !region.is_routed(&shard) {
        tokio::task::yield_now().await;
    }
    let slow = tokio::task::spawn_blocking(move || echo.ask(Message::Odd).send());
    while door.1.load(Ordering::SeqCst) == 0 {
        tokio::task::yield_now().await;
    }
    clusters[0].leave(host).unwrap();
    let looking = tokio::task::spawn_blocking(move || {
        while region.is_routed(&shard) {
            std::thread::yield_now();
        }
        // The machine's lock is free, although the sender is still in the codec.
        region.counters()
    });
    let looked = tokio::time::timeout(PATIENCE / 3, looking).await;
    door.open();
    assert!(looked.is_ok(), "the region waits for a codec");
    drop(slow.await.unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scenario_101_a_codec_that_panics_on_a_peers_bytes_costs_that_message() {
    let (_clusters, region, host) = pair(&Odd::PanicsToRead).await;
    let echo = region.entity_ref("1");
    // Ask through the machine first, then past it.
    for _ in 0..3 {
        let unread = echo.ask(Message::Odd).await.unwrap_err();
        let message_type = std::any::type_name::<Message>().to_owned();
        assert_eq!(unread, AskError::Undecodable { message_type, node: host.clone() });
        assert_eq!(echo.ask(Message::Get).await, Ok(1));
    }
}

/// A node that has not joined keeps messages, until its buffer is full.
#[tokio::test]
async fn scenario_101_a_message_whose_destructor_tells_its_own_type_ends_like_any_other() {
    let remoting = MemoryNetwork::new().node("a:1#1".parse().unwrap(), Arc::new(Registry::new()));
    let cluster = Cluster::start(ClusterSettings::test(), remoting.clone()).await.unwrap();
    let settings = ShardingSettings { buffer_size: 1, ..ShardingSettings::test() };
    let sharding = Sharding::start(cluster, None, settings).await.unwrap();
    sharding.init(echoes().local_only()).unwrap();
    let (echo, dropped) = (sharding.entity_ref(ECHO, "1"), Arc::new(AtomicU64::new(0)));
    echo.tell(Message::Fail).unwrap();
    let sends_on_drop = || Message::SendsOnDrop(SendsOnDrop(echo.clone(), dropped.clone()));
    assert_eq!(echo.tell(sends_on_drop()), Err(SendError::BufferFull));
    assert_eq!(dropped.load(Ordering::Relaxed), 1);
    let letters = remoting.dead_letter_totals();
    assert_eq!(letters.get(&DeadLetterReason::BufferFull), Some(&2), "the message, and what its destructor told");
}

#[tokio::test]
async fn scenario_101_a_panic_of_what_describes_a_type_is_a_failure_of_one_entity() {
    let decider = Supervision { decider: Arc::new(|_| panic!("no idea")), ..Supervision::default() };
    let restarts = || Supervision::always(Directive::Restart);
    let types = [
        echoes().is_activity(|_| panic!("is that activity?")),
        echoes().supervision(decider),
        echoes().supervision(restarts()).stop_message(|| panic!("no stop message")),
    ];
    for entity_type in types {
        let region = alone(entity_type).await;
        let (one, other) = (region.entity_ref("one"), region.entity_ref("other"));
        for _ in 0..3 {
            one.tell(Message::Fail).unwrap();
            assert_eq!(one.ask(Message::Get).await, Ok(1), "it was restarted or stopped, and comes back");
            assert_eq!(other.ask(Message::Get).await, Ok(1));
        }
        tokio::time::timeout(PATIENCE, region.graceful_shutdown()).await.expect("its entities end");
    }
}
