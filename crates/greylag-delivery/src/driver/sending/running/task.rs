//! The task of a producer: passes the inputs of handles, consumers and queue to the engine, carries out the engine's
//! effects, and ends when the producer is closed, or when all handles are dropped and every message is confirmed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use greylag_core::{DeadLetterReason, Encoded};
use tokio::sync::{mpsc, oneshot};

use super::base::Base;
use super::engine::{Engine, Input, Outcome};
use super::replies::Replies;
use crate::driver::sending::command::{Admit, Command, Granted, OutgoingMessage};
use crate::driver::sending::handles::{Inbox, Room, Sending};
use crate::driver::sending::now;
use crate::driver::sending::shared::{SendingState, lock};
use crate::driver::storing::Store;
use crate::error::{ProducerError, SentError};
use crate::ids::SeqNr;
use crate::machine::controller::Refusal;
use crate::machine::portable::UnsendableError;
use crate::machine::storing::{Answer, StoringState};
use crate::message::{Frames, UpstreamMessage};
use crate::wire;

/// Maximum number of inputs handled before effects are carried out.
const RUN: usize = 256;

type Outcomes<T, E> = Vec<Outcome<T, <E as Engine<T>>::To>>;

/// Starts the task of a producer; the task runs until the returned handle and all its clones are dropped and drained, or
/// until one of them closes the producer.
pub(crate) fn spawn<T: Send + Sync + 'static, E: Engine<T>>(base: Base<T>, engine: E) -> Sending<T, E::To> {
    let mut published = Default::default();
    engine.publish(&mut published);
    let (sending, inbox) = Sending::open(base.encoding.clone(), engine.room(), published);
    tokio::spawn(Task::new(engine, base, inbox).run());
    sending
}

/// See the module's documentation.
struct Task<T, E: Engine<T>> {
    engine: E,
    base: Base<T>,
    commands: mpsc::UnboundedReceiver<Command<T, E::To>>,
    shared: Arc<SendingState<T, E::To>>,
    replies: Replies<T>,
    /// Permits: requested, with the caller to answer, or (`None`) granted and unused.
    permits: BTreeMap<u64, Option<oneshot::Sender<Granted<E::To>>>>,
    room: Arc<Room>,
    /// Messages received since the room was last published.
    arrived: u64,
    outcomes: Outcomes<T, E>,
    /// When the task gives up unconfirmed messages; set once all handles are dropped.
    gives_up_at: Option<Instant>,
    closers: Vec<oneshot::Sender<()>>,
    is_closed: bool,
}

