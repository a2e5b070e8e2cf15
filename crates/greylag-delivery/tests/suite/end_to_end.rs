//! Producers and entities over real tasks, an in-process network and a journal in memory.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use greylag_codec::json;
use greylag_core::{Registry, ReplyTo};
use greylag_delivery::queue::EventSourcedQueueSettings;
use greylag_delivery::{
    ConsumerDelivery, Delivery, DeliveryCommand, DeliveryEffects, DeliveryEntity, DeliverySettings, DeliveryType,
    Epoch, EventSourcedDelivery, EventSourcedProducerQueue, NodeDelivery, ProducerId, ProducerIdentity, SendError,
    SeqNr, ShardingProducer, StreamId, WithDelivery,
};
use greylag_persistence::{
    AppendFault, Ctx, Effect, EventSourced, InMemoryJournal, InMemorySnapshots, PersistenceId, RecoveryPermits, Stores,
};
use greylag_sharding::settings::ShardingSettings;
use greylag_sharding::{EntityKey, EntityType, Failure, Region, Sharding};
use greylag_transport::memory::MemoryNetwork;
use serde::{Deserialize, Serialize};

const PATIENCE: Duration = Duration::from_secs(60);

const CUSTOMER: EntityKey<Purchase> = EntityKey::new("Customer");

/// A customer's purchase in cents; a purchase of zero has no effect.
type Purchase = i64;

/// Number of purchases, and their sum in cents.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Totals {
    purchases: u64,
    cents: i64,
}

#[derive(Serialize, Deserialize)]
enum Question {
    Totals(ReplyTo<Totals>),
    Passivate,
}

/// How often the customer `clumsy` panics before it handles its first purchase.
const CLUMSY_PANICS: u32 = 2;

struct Customer {
    id: String,
    panics: Arc<AtomicU32>,
}

impl EventSourced for Customer {
    type Command = DeliveryCommand<Purchase, Question>;
    type Event = i64;
    type State = Totals;

    fn on_command(&mut self, _: &mut Ctx<'_, Self::Command>, state: &Totals, command: Self::Command) -> Effect<Self> {
        match command {
            DeliveryCommand::Delivered(purchase) if *purchase == 0 => Effect::confirm_delivery(purchase),
            DeliveryCommand::Delivered(purchase) => {
                if self.id == "clumsy" && self.panics.fetch_add(1, Ordering::Relaxed) < CLUMSY_PANICS {
                    panic!("on purpose");
                }
                let cents = *purchase;
                Effect::persist_delivery(purchase, vec![cents])
            }
            DeliveryCommand::Bypass(Question::Totals(reply_to)) => Effect::reply(reply_to, *state),
            DeliveryCommand::Bypass(Question::Passivate) => Effect::passivate(),
        }
    }

    fn apply(state: &mut Totals, cents: &i64) {
        state.purchases += 1;
        state.cents += cents;
    }
}

fn customer(id: &str) -> PersistenceId {
    PersistenceId::of("Customer", id).unwrap()
}

struct Shop {
    sharding: Sharding,
    journal: InMemoryJournal,
    region: Region<WithDelivery<Purchase, Question>>,
    delivery: ConsumerDelivery,
    settings: DeliverySettings,
}

async fn alone(journal: &InMemoryJournal) -> Sharding {
    let remoting = MemoryNetwork::new().node("a:1#1".parse().unwrap(), Arc::new(Registry::new()));
    Sharding::alone(remoting, Some(stores(journal)), ShardingSettings::test()).await.unwrap()
}

fn stores(journal: &InMemoryJournal) -> Stores {
    Stores::new(Arc::new(journal.clone()), Arc::new(InMemorySnapshots::default()))
}

impl Shop {
    async fn open() -> Self {
        Self::open_on(InMemoryJournal::default()).await
    }

    async fn open_on(journal: InMemoryJournal) -> Self {
        Self::open_with(journal, DeliverySettings::test()).await
    }

    async fn open_with(journal: InMemoryJournal, settings: DeliverySettings) -> Self {
        let sharding = alone(&journal).await;
        let node = NodeDelivery::of(&sharding, settings.clone()).unwrap();
        let panics = Arc::new(AtomicU32::new(0));
        let customers = EntityType::event_sourced(CUSTOMER, move |init| {
            Ok(Customer { id: init.id.as_str().to_owned(), panics: panics.clone() })
        });
        let customers = customers.commands(json("purchase")).events(json("purchased"));
        let region = sharding.init(customers.with_delivery_and(json("question"))).unwrap();
        let delivery = node.consumers(&CUSTOMER).unwrap();
        Self { sharding, journal, region, delivery, settings }
    }

