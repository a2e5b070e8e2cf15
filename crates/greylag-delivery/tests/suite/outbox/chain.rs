//! Chained exactly-once: orders are paid for exactly once under any failure.

use std::sync::Arc;
use std::time::Duration;

use greylag_codec::json;
use greylag_core::{Registry, ReplyTo};
use greylag_delivery::{
    DeliveryCommand, DeliveryEffects, DeliverySettings, EventSourcedDelivery, NodeDelivery, ProducerId,
    ShardingProducer, WithDelivery,
};
use greylag_persistence::driver::{Ended, StoreFault};
use greylag_persistence::{
    Ctx, Effect, EventSourced, FaultyJournal, InMemoryJournal, InMemorySnapshots, JournalOp, Stores,
};
use greylag_sharding::{EntityKey, EntityType, Region, Sharding, ShardingSettings};
use greylag_transport::memory::MemoryNetwork;

use crate::outbox::order::{Command, Started, id, start, until};

const ACCOUNT: EntityKey<i64> = EntityKey::new("Account");

struct Account;

impl EventSourced for Account {
    type Command = DeliveryCommand<i64, ReplyTo<i64>>;
    type Event = i64;
    type State = i64;

    fn on_command(&mut self, _: &mut Ctx<'_, Self::Command>, balance: &i64, command: Self::Command) -> Effect<Self> {
        match command {
            DeliveryCommand::Delivered(payment) => {
                let cents = *payment;
                Effect::persist_delivery(payment, vec![cents])
            }
            DeliveryCommand::Bypass(reply_to) => Effect::reply(reply_to, *balance),
        }
    }

    fn apply(balance: &mut i64, cents: &i64) {
        *balance += cents;
    }
}

struct World {
    sharding: Sharding,
    region: Region<WithDelivery<i64, ReplyTo<i64>>>,
    journal: Arc<FaultyJournal>,
    stores: Stores,
}

impl World {
    /// Starts a sending entity, and a producer for it.
    fn start(&self) -> Started {
        let (outbox, started) = {
            let Started { orders, ended, queue, producer } = start(&self.stores);
            (queue, (orders, ended, producer))
        };
        let (orders, ended, producer) = started;
        let id = ProducerId::new("Orders/7").unwrap();
        let settings = DeliverySettings::test();
        let sender = ShardingProducer::start_durable(
            &self.sharding,
            id,
            self.region.clone(),
            json::<i64>("pay"),
            outbox,
            settings,
        );
        *producer.lock().unwrap() = Some(sender.unwrap());
        let (_, queue) = greylag_delivery::EntityOutbox::new(1);
        Started { orders, ended, queue, producer }
    }

    async fn balance(&self, account: &str) -> i64 {
        self.region.entity_ref(account).ask(WithDelivery::Bypass).await.unwrap()
    }
}

async fn world() -> World {
    let journal = Arc::new(FaultyJournal::new(Arc::new(InMemoryJournal::default())));
    let stores = Stores::new(journal.clone(), Arc::new(InMemorySnapshots::default()));
    let remoting = MemoryNetwork::new().node("localhost:17355#1".parse().unwrap(), Arc::new(Registry::new()));
    let sharding = Sharding::alone(remoting, Some(stores.clone()), ShardingSettings::default()).await.unwrap();
    NodeDelivery::of(&sharding, DeliverySettings::test()).unwrap();
    let accounts = EntityType::event_sourced(ACCOUNT, |_| Ok(Account));
    let accounts = accounts.commands(json("account.pay")).events(json("account.paid"));
    let region = sharding.init(accounts.with_delivery_and(json("account.balance"))).unwrap();
    World { sharding, region, journal, stores }
}

/// Of delivery §7: orders are placed while appends of the sending entity fail in every way, and the entity is killed
/// and restarted. In the end each account was paid the placed orders, once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_order_is_paid_for_once() {
    let world = world().await;
    let faults = [
        StoreFault::Unavailable,
        StoreFault::AnswerLost { done: true },
        StoreFault::AnswerLost { done: false },
        StoreFault::Rejected,
    ];
    let mut started = world.start();
    for round in 0..12_usize {
        world.journal.plan(Some(id()), JournalOp::Append, (round % 5) as u32, faults[round % 4]);
        for account in ["ada", "bob"] {
            started.orders.tell(Command::Place { account, cents: 1 }).await.unwrap();
        }
        match round % 4 {
            // The entity fails, and a successor starts.
            1 => {
                started.orders.tell(Command::Fail).await.unwrap();
                assert!(matches!(started.ended.await.unwrap(), Ended::Failed(_)));
                started = world.start();
            }
            // The entity is stopped; calls of its producer under way are dropped.
            3 => {
                started.orders.stop().await;
                drop(started);
                started = world.start();
            }
            _ => {}
        }
        started.orders.ask(Command::Count).await.unwrap();
    }
    let (placed, _) = started.orders.ask(Command::Count).await.unwrap();
    assert!((4..=24).contains(&placed), "{placed} of 24 orders were placed");
    until("every payment is confirmed", async || {
        let (_, waiting) = started.orders.ask(Command::Count).await.ok()?;
        (waiting == 0).then_some(())
    })
    .await;
    let paid = world.balance("ada").await + world.balance("bob").await;
    assert_eq!(paid, placed as i64, "each payment has taken effect once");
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(world.balance("ada").await + world.balance("bob").await, paid, "and does not again");
}
