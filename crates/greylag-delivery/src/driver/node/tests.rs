//! Entity types described with delivery, on one node.

mod running;

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use greylag_codec::json;
use greylag_core::{Registry, ReplyTo};
use greylag_persistence::{Ctx, Effect, EventSourced, Stores};
use greylag_sharding::ids::EntityTypeName;
use greylag_sharding::{EntityKey, EntityType, Failure, InitError, Sharding, ShardingSettings};
use greylag_transport::memory::MemoryNetwork;

use super::*;
use crate::{
    Delivery, DeliveryCommand, DeliveryEffects, DeliveryEntity, DeliverySettings, DeliveryType, EntityOutbox,
    ProducerId, StartError, WithDelivery,
};

const SUM: EntityKey<u64> = EntityKey::new("Sum");
const ASKED: EntityKey<ReplyTo<u64>> = EntityKey::new("Sum");

struct Sum;

impl EventSourced for Sum {
    type Command = DeliveryCommand<u64, ReplyTo<u64>>;
    type Event = u64;
    type State = u64;

    fn on_command(&mut self, _: &mut Ctx<'_, Self::Command>, sum: &u64, command: Self::Command) -> Effect<Self> {
        match command {
            DeliveryCommand::Delivered(number) => {
                let event = *number;
                Effect::persist_delivery(number, vec![event])
            }
            DeliveryCommand::Bypass(reply_to) => Effect::reply(reply_to, *sum),
        }
    }

    fn apply(sum: &mut u64, number: &u64) {
        *sum += number;
    }
}

fn sums() -> EntityType<u64, greylag_sharding::ByEvents<Sum>> {
    EntityType::event_sourced(SUM, |_| Ok(Sum)).commands(json("sum.add")).events(json("sum.added"))
}

async fn node() -> Sharding {
    let remoting = MemoryNetwork::new().node("a:1#1".parse().unwrap(), Arc::new(Registry::new()));
    Sharding::alone(remoting, Some(Stores::in_memory()), ShardingSettings::test()).await.unwrap()
}

/// The codec of deliveries is named once, in the type's description; bypass messages are sent by a key of their own
/// type.
#[tokio::test]
async fn described_entity_type_serves_producers_and_asks() {
    let sharding = node().await;
    let delivery = NodeDelivery::of(&sharding, DeliverySettings::test()).unwrap();
    sharding.init(sums().with_delivery_and(json("sum.get"))).unwrap();
    let producer = delivery.producer(SUM, ProducerId::per_node("numbers")).start().await.unwrap();
    for number in 1..=4 {
        producer.send_confirmed("a", number).await.unwrap();
    }
    let sum = sharding.entity_ref(ASKED, "a").ask(|reply_to| reply_to).timeout(Duration::from_secs(60)).await;
    assert_eq!(sum, Ok(10));
    let counters = delivery.counters(&SUM).unwrap().snapshot();
    assert_eq!((counters.delivered, counters.confirmed), (4, 4));
    assert!(delivery.counters(&EntityKey::<u64>::new("Other")).is_none());
}

/// One type has settings of its own, another one those of the node; invalid settings are refused by name, before
/// anything is started.
#[tokio::test]
async fn a_type_has_settings_of_its_own() {
    const STRICT: EntityKey<u64> = EntityKey::new("Strict");
    const LENIENT: EntityKey<u64> = EntityKey::new("Lenient");

    let sharding = node().await;
    let mut settings = DeliverySettings::test();
    settings.consumer.redelivery_backoff = Duration::from_millis(1);
    settings.consumer.max_delivery_attempts = 4;
    let delivery = NodeDelivery::of(&sharding, settings).unwrap();
    let failing = |key| DeliveryType::of(key, json("number"), |_| Ok(Failing));
    let senseless = failing(STRICT).delivery_settings(|settings| settings.consumer.flow_control_window = 0);
    let refused = sharding.init(senseless).unwrap_err();
    assert!(refused.to_string().contains("delivery.consumer.flow_control_window"), "{refused}");
    assert!(delivery.consumers(&STRICT).is_none());
    let strict = failing(STRICT).delivery_settings(|settings| settings.consumer.max_delivery_attempts = 2);
    sharding.init(strict).unwrap();
    sharding.init(failing(LENIENT)).unwrap();
    for (key, attempts) in [(STRICT, 2), (LENIENT, 4)] {
        let counters = delivery.counters(&key).unwrap();
        let producer = delivery.producer(key, ProducerId::per_node("numbers")).start().await.unwrap();
        producer.send_confirmed("a", 1).await.unwrap();
        let counted = counters.snapshot();
        assert_eq!((counted.delivered, counted.poisoned), (attempts, 1));
    }
}