    fn producer(&self, epoch: u64) -> ShardingProducer<Purchase> {
        let identity = ProducerIdentity::stable(ProducerId::new("till").unwrap(), StreamId(1), Epoch(epoch));
        let (region, settings) = (self.region.clone(), self.settings.clone());
        ShardingProducer::start(&self.sharding, identity, region, json::<i64>("purchase"), settings).unwrap()
    }

    async fn totals(&self, id: &str) -> Totals {
        let question = |reply_to| WithDelivery::Bypass(Question::Totals(reply_to));
        self.region.entity_ref(id).ask(question).timeout(PATIENCE).await.unwrap()
    }
}

/// The purchases, the same in every run.
fn purchases() -> impl Iterator<Item = (String, i64)> {
    (1..=600_i64).map(|line| ((line * line % 97).to_string(), line))
}

async fn sell(producer: &ShardingProducer<Purchase>) {
    for (id, cents) in purchases() {
        producer.send(id, cents).await.unwrap();
    }
    producer.drain(PATIENCE).await.unwrap();
}

async fn assert_every_purchase_applied_once(shop: &Shop) {
    let mut expected = BTreeMap::<String, Totals>::new();
    for (id, cents) in purchases() {
        let totals = expected.entry(id).or_default();
        totals.purchases += 1;
        totals.cents += cents;
    }
    for (id, totals) in expected {
        assert_eq!(shop.totals(&id).await, totals, "customer {id}");
    }
}

/// delivery 44, 58: a producer takes over from one with unconfirmed messages, as after a crash. Every purchase is
/// applied once: unconfirmed ones are sent again, before new ones, and are suppressed if they had been processed.
#[tokio::test]
async fn a_durable_producer_goes_on_where_another_one_was() {
    let shop = Shop::open().await;
    let start = || {
        let id = PersistenceId::of("Queue", "till").unwrap();
        let (permits, settings) = (RecoveryPermits::default(), EventSourcedQueueSettings::test());
        let queue = EventSourcedProducerQueue::open(id, stores(&shop.journal), permits, settings).unwrap();
        let (region, codec) = (shop.region.clone(), json::<i64>("purchase"));
        let id = ProducerId::new("till").unwrap();
        ShardingProducer::start_durable(&shop.sharding, id, region, codec, queue, DeliverySettings::test()).unwrap()
    };
    let all: Vec<_> = purchases().collect();
    let first = start();
    for (id, cents) in &all[..300] {
        first.send(id.clone(), *cents).await.unwrap();
    }
    let second = start();
    for (id, cents) in &all[300..] {
        second.send(id.clone(), *cents).await.unwrap();
    }
    second.drain(PATIENCE).await.unwrap();
    assert_every_purchase_applied_once(&shop).await;
    let refused = first.send("late", 1).await.unwrap_err();
    assert!(matches!(refused, SendError::Fenced { message: Some(1), .. }), "{refused}");

    // A third producer finds no unconfirmed message, and continues the numbers.
    second.close().await;
    let third = start();
    let mut sent = third.send("another", 5).await.unwrap();
    assert_eq!(sent.seq_nr().await.unwrap(), SeqNr(601));
    assert_eq!((sent.confirmed().await.unwrap(), third.stats().recovered), (SeqNr(601), 0));
}

#[tokio::test]
async fn purchases_are_applied_exactly_once_also_by_a_second_run() {
    let shop = Shop::open().await;
    let producer = shop.producer(1);
    sell(&producer).await;
    assert_every_purchase_applied_once(&shop).await;
    let stats = producer.stats();
    assert_eq!((stats.sent, stats.confirmed, stats.unconfirmed), (600, 600, 0));
    assert_eq!(*producer.confirmed().borrow(), SeqNr(600));
    assert_eq!(shop.delivery.counters().snapshot().suppressed, 0);
    producer.close().await;

    // The same input again, in a process that only has the journal.
    let shop = Shop::open_on(shop.journal.clone()).await;
    sell(&shop.producer(2)).await;
    assert_every_purchase_applied_once(&shop).await;
    let counters = shop.delivery.counters().snapshot();
    assert_eq!((counters.suppressed, counters.delivered), (600, 0));
}

