//! Connects an entity's outbox to its producer, and takes confirmations back into the entity's history.
//!
//! The outbox serves as the producer's durable queue. Messages are handed to the producer after the append that stores
//! them has answered Ok, or after a recovery. A load and a confirmation are requests that reach the entity as commands,
//! and are answered when their events are stored.
//!
//! ```text
//! entity:    on_command ─▶ [events] ─ append Ok ─▶ stored() ─┐       ┌──▶ on_request ─▶ [Started], [Confirmed] ─ Ok ─┐
//!                                                            ▼       │                                              ▼
//! queue:                                                 poll_new   load, store_message_confirmed ◀──────────── the answer
//! producer:                                              sends       under the raised epoch
//! ```
//!
//! Source: delivery §7 (chained exactly-once), scenario 76.

use std::any::Any;
use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use greylag_core::{Codec, Encoded};
use greylag_persistence::{Ctx, Effect, EventSourced};
use tokio::sync::{mpsc, oneshot};

use crate::driver::queue::{DurableProducerQueue, encoded, fresh_stream, now_ms};
use crate::ids::{ControllerRef, SeqNr};
use crate::queue::outbox::{DeliveryOutbox, OutboxEvent};
use crate::queue::{Confirmation, MessageSent, QueueError, QueueState};

/// Capacity of the request channel. A producer has one call under way, and repeats a call that takes too long.
const REQUESTS: usize = 16;
/// How often the producer polls for persisted messages.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// How long the last confirmation of a target is kept once no message to that target is unconfirmed.
const UNUSED_AFTER: Duration = Duration::from_secs(3600);

/// A behaviour whose state has a [`DeliveryOutbox`].
pub trait WithOutbox: EventSourced {
    /// Returns the outbox within the state.
    fn outbox(state: &Self::State) -> &DeliveryOutbox;

    /// Wraps an event of the outbox into an event of the entity. `apply` must call [`DeliveryOutbox::apply`] for it.
    fn outbox_event(event: OutboxEvent) -> Self::Event;

    /// Wraps a request of the producer into a command of the entity. `on_command` must call
    /// [`EntityOutbox::on_request`] for it. The command never leaves the process: a codec of commands may leave this
    /// variant out.
    fn outbox_command(request: OutboxRequest) -> Self::Command;
}

/// The entity's end of its outbox; kept in the entity's behaviour. Also keeps the producer that sends the messages.
///
/// ```
/// use greylag_codec::json;
/// use greylag_delivery::{
///     ControllerRef, DeliveryOutbox, DurableProducerQueue, EntityOutbox, OutboxEvent, OutboxRequest, SeqNr, WithOutbox,
/// };
/// use greylag_persistence::{Ctx, Effect, EventSourced, PersistenceId, Signal, Stores};
/// use serde::{Deserialize, Serialize};
///
/// enum Command { Place { cents: u32 }, Outbox(OutboxRequest) }
///
/// #[derive(Serialize, Deserialize)]
/// enum Event { Placed, Outbox(OutboxEvent) }
///
/// #[derive(Default)]
/// struct State { placed: bool, outbox: DeliveryOutbox }
///
/// /// An order that is paid for: it sends what is to be paid when, and only when, it is placed.
/// struct Order { outbox: EntityOutbox }
///
/// impl EventSourced for Order {
///     type Command = Command;
///     type Event = Event;
///     type State = State;
///
///     fn on_command(&mut self, cx: &mut Ctx<'_, Command>, state: &State, command: Command) -> Effect<Self> {
///         match command {
///             Command::Place { .. } if state.placed => Effect::none(),
///             Command::Place { cents } => {
///                 let pay = self.outbox.send::<Self, _>(state, &json("pay"), [("card-7", cents)]).expect("it is encoded");
///                 let events = [Event::Placed].into_iter().chain(pay).collect();
///                 Effect::persist_all(events).then_run(self.outbox.stored::<Self>())
///             }
///             Command::Outbox(request) => self.outbox.on_request::<Self>(cx, state, request),
///         }
///     }
///
///     fn apply(state: &mut State, event: &Event) {
///         match event {
///             Event::Placed => state.placed = true,
///             Event::Outbox(event) => state.outbox.apply(event),
///         }
///     }
///
///     fn on_signal(&mut self, cx: &mut Ctx<'_, Command>, _: &State, signal: &Signal) {
///         self.outbox.on_signal::<Self>(cx, signal);
///     }
/// }
///
/// impl WithOutbox for Order {
///     fn outbox(state: &State) -> &DeliveryOutbox { &state.outbox }
///     fn outbox_event(event: OutboxEvent) -> Event { Event::Outbox(event) }
///     fn outbox_command(request: OutboxRequest) -> Command { Command::Outbox(request) }
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// // A factory gives the queue to `ShardingProducer::start_durable`, and the producer to the behaviour.
/// let (outbox, mut queue) = EntityOutbox::new(1 << 20);
/// let orders = Stores::in_memory().events(json("order.event"));
/// let (order, _) = orders.spawn(PersistenceId::of("Order", "4711")?, Order { outbox })?;
///
/// let producer = ControllerRef { node: "localhost:17355#1".parse()?, path: "orders/4711".into(), instance: 1 };
/// assert!(queue.load(&producer).await?.unconfirmed.is_empty());
/// order.tell(Command::Place { cents: 990 }).await?;
/// let sent = loop {
///     let new = queue.poll_new(10).await?;
///     if let [sent] = &new[..] { break sent.clone() }
///     tokio::task::yield_now().await;
/// };
/// assert_eq!((sent.seq_nr, &*sent.qualifier, &sent.message.payload[..]), (SeqNr(1), "card-7", &b"990"[..]));
/// # Ok(())
/// # }
/// ```
///
/// Source: delivery §7.
pub struct EntityOutbox {
    requests: Arc<tokio::sync::Mutex<mpsc::Receiver<OutboxRequest>>>,
    shared: Arc<Mutex<UnsentMessages>>,
    /// The producer of an outbox that was opened with one; the producer ends when this value is dropped.
    producer: Option<Box<dyn Any + Send + Sync>>,
}