struct Failing;

impl DeliveryEntity<u64> for Failing {
    type Bypass = Infallible;

    fn on_delivery(&mut self, _: Delivery<u64>, _: &mut FailingCtx<'_>) -> Result<(), Failure> {
        Err(Failure::new("on purpose"))
    }

    fn on_bypass(&mut self, never: Infallible, _: &mut FailingCtx<'_>) -> Result<(), Failure> {
        match never {}
    }
}

type FailingCtx<'a> = Ctx<'a, WithDelivery<u64, Infallible>>;

#[tokio::test]
async fn a_producer_of_other_messages_and_a_type_without_a_codec_are_refused_by_name() {
    let sharding = node().await;
    let delivery = NodeDelivery::of(&sharding, DeliverySettings::test()).unwrap();
    let name = || ProducerId::per_node("numbers");
    let nowhere = delivery.producer(SUM, name()).start().await.unwrap_err();
    assert!(matches!(nowhere, StartError::NotSetUp { .. }), "{nowhere}");
    let silent = EntityType::event_sourced(SUM, |_| Ok(Sum)).events(json("sum.added"));
    sharding.init(silent.with_delivery_and(json("sum.get"))).unwrap();
    let other = delivery.producer(EntityKey::<String>::new("Sum"), name()).start().await.unwrap_err();
    assert!(matches!(other, StartError::NotSetUp { .. }), "{other}");
    let unwritten = delivery.producer(SUM, name()).start().await.unwrap_err();
    assert_eq!(unwritten, StartError::NoCodec { entity_type: "Sum".to_owned() });
    let nameless = delivery.producer(SUM, ProducerId::per_node("")).start().await.unwrap_err();
    assert!(matches!(nameless, StartError::NoCodec { .. }), "the type comes first: {nameless}");
}

/// The factory of an entity whose outbox cannot be opened gets the reason.
#[tokio::test]
async fn an_outbox_to_a_type_that_is_not_set_up_is_refused_by_name() {
    let sharding = node().await;
    NodeDelivery::of(&sharding, DeliverySettings::test()).unwrap();
    let (to_test, mut outcomes) = tokio::sync::mpsc::unbounded_channel();
    let orders = EntityType::event_sourced(SUM, move |init| {
        to_test.send(EntityOutbox::open(init, EntityKey::<u32>::new("Card")).map(drop)).unwrap();
        to_test.send(EntityOutbox::open(init, EntityKey::<u32>::new("Sum")).map(drop)).unwrap();
        to_test.send(EntityOutbox::open(init, SUM).map(drop)).unwrap();
        Ok(Sum)
    });
    let orders = orders.commands(json("sum.add")).events(json("sum.added")).with_delivery_and(json("sum.get"));
    sharding.init(orders).unwrap();
    let asked = sharding.entity_ref(ASKED, "a").ask(|reply_to| reply_to).timeout(Duration::from_secs(60)).await;
    assert_eq!(asked, Ok(0));
    for entity_type in ["Card", "Sum"] {
        let refused = StartError::NotSetUp { entity_type: entity_type.to_owned(), message: "u32" };
        assert_eq!(outcomes.recv().await, Some(Err(refused)));
    }
    assert_eq!(outcomes.recv().await, Some(Ok(())));
}

