//! Producers and entities of one node: order, ends at critical moments, and repeated runs.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::poll;
use greylag_codec::json;
use greylag_core::{Registry, ReplyTo};
use greylag_delivery::{
    ConsumerDelivery, Delivery, DeliveryCommand, DeliveryEffects, DeliveryEntity, DeliverySettings, DeliveryType,
    Epoch, EventSourcedDelivery, NodeDelivery, ProducerId, ProducerIdentity, SeqNr, ShardingProducer, StreamId,
    WithDelivery,
};
use greylag_persistence::driver::StoreFault;
use greylag_persistence::{
    Ctx, Effect, EventSourced, FaultyJournal, InMemoryJournal, InMemorySnapshots, JournalOp, Stores,
};
use greylag_sharding::settings::ShardingSettings;
use greylag_sharding::{EntityKey, EntityType, Failure, Region, Sharding};
use greylag_transport::memory::MemoryNetwork;
use serde::{Deserialize, Serialize};

const PATIENCE: Duration = Duration::from_secs(30);

async fn alone(stores: Option<Stores>) -> Sharding {
    let remoting = MemoryNetwork::new().node("a:1#1".parse().unwrap(), Arc::new(Registry::new()));
    Sharding::alone(remoting, stores, ShardingSettings::test()).await.unwrap()
}

async fn within<F: IntoFuture>(future: F) -> F::Output {
    tokio::time::timeout(PATIENCE, future).await.expect("it takes too long")
}

fn identity(name: &str, stream: u128, epoch: u64) -> ProducerIdentity {
    ProducerIdentity::stable(ProducerId::new(name).unwrap(), StreamId(stream), Epoch(epoch))
}

/// Records its deliveries, each with the name of its producer.
#[derive(Default)]
struct Recorder(Vec<(String, i64)>);

type Records = ReplyTo<Vec<(String, i64)>>;

impl DeliveryEntity<i64> for Recorder {
    type Bypass = Records;

    fn on_delivery(
        &mut self,
        delivery: Delivery<i64>,
        _: &mut Ctx<'_, WithDelivery<i64, Records>>,
    ) -> Result<(), Failure> {
        self.0.push((delivery.id().producer_id.as_str().to_owned(), *delivery));
        delivery.confirm();
        Ok(())
    }

    fn on_bypass(&mut self, reply_to: Records, _: &mut Ctx<'_, WithDelivery<i64, Records>>) -> Result<(), Failure> {
        reply_to.reply(self.0.clone());
        Ok(())
    }
}

/// delivery 51: 42 messages to each of three entities, each of which gets its own in order; then two producers at a
/// time, and each entity reports both.
#[tokio::test]
async fn scenario_51_each_entity_sees_its_own_in_order() {
    let sharding = alone(None).await;
    NodeDelivery::of(&sharding, DeliverySettings::test()).unwrap();
    let recorders =
        DeliveryType::of_both(EntityKey::new("Recorder"), json("n"), json("records"), |_| Ok(Recorder::default()));
    let region = sharding.init(recorders).unwrap();
    let start = |name: &str, stream| {
        let settings = DeliverySettings::test();
        let identity = identity(name, stream, 1);
        ShardingProducer::start(&sharding, identity, region.clone(), json::<i64>("n"), settings).unwrap()
    };
    let records = async |entity: usize| {
        let entity = region.entity_ref(format!("entity-{entity}"));
        within(entity.ask(WithDelivery::Bypass).timeout(PATIENCE)).await.unwrap()
    };
    // A producer id may have any characters.
    let first = start("orders (north)/7", 1);
    for number in 0..42 {
        for entity in 0..3 {
            within(first.send(format!("entity-{entity}"), entity * 1000 + number)).await.unwrap();
        }
    }
    first.drain(PATIENCE).await.unwrap();
    for entity in 0..3 {
        let own: Vec<_> = (0..42).map(|n| ("orders (north)/7".to_owned(), entity as i64 * 1000 + n)).collect();
        assert_eq!(records(entity).await, own);
    }

    let second = start("orders (south)/8", 2);
    let send = async |producer: &ShardingProducer<i64>| {
        for number in 100..142 {
            for entity in 0..3 {
                within(producer.send(format!("entity-{entity}"), entity * 1000 + number)).await.unwrap();
            }
        }
        producer.drain(PATIENCE).await.unwrap();
    };
    tokio::join!(send(&first), send(&second));
    for entity in 0..3 {
        let records = records(entity).await;
        for name in ["orders (north)/7", "orders (south)/8"] {
            let of_it = records.iter().skip(42).filter(|(producer, _)| producer == name).map(|(_, number)| *number);
            assert!(of_it.eq((100..142).map(|n| entity as i64 * 1000 + n)), "{name} at entity {entity}: {records:?}");
        }
    }
}