/// Messages that are stored but not yet handed to the producer.
#[derive(Default)]
struct UnsentMessages {
    /// The number of the next message to hand out; `None` until the producer has loaded the outbox in this incarnation
    /// of the entity.
    next: Option<SeqNr>,
    new: VecDeque<MessageSent<Encoded>>,
}

/// A request of an outbox's producer to the entity; reaches the entity as one of its commands.
pub struct OutboxRequest(Request);

enum Request {
    Load { controller: ControllerRef, reply: oneshot::Sender<Result<QueueState<Encoded>, QueueError>> },
    Confirm { confirmations: Vec<Confirmation>, reply: oneshot::Sender<Result<(), QueueError>> },
}

fn lock(shared: &Mutex<UnsentMessages>) -> MutexGuard<'_, UnsentMessages> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

impl EntityOutbox {
    /// Makes both ends of an outbox: the entity's, and the queue for its producer ([`EntityOutbox::open`] also starts
    /// the producer). An encoded message has at most `max_message_bytes`, since each message is stored within an event
    /// of the entity.
    pub fn new(max_message_bytes: usize) -> (Self, EntityOutboxQueue) {
        let (request, requests) = mpsc::channel(REQUESTS);
        let (requests, shared) = (Arc::new(tokio::sync::Mutex::new(requests)), Arc::<Mutex<UnsentMessages>>::default());
        let queue = EntityOutboxQueue {
            requests: request,
            shared: shared.clone(),
            loaded: Err(QueueError::NotLoaded),
            handed_out: SeqNr::NONE,
            max_message_bytes,
        };
        (Self { requests, shared, producer: None }, queue)
    }

    /// Keeps `producer` for the lifetime of this value.
    pub(crate) fn with_producer(self, producer: impl Any + Send + Sync) -> Self {
        Self { producer: Some(Box::new(producer)), ..self }
    }

