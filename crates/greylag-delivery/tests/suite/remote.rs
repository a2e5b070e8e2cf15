//! Messages to entities of another node, over a network that refuses large messages like a real one.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use greylag_cluster::{Cluster, ClusterSettings};
use greylag_codec::json;
use greylag_core::{DeadLetterReason, Registry, ReplyTo};
use greylag_delivery::{
    ConsumerDelivery, Delivery, DeliveryEntity, DeliveryEvent, DeliveryHealth, DeliverySettings, DeliveryType,
    NodeDelivery, OnUndecodable, ProducerId, ProducerIdentity, SendError, ShardingProducer, StartError,
    UnreadableError, WithDelivery,
};
use greylag_sharding::{Ctx, EntityKey, EntityType, Failure, Region, Sharding, ShardingSettings};
use greylag_testkit::uid::fresh_uid;
use greylag_transport::QuarantineReason;
use greylag_transport::memory::MemoryNetwork;

const PATIENCE: Duration = Duration::from_secs(30);
/// Maximum bytes of a message of the ordinary lane. Source: cluster T5.
const LANE: usize = 256 << 10;

type Question = ReplyTo<Vec<(u64, String)>>;
type Message = WithDelivery<String, Question>;

const SHELF: EntityKey<String> = EntityKey::new("Shelf");

/// Keeps the length and the beginning of each delivery.
#[derive(Default)]
struct Shelf(Vec<(u64, String)>);

impl DeliveryEntity<String> for Shelf {
    type Bypass = Question;

    fn on_delivery(&mut self, delivery: Delivery<String>, _: &mut Ctx<'_, Message>) -> Result<(), Failure> {
        self.0.push((delivery.len() as u64, delivery.chars().take(10).collect()));
        delivery.confirm();
        Ok(())
    }

    fn on_bypass(&mut self, reply_to: Question, _: &mut Ctx<'_, Message>) -> Result<(), Failure> {
        reply_to.reply(self.0.clone());
        Ok(())
    }
}

fn shelves() -> EntityType<Message> {
    DeliveryType::of_both(SHELF, json("book"), json("shelf.question"), |_| Ok(Shelf::default())).role("library")
}

/// A node that hosts shelves, and a node that does not.
struct World {
    library: Sharding,
    readers: Sharding,
    delivery: ConsumerDelivery,
    region: Region<Message>,
}

/// Replicators are known per process, so no two nodes of these tests may have the same incarnation.
async fn within<F: IntoFuture>(future: F) -> F::Output {
    tokio::time::timeout(PATIENCE, future).await.expect("it takes too long")
}

async fn sharding(network: &MemoryNetwork, address: &str, roles: &[&str]) -> Sharding {
    sharding_with(network, address, roles, ShardingSettings::test()).await
}

async fn sharding_with(network: &MemoryNetwork, address: &str, roles: &[&str], settings: ShardingSettings) -> Sharding {
    let address = format!("{address}#{}", fresh_uid());
    let remoting = network.node(address.parse().unwrap(), Arc::new(Registry::new()));
    let roles = roles.iter().map(|role| (*role).to_owned()).collect();
    let cluster = Cluster::start(ClusterSettings { roles, ..ClusterSettings::test() }, remoting).await.unwrap();
    Sharding::start(cluster, None, settings).await.unwrap()
}

impl World {
    async fn new(consumer: &DeliverySettings, on_undecodable: OnUndecodable) -> Self {
        let network = MemoryNetwork::new();
        network.limit_ordinary_lanes(LANE);
        let library = sharding(&network, "library:1", &["library"]).await;
        let readers = sharding(&network, "readers:1", &[]).await;
        let mut consumer = consumer.clone();
        consumer.consumer.on_undecodable = on_undecodable;
        let node = NodeDelivery::of(&library, consumer).unwrap();
        library.init(shelves()).unwrap();
        let delivery = node.consumers(&SHELF).unwrap();
        let region = readers.init_proxy(shelves()).unwrap();
        for node in [&library, &readers] {
            let cluster = node.cluster().unwrap();
            cluster.join_seed_nodes(vec!["library:1".parse().unwrap()]).await.unwrap();
            cluster.wait_up().await.unwrap();
        }
        Self { library, readers, delivery, region }
    }

    fn producer(&self, settings: DeliverySettings) -> Result<ShardingProducer<String>, StartError> {
        let identity = ProducerIdentity::in_memory(ProducerId::new("reader").unwrap());
        ShardingProducer::start(&self.readers, identity, self.region.clone(), json::<String>("book"), settings)
    }

