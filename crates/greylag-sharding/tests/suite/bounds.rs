//! Sharding scenario 105: the messages that wait for a stuck entity are bounded in number and bytes, and further ones
//! become dead letters.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use greylag_cluster::{Cluster, ClusterSettings};
use greylag_codec::json;
use greylag_core::{DeadLetterReason, Registry, ReplyTo};
use greylag_sharding::{
    AskError, Ctx, DirectRef, Entity, EntityCtx, EntityKey, EntityType, Failure, Region, SendError, Sharding,
    ShardingSettings,
};
use greylag_testkit::uid::fresh_uid;
use greylag_transport::memory::MemoryNetwork;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Longer than any test, so that an unanswered ask ends with the test.
const PATIENCE: Duration = Duration::from_secs(600);
/// Messages sent to an entity that handles none.
const FLOOD: usize = 3_000;
const KIB: usize = 1024;

/// Loads decoded and not dropped, and the maximum at a time.
static LIVE: AtomicUsize = AtomicUsize::new(0);
static MOST: AtomicUsize = AtomicUsize::new(0);

/// Text that is counted when it is decoded.
struct Load {
    text: String,
    is_counted: bool,
}

impl Serialize for Load {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.text.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Load {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        MOST.fetch_max(LIVE.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        Ok(Self { text, is_counted: true })
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        if self.is_counted {
            LIVE.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

#[derive(Serialize, Deserialize)]
enum Message {
    /// Makes the entity handle nothing from here on.
    Wait(ReplyTo<()>),
    Carry(Load, ReplyTo<()>),
}

const CRATE: EntityKey<Message> = EntityKey::new("Crate");

struct Waits;

impl Entity for Waits {
    type Message = Message;

    fn receive(&mut self, message: Message, cx: &mut Ctx<'_, Message>) -> Result<(), Failure> {
        match message {
            Message::Wait(begun) => {
                begun.reply(());
                cx.suspend(std::future::pending::<()>(), |()| unreachable!("it waits for ever"))?;
            }
            Message::Carry(_, done) => done.reply(()),
        }
        Ok(())
    }
}

/// Two nodes, of which the first hosts; returns the region of the other one.
async fn region(settings: ShardingSettings) -> (Vec<Cluster>, Region<Message>) {
    let network = MemoryNetwork::new();
    let mut clusters = Vec::new();
    let mut regions = Vec::new();
    for (host, role) in [("a", "host"), ("b", "asker")] {
        let address = format!("{host}:1#{}", fresh_uid());
        let remoting = network.node(address.parse().unwrap(), Arc::new(Registry::new()));
        let cluster = Cluster::start(ClusterSettings::test().with_roles([role]), remoting).await.unwrap();
        let sharding = Sharding::start(cluster.clone(), None, settings.clone()).await.unwrap();
        let crates = EntityType::new(CRATE, |_| Ok(Waits)).codec(json("crate")).role("host");
        regions.push(sharding.init(crates).unwrap());
        cluster.join_seed_nodes(vec!["a:1".parse().unwrap()]).await.unwrap();
        cluster.wait_up().await.unwrap();
        clusters.push(cluster);
    }
    (clusters, regions.pop().expect("two"))
}

/// Asks an entity that waits for ever, until all but `kept` asks have heard that their message was dropped; returns the
/// maximum number of messages alive at the host.
async fn flood(settings: ShardingSettings, kept: usize) -> usize {
    let (_clusters, crates) = region(settings).await;
    let entity = crates.entity_ref("1");
    entity.ask(Message::Wait).timeout(PATIENCE).await.unwrap();
    LIVE.store(0, Ordering::SeqCst);
    MOST.store(0, Ordering::SeqCst);
    let carry = |done| Message::Carry(Load { text: "x".repeat(KIB), is_counted: false }, done);
    let mut asks: FuturesUnordered<_> = (0..FLOOD).map(|_| entity.ask(carry).timeout(PATIENCE).send()).collect();
    for _ in 0..FLOOD - kept {
        let answer = asks.next().await.expect("there are more");
        let full = [DeadLetterReason::EntityMailboxFull, DeadLetterReason::ShardInboxFull];
        assert!(full.into_iter().any(|reason| answer == Err(AskError::Dropped(reason))), "{answer:?}");
    }
    MOST.load(Ordering::SeqCst)
}

/// The places are the mailbox of the entity, the inbox of its shard, and the batch that the shard's task has taken from
/// the inbox.
#[tokio::test]
async fn scenario_105_remote_traffic_to_an_entity_that_waits_costs_dead_letters_and_no_memory() {
    let room = 200;
    let by_number =
        ShardingSettings { entity_mailbox_capacity: room, shard_inbox_capacity: room, ..ShardingSettings::test() };
    let most = flood(by_number, room).await;
    assert!((room..=3 * room + 10).contains(&most), "{most} messages of {room} in each of three places");

    let by_bytes = ShardingSettings {
        entity_mailbox_bytes: room * KIB,
        shard_inbox_bytes: room * KIB,
        ..ShardingSettings::test()
    };
    let most = flood(by_bytes, room).await;
    assert!((room / 2..=3 * room + 10).contains(&most), "{most} messages of a KiB in three places of {room} KiB");
}

/// A message that is alive as long as its counter has a second owner.
enum Direct {
    Address(ReplyTo<Option<DirectRef>>),
    Carry(#[expect(dead_code, reason = "it is counted")] Arc<()>),
}

struct Reachable;

impl Entity for Reachable {
    type Message = Direct;

    fn receive(&mut self, message: Direct, cx: &mut Ctx<'_, Direct>) -> Result<(), Failure> {
        if let Direct::Address(answer) = message {
            answer.reply(cx.direct_ref());
            cx.suspend(std::future::pending::<()>(), |()| unreachable!("it waits for ever"))?;
        }
        Ok(())
    }
}

#[tokio::test]
async fn scenario_105_direct_messages_are_bounded_too() {
    let by_number =
        ShardingSettings { entity_mailbox_capacity: 20, shard_inbox_capacity: 30, ..ShardingSettings::test() };
    let size = size_of::<Direct>();
    let by_bytes =
        ShardingSettings { entity_mailbox_bytes: 20 * size, shard_inbox_bytes: 30 * size, ..ShardingSettings::test() };
    for settings in [by_number, by_bytes] {
        direct_messages_are_bounded(settings).await;
    }
}

/// With room for thirty messages in the inbox, so also in the batch that the task has taken from it, and for twenty in
/// the mailbox.
async fn direct_messages_are_bounded(settings: ShardingSettings) {
    const REACHABLE: EntityKey<Direct> = EntityKey::new("Reachable");
    let remoting = MemoryNetwork::new().node("a:1#1".parse().unwrap(), Arc::new(Registry::new()));
    let sharding = Sharding::alone(remoting, None, settings).await.unwrap();
    let region = sharding.init(EntityType::new(REACHABLE, |_| Ok(Reachable))).unwrap();
    let direct = region.entity_ref("1").ask(Direct::Address).await.unwrap().expect("it lives in a shard");
    let counter = Arc::new(());
    let refused = (0..FLOOD).filter(|round| {
        let told = region.tell_direct(&direct, Direct::Carry(counter.clone()));
        assert!(
            matches!(told, Ok(()) | Err(SendError::Dropped(DeadLetterReason::ShardInboxFull))),
            "{round}: {told:?}"
        );
        told.is_err()
    });
    assert!(refused.count() >= FLOOD - 30, "the task had no turn, so no more than its inbox holds were taken");
    for _ in 0..10 {
        // The task has its turns: the messages it took wait for the entity, up to the entity's bound.
        tokio::task::yield_now().await;
        for _ in 0..FLOOD {
            region.tell_direct(&direct, Direct::Carry(counter.clone())).ok();
        }
        let waiting = Arc::strong_count(&counter) - 1;
        assert!(waiting <= 20 + 2 * 30, "{waiting} wait");
    }
}

/// Messages through the region's machine are bounded by the shard's inbox like those that bypass it: here a flushed
/// buffer.
#[tokio::test]
async fn scenario_105_a_buffer_that_leaves_is_bounded_by_the_inbox_of_its_shard() {
    const REACHABLE: EntityKey<Direct> = EntityKey::new("Reachable");
    let remoting = MemoryNetwork::new().node("a:1#1".parse().unwrap(), Arc::new(Registry::new()));
    let settings = ShardingSettings { shard_inbox_capacity: 100, ..ShardingSettings::test() };
    let sharding = Sharding::alone(remoting.clone(), None, settings).await.unwrap();
    let entity = sharding.init(EntityType::new(REACHABLE, |_| Ok(Reachable))).unwrap().entity_ref("1");
    let counter = Arc::new(());
    for _ in 0..400 {
        entity.tell(Direct::Carry(counter.clone())).unwrap();
    }
    let behind = entity.ask(Direct::Address).await;
    assert_eq!(behind, Err(AskError::Dropped(DeadLetterReason::ShardInboxFull)), "it was the last that waited");
    assert_eq!(remoting.dead_letter_totals().get(&DeadLetterReason::ShardInboxFull), Some(&301));
    entity.ask(Direct::Address).await.unwrap();
    assert_eq!(Arc::strong_count(&counter), 1, "the others were handled");
}

/// A direct message whose incarnation is gone is dropped as stale, and an asker that waits for it hears that it did not
/// run.
#[tokio::test]
async fn a_direct_message_that_finds_no_incarnation_says_so() {
    const REACHABLE: EntityKey<Direct> = EntityKey::new("Reachable");
    let remoting = MemoryNetwork::new().node("a:1#1".parse().unwrap(), Arc::new(Registry::new()));
    let sharding = Sharding::alone(remoting, None, ShardingSettings::test()).await.unwrap();
    let region = sharding.init(EntityType::new(REACHABLE, |_| Ok(Reachable))).unwrap();
    let living = region.entity_ref("1").ask(Direct::Address).await.unwrap().expect("it lives in a shard");
    let gone = DirectRef { instance: living.instance + 1, ..living };
    let carry = |token| {
        region.tell_direct(&gone, Direct::Address(token)).unwrap();
        Direct::Carry(Arc::new(()))
    };
    let answer = region.entity_ref("2").ask(carry).await;
    assert_eq!(answer, Err(AskError::Dropped(DeadLetterReason::StaleRecipient)));
}