/// delivery 65: with any loss of the answer, the effect is applied once.
#[tokio::test]
async fn an_append_whose_answer_is_lost_is_not_repeated() {
    let shop = Shop::open().await;
    for stored in [true, false] {
        shop.journal.script_append(&customer("unlucky"), [AppendFault::LoseAnswer { stored }; 3]);
        shop.journal.script_append(&customer("unlucky"), [AppendFault::Unavailable]);
    }
    let producer = shop.producer(1);
    for cents in 1..=20 {
        producer.send("unlucky", cents).await.unwrap();
    }
    producer.drain(PATIENCE * 3).await.unwrap();
    assert_eq!(shop.totals("unlucky").await, Totals { purchases: 20, cents: 210 });
}

#[tokio::test]
async fn a_panicking_behaviour_gets_the_delivery_again() {
    let shop = Shop::open().await;
    let producer = shop.producer(1);
    for cents in [5, 7] {
        producer.send("clumsy", cents).await.unwrap();
    }
    producer.drain(PATIENCE * 2).await.unwrap();
    assert_eq!(shop.totals("clumsy").await, Totals { purchases: 2, cents: 12 });
}

/// delivery 71: a delivery without an effect is confirmed once ownership is proved.
#[tokio::test]
async fn a_delivery_without_an_effect_is_confirmed_too() {
    let shop = Shop::open().await;
    let producer = shop.producer(1);
    assert_eq!(producer.send_confirmed("frugal", 0).await.unwrap(), SeqNr(1));
    assert_eq!(producer.send_confirmed("frugal", 3).await.unwrap(), SeqNr(2));
    assert_eq!(shop.totals("frugal").await, Totals { purchases: 1, cents: 3 });
}

/// delivery 55: the entity is passivated between deliveries, and its successor continues.
#[tokio::test]
async fn a_passivated_entity_goes_on_where_it_was() {
    let shop = Shop::open().await;
    let producer = shop.producer(1);
    for cents in 1..=30 {
        producer.send("sleepy", cents).await.unwrap();
        if cents % 7 == 0 {
            shop.region.entity_ref("sleepy").tell(WithDelivery::Bypass(Question::Passivate)).unwrap();
        }
    }
    producer.drain(PATIENCE * 3).await.unwrap();
    assert_eq!(shop.totals("sleepy").await, Totals { purchases: 30, cents: 465 });
}

/// delivery P14, C2a.
#[tokio::test]
async fn an_older_incarnation_of_the_stream_is_fenced() {
    let shop = Shop::open().await;
    let newer = shop.producer(2);
    newer.send_confirmed("one", 1).await.unwrap();
    let older = shop.producer(1);
    let refused = older.send_confirmed("one", 2).await.unwrap_err();
    assert!(matches!(refused, SendError::Unconfirmed(SeqNr(1))), "{refused}");
    let refused = older.send("one", 3).await.unwrap_err();
    assert!(matches!(refused, SendError::Fenced { newer: Some(Epoch(2)), .. }), "{refused}");
    assert_eq!(shop.totals("one").await, Totals { purchases: 1, cents: 1 });
}

#[tokio::test]
async fn unsendable_messages_are_given_back() {
    let shop = Shop::open().await;
    let producer = shop.producer(1);
    let refused = producer.send("", 9).await.unwrap_err();
    assert!(matches!(refused, SendError::InvalidEntity { message: 9, .. }), "{refused}");
    producer.close().await;
    let refused = producer.send("one", 8).await.unwrap_err();
    assert!(matches!(refused, SendError::Closed(Some(8))), "{refused}");
}

/// delivery 79: no message is lost when the last handle is dropped.
#[tokio::test]
async fn a_dropped_producer_delivers_what_it_has() {
    let shop = Shop::open().await;
    let producer = shop.producer(1);
    for cents in 1..=10 {
        producer.send("heir", cents).await.unwrap();
    }
    let mut confirmed = producer.confirmed();
    drop(producer);
    tokio::time::timeout(PATIENCE, confirmed.wait_for(|seq_nr| *seq_nr == SeqNr(10))).await.unwrap().unwrap();
    assert_eq!(shop.totals("heir").await, Totals { purchases: 10, cents: 55 });
}

/// Reports each delivery, and fails in every way once.
#[derive(Default)]
struct SometimesFailing {
    handed: Vec<(i64, u32)>,
}

impl DeliveryEntity<i64> for SometimesFailing {
    type Bypass = ReplyTo<Vec<(i64, u32)>>;

    fn on_delivery(
        &mut self,
        delivery: Delivery<i64>,
        cx: &mut Ctx<'_, WithDelivery<i64, Self::Bypass>>,
    ) -> Result<(), Failure> {
        self.handed.push((*delivery, delivery.attempt()));
        match (*delivery, delivery.attempt()) {
            (2, 1) => delivery.nack(Duration::from_millis(1)),
            (3, 1) => drop(delivery),
            (4, _) => cx.run(async move {
                tokio::task::yield_now().await;
                delivery.confirm();
            }),
            _ => delivery.confirm(),
        }
        Ok(())
    }

