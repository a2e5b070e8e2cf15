//! Entities whose deliveries fail: with handlers, and event-sourced.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use greylag_codec::json;
use greylag_core::{DeadLetterReason, Registry, ReplyTo};
use greylag_delivery::machine::consumer_link::PoisonPolicy;
use greylag_delivery::{
    ConsumerDelivery, Delivery, DeliveryCommand, DeliveryEffects, DeliveryEntity, DeliveryEvent, DeliverySettings,
    DeliveryType, Epoch, EventSourcedDelivery, NodeDelivery, ProducerId, ProducerIdentity, ShardingProducer, StreamId,
    WithDelivery,
};
use greylag_persistence::{
    Ctx, Effect, EventSourced, InMemoryJournal, InMemorySnapshots, MARK_NAME, Mark, PersistenceId, StoredEvent, Stores,
};
use greylag_sharding::settings::ShardingSettings;
use greylag_sharding::{EntityKey, EntityType, Failure, Passivation, Region, Sharding};
use greylag_transport::memory::MemoryNetwork;
use serde::{Deserialize, Serialize};

const PATIENCE: Duration = Duration::from_secs(60);
const SCRIPTED: EntityKey<i64> = EntityKey::new("Scripted");
const PLAIN: EntityKey<i64> = EntityKey::new("Plain");
/// Longer than any of these tests runs: a timer of this length never fires.
const LONG: Duration = Duration::from_secs(300);

async fn alone(stores: Option<Stores>) -> Sharding {
    let remoting = MemoryNetwork::new().node("a:1#1".parse().unwrap(), Arc::new(Registry::new()));
    Sharding::alone(remoting, stores, ShardingSettings::test()).await.unwrap()
}

/// Settings without idle probes.
fn settings() -> DeliverySettings {
    let mut settings = DeliverySettings::test();
    settings.producer.resend_first_unconfirmed_idle_timeout = LONG;
    settings.consumer.redelivery_backoff = Duration::from_millis(10);
    settings
}

fn identity(stream: u128, epoch: u64) -> ProducerIdentity {
    ProducerIdentity::stable(ProducerId::new(format!("p{stream}")).unwrap(), StreamId(stream), Epoch(epoch))
}

/// Polls until `holds` returns true.
async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let waited = tokio::time::timeout(PATIENCE, async {
        while !holds().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
    waited.await.unwrap_or_else(|_| panic!("{what}: not within {PATIENCE:?}"));
}

/// Bypass messages to the entity.
#[derive(Serialize, Deserialize)]
enum Ask {
    /// Asks for the number of the entity value; 1 for the first value that the factory made.
    Value(ReplyTo<u32>),
    Fail,
    Passivate,
    Veto(bool),
    ConfirmKept,
}

/// The reaction of an entity to a delivery.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Do {
    Confirm,
    Fail,
    Panic,
    Keep,
    ConfirmLater,
    Nack(Duration),
}

/// Entity value, message and attempt of each delivery.
type Log = Arc<Mutex<Vec<(u32, i64, u32)>>>;

struct Scripted {
    value: u32,
    log: Log,
    kept: Vec<Delivery<i64>>,
    what: fn(i64, u32) -> Do,
}

impl DeliveryEntity<i64> for Scripted {
    type Bypass = Ask;

    fn on_delivery(
        &mut self,
        delivery: Delivery<i64>,
        cx: &mut Ctx<'_, WithDelivery<i64, Ask>>,
    ) -> Result<(), Failure> {
        let (message, attempt) = (*delivery, delivery.attempt());
        self.log.lock().unwrap().push((self.value, message, attempt));
        match (self.what)(message, attempt) {
            Do::Confirm => delivery.confirm(),
            Do::Fail => return Err(Failure::new("on purpose")),
            Do::Panic => panic!("on purpose"),
            Do::Keep => self.kept.push(delivery),
            Do::ConfirmLater => cx.run(async move {
                tokio::time::sleep(Duration::from_millis(100)).await;
                delivery.confirm();
            }),
            Do::Nack(pause) => delivery.nack(pause),
        }
        Ok(())
    }

