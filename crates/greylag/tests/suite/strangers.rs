//! A process that is no member sends every message of every layer to a node that runs all layers, and then a member
//! does: each message once with all its fields at one extreme, and once for each field at its maximum.

#[path = "../../../../attack/src/schema.rs"]
mod schema;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use greylag::cluster::{self, Cluster, ClusterEvent, ClusterSettings, Downing, MemberStatus, SbrSettings};
use greylag::codec::json;
use greylag::crdt::GCounter;
use greylag::ddata::{Key, ReadLevel, Replicator, TypeTable, WriteLevel};
use greylag::persistence::{Ctx, Effect, EventSourced, Stores};
use greylag::prelude::*;
use greylag::sharding::error::ReadError;
use greylag::sharding::horizon::Horizon;
use greylag::sharding::{EntityKey, EntityType, Region, wire};
use greylag::transport::{Destination, Envelope, GrpcTransport, Recipient, Remoting, SendError, TransportSettings};
use greylag_core::{CodecId, DeadLetterReason, Registry, UniqueAddress};

const LONG: Duration = Duration::from_secs(60);

/// A sum; adding 0 only reads it.
struct Customer;

type Command = (u64, ReplyTo<u64>);

impl EventSourced for Customer {
    type Command = Command;
    type Event = u64;
    type State = u64;

    fn on_command(&mut self, _: &mut Ctx<'_, Command>, sum: &u64, (by, to): Command) -> Effect<Self> {
        if by == 0 {
            return Effect::<Self>::reply(to, *sum);
        }
        Effect::<Self>::persist(by).then_reply(to, |sum| *sum)
    }

    fn apply(sum: &mut u64, by: &u64) {
        *sum += by;
    }
}

/// A node that runs membership, a coordinator (a singleton), a region, entities with a journal, and a replicator.
struct Shop {
    node: Node,
    customers: Region<Command>,
    replicator: Replicator,
    visits: Key<GCounter>,
}

impl Shop {
    async fn open() -> Self {
        let settings = |settings: &mut NodeSettings| settings.sharding.allow_local_journal = true;
        let builder = Node::builder("shop").bind("127.0.0.1", 0).stores(Stores::in_memory()).configure(settings);
        let node = builder.start().await.expect("a cluster of one");
        let customers =
            EntityType::event_sourced(EntityKey::new("Customer"), |_| Ok(Customer)).events(json("added")).local_only();
        let customers = node.sharding().init(customers).expect("it is set up");
        let mut types = TypeTable::new();
        types.add::<GCounter>();
        let replicator = node.replicator(types).expect("it is the only one");
        Self { node, customers, replicator, visits: Key::new("visits").expect("a name") }
    }

    async fn add(&self, customer: &str, by: u64) -> u64 {
        self.customers.entity_ref(customer).ask(|to| (by, to)).timeout(LONG).await.expect("it answers")
    }

    async fn visit(&self) {
        let visit = self
            .replicator
            .update(&self.visits, WriteLevel::Local, GCounter::new, |visits, cx| visits.increment(cx, 1));
        visit.await.expect("it is taken");
    }

    async fn visits(&self) -> Option<u128> {
        let read = self.replicator.get(&self.visits, ReadLevel::Local).await.expect("it is served");
        read.found().map(|visits| visits.value())
    }

    /// All that foreign messages could have changed: members, tombstones, and the values of a customer and a counter.
    async fn facts(&self) -> (Vec<(UniqueAddress, MemberStatus, u32)>, usize, u64, Option<u128>) {
        let view = self.node.cluster().view();
        let members = view.members.iter();
        let members = members.map(|member| (member.address.clone(), member.status, member.up_number)).collect();
        (members, view.tombstones.len(), self.add("a", 0).await, self.visits().await)
    }

    fn dropped(&self) -> BTreeMap<DeadLetterReason, u64> {
        let mut dropped = BTreeMap::new();
        for (key, count) in self.node.transport().stats().dead_letters {
            *dropped.entry(key.reason).or_default() += count;
        }
        dropped
    }

    /// Count of messages of this process that were dropped for this reason.
    fn dropped_of(&self, process: &UniqueAddress, reason: DeadLetterReason) -> u64 {
        let letters = self.node.transport().stats().dead_letters.into_iter();
        let own = letters.filter(|(key, _)| key.reason == reason && key.peer.as_ref() == Some(process.address()));
        own.map(|(_, count)| count).sum()
    }
}

