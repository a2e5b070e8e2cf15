//! Sharding scenario 77: a shard runs only while its node holds the shard's lease.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use greylag_cluster::{
    Clock, Cluster, ClusterSettings, InMemoryLeases, Lease, LeaseError, LeaseFault, LeaseOutcome, LeaseProvider,
    LeaseSettings, Leases, OnLost,
};
use greylag_codec::json;
use greylag_core::{Registry, ReplyTo};
use greylag_persistence::Ctx;
use greylag_sharding::{
    Entity, EntityCtx, EntityKey, EntityType, Event, Failure, InitError, Region, RegionEvents, Sharding,
    ShardingSettings, Signal,
};
use greylag_transport::memory::MemoryNetwork;
use serde::{Deserialize, Serialize};

const CART: EntityKey<Message> = EntityKey::new("Cart with a lease");
/// The lease of its only shard.
const LEASE: &str = "test-shard-Cart%20with%20a%20lease/0";
const PATIENCE: Duration = Duration::from_secs(30);

#[derive(Serialize, Deserialize)]
enum Message {
    /// Adds one; answers the sum and the incarnation.
    Add(ReplyTo<(u64, u64)>),
    /// Answers, and suspends the entity for ever.
    Suspend(ReplyTo<()>),
    Never,
}

/// Counts how carts ended.
#[derive(Clone, Default)]
struct Ends {
    dropped: Arc<AtomicUsize>,
    told: Arc<AtomicUsize>,
}

struct Cart(u64, Ends);

impl Entity for Cart {
    type Message = Message;

    fn receive(&mut self, message: Message, cx: &mut Ctx<'_, Message>) -> Result<(), Failure> {
        match message {
            Message::Add(reply_to) => {
                self.0 += 1;
                reply_to.reply((self.0, cx.incarnation().unwrap()));
            }
            Message::Suspend(reply_to) => {
                reply_to.reply(());
                cx.suspend(std::future::pending::<()>(), |()| Message::Never)?;
            }
            Message::Never => unreachable!("the future is pending for good"),
        }
        Ok(())
    }