/// Records each message that it evaluates; its state is the list of its events.
struct Ledger {
    evaluated: Arc<Mutex<Vec<i64>>>,
}

/// The entity panics when this message is stored, before it is confirmed.
const PANICS: i64 = 7_000_000;
/// The entity stores this message and drops the delivery unconfirmed.
const FORGETS: i64 = 7_000_001;

type Bypass = ReplyTo<Vec<i64>>;
type Command = DeliveryCommand<i64, Bypass>;

impl EventSourced for Ledger {
    type Command = Command;
    type Event = i64;
    type State = Vec<i64>;

    fn on_command(&mut self, _: &mut Ctx<'_, Command>, state: &Vec<i64>, command: Command) -> Effect<Self> {
        let delivery = match command {
            DeliveryCommand::Delivered(delivery) => delivery,
            DeliveryCommand::Bypass(reply_to) => return Effect::reply(reply_to, state.clone()),
        };
        let value = *delivery;
        self.evaluated.lock().unwrap().push(value);
        match value {
            ..0 => Effect::confirm_delivery(delivery),
            PANICS => Effect::persist(value).then_run(move |_| {
                let _in_hand = delivery;
                panic!("on purpose")
            }),
            FORGETS => Effect::persist(value),
            _ => Effect::persist_delivery(delivery, vec![value]),
        }
    }

    fn apply(state: &mut Vec<i64>, value: &i64) {
        state.push(*value);
    }
}

const LEDGER: EntityKey<i64> = EntityKey::new("Ledger");

struct World {
    journal: Arc<FaultyJournal>,
    sharding: Sharding,
    region: Region<WithDelivery<i64, Bypass>>,
    delivery: ConsumerDelivery,
    settings: DeliverySettings,
    evaluated: Arc<Mutex<Vec<i64>>>,
}

impl World {
    async fn new(settings: DeliverySettings) -> Self {
        Self::over(&InMemoryJournal::default(), settings).await
    }

    async fn over(journal: &InMemoryJournal, settings: DeliverySettings) -> Self {
        let journal = Arc::new(FaultyJournal::new(Arc::new(journal.clone())));
        let stores = Stores::new(journal.clone(), Arc::new(InMemorySnapshots::default()));
        let sharding = alone(Some(stores)).await;
        let node = NodeDelivery::of(&sharding, settings.clone()).unwrap();
        let evaluated = Arc::<Mutex<Vec<i64>>>::default();
        let noted = evaluated.clone();
        let ledgers = EntityType::event_sourced(LEDGER, move |_| Ok(Ledger { evaluated: noted.clone() }));
        let ledgers = ledgers.commands(json("store")).events(json("stored")).with_delivery_and(json("ledger"));
        let region = sharding.init(ledgers).unwrap();
        let delivery = node.consumers(&LEDGER).unwrap();
        Self { journal, sharding, region, delivery, settings, evaluated }
    }

    fn producer(&self, epoch: u64) -> ShardingProducer<i64> {
        let (region, settings) = (self.region.clone(), self.settings.clone());
        ShardingProducer::start(&self.sharding, identity("p", 1, epoch), region, json::<i64>("n"), settings).unwrap()
    }

    async fn stored(&self, entity: &str) -> Vec<i64> {
        within(self.region.entity_ref(entity).ask(WithDelivery::Bypass).timeout(PATIENCE)).await.unwrap()
    }

    fn evaluations(&self, value: i64) -> usize {
        self.evaluated.lock().unwrap().iter().filter(|evaluated| **evaluated == value).count()
    }
}