/// A process with a transport of the same cluster, and nothing else.
async fn outsider() -> Arc<GrpcTransport> {
    let settings = TransportSettings { dead_letter_log_rate: 0, ..TransportSettings::test() };
    let settings = TransportSettings { cluster_name: "shop".to_owned(), ..settings };
    GrpcTransport::bind(settings, Arc::new(Registry::new())).await.expect("it listens")
}

/// Sends every message to `to`, in order, and waits until all were taken there; answers the sent messages.
async fn say_everything(from: &Arc<GrpcTransport>, to: &UniqueAddress) -> Vec<schema::Message> {
    let mut sent = Vec::new();
    let destination = Destination::Incarnation(to.clone());
    for message in schema::messages(to, from.self_address()) {
        let recipient = Recipient::new(message.path.clone());
        let envelope = Envelope::new(recipient, CodecId::INTERNAL, message.manifest, message.payload.clone());
        match from.send_async(&destination, envelope, Some(LONG)).await {
            Ok(()) => sent.push(message),
            // A message too large for the lane does not leave its process.
            Err(rejected) => assert!(matches!(rejected.error, SendError::TooLarge { .. }), "{}", rejected.error),
        }
    }
    let (done, taken) = tokio::sync::oneshot::channel();
    from.flush(to, Box::new(move || done.send(()).unwrap_or_default()));
    tokio::time::timeout(LONG, taken).await.expect("all of it is taken").expect("it is said once");
    sent
}

/// Why the membership of `target` drops a message to the recipient that is open to strangers; `None` if it takes it.
fn refusal(target: &UniqueAddress, said: &schema::Message, is_member: bool) -> Option<DeadLetterReason> {
    use cluster::Message::{ExitingConfirmed, GossipStatus, HeartbeatRsp};
    match cluster::Message::from_bytes(said.manifest, said.payload.clone()) {
        Err(_) => Some(DeadLetterReason::Undecodable),
        Ok(ExitingConfirmed { .. } | HeartbeatRsp { .. }) if !is_member => Some(DeadLetterReason::NotAMember),
        Ok(GossipStatus { to, .. }) if to == *target && !is_member => Some(DeadLetterReason::NotAMember),
        Ok(GossipStatus { to, version, .. }) if to == *target && version.iter().any(|(_, count)| count == u64::MAX) => {
            Some(DeadLetterReason::BeyondReach)
        }
        // Taken: questions of joining nodes, probes, heartbeats; and gossip, which here is always of another cluster.
        Ok(_) => None,
    }
}

/// Whether sharding refuses a message on its control path because no coordinator can have reached one of its numbers.
fn is_beyond_sharding(said: &schema::Message) -> bool {
    let wall_secs = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
    let read = || wire::decode(said.manifest, said.payload.clone(), Horizon::after(wall_secs));
    said.path == "control/sharding/Customer" && matches!(read(), Err(ReadError::BeyondReach(_)))
}

/// Counts of the messages that the membership drops, by reason.
fn refusals(target: &UniqueAddress, said: &[schema::Message], is_member: bool) -> BTreeMap<DeadLetterReason, u64> {
    let mut counts = BTreeMap::new();
    for reason in said.iter().filter(|said| is_open(&said.path)).filter_map(|said| refusal(target, said, is_member)) {
        *counts.entry(reason).or_default() += 1;
    }
    counts
}

async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let come = async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(LONG, come).await.unwrap_or_else(|_| panic!("{what} does not come about"));
}

/// Whether this recipient is open to strangers, for joins and probes. The membership machine judges its messages.
fn is_open(path: &str) -> bool {
    path == "control/cluster"
}