impl<T: Send + Sync + 'static, E: Engine<T>> Task<T, E> {
    fn new(engine: E, base: Base<T>, inbox: Inbox<T, E::To>) -> Self {
        let Inbox { commands, room, shared } = inbox;
        Self {
            engine,
            base,
            commands,
            shared,
            replies: Replies::default(),
            permits: BTreeMap::new(),
            room,
            arrived: 0,
            outcomes: Vec::new(),
            gives_up_at: None,
            closers: Vec::new(),
            is_closed: false,
        }
    }

    async fn run(mut self) {
        let mut timer = std::pin::pin!(tokio::time::sleep_until(now().into()));
        let mut has_handles = true;
        loop {
            self.apply_effects();
            self.end_if_drained();
            if self.is_closed {
                break;
            }
            let deadline = [self.engine.next_deadline(), self.gives_up_at].into_iter().flatten().min();
            if let Some(deadline) = deadline
                && timer.deadline() != deadline.into()
            {
                timer.as_mut().reset(deadline.into());
            }
            tokio::select! {
                () = timer.as_mut(), if deadline.is_some() => self.engine.handle_input(Input::Tick),
                (call, answer) = answer_of(&mut self.base.store) => self.on_answer(call, answer),
                Some(message) = self.base.upstream.recv() => self.receive(message),
                () = self.engine.next_event() => {
                    // Handle consumer messages that arrived before a move first: a link that starts over ignores
                    // answers to its former frames.
                    self.receive_waiting();
                    self.engine.handle_events();
                }
                command = self.commands.recv(), if has_handles => match command {
                    Some(command) => self.take(command),
                    None => {
                        has_handles = false;
                        self.gives_up_at = Some(now() + self.base.drain_on_drop);
                    }
                },
            }
        }
        self.finish();
    }

    fn receive(&mut self, message: UpstreamMessage) {
        self.engine.handle_input(Input::Received(message));
        self.receive_waiting();
    }

    fn receive_waiting(&mut self) {
        for _ in 0..RUN {
            let Ok(message) = self.base.upstream.try_recv() else { break };
            self.engine.handle_input(Input::Received(message));
        }
    }

    fn take(&mut self, command: Command<T, E::To>) {
        self.on_command(command);
        for _ in 0..RUN {
            let Ok(command) = self.commands.try_recv() else { break };
            self.on_command(command);
        }
    }

    /// P15: without a handle no new message can come, so the producer ends when the rest is confirmed, or after
    /// `drain_on_drop`.
    fn end_if_drained(&mut self) {
        let Some(gives_up_at) = self.gives_up_at else { return };
        let is_drained = self.replies.is_settled() && !self.engine.has_unconfirmed_recovered();
        if is_drained || gives_up_at <= now() {
            self.gives_up_at = None;
            self.engine.handle_input(Input::Close);
            self.apply_effects();
        }
    }

    // ---- commands of handles ------------------------------------------------------------------------

    fn on_command(&mut self, command: Command<T, E::To>) {
        match command {
            Command::Start { session } => {
                for permit in std::mem::take(&mut self.permits).into_keys() {
                    self.engine.handle_input(Input::Release { permit });
                }
                self.engine.handle_input(Input::Start { session });
            }
            Command::Register(consumer) => self.engine.handle_input(Input::Register(consumer)),
            Command::Admit(admit) => self.on_admit(*admit),
            Command::Withdraw { ticket, to } => {
                // A message accepted meanwhile keeps its number, and is delivered.
                if self.replies.withdraw(ticket) {
                    self.engine.handle_input(Input::Withdraw { ticket, to });
                }
            }
            Command::Reserve { session, permit, granted } => {
                self.replies.skip_ticket(permit);
                if !self.is_closed {
                    self.permits.insert(permit, Some(granted));
                    self.engine.handle_input(Input::Reserve { session, permit });
                }
            }
            Command::Release { permit } => {
                if self.permits.remove(&permit).is_some() {
                    self.engine.handle_input(Input::Release { permit });
                }
            }
            Command::Drain(done) => self.replies.drain(done),
            Command::Close(done) => {
                self.closers.push(done);
                self.engine.handle_input(Input::Close);
            }
        }
    }

    fn on_admit(&mut self, admit: Admit<T, E::To>) {
        let Admit { session, ticket, outgoing, permit, accepted, confirmed } = admit;
        let OutgoingMessage { to, message } = outgoing;
        self.arrived += 1;
        // Enter the message even if its sender has gone away, since it may get a number; the sender's `Withdraw`
        // follows.
        self.replies.enter(ticket, accepted, confirmed);
        if let Some(permit) = permit {
            self.permits.remove(&permit);
        }
        self.engine.handle_input(Input::Admit { session, ticket, to, message, permit });
    }

    // ---- answers of the queue -----------------------------------------------------------------------

    fn on_answer(&mut self, call: u64, answer: Answer<Encoded>) {
        let producer = &self.base.producer_id;
        if let Answer::Loaded(Err(error))
        | Answer::Stored(Err(error))
        | Answer::Confirmed(Err(error))
        | Answer::Polled(Err(error)) = &answer
        {
            tracing::warn!(%producer, %error, "a call of a producer's queue failed");
        }
        let before = self.engine.storing_state();
        self.engine.handle_input(Input::Answered { call, answer });
        if before == StoringState::Degraded && self.engine.storing_state() == StoringState::Open {
            tracing::info!(%producer, "a producer's queue is open again");
        }
    }

    // ---- effects of the engine ----------------------------------------------------------------------

    fn apply_effects(&mut self) {
        loop {
            self.engine.apply_effects(&mut self.outcomes);
            if self.outcomes.is_empty() {
                break;
            }
            let mut outcomes = std::mem::take(&mut self.outcomes);
            for outcome in outcomes.drain(..) {
                self.apply_outcome(outcome);
            }
            self.outcomes = outcomes;
        }
        self.publish();
    }

    fn apply_outcome(&mut self, outcome: Outcome<T, E::To>) {
        match outcome {
            Outcome::Permitted(granted) => self.grant(granted),
            Outcome::Accepted { ticket, total } => self.replies.accept(ticket, total),
            Outcome::Confirmed { ticket, total } => self.replies.confirm(ticket, total),
            Outcome::Refused { ticket, frames, why } => {
                let error = match why {
                    Refusal::Superseded => SentError::Superseded,
                    Refusal::Unavailable | Refusal::Full => SentError::Unavailable,
                    Refusal::Closed => self.shared.end(),
                };
                self.permits.remove(&ticket);
                self.replies.refuse(ticket, error, frames.and_then(Frames::into_value));
            }
            Outcome::Unknown { ticket, total } => {
                self.replies.refuse(ticket, SentError::StoreUnknown { seq_nr: total }, None);
            }
            Outcome::Undelivered { ticket, to } => {
                if let Some(ticket) = ticket {
                    self.replies.give_up(ticket);
                }
                self.base.remoting.dead_letter(DeadLetterReason::ProducerClosed, &to, wire::BATCH);
            }
            Outcome::Unsendable { ticket, to, total, error } => self.on_unsendable(ticket, &to, total, error),
            Outcome::Call { id, call } => {
                if let Some(store) = &self.base.store {
                    store.call(id, call);
                }
            }
            Outcome::Failed(error) => self.fail(error),
            Outcome::Closed => {
                self.is_closed = true;
                self.permits.clear();
            }
        }
    }

    /// Answers a request with its permit. If the caller has gone away, releases the permit.
    fn grant(&mut self, granted: Granted<E::To>) {
        let permit = granted.permit;
        let is_wanted = match self.permits.get_mut(&permit).and_then(Option::take) {
            Some(caller) => caller.send(granted).is_ok(),
            None => false,
        };
        if !is_wanted {
            self.permits.remove(&permit);
            self.engine.handle_input(Input::Release { permit });
        }
    }

    /// Gives up a message that was handed to an entity of this node and cannot be sent to the entity's new node.
    fn on_unsendable(&mut self, ticket: Option<u64>, entity: &str, seq_nr: SeqNr, error: UnsendableError) {
        let producer = &self.base.producer_id;
        tracing::error!(%producer, entity, %seq_nr, %error, "message cannot be sent to its entity's new node; dropped");
        let reason = match &error {
            UnsendableError::Encode(_) => DeadLetterReason::SerializeFailed,
            UnsendableError::TooLarge { .. } => DeadLetterReason::TooLarge,
        };
        self.base.remoting.dead_letter(reason, entity, wire::BATCH);
        if let Some(ticket) = ticket {
            self.replies.fail(ticket, SentError::Unsendable { seq_nr, error });
        }
    }

    fn fail(&self, error: ProducerError) {
        tracing::error!(producer = %self.base.producer_id, %error, "producer failed and ends");
        *lock(&self.shared.end) = Some(error);
    }

    fn publish(&mut self) {
        self.engine.publish(&mut lock(&self.shared.published));
        self.room.publish(std::mem::take(&mut self.arrived), self.engine.room());
        let confirmed = self.engine.confirmed();
        self.shared.confirmed.send_if_modified(|known| std::mem::replace(known, confirmed) != confirmed);
        if !self.engine.has_unconfirmed_recovered() {
            self.replies.answer_drains();
        }
    }

    /// Refuses late commands. Callers of `close` are answered last, so that everything is settled by then.
    fn finish(mut self) {
        self.base.remoting.unregister(&self.base.reference().path);
        self.commands.close();
        while let Ok(command) = self.commands.try_recv() {
            self.on_command(command);
            self.apply_effects();
        }
        self.shared.is_running.store(false, Ordering::Relaxed);
        self.closers.clear();
    }
}

/// The next answer of the queue; pending without a queue.
async fn answer_of(store: &mut Option<Store>) -> (u64, Answer<Encoded>) {
    match store {
        Some(store) => store.answer().await,
        None => std::future::pending().await,
    }
}
