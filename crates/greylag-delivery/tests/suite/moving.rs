//! Messages to entities of the producer's own node, entities that move to another node, and nodes that leave.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use greylag_cluster::{Cluster, ClusterSettings, ShutdownReason};
use greylag_codec::json;
use greylag_core::{Codec, CodecId, DecodeError, EncodeError, Manifest, Registry, UniqueAddress};
use greylag_delivery::{
    Dedupe, Delivery, DeliveryEntity, DeliverySettings, DeliveryType, NodeDelivery, ProducerId, ProducerIdentity,
    ShardingProducer, WithDelivery,
};
use greylag_sharding::allocation::{AllocationFailed, View};
use greylag_sharding::ids::{RegionId, ShardId};
use greylag_sharding::{
    AllocationStrategy, Ctx, EntityCtx, EntityKey, EntityType, Event, Failure, Region, RegionEvent, RegionState,
    Sharding, ShardingSettings,
};
use greylag_testkit::uid::fresh_uid;
use greylag_transport::memory::MemoryNetwork;
use serde::{Deserialize, Serialize};

const PATIENCE: Duration = Duration::from_secs(30);
/// Maximum bytes of a message of the ordinary lane. Source: cluster T5.
const LANE: usize = 256 << 10;
/// A timer that does not fire while a test runs.
const HOUR: Duration = Duration::from_secs(3600);

const SHELF: EntityKey<String> = EntityKey::new("Shelf");

type Message = WithDelivery<String, Stop>;

/// The stop message of a shelf (`Please`), and the message that ends its slow stop (`Now`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum Stop {
    Please,
    Now,
}

/// A message processed by a shelf: node, message number, and length.
type Processed = (UniqueAddress, u64, usize);

/// Behaviour of the shelves of all nodes, and a record of their actions.
#[derive(Default)]
struct Shelves {
    /// Shelves on this node keep their deliveries without confirming them.
    hold_at: Mutex<Option<UniqueAddress>>,
    /// Shelves on this node give every delivery up, to be tried again in an hour.
    back_off_at: Mutex<Option<UniqueAddress>>,
    given_back: AtomicUsize,
    held: Mutex<Vec<Delivery<String>>>,
    processed: Mutex<BTreeMap<String, Vec<Processed>>>,
    /// Whether a restarted shelf knows its processed messages, like an entity that persists them.
    remember: AtomicBool,
    marks: Mutex<BTreeMap<String, Dedupe>>,
    /// Stopped shelves, with their nodes and stop messages.
    stopped: Mutex<Vec<(String, UniqueAddress, Option<Stop>)>>,
}

impl Shelves {
    fn of(&self, id: &str) -> Vec<Processed> {
        lock(&self.processed).get(id).cloned().unwrap_or_default()
    }
}

fn lock<V>(mutex: &Mutex<V>) -> MutexGuard<'_, V> {
    mutex.lock().expect("no holder panics")
}

struct Shelf {
    id: String,
    all: Arc<Shelves>,
}

impl DeliveryEntity<String> for Shelf {
    type Bypass = Stop;

    fn on_start(&mut self, _: &mut Ctx<'_, Message>) -> Result<Dedupe, Failure> {
        Ok(lock(&self.all.marks).get(&self.id).cloned().unwrap_or_else(Dedupe::none))
    }

    fn on_delivery(&mut self, delivery: Delivery<String>, cx: &mut Ctx<'_, Message>) -> Result<(), Failure> {
        let node = cx.node().expect("it lives in a shard").clone();
        if *lock(&self.all.hold_at) == Some(node.clone()) {
            lock(&self.all.held).push(delivery);
            return Ok(());
        }
        if *lock(&self.all.back_off_at) == Some(node.clone()) {
            self.all.given_back.fetch_add(1, Ordering::Relaxed);
            delivery.nack(HOUR);
            return Ok(());
        }
        let total = delivery.seq_nr();
        lock(&self.all.processed).entry(self.id.clone()).or_default().push((node, total.get(), delivery.len()));
        if self.all.remember.load(Ordering::Relaxed) {
            let mut marks = lock(&self.all.marks);
            marks.entry(self.id.clone()).or_insert_with(Dedupe::none).insert(delivery.id().stream_id, total);
        }
        delivery.confirm();
        Ok(())
    }

    fn on_bypass(&mut self, stop: Stop, cx: &mut Ctx<'_, Message>) -> Result<(), Failure> {
        if stop == Stop::Now {
            cx.stop();
        }
        Ok(())
    }

    fn on_stop(&mut self, stop: Option<Stop>, cx: &mut Ctx<'_, Message>) -> Result<(), Failure> {
        let node = cx.node().expect("it lives in a shard").clone();
        lock(&self.all.stopped).push((self.id.clone(), node, stop));
        cx.spawn(tokio::time::sleep(Duration::from_millis(300)), |()| WithDelivery::Bypass(Stop::Now));
        Ok(())
    }
}

