//! The task of a producer: it runs the machine, carries out its effects, and ends when the producer is closed or nobody can
//! send any more.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use futures::StreamExt;
use futures::stream::BoxStream;
use greylag_core::{DeadLetterReason, Encoded};
use greylag_transport::{Inbound, Receiver, Remoting};
use tokio::sync::{mpsc, oneshot};

use super::desk::Desk;
use super::frames::Outgoing;
use super::{Admit, Command, Encoding, Grant, Shared, lock};
use crate::driver::storing::Store;
use crate::ids::ProducerId;
use crate::machine::controller::{Controller, Effect, Failure, Input};
use crate::machine::producer_link::Frames;
use crate::machine::storing::{Answer, Call};
use crate::machine::work_pulling::ListedWorker;
use crate::message::UpstreamMessage;
use crate::payload::Payload;
use crate::wire;

/// What the paths of controllers begin with.
pub(crate) const PATHS: &str = "delivery/";
/// Upstream messages that wait for the task; beyond it they are dropped, and repeated by consumers.
const UPSTREAM_INBOX: usize = 16 * 1024;
/// Inputs between two rounds of effects.
const RUN: usize = 256;

/// What a producer's task is made of.
pub(crate) struct Parts<T> {
    pub(crate) remoting: Arc<dyn Remoting>,
    pub(crate) producer_id: ProducerId,
    pub(crate) path: Arc<str>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) commands: mpsc::UnboundedReceiver<Command<T>>,
    pub(crate) upstream: mpsc::Receiver<UpstreamMessage>,
    pub(crate) drain_on_drop: Duration,
    pub(crate) encoding: Arc<Encoding<T>>,
    /// The queue of a durable producer.
    pub(crate) store: Option<Store>,
    /// The workers of work pulling, whenever they change.
    pub(crate) listings: Option<BoxStream<'static, Vec<ListedWorker>>>,
}

/// The instant of the clock that timers run by.
pub(crate) fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

/// Opens a path for what consumers say to the controller behind it. Its instance is part of the controller's address.
pub(crate) fn upstream(remoting: &Arc<dyn Remoting>, path: &Arc<str>) -> (u64, mpsc::Receiver<UpstreamMessage>) {
    // Consumers repeat messages that find the inbox full, and messages after the end do not matter any more.
    let repeated = [DeadLetterReason::NoSuchRecipient, DeadLetterReason::StaleRecipient, DeadLetterReason::MailboxFull];
    remoting.declare_repeated(PATHS, None, &repeated);
    let (inbox, upstream) = mpsc::channel(UPSTREAM_INBOX);
    let instance = remoting.register(path, Arc::new(Upstream { inbox, remoting: remoting.clone() }));
    (instance, upstream)
}

/// Takes what consumers say.
struct Upstream {
    inbox: mpsc::Sender<UpstreamMessage>,
    remoting: Arc<dyn Remoting>,
}

impl Receiver for Upstream {
    fn receive(&self, message: Inbound) {
        match wire::read_upstream(message.payload.clone()) {
            // The controller that the message names must be at the node that sent it.
            Ok(upstream) if upstream.from.node == message.from => {
                if self.inbox.try_send(upstream).is_err() {
                    self.remoting.refuse(&message, DeadLetterReason::MailboxFull);
                }
            }
            Ok(_) => self.remoting.refuse(&message, DeadLetterReason::Untrusted),
            Err(error) => {
                tracing::warn!(%error, "message of a consumer controller could not be read");
                self.remoting.refuse(&message, DeadLetterReason::Undecodable);
            }
        }
    }
}

/// See the module's documentation.
pub(crate) struct Task<T, C> {
    machine: C,
    parts: Parts<T>,
    desk: Desk<T>,
    outgoing: Outgoing<T>,
    effects: Vec<Effect<Payload<T>>>,
    /// When the task gives up on what is not confirmed, once nobody can send any more.
    gives_up_at: Option<Instant>,
    closers: Vec<oneshot::Sender<()>>,
    closed: bool,
}