    fn on_bypass(
        &mut self,
        reply_to: Self::Bypass,
        _: &mut Ctx<'_, WithDelivery<i64, Self::Bypass>>,
    ) -> Result<(), Failure> {
        reply_to.reply(self.handed.clone());
        Ok(())
    }
}

/// delivery C12, S16.
#[tokio::test]
async fn an_entity_with_handlers_may_say_no_or_later() {
    let sharding = alone(&InMemoryJournal::default()).await;
    NodeDelivery::of(&sharding, DeliverySettings::test()).unwrap();
    let sometimes_failing =
        DeliveryType::of_both(EntityKey::new("SometimesFailing"), json("n"), json("sometimes-failing.handed"), |_| {
            Ok(SometimesFailing::default())
        });
    let region = sharding.init(sometimes_failing).unwrap();
    let identity = ProducerIdentity::stable(ProducerId::new("p").unwrap(), StreamId(9), Epoch::FIRST);
    let producer =
        ShardingProducer::start(&sharding, identity, region.clone(), json::<i64>("n"), DeliverySettings::test())
            .unwrap();
    for number in 1..=5 {
        producer.send("one", number).await.unwrap();
    }
    producer.drain(PATIENCE).await.unwrap();
    let handed = region.entity_ref("one").ask(WithDelivery::Bypass).timeout(PATIENCE).await.unwrap();
    assert_eq!(handed, [(1, 1), (2, 1), (2, 2), (3, 1), (3, 2), (4, 1), (5, 1)]);
}

/// Bypass messages to an entity that confirms later.
#[derive(Serialize, Deserialize)]
enum Later {
    Done,
    Passivate,
    Handed(ReplyTo<Vec<i64>>),
}

/// Keeps each delivery until asynchronous work is done (here: some time has passed), and confirms it when the bypass
/// message of the work's end arrives.
#[derive(Default)]
struct ConfirmsLater {
    in_hand: Option<Delivery<i64>>,
    handed: Vec<i64>,
}

impl DeliveryEntity<i64> for ConfirmsLater {
    type Bypass = Later;

    fn on_delivery(
        &mut self,
        delivery: Delivery<i64>,
        cx: &mut Ctx<'_, WithDelivery<i64, Self::Bypass>>,
    ) -> Result<(), Failure> {
        self.handed.push(*delivery);
        self.in_hand = Some(delivery);
        cx.spawn(tokio::time::sleep(Duration::from_millis(50)), |()| WithDelivery::Bypass(Later::Done));
        Ok(())
    }

    fn on_bypass(&mut self, message: Later, cx: &mut Ctx<'_, WithDelivery<i64, Self::Bypass>>) -> Result<(), Failure> {
        match message {
            Later::Done => self.in_hand.take().into_iter().for_each(Delivery::confirm),
            Later::Passivate => cx.passivate(),
            Later::Handed(reply_to) => reply_to.reply(self.handed.clone()),
        }
        Ok(())
    }
}

/// After a confirmation by a bypass message, the next delivery follows at once, and an entity asked to stop ends at
/// once. Of delivery §6, S15.
#[tokio::test]
async fn confirmation_by_a_bypass_message_lets_the_entity_go_on() {
    let sharding = alone(&InMemoryJournal::default()).await;
    let mut settings = DeliverySettings::test();
    settings.consumer.resend_interval_min = Duration::from_secs(30);
    NodeDelivery::of(&sharding, settings.clone()).unwrap();
    let confirms_later = DeliveryType::of_both(EntityKey::new("ConfirmsLater"), json("n"), json("later"), |_| {
        Ok(ConfirmsLater::default())
    });
    let region = sharding.init(confirms_later).unwrap();
    let identity = ProducerIdentity::stable(ProducerId::new("p").unwrap(), StreamId(9), Epoch::FIRST);
    let producer = ShardingProducer::start(&sharding, identity, region.clone(), json::<i64>("n"), settings).unwrap();
    let confirmed = futures::future::try_join_all((1..=5).map(|number| producer.send_confirmed("one", number)));
    let confirmed = tokio::time::timeout(Duration::from_secs(3), confirmed).await;
    confirmed.expect("each waits for the one before, and for nothing else").unwrap();

    let handed = async || {
        region
            .entity_ref("one")
            .ask(|reply_to| WithDelivery::Bypass(Later::Handed(reply_to)))
            .timeout(PATIENCE)
            .await
            .unwrap()
    };
    producer.send("one", 6).await.unwrap();
    while !handed().await.contains(&6) {}
    region.entity_ref("one").tell(WithDelivery::Bypass(Later::Passivate)).unwrap();
    // A message sent meanwhile is answered by its successor.
    let handed = tokio::time::timeout(Duration::from_secs(3), handed());
    assert_eq!(handed.await.expect("the end waits for the delivery in hand alone"), Vec::<i64>::new());
}

