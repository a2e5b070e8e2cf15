//! The customer: an event-sourced entity that remembers its purchases.

use greylag::prelude::*;
use greylag::sharding::Proxy;

use crate::purchases::{PurchaseLine, Totals};

/// The role of the nodes that host customers; the parent process has another one.
pub(crate) const ROLE: &str = "customers";

/// A message to a customer, delivered reliably: one line of the file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Purchase {
    date: String,
    units: u32,
    cents: u64,
}

impl From<&PurchaseLine> for Purchase {
    fn from(line: &PurchaseLine) -> Self {
        Self { date: line.date.clone(), units: line.units, cents: line.cents }
    }
}

/// The event of a customer, as it is stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Purchased {
    date: String,
    units: u32,
    cents: u64,
}

/// The queries to a customer, besides the deliveries.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Query {
    /// Asks for the customer's totals.
    Totals {
        /// The token for the answer.
        reply_to: ReplyTo<Totals>,
    },
}

/// The message type of the customers' region.
pub(crate) type CustomerMessage = WithDelivery<Purchase, Query>;

/// The key of customers for deliveries.
pub(crate) const CUSTOMER: EntityKey<Purchase> = EntityKey::new("Customer");
/// The key of the same customers for queries.
pub(crate) const ASKED: EntityKey<Query> = EntityKey::new("Customer");

/// The entity type on a node that hosts customers.
pub(crate) fn customers() -> EntityType<CustomerMessage> {
    EntityType::event_sourced(CUSTOMER, |_| Ok(Customer))
        .role(ROLE)
        .commands(json("storefront.purchase"))
        .events(json("storefront.purchased"))
        .snapshots(json("storefront.totals"))
        .with_delivery_and(json("storefront.query"))
}

/// The entity type on a node that only sends.
pub(crate) fn customers_elsewhere() -> EntityType<CustomerMessage, Proxy> {
    let customers = CUSTOMER.proxy().role(ROLE).commands(json("storefront.purchase"));
    customers.with_delivery_and(json::<Query>("storefront.query"))
}

struct Customer;

impl Customer {
    /// Applies a purchase exactly once: the event is stored together with the delivery's position, and only
    /// then is the delivery confirmed.
    fn buy(delivery: Delivery<Purchase>) -> Effect<Self> {
        let Purchase { date, units, cents } = (*delivery).clone();
        Effect::persist_delivery(delivery, vec![Purchased { date, units, cents }])
    }
}

impl EventSourced for Customer {
    type Command = DeliveryCommand<Purchase, Query>;
    type Event = Purchased;
    type State = Totals;

    fn on_command(&mut self, _: &mut Ctx<'_, Self::Command>, totals: &Totals, command: Self::Command) -> Effect<Self> {
        match command {
            DeliveryCommand::Delivered(delivery) => Self::buy(delivery),
            DeliveryCommand::Bypass(Query::Totals { reply_to }) => Effect::reply(reply_to, *totals),
        }
    }

    fn apply(totals: &mut Totals, event: &Purchased) {
        totals.add(event.units, event.cents);
    }
}
