//! Sharding scenario 104: any drop of an ask from another node is answered at once, and the asker hears the reason long
//! before its timeout.

use std::collections::BTreeSet;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use futures::future::{join_all, select_all};
use greylag_cluster::{Cluster, ClusterSettings};
use greylag_codec::json;
use greylag_core::{DeadLetterReason, Registry, ReplyTo, Uid, UniqueAddress};
use greylag_persistence::Ctx;
use greylag_sharding::{AskError, Entity, EntityKey, EntityType, Failure, Region, Sharding, ShardingSettings};
use greylag_testkit::uid::fresh_uid;
use greylag_transport::Remoting;
use greylag_transport::memory::MemoryNetwork;
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

/// Timeout of asks, which no test here uses up; the tests' own timeout is shorter.
const FOR_EVER: Duration = Duration::from_secs(600);
const PATIENCE: Duration = Duration::from_secs(60);

const BUSY: EntityKey<Message> = EntityKey::new("Busy");

#[derive(Serialize, Deserialize)]
enum Message {
    /// Answers the number of earlier messages.
    Count(ReplyTo<u64>),
    /// Suspends for ever.
    Suspend,
    /// Blocks the shard's thread until the door opens.
    Block,
}

/// A door that a test opens, and that reports when a thread waits before it.
#[derive(Default)]
struct Door {
    open: Mutex<bool>,
    opened: Condvar,
    reached: Notify,
}

impl Door {
    fn pass(&self) {
        self.reached.notify_one();
        drop(self.opened.wait_while(self.open.lock().unwrap(), |open| !*open).unwrap());
    }

    fn open(&self) {
        *self.open.lock().unwrap() = true;
        self.opened.notify_all();
    }
}

struct Busy(u64, Arc<Door>);

impl Entity for Busy {
    type Message = Message;

    fn receive(&mut self, message: Message, cx: &mut Ctx<'_, Message>) -> Result<(), Failure> {
        match message {
            Message::Count(reply_to) => {
                reply_to.reply(self.0);
                self.0 += 1;
            }
            Message::Suspend => cx.suspend(std::future::pending(), |()| Message::Suspend)?,
            Message::Block => self.1.pass(),
        }
        Ok(())
    }
}

/// The second of two nodes hosts, in one shard; the first asks.
struct TwoNodes {
    asker: Region<Message>,
    host: Region<Message>,
    remoting: Arc<dyn Remoting>,
    door: Arc<Door>,
    _sharding: [Sharding; 2],
}

impl TwoNodes {
    async fn new(settings: ShardingSettings) -> Self {
        let network = MemoryNetwork::new();
        let settings = ShardingSettings { number_of_shards: 1, ask_timeout: FOR_EVER, ..settings };
        let door = Arc::<Door>::default();
        let node = async |address: &str, role: &str| {
            let uid = Uid::new(fresh_uid()).unwrap();
            let remoting = network.node(UniqueAddress::new(address.parse().unwrap(), uid), Arc::new(Registry::new()));
            let cluster_settings = ClusterSettings { roles: [role.to_owned()].into(), ..ClusterSettings::test() };
            let cluster = Cluster::start(cluster_settings, remoting.clone()).await.unwrap();
            let sharding = Sharding::start(cluster.clone(), None, settings.clone()).await.unwrap();
            let door = door.clone();
            let busy = EntityType::new(BUSY, move |_| Ok(Busy(0, door.clone()))).codec(json("busy")).role("host");
            let region = sharding.init(busy).unwrap();
            cluster.join_seed_nodes(vec!["a:1".parse().unwrap()]).await.unwrap();
            cluster.wait_up().await.unwrap();
            (sharding, region, remoting)
        };
        let (first, asker, _) = node("a:1", "web").await;
        let (second, host, remoting) = node("b:1", "host").await;
        let nodes = Self { asker, host, remoting, door, _sharding: [first, second] };
        // From the second message on, messages bypass the region's machine.
        for count in 0..2 {
            assert_eq!(nodes.ask("1").await, Ok(count));
        }
        nodes
    }

    async fn ask(&self, id: &str) -> Result<u64, AskError> {
        let asked = self.asker.entity_ref(id).ask(Message::Count);
        tokio::time::timeout(PATIENCE, asked.send()).await.expect("it ends long before the asker's patience")
    }