/// Scenario cluster 77, all layers in one: each message of a stranger is counted as `NotAMember`, and nothing changes;
/// a member's messages are refused and counted where their numbers are beyond reach, and everything goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scenario_77_every_message_of_every_layer() {
    let shop = Shop::open().await;
    assert_eq!((shop.add("a", 5).await, shop.add("b", 3).await), (5, 3));
    shop.visit().await;
    let (facts, target) = (shop.facts().await, shop.node.unique_address().clone());

    let stranger = outsider().await;
    let before = shop.dropped();
    let sent = say_everything(&stranger, &target).await;
    let closed = sent.iter().filter(|said| !is_open(&said.path)).count() as u64;
    let paths: BTreeSet<&str> = sent.iter().map(|said| said.path.as_str()).collect();
    for path in [
        "control/watch",
        "control/bootstrap",
        "control/singleton/sharding-Customer",
        "ddata/sharding",
        "bulk/ddata/sharding",
        "control/sharding/Customer",
        "sharding-direct/Customer",
        "delivery/0",
    ] {
        assert!(paths.contains(path), "{path} of {paths:?}");
    }
    assert!(paths.len() > 12 && closed > 5_000, "{closed} to {paths:?}");
    let refused = || shop.dropped_of(stranger.self_address(), DeadLetterReason::NotAMember);
    until("the last refusal", || refused() >= closed).await;
    assert_eq!(refused(), closed, "{:?}", shop.dropped());
    // Messages that the machine refused are counted under the reason that it gives.
    let dropped = |before: &BTreeMap<_, u64>, reason| {
        shop.dropped().get(&reason).unwrap_or(&0) - before.get(&reason).unwrap_or(&0)
    };
    let by_machine = refusals(&target, &sent, false);
    assert!(by_machine[&DeadLetterReason::NotAMember] > 50, "{by_machine:?}");
    for (reason, count) in &by_machine {
        let all = if *reason == DeadLetterReason::NotAMember { closed + count } else { *count };
        until("what the membership refused", || dropped(&before, *reason) >= all).await;
        assert_eq!(dropped(&before, *reason), all, "{reason:?}: {:?}", shop.dropped());
    }
    assert_eq!(dropped(&before, DeadLetterReason::MailboxFull), 0);
    assert_eq!(shop.facts().await, facts);
    assert_eq!(shop.replicator.stats().await.expect("it runs").from_strangers, 0, "none came so far");
    assert_eq!(shop.node.transport().stats().malformed_frames, 0);

    let outsider = outsider().await;
    let remoting: Arc<dyn Remoting> = outsider.clone();
    let downing = Downing::SplitBrainResolver(SbrSettings::default());
    let settings = ClusterSettings { downing, ..ClusterSettings::default() };
    let member = Cluster::start_on(outsider.control_runtime(), settings, remoting).await.unwrap();
    member.join_seed_nodes(vec![target.address().clone()]).await.expect("it may join");
    tokio::time::timeout(LONG, member.wait_up()).await.expect("it is up").expect("it stays");
    let is_known =
        |shop: &Shop| shop.node.cluster().view().members.iter().filter(|m| m.status == MemberStatus::Up).count() == 2;
    until("both are up", || is_known(&shop)).await;
    let mut events = shop.node.cluster().subscribe();
    let (facts, before) = (shop.facts().await, shop.dropped());
    let sent = say_everything(&outsider, &target).await;
    // A member's gossip is taken on the chatter lane, too, which is closed to strangers.
    let is_beyond = |said: &&schema::Message| {
        refusal(&target, said, true) == Some(DeadLetterReason::BeyondReach) || is_beyond_sharding(said)
    };
    assert!(sent.iter().any(is_beyond_sharding));
    let beyond = sent.iter().filter(is_beyond).count() as u64;
    assert!(beyond > 0);
    until("numbers beyond reach", || dropped(&before, DeadLetterReason::BeyondReach) >= beyond).await;
    assert_eq!(dropped(&before, DeadLetterReason::BeyondReach), beyond, "{:?}", shop.dropped());
    assert_eq!(shop.facts().await, facts);
    // The node works as before: its customers, and the counter.
    assert_eq!((shop.add("a", 2).await, shop.add("b", 4).await), (7, 7));
    shop.visit().await;
    assert_eq!(shop.visits().await, Some(2));
    while let Ok(Some(event)) = tokio::time::timeout(Duration::from_millis(1), events.next()).await {
        assert!(!matches!(event, ClusterEvent::UnreachableMember(_) | ClusterEvent::MemberDowned(_)), "{event:?}");
    }
    // The member registered a region, so it may have got shards, which come back when it leaves.
    member.shutdown().await;
    assert_eq!(shop.add("c", 3).await, 3);
    assert!(shop.node.cluster().ended().is_none());
}