/// A JSON codec that counts encoded messages.
#[derive(Clone, Default)]
struct CountingCodec(Arc<AtomicUsize>);

impl CountingCodec {
    fn encoded(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

impl Codec<String> for CountingCodec {
    fn id(&self) -> CodecId {
        CodecId::JSON
    }

    fn manifest(&self, _: &String) -> Manifest {
        Manifest::from_static("book")
    }

    fn manifests(&self) -> Vec<Manifest> {
        vec![Manifest::from_static("book")]
    }

    fn encode(&self, book: &String, buffer: &mut BytesMut) -> Result<(), EncodeError> {
        self.0.fetch_add(1, Ordering::Relaxed);
        json::<String>("book").encode(book, buffer)
    }

    fn decode(&self, manifest: &str, bytes: Bytes) -> Result<String, DecodeError> {
        json::<String>("book").decode(manifest, bytes)
    }

    fn size_hint(&self, book: &String) -> usize {
        json::<String>("book").size_hint(book)
    }
}

/// Places shards on the node chosen by the test, and moves the chosen shards.
#[derive(Clone, Default)]
struct ManualAllocation(Arc<Mutex<(Option<UniqueAddress>, BTreeSet<ShardId>)>>);

impl ManualAllocation {
    fn place(&self, node: &UniqueAddress) {
        lock(&self.0).0 = Some(node.clone());
    }

    fn move_to(&self, shard: ShardId, node: &UniqueAddress) {
        *lock(&self.0) = (Some(node.clone()), [shard].into());
    }
}

#[async_trait]
impl AllocationStrategy for ManualAllocation {
    async fn allocate(&self, _: &ShardId, _: Option<&RegionId>, view: &View) -> Result<RegionId, AllocationFailed> {
        let wanted = lock(&self.0).0.clone();
        let found = view.regions.iter().find(|region| Some(&region.region.node) == wanted.as_ref());
        found.map(|region| region.region.clone()).ok_or_else(|| AllocationFailed("it is not there".to_owned()))
    }

    async fn rebalance(&self, _: &View, _: &BTreeSet<ShardId>) -> Result<BTreeSet<ShardId>, AllocationFailed> {
        Ok(std::mem::take(&mut lock(&self.0).1))
    }
}

/// Replicators are known per process, so no two nodes of these tests may have the same incarnation.
struct World {
    network: MemoryNetwork,
    codec: CountingCodec,
    shelves: Arc<Shelves>,
    /// The allocation strategy chosen by the test; without one, shards are balanced.
    allocation: Option<ManualAllocation>,
}

struct Node {
    address: UniqueAddress,
    sharding: Sharding,
    region: Region<Message>,
}

impl World {
    fn new(allocation: Option<ManualAllocation>) -> Self {
        let network = MemoryNetwork::new();
        network.limit_ordinary_lanes(LANE);
        Self { network, codec: CountingCodec::default(), shelves: Arc::default(), allocation }
    }

    fn shelf_type(&self) -> EntityType<Message> {
        let shelves = self.shelves.clone();
        let shelves = DeliveryType::of_both(SHELF, self.codec.clone(), json("shelf.stop"), move |init| {
            Ok(Shelf { id: init.id.as_str().to_owned(), all: shelves.clone() })
        });
        let shelves = shelves.stop_message(|| WithDelivery::Bypass(Stop::Please));
        match &self.allocation {
            Some(allocation) => shelves.allocation(allocation.clone()),
            None => shelves,
        }
    }

    /// Starts a member of the cluster of the node `one:1`.
    async fn node(&self, address: &str) -> Node {
        let address = format!("{address}#{}", fresh_uid());
        let address: UniqueAddress = address.parse().expect("an address");
        let remoting = self.network.node(address.clone(), Arc::new(Registry::new()));
        let cluster = Cluster::start(ClusterSettings::test(), remoting).await.expect("it starts");
        // Unless the test moves shards, they stay: the next rebalance comes in an hour.
        let rebalance_interval = Duration::from_millis(if self.allocation.is_some() { 50 } else { 3_600_000 });
        let settings = ShardingSettings { rebalance_interval, ..ShardingSettings::test() };
        let sharding = Sharding::start(cluster.clone(), None, settings).await.expect("it starts");
        NodeDelivery::of(&sharding, DeliverySettings::test()).expect("valid settings");
        let region = sharding.init(self.shelf_type()).expect("fresh");
        cluster.join_seed_nodes(vec!["one:1".parse().expect("an address")]).await.expect("it joins");
        cluster.wait_up().await.expect("it is up");
        Node { address, sharding, region }
    }

    fn producer(&self, node: &Node) -> ShardingProducer<String> {
        self.producer_with(node, DeliverySettings::test())
    }

    fn producer_with(&self, node: &Node, settings: DeliverySettings) -> ShardingProducer<String> {
        let identity = ProducerIdentity::in_memory(ProducerId::new("reader").expect("a name"));
        let region = node.region.clone();
        ShardingProducer::start(&node.sharding, identity, region, self.codec.clone(), settings).expect("valid settings")
    }
}

async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let waiting = async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, waiting).await.unwrap_or_else(|_| panic!("{what}"));
}