    fn on_bypass(&mut self, ask: Ask, cx: &mut Ctx<'_, WithDelivery<i64, Ask>>) -> Result<(), Failure> {
        match ask {
            Ask::Value(reply_to) => reply_to.reply(self.value),
            Ask::Fail => return Err(Failure::new("on purpose")),
            Ask::Passivate => cx.passivate(),
            Ask::Veto(veto) => cx.veto_passivation(veto),
            Ask::ConfirmKept => self.kept.drain(..).for_each(Delivery::confirm),
        }
        Ok(())
    }
}

struct World {
    sharding: Sharding,
    region: Region<WithDelivery<i64, Ask>>,
    delivery: ConsumerDelivery,
    settings: DeliverySettings,
    log: Log,
}

impl World {
    async fn new(settings: DeliverySettings, passivation: Option<Passivation>, what: fn(i64, u32) -> Do) -> Self {
        let sharding = alone(None).await;
        let node = NodeDelivery::of(&sharding, settings.clone()).unwrap();
        let (log, values) = (Log::default(), AtomicU32::new(0));
        let noted = log.clone();
        let scripted = DeliveryType::of_both(SCRIPTED, json("n"), json("ask"), move |_| {
            let value = values.fetch_add(1, Ordering::Relaxed) + 1;
            Ok(Scripted { value, log: noted.clone(), kept: Vec::new(), what })
        });
        let scripted = match passivation {
            Some(passivation) => scripted.passivation(passivation),
            None => scripted,
        };
        let region = sharding.init(scripted).unwrap();
        let delivery = node.consumers(&SCRIPTED).unwrap();
        Self { sharding, region, delivery, settings, log }
    }

    fn producer(&self, stream: u128) -> ShardingProducer<i64> {
        let (region, settings) = (self.region.clone(), self.settings.clone());
        ShardingProducer::start(&self.sharding, identity(stream, 1), region, json::<i64>("n"), settings).unwrap()
    }

    fn tell(&self, ask: Ask) {
        self.region.entity_ref("one").tell(WithDelivery::Bypass(ask)).unwrap();
    }

    async fn value(&self) -> u32 {
        let ask = |reply_to| WithDelivery::Bypass(Ask::Value(reply_to));
        self.region.entity_ref("one").ask(ask).timeout(PATIENCE).await.unwrap()
    }

    fn log(&self) -> Vec<(u32, i64, u32)> {
        self.log.lock().unwrap().clone()
    }
}

/// delivery 92: a handler that fails at the first of five messages causes at most one more run of each message handed
/// to its value, and its successor gets none of them twice. The five arrive at once.
#[tokio::test]
async fn a_failure_in_a_batch_repeats_nothing_twice() {
    let mut settings = settings();
    settings.consumer.max_outstanding_deliveries = 5;
    for failing in [Do::Fail, Do::Panic] {
        let what = match failing {
            Do::Fail => |message, attempt| if (message, attempt) == (1, 1) { Do::Fail } else { Do::Confirm },
            _ => |message, attempt| if (message, attempt) == (1, 1) { Do::Panic } else { Do::Confirm },
        };
        let world = World::new(settings.clone(), None, what).await;
        let producer = world.producer(1);
        // The first message of a link is sent alone; the messages after it share a batch.
        producer.send_confirmed("one", 0).await.unwrap();
        futures::future::try_join_all((1..=6).map(|message| producer.send("one", message))).await.unwrap();
        producer.drain(PATIENCE).await.unwrap();
        let mut runs = BTreeMap::<(u32, i64), u32>::new();
        for (value, message, _) in world.log() {
            *runs.entry((value, message)).or_default() += 1;
        }
        assert!(runs.values().all(|runs| *runs == 1), "{:?}", world.log());
        let attempts: Vec<_> = world.log().into_iter().filter(|(_, _, attempt)| *attempt > 1).collect();
        assert_eq!(attempts, [(2, 1, 2)], "what was not looked at counts as no attempt");
    }
}

