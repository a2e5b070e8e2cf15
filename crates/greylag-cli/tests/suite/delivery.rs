//! `greylag delivery` against a real node with a producer.

use std::time::{Duration, Instant};

use crate::common::{code, greylag, json, output_text};
use greylag::prelude::*;
use greylag_management::ManagementSettings;

const PAYMENT: EntityKey<u64> = EntityKey::new("Payment");
const TIME_LIMIT: Duration = Duration::from_secs(60);

struct Payment;

impl EventSourced for Payment {
    type Command = Delivery<u64>;
    type Event = u64;
    type State = u64;

    fn on_command(&mut self, _: &mut Ctx<'_, Self::Command>, _: &u64, cents: Self::Command) -> Effect<Self> {
        let event = *cents;
        Effect::persist_delivery(cents, vec![event])
    }

    fn apply(paid: &mut u64, cents: &u64) {
        *paid += cents;
    }
}

async fn node(has_payments: bool) -> Node {
    let builder = Node::builder("shop").stores(Stores::in_memory_shared()).configure(|settings| {
        settings.management = ManagementSettings::at("127.0.0.1:0");
    });
    let payments = EntityType::event_sourced(PAYMENT, |_| Ok(Payment))
        .commands(greylag::prelude::json("payment.pay"))
        .events(greylag::prelude::json("payment.paid"));
    let builder = if has_payments { builder.entity(payments.with_delivery()) } else { builder };
    builder.start().await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn producers_and_consumers_are_shown() {
    let node = node(true).await;
    let admin = node.management_address().expect("it is on").to_string();
    let id = ProducerId::new("till 7").unwrap();
    let payments = node.delivery().producer(PAYMENT, id).durable().start().await.unwrap();
    for cents in 1..=3 {
        payments.send_confirmed("order-1", cents).await.unwrap();
    }
    let deadline = Instant::now() + TIME_LIMIT;
    let shown = loop {
        let shown = json(&greylag(&admin, &["delivery", "--json"]).await);
        // The producer shows its state as of its last action.
        if shown["producers"][0]["confirmed"] == 3 {
            break shown;
        }
        assert!(Instant::now() < deadline, "{shown}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    let producer = &shown["producers"][0];
    assert_eq!((&producer["producer_id"], &producer["kind"]), (&"till 7".into(), &"sharding".into()), "{shown}");
    assert_eq!((&producer["to"], &producer["durable"]), (&"Payment".into(), &true.into()), "{shown}");
    assert_eq!((&producer["links"], &producer["unconfirmed"], &producer["sent"]), (&1.into(), &0.into(), &3.into()));
    assert!(producer["oldest_unconfirmed_ms"].is_null() && producer["trouble"].is_null(), "{shown}");
    let consumers = &shown["consumers"][0];
    assert_eq!((&consumers["name"], &consumers["confirmed"]), (&"Payment".into(), &3.into()), "{shown}");

    let table = greylag(&admin, &["delivery"]).await;
    for wanted in ["PRODUCER", "OLDEST", "till 7", "sharding", "CONSUMERS", "SUPPRESSED"] {
        assert!(output_text(&table).contains(wanted), "{wanted}: {}", output_text(&table));
    }
    node.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_without_producers_and_consumers_says_so() {
    let node = node(false).await;
    let admin = node.management_address().expect("it is on").to_string();
    let empty = greylag(&admin, &["delivery"]).await;
    assert_eq!(code(&empty), 0);
    assert_eq!(output_text(&empty).trim(), "no producer and no consumer of reliable delivery was started here");
    node.shutdown().await.unwrap();
}
