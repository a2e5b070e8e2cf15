//! The card: pays for orders, and tells each order that it is paid.

use greylag::delivery::{DeliveryOutbox, EntityOutbox, OutboxEvent, OutboxRequest, WithOutbox};
use greylag::persistence::Signal;
use greylag::prelude::*;
use greylag::sharding::Proxy;

use crate::order::{ORDER, OrderMessage, order};

/// The key of cards for producers that deliver to them.
pub(crate) const CARD: EntityKey<Pay> = EntityKey::new("Card");
/// The key of the same cards for queries.
pub(crate) const CHARGED: EntityKey<Query> = EntityKey::new("Card");

#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Pay {
    pub(crate) order: String,
    pub(crate) cents: u64,
}

/// The codec of payments, for senders and receivers.
pub(crate) fn pay() -> impl greylag::core::Codec<Pay> {
    json("card.pay")
}

#[derive(Serialize, Deserialize)]
pub(crate) enum Query {
    /// The total that was charged to the card, in cents.
    Charged(ReplyTo<u64>),
    /// A request of this card's own outbox producer. It never leaves the process.
    #[serde(skip)]
    Outbox(OutboxRequest),
}

#[derive(Serialize, Deserialize)]
pub(crate) enum CardEvent {
    Charged { cents: u64 },
    Outbox(OutboxEvent),
}

#[derive(Default)]
pub(crate) struct CardState {
    charged: u64,
    outbox: DeliveryOutbox,
}

/// The entity type on nodes that host cards.
pub(crate) fn cards() -> EntityType<WithDelivery<Pay, Query>> {
    EntityType::event_sourced(CARD, |init| Ok(Card { outbox: EntityOutbox::open(init, ORDER)? }))
        .role("shop")
        .commands(pay())
        .events(json("card.event"))
        .with_delivery_and(json("card.query"))
        .remember_entities(RememberStore::EventSourced)
}

/// The entity type on nodes that only send to cards.
pub(crate) fn cards_elsewhere() -> EntityType<WithDelivery<Pay, Query>, Proxy> {
    CARD.proxy().role("shop").commands(pay()).with_delivery_and(json::<Query>("card.query"))
}

pub(crate) struct Card {
    outbox: EntityOutbox,
}

impl EventSourced for Card {
    type Command = DeliveryCommand<Pay, Query>;
    type Event = CardEvent;
    type State = CardState;

    fn on_command(
        &mut self,
        cx: &mut Ctx<'_, Self::Command>,
        state: &CardState,
        command: Self::Command,
    ) -> Effect<Self> {
        match command {
            DeliveryCommand::Delivered(delivery) => {
                let Pay { order: id, cents } = (*delivery).clone();
                let paid = [(id, OrderMessage::Paid { cents })];
                let sent = self.outbox.send::<Self, _>(state, &order(), paid).expect("JSON takes it");
                let events = [CardEvent::Charged { cents }].into_iter().chain(sent).collect();
                Effect::persist_delivery(delivery, events).then_run(self.outbox.stored::<Self>())
            }
            DeliveryCommand::Bypass(Query::Charged(reply_to)) => Effect::reply(reply_to, state.charged),
            DeliveryCommand::Bypass(Query::Outbox(request)) => self.outbox.on_request(cx, state, request),
        }
    }

    fn apply(state: &mut CardState, event: &CardEvent) {
        match event {
            CardEvent::Charged { cents } => state.charged += cents,
            CardEvent::Outbox(event) => state.outbox.apply(event),
        }
    }

    fn on_signal(&mut self, cx: &mut Ctx<'_, Self::Command>, _: &CardState, signal: &Signal) {
        self.outbox.on_signal::<Self>(cx, signal);
    }
}

impl WithOutbox for Card {
    fn outbox(state: &CardState) -> &DeliveryOutbox {
        &state.outbox
    }

    fn outbox_event(event: OutboxEvent) -> CardEvent {
        CardEvent::Outbox(event)
    }

    fn outbox_command(request: OutboxRequest) -> Self::Command {
        DeliveryCommand::Bypass(Query::Outbox(request))
    }
}