/// delivery 92: all five are in the entity's hands when its value fails. Each of them runs once more, in the new value.
#[tokio::test]
async fn deliveries_in_hand_at_a_failure_run_once_more() {
    let mut settings = settings();
    settings.consumer.max_outstanding_deliveries = 5;
    let world = World::new(settings, None, |_, attempt| if attempt == 1 { Do::Keep } else { Do::Confirm }).await;
    let producer = world.producer(1);
    for message in 1..=5 {
        producer.send("one", message).await.unwrap();
    }
    until("all five are in hand", async || world.log().len() == 5).await;
    world.tell(Ask::Fail);
    producer.drain(PATIENCE).await.unwrap();
    let mut log = world.log();
    assert!(log[..5].iter().copied().eq((1..=5).map(|message| (1, message, 1))), "{log:?}");
    let mut again = log.split_off(5);
    again.sort_unstable();
    assert!(again.iter().copied().eq((1..=5).map(|message| (2, message, 2))), "{again:?}");
}

/// delivery 95: an entity that is stopped does not wait for a delivery that is in back-off, and its successor gets the
/// delivery at once.
#[tokio::test]
async fn a_delivery_in_back_off_does_not_hold_up_the_end() {
    // 103: the longest possible pause is cut to a representable one.
    for pause in [LONG, Duration::MAX] {
        let what = match pause {
            LONG => |_, attempt| if attempt == 1 { Do::Nack(LONG) } else { Do::Confirm },
            _ => |_, attempt| if attempt == 1 { Do::Nack(Duration::MAX) } else { Do::Confirm },
        };
        let world = World::new(settings(), None, what).await;
        let producer = world.producer(1);
        producer.send("one", 7).await.unwrap();
        until("the first attempt", async || world.log().len() == 1).await;
        world.tell(Ask::Passivate);
        until("the successor has it", async || world.log().len() == 2).await;
        assert_eq!(world.log(), [(1, 7, 1), (2, 7, 1)], "a stop is no failure: attempts begin anew");
        // The successor gives the delivery up, too, and is stopped in turn.
        assert_eq!(producer.stats().confirmed, 0);
    }
}

/// delivery 95: an entity that is stopped waits for the delivery in hand.
#[tokio::test]
async fn a_delivery_in_hand_holds_up_the_end() {
    let world = World::new(settings(), None, |_, _| Do::ConfirmLater).await;
    let producer = world.producer(1);
    let sent = producer.send("one", 7).await.unwrap();
    until("it is in hand", async || world.log().len() == 1).await;
    world.tell(Ask::Passivate);
    tokio::time::timeout(PATIENCE, sent.confirmed()).await.expect("it is confirmed").unwrap();
    until("a successor", async || world.value().await == 2).await;
    assert_eq!(world.log(), [(1, 7, 1)]);
}

/// delivery 99: after a message was given up under `stop_consumer`, frames of its producer are refused until the entity
/// starts again.
#[tokio::test]
async fn message_given_up_under_stop_consumer_stops_the_entity() {
    let mut settings = settings();
    settings.consumer.max_delivery_attempts = 2;
    settings.consumer.on_poison = PoisonPolicy::StopConsumer;
    settings.producer.resend_first_interval = Duration::from_millis(20);
    settings.producer.resend_first_unconfirmed_idle_timeout = Duration::from_millis(20);
    let world = World::new(settings, None, |message, _| if message == 1 { Do::Fail } else { Do::Confirm }).await;
    let mut events = world.delivery.events();
    let producer = world.producer(1);
    producer.send("one", 1).await.unwrap();
    let poisoned = tokio::time::timeout(PATIENCE, events.next()).await.unwrap().unwrap();
    assert!(
        matches!(&poisoned, DeliveryEvent::Poisoned { entity, attempts: 2, .. } if &**entity == "one"),
        "{poisoned:?}"
    );
    let resent = producer.stats().resent;
    until("its producer repeats it", async || producer.stats().resent >= resent + 5).await;
    assert_eq!(world.log(), [(1, 1, 1), (2, 1, 2)], "nothing is tried anew by the next frame");
    world.producer(2).send_confirmed("one", 2).await.unwrap();
    world.tell(Ask::Passivate);
    until("the entity starts again, and is tried anew", async || world.log().len() > 3).await;
    assert_eq!(world.log()[3].1, 1);
}