/// A message sent while no other is under way is confirmed as soon as it is processed, and the last one of a burst a
/// little later: neither waits for the consumer's retry timer. Of delivery C9, P12.
#[tokio::test]
async fn a_confirmation_that_is_waited_for_does_not_wait_for_a_timer_of_seconds() {
    let mut settings = DeliverySettings::test();
    settings.consumer.resend_interval_min = Duration::from_secs(30);
    settings.producer.resend_first_unconfirmed_idle_timeout = Duration::from_secs(30);
    let shop = Shop::open_with(InMemoryJournal::default(), settings.clone()).await;
    let producer = shop.producer(1);
    let in_turn = async {
        for number in 1..=10 {
            producer.send("one", number).await.unwrap().confirmed().await.unwrap();
        }
    };
    tokio::time::timeout(Duration::from_secs(15), in_turn).await.expect("each takes a round trip");

    settings.consumer.delayed_ack_timeout = Some(Duration::from_millis(20));
    let shop = Shop::open_with(InMemoryJournal::default(), settings).await;
    let producer = shop.producer(1);
    let burst = async {
        let burst = futures::future::try_join_all((1..=7).map(|number| producer.send("one", number))).await;
        burst.unwrap().pop().unwrap().confirmed().await.unwrap()
    };
    assert_eq!(tokio::time::timeout(Duration::from_secs(15), burst).await, Ok(SeqNr(7)));
}

/// Fails at every delivery, and records the time.
struct AlwaysFailing(Arc<Mutex<Vec<Instant>>>);

impl DeliveryEntity<i64> for AlwaysFailing {
    type Bypass = std::convert::Infallible;

    fn on_delivery(
        &mut self,
        _: Delivery<i64>,
        _: &mut Ctx<'_, WithDelivery<i64, Self::Bypass>>,
    ) -> Result<(), Failure> {
        self.0.lock().unwrap().push(Instant::now());
        Err(Failure::new("always failing"))
    }

    fn on_bypass(
        &mut self,
        never: Self::Bypass,
        _: &mut Ctx<'_, WithDelivery<i64, Self::Bypass>>,
    ) -> Result<(), Failure> {
        match never {}
    }
}

/// Attempts of a handler that always fails are paced and counted. Of delivery C12.
#[tokio::test]
async fn a_handler_that_always_fails_does_not_keep_its_shard_busy() {
    let sharding = alone(&InMemoryJournal::default()).await;
    let mut settings = DeliverySettings::test();
    settings.consumer.max_delivery_attempts = 3;
    settings.consumer.redelivery_backoff = Duration::from_millis(100);
    let node = NodeDelivery::of(&sharding, settings.clone()).unwrap();
    let attempts = Arc::new(Mutex::new(Vec::new()));
    let noted = attempts.clone();
    const ALWAYS_FAILING: EntityKey<i64> = EntityKey::new("AlwaysFailing");
    let always_failing = DeliveryType::of(ALWAYS_FAILING, json("n"), move |_| Ok(AlwaysFailing(noted.clone())));
    let region = sharding.init(always_failing).unwrap();
    let delivery = node.consumers(&ALWAYS_FAILING).unwrap();
    let identity = ProducerIdentity::stable(ProducerId::new("p").unwrap(), StreamId(9), Epoch::FIRST);
    let producer = ShardingProducer::start(&sharding, identity, region, json::<i64>("n"), settings).unwrap();
    producer.send("one", 1).await.unwrap();
    producer.drain(PATIENCE).await.unwrap();
    let attempts = attempts.lock().unwrap().clone();
    assert_eq!((attempts.len(), delivery.counters().snapshot().poisoned), (3, 1));
    // The pause counts from the start of the turn, which may be a little before the handler's.
    let pauses: Vec<Duration> = attempts.windows(2).map(|two| two[1] - two[0]).collect();
    assert!(pauses.iter().all(|pause| *pause >= Duration::from_millis(50)), "{pauses:?}");
}
