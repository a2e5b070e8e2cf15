//! Event-sourced entities under delivery: concurrent attempts, and vetoes against passivation.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use greylag_codec::json;
use greylag_core::{Registry, ReplyTo};
use greylag_delivery::{
    ConsumerDelivery, Delivery, DeliveryCommand, DeliveryEffects, DeliverySettings, Epoch, EventSourcedDelivery,
    NodeDelivery, ProducerId, ProducerIdentity, SeqNr, ShardingProducer, StreamId, WithDelivery,
};
use greylag_persistence::driver::StoreFault;
use greylag_persistence::{
    Ctx, DeliveryId, DeliveryTracker, Effect, EventSourced, FaultyJournal, InMemoryJournal, InMemorySnapshots,
    JournalOp, Stores, Tracked,
};
use greylag_sharding::settings::ShardingSettings;
use greylag_sharding::{EntityKey, EntityType, Passivation, Region, Sharding};
use greylag_transport::memory::MemoryNetwork;
use serde::{Deserialize, Serialize};

const PATIENCE: Duration = Duration::from_secs(60);
/// Long enough for an entity without a veto to be passivated.
const IDLE: Duration = Duration::from_millis(100);

async fn alone(journal: Arc<FaultyJournal>) -> Sharding {
    let remoting = MemoryNetwork::new().node("a:1#1".parse().unwrap(), Arc::new(Registry::new()));
    let stores = Stores::new(journal, Arc::new(InMemorySnapshots::default()));
    Sharding::alone(remoting, Some(stores), ShardingSettings::test()).await.unwrap()
}

fn faulty() -> Arc<FaultyJournal> {
    Arc::new(FaultyJournal::new(Arc::new(InMemoryJournal::default())))
}

async fn within<F: IntoFuture>(future: F) -> F::Output {
    tokio::time::timeout(PATIENCE, future).await.expect("it takes too long")
}

/// Polls until `holds` returns true.
async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let looking = async {
        while !holds().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, looking).await.unwrap_or_else(|_| panic!("{what}: not within {PATIENCE:?}"));
}

fn producer<Q: Send + 'static>(
    sharding: &Sharding,
    region: &Region<WithDelivery<i64, Q>>,
    settings: &DeliverySettings,
) -> ShardingProducer<i64> {
    let identity = ProducerIdentity::stable(ProducerId::new("p").unwrap(), StreamId(1), Epoch(1));
    ShardingProducer::start(sharding, identity, region.clone(), json::<i64>("n"), settings.clone()).unwrap()
}

/// Sets deliveries aside until it is opened, and then stores them in order.
struct Gate {
    is_open: bool,
    evaluated: Arc<Mutex<Vec<i64>>>,
}

#[derive(Serialize, Deserialize)]
enum AtGate {
    Open,
    Stored(ReplyTo<Vec<i64>>),
}

const GATE: EntityKey<i64> = EntityKey::new("Gate");

impl EventSourced for Gate {
    type Command = DeliveryCommand<i64, AtGate>;
    type Event = i64;
    type State = Vec<i64>;

    fn on_command(&mut self, _: &mut Ctx<'_, Self::Command>, state: &Vec<i64>, command: Self::Command) -> Effect<Self> {
        match command {
            DeliveryCommand::Delivered(delivery) if self.is_open => {
                let value = *delivery;
                self.evaluated.lock().unwrap().push(value);
                Effect::persist_delivery(delivery, vec![value])
            }
            DeliveryCommand::Delivered(delivery) => Effect::stash(DeliveryCommand::Delivered(delivery)),
            DeliveryCommand::Bypass(AtGate::Open) => {
                self.is_open = true;
                Effect::none().then_unstash_all()
            }
            DeliveryCommand::Bypass(AtGate::Stored(reply_to)) => Effect::reply(reply_to, state.clone()),
        }
    }

    fn apply(state: &mut Vec<i64>, value: &i64) {
        state.push(*value);
    }
}

/// delivery 65: `confirm_timeout` passes while the first attempt waits, so that a second attempt waits behind it. The
/// append of the first is slow; when it has stored the effect, the second is confirmed without running.
#[tokio::test]
async fn scenario_65_of_two_attempts_that_wait_one_runs() {
    let mut settings = DeliverySettings::test();
    settings.consumer.confirm_timeout = Some(Duration::from_millis(50));
    settings.consumer.redelivery_backoff = Duration::from_millis(10);
    let journal = faulty();
    let sharding = alone(journal.clone()).await;
    let node = NodeDelivery::of(&sharding, settings.clone()).unwrap();
    let evaluated = Arc::<Mutex<Vec<i64>>>::default();
    let noted = evaluated.clone();
    let gates = EntityType::event_sourced(GATE, move |_| Ok(Gate { is_open: false, evaluated: noted.clone() }))
        .commands(json("pass"));
    let region = sharding.init(gates.events(json("passed")).with_delivery_and(json("gate"))).unwrap();
    let delivery: ConsumerDelivery = node.consumers(&GATE).unwrap();
    let producer = producer(&sharding, &region, &settings);
    let mut seventh = within(producer.send("x", 7)).await.unwrap();
    assert_eq!(seventh.seq_nr().await, Ok(SeqNr(1)));
    until("a second attempt waits", async || delivery.counters().snapshot().delivered >= 2).await;
    assert_eq!(*evaluated.lock().unwrap(), [0_i64; 0]);

    journal.plan(None, JournalOp::Append, 0, StoreFault::Delay(Duration::from_millis(200)));
    region.entity_ref("x").tell(WithDelivery::Bypass(AtGate::Open)).unwrap();
    assert_eq!(within(seventh.confirmed()).await, Ok(SeqNr(1)));
    assert_eq!(within(producer.send_confirmed("x", 8)).await.unwrap(), SeqNr(2));
    until("the other attempt is confirmed unseen", async || delivery.counters().snapshot().suppressed >= 1).await;
    assert_eq!(*evaluated.lock().unwrap(), [7, 8], "each ran once");
    let stored = region.entity_ref("x").ask(|reply_to| WithDelivery::Bypass(AtGate::Stored(reply_to)));
    assert_eq!(within(stored.timeout(PATIENCE)).await.unwrap(), [7, 8]);
}