/// delivery 103: a failing bypass message is handled like a failing delivery.
#[tokio::test]
async fn a_failing_bypass_costs_the_state_and_no_link() {
    let what = |_, attempt| if attempt == 1 { Do::Keep } else { Do::Confirm };
    let world = World::new(settings(), None, what).await;
    let producer = world.producer(1);
    let sent = producer.send("one", 7).await.unwrap();
    until("it is in hand", async || world.log().len() == 1).await;
    world.tell(Ask::Fail);
    tokio::time::timeout(PATIENCE, sent.confirmed()).await.expect("it comes again").unwrap();
    assert_eq!(world.log(), [(1, 7, 1), (2, 7, 2)]);
    assert_eq!((world.value().await, producer.stats().resent), (2, 0), "the link was kept");
}

/// delivery 91: the end of a delivery does not lift the entity's own veto against passivation.
#[tokio::test]
async fn vetoes_are_counted_by_holder() {
    let idle = Passivation::idle_after(Duration::from_millis(100));
    let world = World::new(settings(), Some(idle), |_, _| Do::Confirm).await;
    let producer = world.producer(1);
    world.tell(Ask::Veto(true));
    for message in 1..=3 {
        producer.send_confirmed("one", message).await.unwrap();
        tokio::time::sleep(Duration::from_millis(150)).await;
    }
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(world.value().await, 1, "it was not passivated");
    world.tell(Ask::Veto(false));
    until("it is passivated", async || {
        tokio::time::sleep(Duration::from_millis(250)).await;
        world.value().await > 1
    })
    .await;
}

/// Of delivery §8: bypass messages are refused if the settings say so.
#[tokio::test]
async fn bypass_may_be_refused() {
    let mut settings = settings();
    settings.sharding.allow_bypass = false;
    let world = World::new(settings, None, |_, _| Do::Confirm).await;
    world.tell(Ask::Fail);
    until("it is a dead letter", async || {
        world.sharding.remoting().dead_letter_totals().get(&DeadLetterReason::UnexpectedMessage) == Some(&1)
    })
    .await;
    world.producer(1).send_confirmed("one", 1).await.unwrap();
    assert_eq!(world.log(), [(1, 1, 1)], "the entity did not fail");
}

/// delivery C13: a delivery in hand for long is reported, and counted until it is settled.
#[tokio::test]
async fn slow_consumer_is_reported() {
    let mut settings = settings();
    settings.consumer.confirm_warn_after = Duration::from_millis(20);
    let world = World::new(settings, None, |_, _| Do::Keep).await;
    let mut events = world.delivery.events();
    let sent = world.producer(1).send("one", 7).await.unwrap();
    let overdue = tokio::time::timeout(PATIENCE, events.next()).await.unwrap().unwrap();
    assert!(matches!(overdue, DeliveryEvent::Overdue { .. }), "{overdue:?}");
    until("it is counted", async || world.delivery.counters().snapshot().overdue == 1).await;
    world.tell(Ask::ConfirmKept);
    sent.confirmed().await.unwrap();
    until("it is settled", async || world.delivery.counters().snapshot().overdue == 0).await;
}

/// delivery S10: a second producer of the same name with a stream of its own is served, too, and the conflict is
/// reported.
#[tokio::test]
async fn two_producers_with_one_id_are_reported() {
    let world = World::new(settings(), None, |_, _| Do::Confirm).await;
    let mut events = world.delivery.events();
    let named = |stream| ProducerIdentity::stable(ProducerId::new("till").unwrap(), StreamId(stream), Epoch(1));
    for stream in [1, 2] {
        let (region, settings) = (world.region.clone(), world.settings.clone());
        let producer =
            ShardingProducer::start(&world.sharding, named(stream), region, json::<i64>("n"), settings).unwrap();
        producer.send_confirmed("one", 7).await.unwrap();
        // Keep the producers and thus their links.
        std::mem::forget(producer);
    }
    let event = tokio::time::timeout(PATIENCE, events.next()).await.unwrap().unwrap();
    assert!(matches!(&event, DeliveryEvent::SameProducer { producer, .. } if producer.as_str() == "till"), "{event:?}");
    assert_eq!(world.log().len(), 2, "both were delivered");
}

/// Adds messages up; special numbers choose the reaction.
struct Sum {
    evaluated: Arc<Mutex<Vec<i64>>>,
}

/// Messages with special reactions: panic, drop, and two that are confirmed without an effect.
const PANIC: i64 = -1;
const DROP: i64 = -2;
const CONFIRM: i64 = -3;
const CONFIRM_LATER: i64 = -4;