/// delivery 65: the append of delivery 7 is stored, but its answer is lost; or the entity panics between answer and
/// confirmation; or the handler does not confirm; or the answer takes longer than `confirm_timeout`. The effect is
/// applied once, and the handler ran once: 7 is confirmed, not evaluated again.
#[tokio::test]
async fn scenario_65_a_stored_effect_is_not_evaluated_again() {
    let mut settings = DeliverySettings::test();
    settings.consumer.redelivery_backoff = Duration::from_millis(10);
    let (lost, slow) = (StoreFault::AnswerLost { done: true }, StoreFault::Delay(Duration::from_millis(600)));
    for (fault, seventh) in [(Some(lost), 7), (None, PANICS), (None, FORGETS), (Some(slow), 7)] {
        settings.consumer.confirm_timeout = (fault == Some(slow)).then_some(Duration::from_millis(50));
        let world = World::new(settings.clone()).await;
        let producer = world.producer(1);
        for number in 1..=6 {
            within(producer.send_confirmed("x", number)).await.unwrap();
        }
        if let Some(fault) = fault {
            world.journal.plan(None, JournalOp::Append, 0, fault);
        }
        assert_eq!(within(producer.send_confirmed("x", seventh)).await.unwrap(), SeqNr(7), "{fault:?}, {seventh}");
        assert_eq!(within(producer.send_confirmed("x", 8)).await.unwrap(), SeqNr(8), "{fault:?}");
        assert_eq!(world.stored("x").await, [1, 2, 3, 4, 5, 6, seventh, 8], "{fault:?}");
        assert_eq!(world.evaluations(seventh), 1, "{fault:?}, {seventh}: the handler ran once");
        let counters = world.delivery.counters().snapshot();
        assert!(counters.suppressed >= 1 || fault == Some(slow), "{fault:?}: it was confirmed unseen");
    }
}

/// delivery 71, end: deliveries without effects share one read of the journal's head. The first read is slow, so that
/// the other deliveries come meanwhile; one more read covers all of them, and a third one would never be answered.
#[tokio::test]
async fn scenario_71_one_look_at_the_head_confirms_all_that_wait() {
    let mut settings = DeliverySettings::test();
    settings.consumer.max_outstanding_deliveries = 10;
    let world = World::new(settings).await;
    let producer = world.producer(1);
    within(producer.send_confirmed("x", 1)).await.unwrap();
    world.journal.plan(None, JournalOp::Head, 0, StoreFault::Delay(Duration::from_millis(300)));
    world.journal.plan(None, JournalOp::Head, 2, StoreFault::Hang { done: false });
    for number in 1..=10 {
        within(producer.send("x", -number)).await.unwrap();
    }
    producer.drain(Duration::from_secs(10)).await.expect("two looks are enough");
    assert_eq!(world.evaluated.lock().unwrap().len(), 11, "each was evaluated once");
    assert_eq!(world.delivery.counters().snapshot().confirmed, 11);
}

/// delivery 96: sends are cancelled at every step. The producer runs again with the same identity and input, without
/// cancelling: every message has the same total, and each effect is applied once.
#[tokio::test]
async fn scenario_96_a_second_run_finds_every_number_as_it_was() {
    const MESSAGES: i64 = 60;
    for steps in 0..8 {
        let journal = InMemoryJournal::default();
        let mut settings = DeliverySettings::test();
        settings.sharding.buffer_size_per_entity = 1;
        let world = World::over(&journal, settings.clone()).await;
        let first = world.producer(1);
        let entity = |number: i64| format!("{}", number % 3);
        for number in 1..=MESSAGES {
            let mut send = Box::pin(first.send(entity(number), number));
            if number % 4 != 0 {
                let mut sent = within(send).await.unwrap();
                assert_eq!(sent.seq_nr().await, Ok(SeqNr(number.unsigned_abs())));
                continue;
            }
            // A send takes its number when its future is first polled.
            let mut is_done = poll!(&mut send).is_ready();
            for _ in 0..steps {
                tokio::task::yield_now().await;
                is_done = is_done || poll!(&mut send).is_ready();
            }
            drop(send);
        }
        first.drain(PATIENCE).await.unwrap();
        first.close().await;
        let before: Vec<Vec<i64>> = [world.stored("0").await, world.stored("1").await, world.stored("2").await].into();

        let world = World::over(&journal, settings).await;
        let second = world.producer(2);
        for number in 1..=MESSAGES {
            let mut sent = within(second.send(entity(number), number)).await.unwrap();
            assert_eq!(sent.seq_nr().await, Ok(SeqNr(number.unsigned_abs())), "after {steps} steps");
        }
        second.drain(PATIENCE).await.unwrap();
        let mut times = BTreeMap::<i64, u32>::new();
        for (index, before) in before.iter().enumerate() {
            let after = world.stored(&index.to_string()).await;
            assert!(after.starts_with(before), "after {steps} steps: {before:?} became {after:?}");
            after.into_iter().for_each(|number| *times.entry(number).or_default() += 1);
        }
        assert!(times.values().all(|times| *times == 1), "after {steps} steps: {times:?}");
        let missing: Vec<i64> = (1..=MESSAGES).filter(|n| n % 4 != 0 && !times.contains_key(n)).collect();
        assert!(missing.is_empty(), "after {steps} steps: {missing:?}");
    }
}