    async fn shelf(&self, id: &str) -> Vec<(u64, String)> {
        self.region.entity_ref(id).ask(WithDelivery::Bypass).timeout(PATIENCE).await.unwrap()
    }
}

fn text(len: usize) -> String {
    (b'a'..=b'z').cycle().take(len).map(char::from).collect()
}

/// delivery 88, K8: a message larger than any frame arrives whole, in order among small ones, and no frame exceeds the
/// lane's limit, since the network would refuse it.
#[tokio::test]
async fn a_message_larger_than_a_frame_arrives_whole() {
    let world = World::new(&DeliverySettings::test(), OnUndecodable::default()).await;
    let producer = world.producer(DeliverySettings::test()).unwrap();
    let lengths = [3, 1 << 20, 5, 128 << 10, (128 << 10) - 2, (8 << 20) + 1, 7];
    for len in lengths {
        producer.send("one", text(len)).await.unwrap();
    }
    producer.drain(PATIENCE).await.unwrap();
    let expected: Vec<(u64, String)> =
        lengths.iter().map(|len| (*len as u64, text(*len).chars().take(10).collect())).collect();
    assert_eq!(world.shelf("one").await, expected);
    assert_eq!(producer.stats().resent, 0, "nothing was refused and sent again");
}

/// delivery 88: messages of 300 KiB and of the maximum size arrive whole, a message one byte larger is refused with its
/// size and the limit, and fifty messages of 6 KiB to a new entity share batches. The network, which takes no frame
/// beyond the lane's limit, refuses none.
#[tokio::test]
async fn scenario_88_messages_of_every_size_arrive() {
    const LARGEST: usize = 64 << 20;
    let world = World::new(&DeliverySettings::test(), OnUndecodable::default()).await;
    let producer = world.producer(DeliverySettings::test()).unwrap();
    // JSON adds two quotes.
    let lengths = [300 << 10, LARGEST - 2];
    for len in lengths {
        producer.send("one", "x".repeat(len)).await.unwrap();
    }
    let refused = producer.send("one", "x".repeat(LARGEST - 1)).await.unwrap_err();
    let SendError::MessageTooLarge { message, size, max } = refused else { panic!("{refused}") };
    assert_eq!((message.len(), size, max), (LARGEST - 1, LARGEST + 1, LARGEST));
    drop(message);
    let fifty = (0..50).map(|_| producer.send("another", "y".repeat(6 << 10)));
    futures::future::try_join_all(fifty).await.unwrap();
    producer.drain(PATIENCE).await.unwrap();
    let shelf = world.shelf("one").await;
    assert!(shelf.iter().map(|(len, _)| *len).eq(lengths.map(|len| len as u64)));
    assert_eq!(world.shelf("another").await.len(), 50);
    let refused = [&world.readers, &world.library].map(|node| node.remoting().dead_letter_totals());
    assert_eq!(refused, [BTreeMap::new(), BTreeMap::new()], "nothing was refused");
}

/// delivery §9: a message too large for its receiver blocks its link, or is skipped, and affects nothing else.
#[tokio::test]
async fn a_message_that_is_too_large_for_its_reader_is_undecodable() {
    let mut small = DeliverySettings::test();
    small.producer.max_message_bytes = 1 << 20;
    let world = World::new(&small, OnUndecodable::Skip).await;
    let producer = world.producer(DeliverySettings::test()).unwrap();
    for len in [3, 2 << 20, 5] {
        producer.send("one", text(len)).await.unwrap();
    }
    producer.drain(PATIENCE).await.unwrap();
    let lengths: Vec<u64> = world.shelf("one").await.iter().map(|(len, _)| *len).collect();
    assert_eq!(lengths, [3, 5]);
    assert_eq!(world.delivery.counters().snapshot().undecodable, 1);
}