fn text(len: usize) -> String {
    (b'a'..=b'z').cycle().take(len).map(char::from).collect()
}

/// Messages that the node could not encode, or that are too large for its lanes.
fn unwritten(node: &Node) -> u64 {
    use greylag_core::DeadLetterReason::{SerializeFailed, TooLarge};
    let dead = node.sharding.remoting().dead_letter_totals();
    [SerializeFailed, TooLarge].iter().filter_map(|reason| dead.get(reason)).sum()
}

/// delivery K7: a message to an entity of the same node is never encoded, whatever its size, whether sent before the
/// entity's shard is hosted there or after.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deliveries_of_the_same_node_are_not_encoded() {
    let allocation = ManualAllocation::default();
    let world = World::new(Some(allocation.clone()));
    let (one, two) = (world.node("one:1").await, world.node("two:1").await);
    allocation.place(&one.address);
    let producer = world.producer(&one);
    for number in 0..300 {
        producer.send(format!("{}", number % 30), text(number * 997 % 3000)).await.expect("it is open");
    }
    producer.send("0", text(5 << 20)).await.expect("it is open");
    producer.drain(PATIENCE).await.expect("everything is confirmed");
    assert_eq!(lock(&world.shelves.processed).values().map(Vec::len).sum::<usize>(), 301);
    assert_eq!(world.codec.encoded(), 0);
    // A message to another node, as a check of the counter.
    let away = world.producer(&two);
    away.send_confirmed("0", text(10)).await.expect("it is open");
    assert_eq!(world.codec.encoded(), 1);
}

/// delivery 70.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scenario_70_local_large_moved() {
    let allocation = ManualAllocation::default();
    let world = World::new(Some(allocation.clone()));
    let (one, two) = (world.node("one:1").await, world.node("two:1").await);
    allocation.place(&one.address);
    *lock(&world.shelves.hold_at) = Some(one.address.clone());
    let producer = world.producer(&one);
    let lengths = [1 << 20, 5, 200 << 10];
    for len in lengths {
        producer.send("a", text(len)).await.expect("it is open");
    }
    until("the first one is outstanding", || !lock(&world.shelves.held).is_empty()).await;
    assert_eq!(world.codec.encoded(), 0);
    allocation.move_to(one.region.shard_of("a").expect("an id"), &two.address);
    // The first incarnation gives up all its deliveries each time it gets one.
    until("everything is processed on the other node", || {
        lock(&world.shelves.held).clear();
        world.shelves.of("a").len() == 3
    })
    .await;
    producer.drain(PATIENCE).await.expect("everything is confirmed");
    let expected: Vec<Processed> = (1..).zip(lengths).map(|(total, len)| (two.address.clone(), total, len)).collect();
    assert_eq!(world.shelves.of("a"), expected, "under the numbers that they had");
    assert_eq!(world.codec.encoded(), 3, "each once");
    assert_eq!(unwritten(&one), 0, "nothing was refused on the way");
}

/// delivery K7: an entity that moves to and fro under traffic gets every message once and in order, and no message is
/// encoded twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_moving_entity_gets_everything_once_and_in_order() {
    let allocation = ManualAllocation::default();
    let world = World::new(Some(allocation.clone()));
    let (one, two) = (world.node("one:1").await, world.node("two:1").await);
    allocation.place(&one.address);
    world.shelves.remember.store(true, Ordering::Relaxed);
    let producer = world.producer(&one);
    let sender = producer.clone();
    let moving = Arc::new(AtomicBool::new(true));
    let goes_on = moving.clone();
    let sending = tokio::spawn(async move {
        let mut sent = 0;
        while goes_on.load(Ordering::Relaxed) {
            let len = if sent % 50 == 49 { 300 << 10 } else { sent % 1000 };
            sender.send("a", text(len)).await.expect("it is open");
            sent += 1;
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        sent
    });
    let shard = one.region.shard_of("a").expect("an id");
    for home in [&two, &one, &two, &one] {
        let before = world.shelves.of("a").len();
        until("traffic flows", || world.shelves.of("a").len() > before + 20).await;
        allocation.move_to(shard.clone(), &home.address);
        until("it has moved", || world.shelves.of("a").last().is_some_and(|(node, ..)| *node == home.address)).await;
    }
    moving.store(false, Ordering::Relaxed);
    let sent = sending.await.expect("no panic");
    producer.drain(PATIENCE).await.expect("everything is confirmed");
    let totals: Vec<u64> = world.shelves.of("a").iter().map(|(_, total, _)| *total).collect();
    assert_eq!(totals, (1..=sent as u64).collect::<Vec<_>>());
    let homes: BTreeSet<UniqueAddress> = world.shelves.of("a").into_iter().map(|(node, ..)| node).collect();
    assert_eq!(homes, [one.address.clone(), two.address.clone()].into());
    assert!(world.codec.encoded() < sent, "{} of {sent}", world.codec.encoded());
    assert_eq!((unwritten(&one), unwritten(&two)), (0, 0));
}