    fn on_signal(&mut self, _: Signal, _: &mut Ctx<'_, Message>) -> Result<(), Failure> {
        self.1.told.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

impl Drop for Cart {
    fn drop(&mut self) {
        self.1.dropped.fetch_add(1, Ordering::Relaxed);
    }
}

async fn sharding(network: &MemoryNetwork, address: &str, leases: Option<&InMemoryLeases>) -> Sharding {
    let leases = leases.map(|leases| Leases::new("test", leases.clone()));
    sharding_with(network, address, ClusterSettings { leases, ..ClusterSettings::test() }).await
}

async fn sharding_with(network: &MemoryNetwork, address: &str, settings: ClusterSettings) -> Sharding {
    let remoting = network.node(address.parse().unwrap(), Arc::new(Registry::new()));
    let cluster = Cluster::start(settings, remoting).await.unwrap();
    let settings = ShardingSettings { number_of_shards: 1, ask_timeout: PATIENCE, ..ShardingSettings::test() };
    let sharding = Sharding::start(cluster.clone(), None, settings).await.unwrap();
    cluster.join_seed_nodes(vec!["a:1".parse().unwrap()]).await.unwrap();
    cluster.wait_up().await.unwrap();
    sharding
}

fn carts(ends: &Ends) -> EntityType<Message> {
    let ends = ends.clone();
    EntityType::new(CART, move |_| Ok(Cart(0, ends.clone()))).codec(json("cart")).lease("in memory")
}

/// Addresses are unique among the tests, since replicators are registered per process by them.
async fn node(address: &str, leases: &InMemoryLeases, ends: &Ends) -> (Region<Message>, RegionEvents) {
    let region = sharding(&MemoryNetwork::new(), address, Some(leases)).await.init(carts(ends)).unwrap();
    let events = region.subscribe();
    (region, events)
}

async fn told(events: &mut RegionEvents, wanted: impl Fn(&Event) -> bool) {
    let told = async { while !wanted(&events.next().await.expect("the region runs")) {} };
    tokio::time::timeout(PATIENCE, told).await.expect("an event");
}

fn refused(event: &Event, wanted: LeaseOutcome) -> bool {
    matches!(event, Event::LeaseRefused { outcome, .. } if *outcome == wanted)
}

#[tokio::test]
async fn scenario_77_a_message_waits_until_the_lease_is_granted() {
    let leases = InMemoryLeases::new();
    let other = leases.lease(LEASE, "other:1", &LeaseSettings::test()).unwrap();
    assert!(other.acquire(Box::new(|_| {})).await.unwrap());
    let (region, mut events) = node("a:1#1001", &leases, &Ends::default()).await;
    let mut answer = Box::pin(region.entity_ref("1").ask(Message::Add).send());
    told(&mut events, |event| refused(event, LeaseOutcome::Denied)).await;
    leases.fail_next(LEASE, LeaseFault::Fail);
    told(&mut events, |event| refused(event, LeaseOutcome::Failed)).await;
    assert!(futures::poll!(&mut answer).is_pending(), "no handler runs without the lease");
    assert!(other.release().await.unwrap());
    assert_eq!(answer.await.unwrap().0, 1);
    assert_eq!(leases.holder(LEASE).as_deref(), Some("a:1"));
    // The region ends, and the next owner need not wait for the lease.
    tokio::time::timeout(PATIENCE, region.graceful_shutdown()).await.unwrap();
    assert_eq!(leases.holder(LEASE), None);
}

#[tokio::test]
async fn scenario_77_a_lost_lease_ends_the_entities_at_once_and_messages_wait_for_it() {
    let (leases, ends) = (InMemoryLeases::new(), Ends::default());
    let (region, mut events) = node("a:1#1002", &leases, &ends).await;
    let one = region.entity_ref("1");
    let (sum, first) = one.ask(Message::Add).await.unwrap();
    assert_eq!(sum, 1);
    one.ask(Message::Suspend).await.unwrap();
    let waiting = [one.ask(Message::Add).send(), one.ask(Message::Add).send()];
    leases.set_fault(LEASE, Some(LeaseFault::Deny));
    assert!(leases.lose(LEASE));
    told(&mut events, |event| matches!(event, Event::LeaseLost { .. })).await;
    assert_eq!(ends.dropped.load(Ordering::Relaxed), 1, "the entity is gone");
    assert_eq!(ends.told.load(Ordering::Relaxed), 0, "without a word to it");
    let mut later = Box::pin(one.ask(Message::Add).send());
    told(&mut events, |event| refused(event, LeaseOutcome::Denied)).await;
    assert!(futures::poll!(&mut later).is_pending(), "no handler runs without the lease");
    leases.set_fault(LEASE, None);
    let mut sums = Vec::new();
    for answer in waiting {
        let (sum, incarnation) = answer.await.unwrap();
        assert_ne!(incarnation, first);
        sums.push(sum);
    }
    sums.push(later.await.unwrap().0);
    assert_eq!(sums, [1, 2, 3], "what no handler had seen was kept, in its order");
}

/// A lease that another node holds moves with the shard.
#[tokio::test]
async fn scenario_77_a_shard_that_moves_takes_its_lease_along() {
    let (leases, network, ends) = (InMemoryLeases::new(), MemoryNetwork::new(), Ends::default());
    let first = sharding(&network, "a:1#1003", Some(&leases)).await.init(carts(&ends)).unwrap();
    first.entity_ref("1").ask(Message::Add).await.unwrap();
    assert_eq!(leases.holder(LEASE).as_deref(), Some("a:1"));
    let second = sharding(&network, "b:1#1004", Some(&leases)).await.init(carts(&ends)).unwrap();
    tokio::time::timeout(PATIENCE, first.graceful_shutdown()).await.unwrap();
    second.entity_ref("1").ask(Message::Add).await.unwrap();
    assert_eq!(leases.holder(LEASE).as_deref(), Some("b:1"));
}

/// Leases whose owner is not told of their end, like the leases of a process that sleeps.
#[derive(Debug, Clone)]
struct UnnotifiedLeases {
    leases: InMemoryLeases,
    is_held: Arc<AtomicBool>,
}

struct UnnotifiedLease(Arc<dyn Lease>, Arc<AtomicBool>);

impl LeaseProvider for UnnotifiedLeases {
    fn lease(&self, name: &str, owner: &str, settings: &LeaseSettings) -> Result<Arc<dyn Lease>, LeaseError> {
        let lease = self.leases.lease(name, owner, settings)?;
        Ok(Arc::new(UnnotifiedLease(lease, self.is_held.clone())))
    }
}

#[async_trait]
impl Lease for UnnotifiedLease {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn owner(&self) -> &str {
        self.0.owner()
    }

    async fn acquire(&self, on_lost: OnLost) -> Result<bool, LeaseError> {
        let granted = self.0.acquire(on_lost).await?;
        self.1.store(granted, Ordering::SeqCst);
        Ok(granted)
    }

    async fn release(&self) -> Result<bool, LeaseError> {
        self.0.release().await
    }

    fn check(&self) -> bool {
        self.1.load(Ordering::SeqCst)
    }
}

/// sharding §4.12, cluster F9: a process that slept checks that it still holds its leases, before any handler runs.
#[tokio::test]
async fn a_lease_that_ended_while_its_process_slept_is_lost() {
    let unnotified = UnnotifiedLeases { leases: InMemoryLeases::new(), is_held: Arc::default() };
    let (is_held, clock, ends) = (unnotified.is_held.clone(), Clock::for_test(), Ends::default());
    let leases = Some(Leases::new("test", unnotified));
    let settings = ClusterSettings { leases, clock: clock.clone(), ..ClusterSettings::test() };
    let region = sharding_with(&MemoryNetwork::new(), "a:1#1006", settings).await.init(carts(&ends)).unwrap();
    let one = region.entity_ref("1");
    let (_, first) = one.ask(Message::Add).await.unwrap();
    let mut events = region.subscribe();
    clock.jump(Duration::from_secs(60));
    assert_eq!(one.ask(Message::Add).await.unwrap(), (2, first), "held all the time");
    is_held.store(false, Ordering::SeqCst);
    clock.jump(Duration::from_secs(60));
    let (sum, second) = one.ask(Message::Add).await.unwrap();
    assert_eq!(sum, 1, "by a new entity, under a lease asked for anew");
    assert_ne!(first, second);
    told(&mut events, |event| matches!(event, Event::LeaseLost { .. })).await;
    assert!(is_held.load(Ordering::SeqCst) && ends.told.load(Ordering::Relaxed) == 0);
}

#[tokio::test]
async fn a_type_with_leases_needs_a_store_of_leases() {
    let sharding = sharding(&MemoryNetwork::new(), "a:1#1005", None).await;
    assert!(matches!(sharding.init(carts(&Ends::default())), Err(InitError::NoLeases { .. })));
}