/// delivery §9, `surface`: the link is blocked, the message is shown with the reason and the kept bytes, and confirming
/// it unblocks the link.
#[tokio::test]
async fn an_undecodable_message_is_shown_until_it_is_confirmed() {
    let mut small = DeliverySettings::test();
    small.producer.max_message_bytes = 1 << 20;
    let world = World::new(&small, OnUndecodable::Surface).await;
    let mut events = world.delivery.events();
    let producer = world.producer(DeliverySettings::test()).unwrap();
    for len in [3, 2 << 20, 5] {
        producer.send("one", text(len)).await.unwrap();
    }
    let event = tokio::time::timeout(PATIENCE, events.next()).await.unwrap().unwrap();
    let DeliveryEvent::Undecodable { entity, id, error } = event else { panic!("{event:?}") };
    assert_eq!((&*entity, id.seq_nr.get()), ("one", 2));
    assert_eq!(error, UnreadableError::TooLarge { size: (2 << 20) + 2, max: 1 << 20 });
    assert_eq!(world.delivery.health(), DeliveryHealth::Degraded { undecodable: 1 });
    let waiting = world.delivery.undecodable();
    assert_eq!((waiting.len(), waiting[0].entity(), waiting[0].id()), (1, "one", &id));
    assert_eq!((waiting[0].error(), waiting[0].bytes().payload.len()), (&error, 128 << 10), "the first chunk was kept");
    assert_eq!(world.shelf("one").await, [(3, "abc".to_owned())], "what is behind it waits");
    waiting[0].confirm();
    producer.drain(PATIENCE).await.unwrap();
    let lengths: Vec<u64> = world.shelf("one").await.iter().map(|(len, _)| *len).collect();
    assert_eq!(lengths, [3, 5]);
    assert_eq!(world.delivery.health(), DeliveryHealth::Healthy);
    // A second confirmation has no effect.
    waiting[0].confirm();
}

/// delivery §9, `stop`: no frame of that producer is taken any more, and the entity serves the others.
#[tokio::test]
async fn an_undecodable_message_may_end_its_link() {
    let mut small = DeliverySettings::test();
    small.producer.max_message_bytes = 1 << 20;
    let world = World::new(&small, OnUndecodable::Stop).await;
    let mut eager = DeliverySettings::test();
    eager.producer.resend_first_interval = Duration::from_millis(20);
    eager.producer.resend_first_unconfirmed_idle_timeout = Duration::from_millis(20);
    let producer = world.producer(eager).unwrap();
    for len in [3, 2 << 20, 5] {
        producer.send("one", text(len)).await.unwrap();
    }
    let other = world.producer(DeliverySettings::test()).unwrap();
    other.send_confirmed("one", text(7)).await.unwrap();
    let resent = producer.stats().resent;
    let repeated = async {
        while producer.stats().resent < resent + 5 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, repeated).await.expect("its producer goes on repeating it");
    let lengths: Vec<u64> = world.shelf("one").await.iter().map(|(len, _)| *len).collect();
    assert_eq!(lengths, [3, 7]);
    assert_eq!(world.delivery.counters().snapshot().undecodable, 1, "no crash loop");
}