/// Producers of outboxes appear in the report by type, for as long as an entity with an outbox is active.
#[tokio::test]
async fn outboxes_are_reported_by_type() {
    let sharding = node().await;
    let delivery = NodeDelivery::of(&sharding, DeliverySettings::test()).unwrap();
    let (to_test, mut outboxes) = tokio::sync::mpsc::unbounded_channel();
    let sums = EntityType::event_sourced(SUM, move |init| {
        to_test.send(EntityOutbox::open(init, SUM).unwrap()).unwrap();
        Ok(Sum)
    });
    let sums = sums.commands(json("sum.add")).events(json("sum.added")).with_delivery_and(json("sum.get"));
    sharding.init(sums).unwrap();
    let mut kept = Vec::new();
    for id in ["a", "b"] {
        sharding.entity_ref(ASKED, id).ask(|reply_to| reply_to).timeout(Duration::from_secs(60)).await.unwrap();
        kept.push(outboxes.recv().await.unwrap());
    }
    let [report] = delivery.report().producers.try_into().unwrap();
    assert_eq!((report.producer_id.as_str(), report.kind, &*report.to), ("Sum/*", ProducerKind::Outboxes, "Sum"));
    assert!(report.is_durable);
    drop(kept);
    tokio::time::timeout(Duration::from_secs(60), async {
        while !delivery.report().producers.is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await
    .expect("they have ended");
}

/// Parts of a description that delivery would ignore are refused.
#[tokio::test]
async fn message_settings_before_with_delivery_are_refused() {
    let sharding = node().await;
    let early = |what| Err(InitError::OfWrappedMessages { name: EntityTypeName::new("Sum").unwrap(), what });
    let init = |described: EntityType<u64, greylag_sharding::ByEvents<Sum>>| {
        sharding.init(described.with_delivery_and(json("sum.get"))).map(drop)
    };
    assert_eq!(init(sums().stop_message(|| 0)), early("stop_message"));
    assert_eq!(init(sums().is_activity(|_| true)), early("is_activity"));
    assert_eq!(init(sums().addressed_by(|_| None)), early("addressed_by"));
    let without_events = EntityType::event_sourced(SUM, |_| Ok(Sum)).commands(json("sum.add"));
    assert_eq!(
        init(without_events),
        Err(InitError::NoCodec { name: EntityTypeName::new("Sum").unwrap(), what: "events" })
    );
    assert_eq!(init(sums()), Ok(()));
}

#[test]
fn a_producer_per_node_is_the_same_after_a_restart_of_its_node() {
    let on = |node: &str| ProducerId::per_node("orders").on(&node.parse().unwrap()).unwrap();
    assert_eq!(on("shop:17355#1").as_str(), "orders@shop:17355");
    assert_eq!(on("shop:17355#1"), on("shop:17355#2"), "another incarnation");
    assert_ne!(on("shop:17355#1"), on("shop:17356#1"));
    assert!(ProducerId::per_node("").on(&"shop:17355#1".parse().unwrap()).is_err());
}

/// A durable producer continues the stream of its predecessor of the same name; the queue is in the node's own journal.
#[tokio::test]
async fn a_durable_producer_goes_on_in_the_nodes_journal() {
    let stores = Stores::in_memory();
    let node = |uid: u32| {
        let remoting = MemoryNetwork::new().node(format!("a:1#{uid}").parse().unwrap(), Arc::new(Registry::new()));
        Sharding::alone(remoting, Some(stores.clone()), ShardingSettings::test())
    };
    let name = || ProducerId::per_node("numbers");
    for (uid, first) in [(1, 1), (2, 3)] {
        let sharding = node(uid).await.unwrap();
        let delivery = NodeDelivery::of(&sharding, DeliverySettings::test()).unwrap();
        sharding.init(sums().with_delivery_and(json("sum.get"))).unwrap();
        let producer = delivery.producer(SUM, name()).durable().start().await.unwrap();
        for number in [first, first + 1] {
            let mut sent = producer.send("a", number).await.unwrap();
            assert_eq!(sent.seq_nr().await.unwrap().get(), number, "numbers go on");
            sent.confirmed().await.unwrap();
        }
        let report = delivery.report().producers.remove(0);
        assert_eq!(
            (report.producer_id.as_str(), report.kind, &*report.to),
            ("numbers@a:1", ProducerKind::Sharding, "Sum")
        );
        assert!(report.is_durable);
        producer.close().await;
        assert_eq!(delivery.report().producers, [], "it has ended");
    }
    let sharding = node(3).await.unwrap();
    sharding.init(sums().with_delivery_and(json("sum.get"))).unwrap();
    let sum = sharding.entity_ref(ASKED, "a").ask(|reply_to| reply_to).timeout(Duration::from_secs(60)).await;
    assert_eq!(sum, Ok(10));
    let delivery = NodeDelivery::of(&sharding, DeliverySettings::test()).unwrap();
    let id = ProducerId::new("a|b").unwrap();
    let unnamed = delivery.producer(SUM, id).durable().start().await.unwrap_err();
    assert!(matches!(unnamed, StartError::NoHistory(_)), "{unnamed}");
}

/// The report has the number and the age of unconfirmed messages, and the consumer whose demand is missing.
#[tokio::test]
async fn waiting_messages_are_reported() {
    const STUCK: EntityKey<u64> = EntityKey::new("Stuck");

    struct Stuck(Arc<std::sync::Mutex<Vec<Delivery<u64>>>>);

    impl EventSourced for Stuck {
        type Command = Delivery<u64>;
        type Event = ();
        type State = ();

        fn on_command(&mut self, _: &mut Ctx<'_, Self::Command>, (): &(), delivery: Self::Command) -> Effect<Self> {
            self.0.lock().unwrap().push(delivery);
            Effect::none()
        }

        fn apply((): &mut (), (): &()) {}
    }

    let held = Arc::<std::sync::Mutex<Vec<Delivery<u64>>>>::default();
    let sharding = node().await;
    let mut settings = DeliverySettings::test();
    settings.consumer.flow_control_window = 2;
    let delivery = NodeDelivery::of(&sharding, settings).unwrap();
    let kept = held.clone();
    let stuck = EntityType::event_sourced(STUCK, move |_| Ok(Stuck(kept.clone()))).commands(json("stuck"));
    sharding.init(stuck.events(json("stuck.never")).with_delivery()).unwrap();
    let producer = delivery.producer(STUCK, ProducerId::per_node("p")).start().await.unwrap();
    for number in 0..5 {
        producer.send("a", number).await.unwrap();
    }
    let (begun, patience) = (std::time::Instant::now(), Duration::from_secs(60));
    loop {
        let counts = delivery.report().producers[0].counts;
        let waits = (counts.links, counts.links_with_demand, counts.unconfirmed, counts.buffered) == (1, 0, 5, 3);
        if waits && counts.oldest_unconfirmed.is_some_and(|age| age >= Duration::from_millis(20)) {
            break;
        }
        assert!(begun.elapsed() < patience, "{counts:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(held.lock().unwrap().len(), 1);
    producer.close().await;
}

/// Entities with handlers, described by a key of their deliveries' message type.
#[tokio::test]
async fn entities_with_handlers_are_described_as_briefly() {
    const DOUBLE: EntityKey<u64> = EntityKey::new("Double");
    const OF: EntityKey<ReplyTo<u64>> = EntityKey::new("Double");

    type Carried = WithDelivery<u64, ReplyTo<u64>>;

    struct Double(u64);

    impl DeliveryEntity<u64> for Double {
        type Bypass = ReplyTo<u64>;

        fn on_delivery(&mut self, number: Delivery<u64>, _: &mut Ctx<'_, Carried>) -> Result<(), Failure> {
            self.0 += *number * 2;
            number.confirm();
            Ok(())
        }

        fn on_bypass(&mut self, reply_to: ReplyTo<u64>, _: &mut Ctx<'_, Carried>) -> Result<(), Failure> {
            reply_to.reply(self.0);
            Ok(())
        }
    }

    let sharding = node().await;
    let delivery = NodeDelivery::of(&sharding, DeliverySettings::test()).unwrap();
    let doubles = DeliveryType::of_both(DOUBLE, json("double.add"), json("double.get"), |_| Ok(Double(0)));
    sharding.init(doubles).unwrap();
    let producer = delivery.producer(DOUBLE, ProducerId::per_node("numbers")).start().await.unwrap();
    for number in 1..=3 {
        producer.send_confirmed("a", number).await.unwrap();
    }
    let doubled = sharding.entity_ref(OF, "a").ask(|reply_to| reply_to).timeout(Duration::from_secs(60)).await;
    assert_eq!(doubled, Ok(12));
    assert_eq!(delivery.counters(&DOUBLE).unwrap().snapshot().confirmed, 3);
}