    /// Blocks the shard's task until the door opens.
    async fn block(&self) {
        self.tell("1", Message::Block);
        tokio::time::timeout(PATIENCE, self.door.reached.notified()).await.expect("it is handled");
    }

    fn tell(&self, id: &str, message: Message) {
        self.asker.entity_ref(id).tell(message).unwrap();
    }
}

/// Opens the door: a failed test must not leave a thread of its runtime blocked.
impl Drop for TwoNodes {
    fn drop(&mut self) {
        self.door.open();
    }
}

fn dropped(reason: DeadLetterReason) -> Result<u64, AskError> {
    Err(AskError::Dropped(reason))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn scenario_104_a_full_shard_inbox_answers_at_once() {
    let nodes = TwoNodes::new(ShardingSettings { shard_inbox_capacity: 2, ..ShardingSettings::test() }).await;
    nodes.block().await;
    // While the door is shut, only dropped asks are answered.
    let asks: Vec<_> = (0..8).map(|_| Box::pin(nodes.ask("1"))).collect();
    let (first, _, others) = select_all(asks).await;
    assert_eq!(first, dropped(DeadLetterReason::ShardInboxFull));
    nodes.door.open();
    let others = join_all(others).await;
    let (taken, refused): (Vec<_>, Vec<_>) = others.into_iter().partition(Result::is_ok);
    assert!(taken.len() >= 2, "the inbox holds two");
    let counts: BTreeSet<_> = taken.iter().flatten().copied().collect();
    assert!(counts.into_iter().eq(2..2 + taken.len() as u64), "what was taken is answered: {taken:?}");
    assert!(refused.iter().all(|answer| *answer == first), "{refused:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scenario_104_a_full_mailbox_answers_at_once() {
    let nodes = TwoNodes::new(ShardingSettings { entity_mailbox_capacity: 2, ..ShardingSettings::test() }).await;
    nodes.tell("1", Message::Suspend);
    for _ in 0..2 {
        nodes.tell("1", Message::Block);
    }
    assert_eq!(nodes.ask("1").await, dropped(DeadLetterReason::EntityMailboxFull));
    assert_eq!(nodes.ask("2").await, Ok(0), "other entities have mailboxes of their own");
}

/// An ask that expires in the inbox is not handled. Its asker has given up by then, and gets its timeout.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn scenario_104_an_ask_that_has_expired_is_not_handled() {
    let nodes = TwoNodes::new(ShardingSettings::test()).await;
    nodes.block().await;
    let short = Duration::from_millis(50);
    let answer = nodes.asker.entity_ref("1").ask(Message::Count).timeout(short).await;
    assert!(matches!(answer, Err(AskError::Timeout { timeout, .. }) if timeout == short), "{answer:?}");
    let mut letters = nodes.remoting.dead_letters(10);
    // The host counts the timeout from the arrival on, a little later.
    tokio::time::sleep(20 * short).await;
    nodes.door.open();
    assert_eq!(nodes.ask("1").await, Ok(2), "it was not counted");
    let expired = async { while letters.next().await.reason != DeadLetterReason::Expired {} };
    tokio::time::timeout(PATIENCE, expired).await.expect("it is a dead letter");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scenario_104_a_stopping_shard_answers_what_waits_and_what_comes() {
    let nodes = TwoNodes::new(ShardingSettings::test()).await;
    nodes.tell("1", Message::Suspend);
    let waits = nodes.asker.entity_ref("1").ask(Message::Count).send();
    // The ask has arrived once a later ask is answered.
    assert_eq!(nodes.ask("2").await, Ok(0));
    let host = nodes.host.clone();
    let stopped = tokio::spawn(async move { host.graceful_shutdown().await });
    let waited = tokio::time::timeout(PATIENCE, waits).await.expect("it ends with the shard");
    assert_eq!(waited, dropped(DeadLetterReason::NoOtherRegion), "behind the entity that is suspended");
    tokio::time::timeout(PATIENCE, stopped).await.unwrap().unwrap();
    assert_eq!(nodes.ask("2").await, dropped(DeadLetterReason::RegionStopped));
}
