//! An entity that sends payments for orders.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use greylag_codec::json;
use greylag_core::ReplyTo;
use greylag_delivery::{
    DeliveryOutbox, EntityOutbox, EntityOutboxQueue, OutboxEvent, OutboxRequest, ShardingProducer, WithOutbox,
};
use greylag_persistence::driver::{Ended, EntityHandle};
use greylag_persistence::{
    Backoff, Ctx, Effect, EventSourced, EventSourcedSettings, OnFailure, PersistenceId, Signal, Stores,
};
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

pub(crate) enum Command {
    /// Places an order of this many cents, to be paid by an account.
    Place {
        account: &'static str,
        cents: i64,
    },
    /// Asks for the numbers of placed orders, and of unconfirmed payments.
    Count(ReplyTo<(usize, usize)>),
    Fail,
    Outbox(OutboxRequest),
}

#[derive(Serialize, Deserialize)]
pub(crate) enum Event {
    Placed,
    Outbox(OutboxEvent),
}

#[derive(Default, Clone, Serialize, Deserialize)]
pub(crate) struct State {
    placed: usize,
    outbox: DeliveryOutbox,
}

pub(crate) struct Orders {
    outbox: EntityOutbox,
    /// Sends for this entity; the producer ends with the entity.
    pub(crate) _producer: Arc<Mutex<Option<ShardingProducer<i64>>>>,
}

impl EventSourced for Orders {
    type Command = Command;
    type Event = Event;
    type State = State;

    fn settings(&self, defaults: &EventSourcedSettings) -> EventSourcedSettings {
        let (min, max) = (Duration::from_millis(10), Duration::from_millis(50));
        let on_failure = OnFailure::RestartBackoff(Backoff { min, max, jitter: 0.1 });
        EventSourcedSettings { on_failure, ..defaults.clone() }
    }

    fn on_command(&mut self, cx: &mut Ctx<'_, Command>, state: &State, command: Command) -> Effect<Self> {
        match command {
            Command::Place { account, cents } => {
                let pay = self.outbox.send::<Self, _>(state, &json("pay"), [(account, cents)]).unwrap();
                let events = [Event::Placed].into_iter().chain(pay).collect();
                Effect::persist_all(events).then_run(self.outbox.stored::<Self>())
            }
            Command::Count(reply_to) => Effect::reply(reply_to, (state.placed, state.outbox.unconfirmed().count())),
            Command::Fail => panic!("on purpose"),
            Command::Outbox(request) => self.outbox.on_request(cx, state, request),
        }
    }

    fn apply(state: &mut State, event: &Event) {
        match event {
            Event::Placed => state.placed += 1,
            Event::Outbox(event) => state.outbox.apply(event),
        }
    }

    fn on_signal(&mut self, cx: &mut Ctx<'_, Command>, _: &State, signal: &Signal) {
        self.outbox.on_signal::<Self>(cx, signal);
    }
}

impl WithOutbox for Orders {
    fn outbox(state: &State) -> &DeliveryOutbox {
        &state.outbox
    }

    fn outbox_event(event: OutboxEvent) -> Event {
        Event::Outbox(event)
    }

    fn outbox_command(request: OutboxRequest) -> Command {
        Command::Outbox(request)
    }
}

pub(crate) fn id() -> PersistenceId {
    PersistenceId::of("Orders", "7").unwrap()
}

/// One incarnation of the entity, with its handles.
pub(crate) struct Started {
    pub(crate) orders: EntityHandle<Command>,
    pub(crate) ended: oneshot::Receiver<Ended>,
    pub(crate) queue: EntityOutboxQueue,
    pub(crate) producer: Arc<Mutex<Option<ShardingProducer<i64>>>>,
}

pub(crate) fn start(stores: &Stores) -> Started {
    let (outbox, queue) = EntityOutbox::new(1 << 20);
    let producer = Arc::default();
    let behavior = Orders { outbox, _producer: Arc::clone(&producer) };
    let spawn = stores.events(json("orders.event")).snapshots(json("orders.state"));
    let (orders, ended) = spawn.spawn(id(), behavior).unwrap();
    Started { orders, ended, queue, producer }
}

/// Polls until `tried` returns a value.
pub(crate) async fn until<R>(what: &str, mut tried: impl AsyncFnMut() -> Option<R>) -> R {
    let trying = async {
        loop {
            if let Some(found) = tried().await {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), trying).await.unwrap_or_else(|_| panic!("never: {what}"))
}