type Command = DeliveryCommand<i64, ReplyTo<i64>>;

const SUM: EntityKey<i64> = EntityKey::new("Sum");

impl EventSourced for Sum {
    type Command = Command;
    type Event = i64;
    type State = i64;

    fn on_command(&mut self, cx: &mut Ctx<'_, Command>, state: &i64, command: Command) -> Effect<Self> {
        let delivery = match command {
            DeliveryCommand::Delivered(delivery) => delivery,
            DeliveryCommand::Bypass(reply_to) => return Effect::reply(reply_to, *state),
        };
        let by = *delivery;
        self.evaluated.lock().unwrap().push(by);
        match by {
            PANIC => panic!("on purpose"),
            DROP => Effect::none(),
            CONFIRM => {
                delivery.confirm();
                Effect::none()
            }
            CONFIRM_LATER => {
                let (_, confirm) = delivery.split();
                cx.run(async move {
                    tokio::task::yield_now().await;
                    confirm.confirm();
                });
                Effect::none()
            }
            _ => Effect::persist_delivery(delivery, vec![by]),
        }
    }

    fn apply(state: &mut i64, by: &i64) {
        *state += by;
    }
}

struct Node {
    sharding: Sharding,
    region: Region<WithDelivery<i64, ReplyTo<i64>>>,
    delivery: ConsumerDelivery,
    settings: DeliverySettings,
    evaluated: Arc<Mutex<Vec<i64>>>,
}

impl Node {
    async fn start(journal: &InMemoryJournal, settings: DeliverySettings) -> Self {
        let stores = Stores::new(Arc::new(journal.clone()), Arc::new(InMemorySnapshots::default()));
        let sharding = alone(Some(stores)).await;
        let node = NodeDelivery::of(&sharding, settings.clone()).unwrap();
        let evaluated = Arc::<Mutex<Vec<i64>>>::default();
        let noted = evaluated.clone();
        let sums = EntityType::event_sourced(SUM, move |_| Ok(Sum { evaluated: noted.clone() }));
        let sums = sums.commands(json("add")).events(json("added")).with_delivery_and(json("sum"));
        let region = sharding.init(sums).unwrap();
        let delivery = node.consumers(&SUM).unwrap();
        Self { sharding, region, delivery, settings, evaluated }
    }

    fn producer(&self, epoch: u64) -> ShardingProducer<i64> {
        let (region, settings) = (self.region.clone(), self.settings.clone());
        ShardingProducer::start(&self.sharding, identity(1, epoch), region, json::<i64>("n"), settings).unwrap()
    }

    async fn sum(&self) -> i64 {
        self.region.entity_ref("x").ask(WithDelivery::Bypass).timeout(PATIENCE).await.unwrap()
    }

    fn evaluated(&self, what: i64) -> usize {
        self.evaluated.lock().unwrap().iter().filter(|evaluated| **evaluated == what).count()
    }
}

/// The number in the mark of an event.
fn total(event: &StoredEvent) -> u64 {
    Mark::decode(event.metadata[MARK_NAME].clone()).unwrap().total_seq_nr
}

/// delivery 89: a message that an event-sourced entity gives up does not block the later ones; they are persisted in
/// order, with their marks. Attempts are counted even if each of them ends the incarnation.
#[tokio::test]
async fn poisoned_message_does_not_block_later_ones() {
    for (poison, position) in [(DROP, 0), (DROP, 1), (PANIC, 0), (PANIC, 1)] {
        let mut settings = settings();
        settings.consumer.max_delivery_attempts = 3;
        settings.consumer.max_outstanding_deliveries = 3;
        let journal = InMemoryJournal::default();
        let node = Node::start(&journal, settings.clone()).await;
        let mut messages = vec![10, 20, 30, 40];
        messages.insert(position, poison);
        let producer = node.producer(1);
        for message in &messages {
            producer.send("x", *message).await.unwrap();
        }
        producer.drain(PATIENCE).await.unwrap();
        assert_eq!(node.sum().await, 100);
        assert_eq!(node.evaluated(poison), 3, "each attempt counts");
        let counters = node.delivery.counters().snapshot();
        assert_eq!(counters.poisoned, 1);
        let history = journal.events(&PersistenceId::of("Sum", "x").unwrap());
        let stored: Vec<(Vec<u8>, u64)> = history.iter().map(|event| (event.payload.to_vec(), total(event))).collect();
        let good = messages.iter().zip(1..).filter(|(message, _)| **message != poison);
        let expected: Vec<_> = good.map(|(message, total)| (message.to_string().into_bytes(), total)).collect();
        assert_eq!(stored, expected, "in order, each with its mark");
        producer.close().await;

        // The marks are stored: the same input again changes nothing.
        let node = Node::start(&journal, settings).await;
        let producer = node.producer(2);
        for message in messages {
            producer.send("x", message).await.unwrap();
        }
        producer.drain(PATIENCE).await.unwrap();
        assert_eq!(node.sum().await, 100);
        assert_eq!(node.evaluated.lock().unwrap().len(), 0, "the last mark covers them all");
    }
}