/// delivery 69: there is no coordinator, and the region's buffer is full of messages for other shards, so the first
/// frame finds no room. When there is room again, only another copy makes the region ask for the shard's home; it
/// follows after the probe's timeout and a half at most, and the message is delivered. Meanwhile there is at most one
/// attempt per timeout.
#[tokio::test]
async fn scenario_69_a_copy_that_found_no_room_in_the_region() {
    let network = MemoryNetwork::new();
    let full = ShardingSettings { buffer_size: 10, ..ShardingSettings::test() };
    let readers = sharding_with(&network, "readers:1", &[], full).await;
    let region = readers.init_proxy(shelves()).unwrap();
    readers.cluster().unwrap().join_seed_nodes(vec!["readers:1".parse().unwrap()]).await.unwrap();
    readers.cluster().unwrap().wait_up().await.unwrap();
    let of_another_shard = |id: &String| region.shard_of(id) != region.shard_of("one");
    let fillers: Vec<_> = (0..)
        .map(|number| format!("filler-{number}"))
        .filter(of_another_shard)
        .take(20)
        .map(|id| region.entity_ref(id).ask(WithDelivery::Bypass).timeout(PATIENCE).send())
        .collect();
    let timeout = Duration::from_millis(400);
    let mut settings = DeliverySettings::test();
    settings.producer.resend_first_interval = Duration::from_millis(20);
    settings.producer.resend_first_unconfirmed_idle_timeout = timeout;
    let identity = ProducerIdentity::in_memory(ProducerId::new("reader").unwrap());
    let producer =
        ShardingProducer::start(&readers, identity, region.clone(), json::<String>("book"), settings).unwrap();
    let started = tokio::time::Instant::now();
    producer.send("one", text(3)).await.unwrap();
    within(async {
        while producer.stats().resent < 2 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    let most = 1 + started.elapsed().as_millis() / timeout.as_millis();
    let attempts = u128::from(producer.stats().resent);
    assert!((1..=most).contains(&attempts), "{attempts} repeats, at most {most}");
    assert_eq!(producer.stats().confirmed, 0);
    // Without the region's event the producer sends a copy only after thirty probes, that is thirty times the timeout.
    assert!(started.elapsed() < timeout * 10, "the region's word brings the next copy");

    let _library = library_beside(&network, "readers:1").await;
    let joined = tokio::time::Instant::now();
    producer.drain(PATIENCE).await.unwrap();
    assert!(joined.elapsed() < timeout * 10, "and so it does once there is a home");
    let shelf = within(region.entity_ref("one").ask(WithDelivery::Bypass).timeout(PATIENCE)).await.unwrap();
    assert_eq!(shelf, [(3, "abc".to_owned())]);
    drop(fillers);
}

/// A node that hosts shelves, in the cluster of `seed`.
async fn library_beside(network: &MemoryNetwork, seed: &str) -> Sharding {
    let library = sharding(network, "library:1", &["library"]).await;
    NodeDelivery::of(&library, DeliverySettings::test()).unwrap();
    library.init(shelves()).unwrap();
    library.cluster().unwrap().join_seed_nodes(vec![seed.parse().unwrap()]).await.unwrap();
    library.cluster().unwrap().wait_up().await.unwrap();
    library
}

/// delivery S7, 93: a region that finds no host for its shards drops its buffered messages, and reports that. Another
/// copy follows at the interval of the probe; without the report it would follow after thirty probes, longer than this
/// test waits.
#[tokio::test]
async fn scenario_93_a_copy_that_the_region_dropped_is_replaced() {
    let network = MemoryNetwork::new();
    let impatient = ShardingSettings { no_host_timeout: Duration::from_millis(300), ..ShardingSettings::test() };
    let readers = sharding_with(&network, "readers:1", &[], impatient).await;
    let region = readers.init_proxy(shelves()).unwrap();
    readers.cluster().unwrap().join_seed_nodes(vec!["readers:1".parse().unwrap()]).await.unwrap();
    readers.cluster().unwrap().wait_up().await.unwrap();
    let mut settings = DeliverySettings::test();
    settings.producer.resend_first_unconfirmed_idle_timeout = PATIENCE / 15;
    let identity = ProducerIdentity::in_memory(ProducerId::new("reader").unwrap());
    let producer =
        ShardingProducer::start(&readers, identity, region.clone(), json::<String>("book"), settings).unwrap();
    producer.send("one", text(3)).await.unwrap();
    within(async {
        while !readers.remoting().dead_letter_totals().contains_key(&DeadLetterReason::NoHost) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    let _library = library_beside(&network, "readers:1").await;
    producer.drain(PATIENCE).await.expect("another copy has found its way");
    assert_eq!(producer.stats().confirmed, 1);
}

/// delivery S13: entities with links to producers of a node are told of the node's end.
#[tokio::test]
async fn links_end_with_the_node_of_their_producer() {
    let world = World::new(&DeliverySettings::test(), OnUndecodable::default()).await;
    let producer = world.producer(DeliverySettings::test()).unwrap();
    producer.send_confirmed("one", text(3)).await.unwrap();
    let links = || world.delivery.counters().snapshot().links;
    assert_eq!(links(), 1);
    let (readers, library) = (world.readers.remoting(), world.library.remoting());
    library.quarantine(readers.self_address(), QuarantineReason::RemovedFromMembership, true);
    let here = world.library.region(EntityKey::<Message>::new("Shelf")).unwrap();
    let ended = async {
        while links() > 0 {
            // An idle entity handles the news with its next message.
            here.entity_ref("one").ask(WithDelivery::Bypass).timeout(PATIENCE).await.unwrap();
        }
    };
    tokio::time::timeout(PATIENCE, ended).await.expect("the link ends");
}

/// delivery §9: a chunk size that leaves no room for the fields around a chunk is refused before anything is sent.
#[tokio::test]
async fn chunks_that_the_lane_does_not_carry_are_refused() {
    let world = World::new(&DeliverySettings::test(), OnUndecodable::default()).await;
    let mut settings = DeliverySettings::test();
    settings.producer.chunk_large_messages = LANE - (4 << 10) + 1;
    let refused = world.producer(settings).unwrap_err().to_string();
    assert!(refused.contains("chunk_large_messages"), "{refused}");
}