    /// Returns the events that send `messages`, in order, each to an entity of the producer's type, encoded by `codec`.
    /// Persist them in the same `persist_all` as the events to which the messages belong, followed by
    /// `then_run(outbox.stored())`.
    ///
    /// # Errors
    /// [`QueueError::Unencodable`] names the message; [`QueueError::Rejected`] if the numbers of the stream are used
    /// up.
    pub fn send<B: WithOutbox, T: 'static>(
        &self,
        state: &B::State,
        codec: &impl Codec<T>,
        messages: impl IntoIterator<Item = (impl Into<Arc<str>>, T)>,
    ) -> Result<Vec<B::Event>, QueueError> {
        let outbox = B::outbox(state);
        let numbers = (outbox.current().get()..=u64::MAX).map(SeqNr);
        let encode = |(seq_nr, (entity, message)): (SeqNr, (_, T))| {
            let message = encoded(codec, &message).map_err(|cause| QueueError::Unencodable { seq_nr, cause })?;
            Ok((Into::<Arc<str>>::into(entity), message))
        };
        let messages = numbers.zip(messages).map(encode).collect::<Result<Vec<_>, QueueError>>()?;
        Ok(outbox.send(messages, now_ms())?.into_iter().map(B::outbox_event).collect())
    }

    /// Hands the stored messages to the producer; for `then_run`. Without this call messages leave only after the next
    /// recovery.
    pub fn stored<B: WithOutbox>(&self) -> impl FnOnce(&B::State) + Send + 'static {
        let shared = self.shared.clone();
        move |state| lock(&shared).hand_over(B::outbox(state))
    }

    /// Starts listening for the producer's requests when the recovery has completed; for the behaviour's `on_signal`.
    pub fn on_signal<B: WithOutbox>(&self, cx: &mut Ctx<'_, B::Command>, signal: &greylag_persistence::Signal) {
        if matches!(signal, greylag_persistence::Signal::RecoveryCompleted) {
            // The producer has to load the recovered state before it gets new messages.
            *lock(&self.shared) = UnsentMessages::default();
            self.listen::<B>(cx);
        }
    }

    /// Carries out a request of the producer; for the behaviour's `on_command`.
    pub fn on_request<B: WithOutbox>(
        &self,
        cx: &mut Ctx<'_, B::Command>,
        state: &B::State,
        request: OutboxRequest,
    ) -> Effect<B> {
        self.listen::<B>(cx);
        let outbox = B::outbox(state);
        match request.0 {
            Request::Load { controller, reply } => self.on_load(outbox, controller, reply),
            // No check of the epoch: one producer has this queue, and its entity owns the journal.
            Request::Confirm { confirmations, reply } => match outbox.confirm(confirmations) {
                Ok(Some(event)) => Effect::persist(B::outbox_event(event)).then_run(move |_| answer(reply, Ok(()))),
                known => {
                    answer(reply, known.map(drop));
                    Effect::none()
                }
            },
        }
    }

    fn on_load<B: WithOutbox>(
        &self,
        outbox: &DeliveryOutbox,
        controller: ControllerRef,
        reply: oneshot::Sender<Result<QueueState<Encoded>, QueueError>>,
    ) -> Effect<B> {
        let started = match outbox.start(controller, fresh_stream()) {
            Ok(started) => started,
            Err(error) => {
                answer(reply, Err(error));
                return Effect::none();
            }
        };
        let forgotten = outbox.clean_up(now_ms(), UNUSED_AFTER);
        let events = [Some(started), forgotten].into_iter().flatten().map(B::outbox_event).collect();
        let shared = self.shared.clone();
        Effect::persist_all(events).then_run(move |state| {
            let outbox = B::outbox(state);
            let mut shared = lock(&shared);
            *shared = UnsentMessages { next: Some(outbox.current()), new: VecDeque::new() };
            answer(reply, outbox.loaded().ok_or(QueueError::NotLoaded));
        })
    }

    /// Makes the next request a command of the entity. Listening ends with the entity's incarnation.
    fn listen<B: WithOutbox>(&self, cx: &mut Ctx<'_, B::Command>) {
        let requests = self.requests.clone();
        let next = async move {
            match requests.lock().await.recv().await {
                Some(request) => request,
                None => std::future::pending().await,
            }
        };
        cx.spawn(next, B::outbox_command);
    }
}

/// Answers a caller; a caller that has dropped the call gets nothing.
fn answer<R>(reply: oneshot::Sender<R>, answer: R) {
    let _waits_no_more = reply.send(answer);
}

impl UnsentMessages {
    /// Hands over the messages of the outbox from `next` on; all of them are stored.
    fn hand_over(&mut self, outbox: &DeliveryOutbox) {
        let Some(next) = self.next else { return };
        self.new.extend(outbox.unconfirmed_from(next).cloned());
        self.next = Some(next.max(outbox.current()));
    }
}