/// Sends messages on until they are confirmed, and keeps some deliveries in hand.
struct Forwarder {
    incarnation: u32,
    sent_on: tokio::sync::mpsc::UnboundedSender<DeliveryId>,
    kept: Vec<Delivery<i64>>,
}

/// Deliveries to a forwarder: a message to send on, one without effect, and one to keep.
const SEND_ON: i64 = 1;
const NOTHING: i64 = 2;
const KEEP: i64 = 3;

#[derive(Serialize, Deserialize)]
enum Beside {
    /// The message of this number, which the forwarder had sent on, has arrived; the forwarder persists that.
    Arrived(u64),
    LetGo,
    /// Asks for the number of the incarnation, 1 for the first.
    Incarnation(ReplyTo<u32>),
}

const FORWARDER: EntityKey<i64> = EntityKey::new("Forwarder");

impl EventSourced for Forwarder {
    type Command = DeliveryCommand<i64, Beside>;
    type Event = i64;
    type State = DeliveryTracker<(), ()>;

    fn on_command(&mut self, _: &mut Ctx<'_, Self::Command>, _: &Self::State, command: Self::Command) -> Effect<Self> {
        match command {
            DeliveryCommand::Delivered(delivery) => match *delivery {
                SEND_ON => Effect::persist_delivery(delivery, vec![0]),
                NOTHING => Effect::confirm_delivery(delivery),
                _ => {
                    self.kept.push(delivery);
                    Effect::none()
                }
            },
            DeliveryCommand::Bypass(Beside::Arrived(number)) => Effect::persist(number.cast_signed()),
            DeliveryCommand::Bypass(Beside::LetGo) => {
                self.kept.drain(..).for_each(Delivery::confirm);
                Effect::none()
            }
            DeliveryCommand::Bypass(Beside::Incarnation(reply_to)) => Effect::reply(reply_to, self.incarnation),
        }
    }

    /// Event 0: a message is sent on. Any other event is the number of a message that has arrived.
    fn apply(state: &mut Self::State, event: &i64) {
        match *event {
            0 => drop(state.deliver((), |_| ())),
            arrived => drop(state.confirm(DeliveryId::new(arrived.unsigned_abs()))),
        }
    }

    fn tracker<'a>(&'a mut self, state: &'a mut Self::State) -> Option<Tracked<'a>> {
        Some(state.send_by(|attempt| self.sent_on.send(attempt.id).unwrap_or_default()))
    }
}

/// delivery 91: a tracker with an unconfirmed message, and short deliveries. The entity stays awake for either, neither
/// lifts the other's veto, and it is passivated when both are done.
#[tokio::test]
async fn scenario_91_a_tracker_and_a_delivery_keep_their_entity_awake() {
    let settings = DeliverySettings::test();
    let sharding = alone(faulty()).await;
    NodeDelivery::of(&sharding, settings.clone()).unwrap();
    let (sent_on, mut arrives) = tokio::sync::mpsc::unbounded_channel();
    let incarnations = AtomicU32::new(0);
    let forwarders = EntityType::event_sourced(FORWARDER, move |_| {
        let incarnation = incarnations.fetch_add(1, Ordering::Relaxed) + 1;
        Ok(Forwarder { incarnation, sent_on: sent_on.clone(), kept: Vec::new() })
    });
    let forwarders = forwarders.passivation(Passivation::idle_after(IDLE)).commands(json("n")).events(json("event"));
    let region = sharding.init(forwarders.with_delivery_and(json("beside"))).unwrap();
    let producer = producer(&sharding, &region, &settings);
    let tell = |beside| region.entity_ref("x").tell(WithDelivery::Bypass(beside)).unwrap();
    let incarnation = async || {
        let ask = region.entity_ref("x").ask(|reply_to| WithDelivery::Bypass(Beside::Incarnation(reply_to)));
        within(ask.timeout(PATIENCE)).await.unwrap()
    };

    // The tracker waits during short deliveries.
    within(producer.send_confirmed("x", SEND_ON)).await.unwrap();
    let number = within(arrives.recv()).await.unwrap().as_u64();
    for _ in 0..3 {
        within(producer.send_confirmed("x", NOTHING)).await.unwrap();
        tokio::time::sleep(IDLE * 3).await;
    }
    assert_eq!(incarnation().await, 1, "what it has sent on is not confirmed");
    // A delivery is in hand, and the tracker is done.
    let kept = within(producer.send("x", KEEP)).await.unwrap();
    tell(Beside::Arrived(number));
    tokio::time::sleep(IDLE * 4).await;
    assert_eq!(incarnation().await, 1, "a delivery is in hand");
    tell(Beside::LetGo);
    within(kept.confirmed()).await.unwrap();
    until("it is passivated when both are done", async || {
        tokio::time::sleep(IDLE * 3).await;
        incarnation().await > 1
    })
    .await;
}