impl<T, C> Task<T, C>
where
    T: Send + Sync + 'static,
    C: Controller<Payload<T>> + Send,
{
    /// A task around a machine that has asked for `effects` already.
    pub(crate) fn new(machine: C, parts: Parts<T>, effects: Vec<Effect<Payload<T>>>) -> Self {
        let outgoing = Outgoing::new(parts.remoting.clone());
        let (desk, closers) = (Desk::new(), Vec::new());
        Self { machine, parts, desk, outgoing, effects, gives_up_at: None, closers, closed: false }
    }

    pub(crate) async fn run(mut self) {
        let mut timer = std::pin::pin!(tokio::time::sleep_until(tokio::time::Instant::now()));
        self.carry_out();
        while !self.closed {
            let deadline = [self.machine.next_deadline(), self.gives_up_at].into_iter().flatten().min();
            if let Some(deadline) = deadline
                && timer.deadline() != deadline.into()
            {
                timer.as_mut().reset(deadline.into());
            }
            tokio::select! {
                () = timer.as_mut(), if deadline.is_some() => self.tell(Input::Tick),
                Some(message) = self.parts.upstream.recv() => self.receive(message),
                () = self.outgoing.room() => {}
                (call, answer) = answer_of(&mut self.parts.store) => self.on_answer(call, answer),
                listing = listing_of(&mut self.parts.listings) => self.on_listing(listing),
                command = self.parts.commands.recv(), if self.gives_up_at.is_none() => match command {
                    None => self.gives_up_at = Some(now() + self.parts.drain_on_drop),
                    Some(command) => self.take(command),
                },
            }
            self.carry_out();
            self.end_if_drained();
        }
        self.finish();
    }

    fn receive(&mut self, message: UpstreamMessage) {
        self.tell(Input::Received(message));
        for _ in 0..RUN {
            let Ok(message) = self.parts.upstream.try_recv() else { break };
            self.tell(Input::Received(message));
        }
    }

    fn take(&mut self, command: Command<T>) {
        self.on_command(command);
        for _ in 0..RUN {
            let Ok(command) = self.parts.commands.try_recv() else { break };
            self.on_command(command);
        }
    }

    /// P15: without a handle nothing new can come, so the controller ends when the rest is confirmed, or took too long.
    fn end_if_drained(&mut self) {
        let Some(gives_up_at) = self.gives_up_at else { return };
        let stats = self.machine.stats();
        if stats.unconfirmed == 0 && stats.waiting == 0 || gives_up_at <= now() {
            self.gives_up_at = None;
            self.tell(Input::Close);
            self.carry_out();
            // The channel has ended, so that this branch of the loop is not to be asked again.
            self.gives_up_at = (!self.closed).then(|| now() + self.parts.drain_on_drop);
        }
    }

    fn tell(&mut self, input: Input<Payload<T>>) {
        self.machine.handle(now(), input, &mut self.effects);
    }

    fn on_command(&mut self, command: Command<T>) {
        match command {
            Command::Start { session } => self.tell(Input::Start { session }),
            Command::Register(consumer) => self.tell(Input::RegisterConsumer(consumer)),
            Command::Admit(admit) => {
                let Admit { session, ticket, message, prepaid, replies } = *admit;
                if prepaid {
                    self.parts.shared.room_arrived();
                }
                self.desk.open(ticket, replies);
                self.tell(Input::Admit { session, ticket, message, waits: true });
            }
            Command::Reserve { session, ticket, granted } => {
                self.desk.open_permit(ticket, granted);
                self.tell(Input::Reserve { session, ticket });
            }
            Command::Use { ticket, message, replies } => {
                self.desk.open(ticket, replies);
                self.tell(Input::Use { ticket, message });
            }
            Command::Withdraw { ticket } => {
                self.desk.forget(ticket);
                self.tell(Input::Withdraw { ticket });
            }
            Command::Drain(done) => self.desk.drain(done),
            Command::Close(done) => {
                self.closers.push(done);
                self.tell(Input::Close);
            }
        }
    }

    fn on_answer(&mut self, call: u64, answer: Answer<Encoded>) {
        if let Answer::Loaded(Err(error)) | Answer::Stored(Err(error)) | Answer::Confirmed(Err(error)) = &answer {
            tracing::warn!(producer = %self.parts.producer_id, %error, "the queue did not do what it was asked");
        }
        let encoding = self.parts.encoding.clone();
        if let Answer::Loaded(Ok(state)) = &answer
            && let Some(last) = state.unconfirmed.last()
        {
            self.desk.recovered(last.seq_nr);
        }
        let answer = match answer {
            Answer::Loaded(loaded) => {
                Answer::Loaded(loaded.map(|state| state.map(|sent| sent.map(|encoded| encoding.frames_of(encoded)))))
            }
            Answer::Polled(polled) => Answer::Polled(polled.map(|messages| {
                messages.into_iter().map(|sent| sent.map(|encoded| encoding.frames_of(encoded))).collect()
            })),
            Answer::Stored(stored) => Answer::Stored(stored),
            Answer::Confirmed(stored) => Answer::Confirmed(stored),
        };
        self.tell(Input::Answered { call, answer });
    }

    fn call_store(&mut self, id: u64, call: Call<Frames<Payload<T>>>) {
        let call = match call {
            Call::Load => Call::Load,
            Call::Poll(max_messages) => Call::Poll(max_messages),
            Call::Confirm(confirmations) => Call::Confirm(confirmations),
            Call::Store(batch) => {
                Call::Store(batch.into_iter().map(|sent| sent.map(|frames| frames.encoded())).collect())
            }
        };
        if let Some(store) = &self.parts.store {
            store.call(id, call);
        }
    }

    /// A directory that has ended tells nothing more; the workers that it named last go on.
    fn on_listing(&mut self, listing: Option<Vec<ListedWorker>>) {
        match listing {
            Some(workers) => self.tell(Input::Workers(workers)),
            None => self.parts.listings = None,
        }
    }

    fn carry_out(&mut self) {
        // A permit that nobody waits for any more goes back, which leads to further effects.
        while !self.effects.is_empty() {
            for effect in std::mem::take(&mut self.effects) {
                self.carry_out_one(effect);
            }
        }
        self.outgoing.flush();
        self.publish();
    }

    fn carry_out_one(&mut self, effect: Effect<Payload<T>>) {
        match effect {
            Effect::Permitted { ticket, current_seq_nr, confirmed_seq_nr } => {
                if !self.desk.permitted(ticket, Grant { current_seq_nr, confirmed_seq_nr }) {
                    self.tell(Input::Withdraw { ticket });
                }
            }
            Effect::Accepted { ticket, total } => self.desk.accepted(ticket, total),
            Effect::Transmit { to, header, message } => self.outgoing.push(to, header, message),
            Effect::Confirmed { ticket, total } => self.desk.confirmed(ticket, total),
            Effect::Call { id, call } => self.call_store(id, call),
            Effect::Refused { ticket, frames, why } => self.desk.refused(ticket, frames, why),
            Effect::Unknown { ticket, total } => self.desk.unknown(ticket, total),
            Effect::Stop { to, message } => self.outgoing.stopped(&to, &message),
            Effect::Undelivered { ticket, .. } => {
                if let Some(ticket) = ticket {
                    self.desk.forget(ticket);
                }
                let producer = self.parts.producer_id.as_str();
                self.parts.remoting.dead_letter(DeadLetterReason::ProducerClosed, producer, wire::BATCH);
            }
            Effect::Failed(failure) => self.fail(failure),
            Effect::Closed => self.closed = true,
        }
    }

    fn fail(&mut self, failure: Failure) {
        tracing::error!(producer = %self.parts.producer_id, ?failure, "the producer has failed");
        *lock(&self.parts.shared.failure) = Some(failure.clone());
        self.desk.failed(failure);
    }

    fn publish(&mut self) {
        let shared = &self.parts.shared;
        *lock(&shared.stats) = self.machine.stats();
        *lock(&shared.workers) = self.machine.worker_stats();
        shared.publish_room(self.machine.room());
        let confirmed = self.machine.confirmed();
        shared.confirmed.send_if_modified(|known| std::mem::replace(known, confirmed) != confirmed);
        self.desk.settle_drains(confirmed);
    }

    /// Refuses what came too late, and answers those that closed the producer last, so that they find everything settled.
    fn finish(&mut self) {
        self.parts.remoting.unregister(&self.parts.path);
        self.parts.commands.close();
        while let Ok(command) = self.parts.commands.try_recv() {
            self.on_command(command);
            self.carry_out();
        }
        self.parts.shared.has_ended.store(true, Ordering::Relaxed);
        self.closers.clear();
    }
}

/// The next answer of the queue, if there is one.
async fn answer_of(store: &mut Option<Store>) -> (u64, Answer<Encoded>) {
    match store {
        Some(store) => store.answer().await,
        None => std::future::pending().await,
    }
}

/// The next listing of workers; `None` when there are no more.
async fn listing_of(listings: &mut Option<BoxStream<'static, Vec<ListedWorker>>>) -> Option<Vec<ListedWorker>> {
    match listings {
        Some(listings) => listings.next().await,
        None => std::future::pending().await,
    }
}
