//! The order: sends a payment to its card when it is placed, and learns from the card that it is paid.

use greylag::delivery::{DeliveryOutbox, EntityOutbox, OutboxEvent, OutboxRequest, WithOutbox};
use greylag::persistence::Signal;
use greylag::prelude::*;
use greylag::sharding::Proxy;

use crate::card::{CARD, Pay, pay};

/// The key of orders for producers that deliver to them.
pub(crate) const ORDER: EntityKey<OrderMessage> = EntityKey::new("Order");
/// The key of the same orders for queries.
pub(crate) const ASKED: EntityKey<Query> = EntityKey::new("Order");

#[derive(Clone, Serialize, Deserialize)]
pub(crate) enum OrderMessage {
    Place { card: String, cents: u64 },
    Paid { cents: u64 },
}

/// The codec of orders' messages, for senders and receivers.
pub(crate) fn order() -> impl greylag::core::Codec<OrderMessage> {
    json("order")
}

#[derive(Serialize, Deserialize)]
pub(crate) enum Query {
    /// The paid cents, and the count of payments.
    Payments(ReplyTo<(u64, u32)>),
    /// A request of this order's own outbox producer. It never leaves the process.
    #[serde(skip)]
    Outbox(OutboxRequest),
}

#[derive(Serialize, Deserialize)]
pub(crate) enum OrderEvent {
    Placed,
    Paid { cents: u64 },
    Outbox(OutboxEvent),
}

#[derive(Default)]
pub(crate) struct OrderState {
    is_placed: bool,
    cents: u64,
    payments: u32,
    outbox: DeliveryOutbox,
}

/// The entity type on nodes that host orders. It remembers its entities, so an order that waits for its card continues
/// by itself after its node's death.
pub(crate) fn orders() -> EntityType<WithDelivery<OrderMessage, Query>> {
    EntityType::event_sourced(ORDER, |init| Ok(Order { outbox: EntityOutbox::open(init, CARD)? }))
        .role("shop")
        .commands(order())
        .events(json("order.event"))
        .with_delivery_and(json("order.query"))
        .remember_entities(RememberStore::EventSourced)
}

/// The entity type on nodes that only send to orders.
pub(crate) fn orders_elsewhere() -> EntityType<WithDelivery<OrderMessage, Query>, Proxy> {
    ORDER.proxy().role("shop").commands(order()).with_delivery_and(json::<Query>("order.query"))
}

pub(crate) struct Order {
    outbox: EntityOutbox,
}

impl EventSourced for Order {
    type Command = DeliveryCommand<OrderMessage, Query>;
    type Event = OrderEvent;
    type State = OrderState;

    fn on_command(
        &mut self,
        cx: &mut Ctx<'_, Self::Command>,
        state: &OrderState,
        command: Self::Command,
    ) -> Effect<Self> {
        let delivery = match command {
            DeliveryCommand::Delivered(delivery) => delivery,
            DeliveryCommand::Bypass(Query::Payments(reply_to)) => {
                return Effect::reply(reply_to, (state.cents, state.payments));
            }
            DeliveryCommand::Bypass(Query::Outbox(request)) => return self.outbox.on_request(cx, state, request),
        };
        match (*delivery).clone() {
            OrderMessage::Place { .. } if state.is_placed => Effect::confirm_delivery(delivery),
            OrderMessage::Place { card, cents } => {
                let payment = [(card, Pay { order: cx.id().to_owned(), cents })];
                let sent = self.outbox.send::<Self, _>(state, &pay(), payment).expect("JSON takes it");
                let events = [OrderEvent::Placed].into_iter().chain(sent).collect();
                // Store the events and the mark of the delivery in one append; the payment is sent after that.
                Effect::persist_delivery(delivery, events).then_run(self.outbox.stored::<Self>())
            }
            OrderMessage::Paid { cents } => Effect::persist_delivery(delivery, vec![OrderEvent::Paid { cents }]),
        }
    }

    fn apply(state: &mut OrderState, event: &OrderEvent) {
        match event {
            OrderEvent::Placed => state.is_placed = true,
            OrderEvent::Paid { cents } => {
                state.cents += cents;
                state.payments += 1;
            }
            OrderEvent::Outbox(event) => state.outbox.apply(event),
        }
    }

    fn on_signal(&mut self, cx: &mut Ctx<'_, Self::Command>, _: &OrderState, signal: &Signal) {
        self.outbox.on_signal::<Self>(cx, signal);
    }
}

impl WithOutbox for Order {
    fn outbox(state: &OrderState) -> &DeliveryOutbox {
        &state.outbox
    }

    fn outbox_event(event: OutboxEvent) -> OrderEvent {
        OrderEvent::Outbox(event)
    }

    fn outbox_command(request: OutboxRequest) -> Self::Command {
        DeliveryCommand::Bypass(Query::Outbox(request))
    }
}