/// delivery 100, 71: a confirmation without an effect, made in any way, waits for a read of the journal's head. An
/// owner that lost its history without knowing confirms nothing; the true owner evaluates the message again.
#[tokio::test]
async fn confirmation_waits_for_proof_in_every_form() {
    let mut settings = settings();
    // Needed because an incarnation that the region ends while it asks for the shard's owner sends no message to its
    // producers.
    settings.producer.resend_first_unconfirmed_idle_timeout = Duration::from_secs(1);
    for confirmation in [CONFIRM, CONFIRM_LATER] {
        let journal = InMemoryJournal::default();
        let stale = Node::start(&journal, settings.clone()).await;
        let producer = stale.producer(1);
        producer.send_confirmed("x", 5).await.unwrap();
        let owner = Node::start(&journal, settings.clone()).await;
        assert_eq!(owner.sum().await, 5, "it has claimed the history");
        let confirmed = tokio::time::timeout(PATIENCE, producer.send_confirmed("x", confirmation)).await;
        confirmed.expect("the true owner confirms it").unwrap();
        assert_eq!(
            stale.evaluated(confirmation),
            2,
            "by the stale incarnation, and again by one that owns the history"
        );
        assert_eq!(stale.delivery.counters().snapshot().confirmed, 2, "each message once");
    }
}

/// delivery 100: if no other owner claims the history, the message is confirmed after one evaluation.
#[tokio::test]
async fn a_confirmation_without_an_effect_is_proved() {
    let node = Node::start(&InMemoryJournal::default(), settings()).await;
    let producer = node.producer(1);
    for message in [CONFIRM, 5, CONFIRM_LATER, CONFIRM, 6] {
        producer.send_confirmed("x", message).await.unwrap();
    }
    assert_eq!(node.sum().await, 11);
    assert_eq!(node.evaluated.lock().unwrap().len(), 5);
}

/// An entity without bypass messages.
#[derive(Default)]
struct Plain;

impl DeliveryEntity<i64> for Plain {
    type Bypass = Infallible;

    fn on_delivery(
        &mut self,
        delivery: Delivery<i64>,
        _: &mut Ctx<'_, WithDelivery<i64, Infallible>>,
    ) -> Result<(), Failure> {
        delivery.confirm();
        Ok(())
    }

    fn on_bypass(&mut self, never: Infallible, _: &mut Ctx<'_, WithDelivery<i64, Infallible>>) -> Result<(), Failure> {
        match never {}
    }
}

/// delivery K7: a large message to an entity of the same node is handed over without encoding.
#[tokio::test]
async fn a_large_message_of_the_same_node_is_confirmed_too() {
    let sharding = alone(None).await;
    let mut settings = settings();
    settings.producer.max_message_bytes = 1000;
    settings.producer.chunk_large_messages = 1;
    let node = NodeDelivery::of(&sharding, settings.clone()).unwrap();
    let region = sharding.init(DeliveryType::of(PLAIN, json("n"), |_| Ok(Plain))).unwrap();
    let producer = ShardingProducer::start(&sharding, identity(1, 1), region, json::<i64>("n"), settings).unwrap();
    for message in [1, 123_456_789, i64::MIN] {
        producer.send_confirmed("one", message).await.unwrap();
    }
    assert_eq!(node.counters(&PLAIN).unwrap().snapshot().confirmed, 3);
}