/// delivery 95: deliveries in back-off do not delay the hand-off of their shard. Their producers, on either node, are
/// told at once and start over at the next owner: every pause and probe takes at least an hour.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scenario_95_a_delivery_in_back_off_does_not_delay_a_hand_off() {
    let allocation = ManualAllocation::default();
    let world = World::new(Some(allocation.clone()));
    let (one, two) = (world.node("one:1").await, world.node("two:1").await);
    allocation.place(&one.address);
    *lock(&world.shelves.back_off_at) = Some(one.address.clone());
    let mut settings = DeliverySettings::test();
    settings.producer.resend_first_unconfirmed_idle_timeout = HOUR;
    let producers = [world.producer_with(&one, settings.clone()), world.producer_with(&two, settings)];
    for producer in &producers {
        for len in [1, 2] {
            producer.send("a", text(len)).await.expect("it is open");
        }
    }
    until("the first of each is given back", || world.shelves.given_back.load(Ordering::Relaxed) == 2).await;
    allocation.move_to(one.region.shard_of("a").expect("an id"), &two.address);
    for producer in &producers {
        producer.drain(PATIENCE).await.expect("everything is processed by the next owner");
    }
    let mut processed = world.shelves.of("a");
    processed.sort();
    let expected = [1, 1, 2, 2].map(|total| (two.address.clone(), total, total as usize));
    assert_eq!(processed, expected);
    assert_eq!(world.shelves.given_back.load(Ordering::Relaxed), 2, "none was tried again where it was");
}

/// delivery 59: the oldest of two nodes leaves. Its shelves get the type's own stop message and stop slowly; its region
/// ends before another node is coordinator. Messages sent meanwhile are processed, and messages confirmed before are
/// not handed out again, although the shelves do not remember them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scenario_59_hand_off() {
    const IDS: usize = 20;
    let world = World::new(None);
    let (one, two) = (world.node("one:1").await, world.node("two:1").await);
    let (local, remote) = (world.producer(&one), world.producer(&two));
    for id in 0..IDS {
        local.send_confirmed(id.to_string(), text(1)).await.expect("it is open");
        remote.send_confirmed(id.to_string(), text(2)).await.expect("it is open");
    }
    let lived_on = |node: &Node| {
        let mut ids: Vec<usize> =
            (0..IDS).filter(|id| world.shelves.of(&id.to_string())[0].0 == node.address).collect();
        ids.sort_unstable();
        ids
    };
    let leaving = lived_on(&one);
    assert!(!leaving.is_empty() && leaving.len() < IDS, "both nodes host shelves: {leaving:?}");
    let mut events = two.region.subscribe();
    let cluster = one.sharding.cluster().expect("it has one").clone();
    let left = tokio::spawn(async move { cluster.shutdown().await });
    for id in 0..IDS {
        remote.send(id.to_string(), text(3)).await.expect("it is open");
    }
    let next_coordinator = async {
        loop {
            let event = events.next().await.expect("the region is there");
            if matches!(&event, Event::Region(RegionEvent::Registered { coordinator, .. }) if *coordinator == two.address)
            {
                break;
            }
        }
    };
    tokio::time::timeout(PATIENCE, next_coordinator).await.expect("the coordinator moves");
    assert_eq!(one.region.state(), RegionState::Stopped, "the region ended before");
    remote.drain(PATIENCE).await.expect("the new messages are processed");
    assert_eq!(tokio::time::timeout(PATIENCE, left).await.expect("it ends").expect("no panic"), ShutdownReason::Left);
    for id in 0..IDS {
        let lengths: Vec<usize> = world.shelves.of(&id.to_string()).iter().map(|(.., len)| *len).collect();
        assert_eq!(lengths, [1, 2, 3], "shelf {id}");
    }
    let mut stopped: Vec<usize> = Vec::new();
    for (id, node, stop) in &*lock(&world.shelves.stopped) {
        assert_eq!((node, stop), (&one.address, &Some(Stop::Please)), "shelf {id}");
        stopped.push(id.parse().expect("a number"));
    }
    stopped.sort_unstable();
    assert_eq!(stopped, leaving, "each once");
}
