//! The customer: an event-sourced entity that remembers what it bought.

use greylag::delivery::{ConsumerDelivery, DeliveryCodec, DeliveryCommand, DeliveryEffects, WithDelivery};
use greylag::delivery::{Delivery, event_sourced_with_delivery};
use greylag::prelude::*;
use serde::{Deserialize, Serialize};

use crate::purchases::{PurchaseLine, Totals};

/// The role of the nodes that host customers; the parent has another one.
pub(crate) const ROLE: &str = "customers";

/// What a customer is sent, reliably: one line of the file.
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

/// What a customer remembers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Purchased {
    date: String,
    units: u32,
    cents: u64,
}

/// What a customer is asked, beside the deliveries.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Query {
    /// What did you buy?
    Totals {
        /// Where the answer goes.
        reply_to: ReplyTo<Totals>,
    },
}

/// What the region of customers carries.
pub(crate) type CustomerMessage = WithDelivery<Purchase, Query>;

/// The codec of purchases, for the producer and the customers alike.
pub(crate) fn purchase_codec() -> impl greylag::core::Codec<Purchase> {
    json("storefront.purchase")
}

/// The entity type, the same on every node.
pub(crate) fn customers(delivery: &ConsumerDelivery) -> EntityType<CustomerMessage> {
    event_sourced_with_delivery("Customer", delivery, |init| Ok(Customer { id: init.persistence_id()? }))
        .codec(DeliveryCodec::new(purchase_codec(), json("storefront.query")))
        .role(ROLE)
}

struct Customer {
    id: PersistenceId,
}

impl Customer {
    /// The money moves exactly once: the event is stored with the delivery's position, and only then
    /// is the delivery confirmed.
    fn buy(delivery: Delivery<Purchase>) -> Effect<Self> {
        let Purchase { date, units, cents } = (*delivery).clone();
        Effect::persist_delivery(delivery, vec![Purchased { date, units, cents }])
    }
}

impl EventSourced for Customer {
    type Command = DeliveryCommand<Purchase, Query>;
    type Event = Purchased;
    type State = Totals;

    fn persistence_id(&self) -> PersistenceId {
        self.id.clone()
    }

    fn event_codec(&self) -> StoredCodec<Purchased> {
        StoredCodec::new(json("storefront.purchased"))
    }

    fn snapshot_codec(&self) -> Option<StoredCodec<Totals>> {
        Some(StoredCodec::new(json("storefront.totals")))
    }

    fn on_command(
        &mut self,
        _cx: &mut CommandContext<'_, Self::Command>,
        totals: &Totals,
        command: Self::Command,
    ) -> Effect<Self> {
        match command {
            DeliveryCommand::Delivered(delivery) => Self::buy(delivery),
            DeliveryCommand::Bypass(Query::Totals { reply_to }) => Effect::reply(reply_to, *totals),
        }
    }

    fn apply(&self, totals: &mut Totals, event: &Purchased, _meta: &EventMeta<'_>) {
        totals.add(event.units, event.cents);
    }
}