/// Keeps its deliveries until the test tells it to drop them, and fails on request.
struct Holder {
    kept: Vec<Delivery<i64>>,
    failures: Arc<AtomicU64>,
}

#[derive(Clone, Copy, Serialize, Deserialize)]
enum Tell {
    Fail,
    LetGo,
}

impl DeliveryEntity<i64> for Holder {
    type Bypass = Tell;

    fn on_delivery(
        &mut self,
        delivery: Delivery<i64>,
        _: &mut Ctx<'_, WithDelivery<i64, Tell>>,
    ) -> Result<(), Failure> {
        self.kept.push(delivery);
        Ok(())
    }

    fn on_bypass(&mut self, tell: Tell, _: &mut Ctx<'_, WithDelivery<i64, Tell>>) -> Result<(), Failure> {
        match tell {
            Tell::Fail => {
                self.failures.fetch_add(1, Ordering::Relaxed);
                Err(Failure::new("on purpose"))
            }
            Tell::LetGo => {
                self.kept.drain(..).for_each(Delivery::confirm);
                Ok(())
            }
        }
    }
}

/// delivery 97: an entity fails 100,000 times, more often than a subscriber of the region's events can follow. The
/// links to other entities do not start over.
#[tokio::test]
async fn scenario_97_failures_of_one_entity_start_no_other_link_over() {
    const FAILURES: u64 = 100_000;
    let sharding = alone(None).await;
    let mut settings = DeliverySettings::test();
    settings.producer.resend_first_unconfirmed_idle_timeout = Duration::from_secs(3600);
    NodeDelivery::of(&sharding, settings.clone()).unwrap();
    let failures = Arc::new(AtomicU64::new(0));
    let counted = failures.clone();
    let holders = DeliveryType::of_both(EntityKey::new("Holder"), json("n"), json("tell"), move |_| {
        Ok(Holder { kept: Vec::new(), failures: counted.clone() })
    });
    let region = sharding.init(holders).unwrap();
    let producer =
        ShardingProducer::start(&sharding, identity("p", 1, 1), region.clone(), json::<i64>("n"), settings).unwrap();
    for number in 0..20 {
        within(producer.send(format!("holder-{number}"), number)).await.unwrap();
        within(producer.send(format!("holder-{number}"), 100 + number)).await.unwrap();
    }
    let tell = async |entity: &str, tell: Tell| {
        while region.entity_ref(entity).tell(WithDelivery::Bypass(tell)).is_err() {
            tokio::task::yield_now().await;
        }
    };
    for _ in 0..FAILURES {
        tell("fails", Tell::Fail).await;
    }
    within(async {
        while failures.load(Ordering::Relaxed) < FAILURES {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    assert_eq!(producer.stats().resent, 0, "no link started over");
    within(async {
        while producer.drain(Duration::from_millis(20)).await.is_err() {
            for number in 0..20 {
                tell(&format!("holder-{number}"), Tell::LetGo).await;
            }
        }
    })
    .await;
    assert_eq!(producer.stats().resent, 0);
}