/// The producer's end of an entity's outbox: a durable queue in which the producer stores no messages, but which it
/// polls. Once the entity has ended, every call answers [`QueueError::Fenced`], so that the producer ends as well.
pub struct EntityOutboxQueue {
    requests: mpsc::Sender<OutboxRequest>,
    shared: Arc<Mutex<UnsentMessages>>,
    /// The answer to a call while the outbox is not loaded.
    loaded: Result<(), QueueError>,
    handed_out: SeqNr,
    max_message_bytes: usize,
}

impl EntityOutboxQueue {
    /// Sends a request to the entity. The answer is lost if the entity fails or stops meanwhile.
    async fn ask<R>(
        &mut self,
        request: impl FnOnce(oneshot::Sender<Result<R, QueueError>>) -> Request,
    ) -> Result<R, QueueError> {
        let (reply, answer) = oneshot::channel();
        let sent = self.requests.send(OutboxRequest(request(reply))).await;
        let answer = match sent {
            Ok(()) => answer.await.unwrap_or(Err(QueueError::OutcomeUnknown)),
            Err(_) => Err(QueueError::Fenced { by: None }),
        };
        if let Err(error) = &answer
            && !matches!(error, QueueError::OutOfOrder { .. })
        {
            let is_over = matches!(error, QueueError::Fenced { .. });
            self.loaded = Err(if is_over { error.clone() } else { QueueError::NotLoaded });
        }
        answer
    }
}

#[async_trait]
impl DurableProducerQueue<Encoded> for EntityOutboxQueue {
    async fn load(&mut self, controller: &ControllerRef) -> Result<QueueState<Encoded>, QueueError> {
        self.loaded = Err(QueueError::NotLoaded);
        let controller = controller.clone();
        let state = self.ask(|reply| Request::Load { controller, reply }).await?;
        self.loaded = Ok(());
        self.handed_out = SeqNr(state.current_seq_nr.get().saturating_sub(1));
        Ok(state)
    }

    /// Acknowledges messages that the outbox handed out, and refuses all others: the entity writes them.
    async fn store_message_sent(&mut self, batch: Vec<MessageSent<Encoded>>) -> Result<SeqNr, QueueError> {
        self.loaded.clone()?;
        match batch.iter().find(|message| message.seq_nr > self.handed_out || message.seq_nr == SeqNr::NONE) {
            Some(message) => {
                let why = format!("message {} was not handed out: an outbox is written by its entity", message.seq_nr);
                Err(QueueError::Rejected(why))
            }
            None => Ok(self.handed_out),
        }
    }

    async fn store_message_confirmed(&mut self, confirmations: Vec<Confirmation>) -> Result<(), QueueError> {
        self.loaded.clone()?;
        self.ask(|reply| Request::Confirm { confirmations, reply }).await
    }

    fn max_message_bytes(&self) -> usize {
        self.max_message_bytes
    }

    fn poll_interval(&self) -> Option<Duration> {
        Some(POLL_INTERVAL)
    }

    async fn poll_new(&mut self, max_messages: usize) -> Result<Vec<MessageSent<Encoded>>, QueueError> {
        self.loaded.clone()?;
        if self.requests.is_closed() {
            self.loaded = Err(QueueError::Fenced { by: None });
            return Err(QueueError::Fenced { by: None });
        }
        let mut shared = lock(&self.shared);
        if shared.next.is_none() {
            // The entity was restarted, so the producer must load again.
            self.loaded = Err(QueueError::NotLoaded);
            return Err(QueueError::NotLoaded);
        }
        let count = max_messages.min(shared.new.len());
        let new: Vec<_> = shared.new.drain(..count).collect();
        self.handed_out = new.last().map_or(self.handed_out, |last| last.seq_nr);
        Ok(new)
    }
}

impl fmt::Debug for EntityOutbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let next = lock(&self.shared).next;
        let has_producer = self.producer.is_some();
        f.debug_struct("EntityOutbox").field("next", &next).field("has_producer", &has_producer).finish_non_exhaustive()
    }
}

impl fmt::Debug for EntityOutboxQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EntityOutboxQueue").field("loaded", &self.loaded).finish_non_exhaustive()
    }
}

impl fmt::Debug for OutboxRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            Request::Load { .. } => "OutboxRequest::Load",
            Request::Confirm { .. } => "OutboxRequest::Confirm",
        })
    }
}
