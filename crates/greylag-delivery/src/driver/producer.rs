//! A sharding producer: the handle that applications send through, and the task behind it.
//!
//! A send is encoded by its caller and queued to the task; the task runs the machine, groups frames
//! of one link into batches, and hands them to the region. What consumers say arrives at a recipient
//! path of the producer's own, straight from the transport.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use greylag_core::{Codec, DeadLetterReason};
use greylag_sharding::{Region, RegionEvents, Sharding};
use greylag_transport::{Inbound, LaneKind, Receiver, Remoting};
use tokio::sync::{mpsc, oneshot, watch};

use super::region::{Downstream, RouteNews, news};
use super::sent::Sent;
use crate::error::{SendError, StartError, Undelivered};
use crate::ids::{Epoch, ProducerId, ProducerIdentity, SeqNr, StreamId};
use crate::machine::producer_link::Frames;
use crate::machine::sharding_producer::{Effect, Input, ProducerStats, ShardingProducer as Machine};
use crate::message::{SequencedBatch, UpstreamMessage};
use crate::payload::Payload;
use crate::settings::DeliverySettings;
use crate::wire;
use crate::with_delivery::WithDelivery;

/// Sends that wait for the task; beyond it senders wait.
const INBOX: usize = 1024;
/// What the paths of producers begin with.
const PATHS: &str = "delivery/";
/// Upstream messages that wait for the task; beyond it they are dropped, and repeated by consumers.
const UPSTREAM_INBOX: usize = 16 * 1024;
/// Inputs between two rounds of effects, and frames of one batch.
const RUN: usize = 256;
/// Bytes of the payloads of one batch, unless its only frame has more. Source: delivery §12.
const BATCH_BYTES: usize = 64 << 10;

/// Sends messages to entities: in order per entity, with backpressure, again until confirmed.
///
/// Clones are the same producer. When the last one is dropped, unconfirmed messages are delivered in
/// the background for a while ([`ProducerSettings::drain_on_drop`](crate::ProducerSettings)).
///
/// Sends are numbered in the order in which their futures are first polled. A producer with a stable
/// identity that repeats the same sends in the same order gives every message the same number again,
/// and consumers suppress messages that they have processed. Source: delivery §3.1, §6.
pub struct ShardingProducer<T> {
    commands: mpsc::Sender<Command<T>>,
    withdrawals: mpsc::UnboundedSender<(u64, Arc<str>)>,
    shared: Arc<SharedState<T>>,
}

struct SharedState<T> {
    codec: Arc<dyn Codec<T>>,
    downstream: Arc<dyn Downstream<T>>,
    next_ticket: AtomicU64,
    chunk_bytes: usize,
    max_message_bytes: usize,
    confirmed: watch::Sender<SeqNr>,
    stats: Mutex<ProducerStats>,
    /// Set when a newer incarnation of the stream was seen.
    fenced: Mutex<Option<Epoch>>,
}

enum Command<T> {
    Send(Box<Submission<T>>),
    Drain(oneshot::Sender<()>),
    Close(oneshot::Sender<()>),
}

struct Submission<T> {
    ticket: u64,
    entity: Arc<str>,
    shard: Arc<str>,
    payload: Payload<T>,
    accepted: oneshot::Sender<Result<SeqNr, Frames<Payload<T>>>>,
    confirmed: Option<oneshot::Sender<SeqNr>>,
}

/// The tasks that wait for a message to be accepted or confirmed.
struct Waiter<T> {
    accepted: Option<oneshot::Sender<Result<SeqNr, Frames<Payload<T>>>>>,
    confirmed: Option<oneshot::Sender<SeqNr>>,
}

/// Tells the task that a sender gave up while it waited.
struct Withdrawal<'a, T> {
    producer: &'a ShardingProducer<T>,
    ticket: u64,
    entity: Option<Arc<str>>,
}

impl<T> Drop for Withdrawal<'_, T> {
    fn drop(&mut self) {
        if let Some(entity) = self.entity.take() {
            self.producer.withdrawals.send((self.ticket, entity)).ok();
        }
    }
}

impl ProducerIdentity {
    /// A fresh stream, for a producer that remembers nothing across its starts.
    pub fn in_memory(producer_id: ProducerId) -> Self {
        Self { producer_id, stream_id: StreamId(uuid::Uuid::new_v4().as_u128()), epoch: Epoch::FIRST }
    }
}

impl<T: Send + Sync + 'static> ShardingProducer<T> {
    /// Starts a producer of `identity` for the entities of `region`. `codec` is the one that the
    /// entity type reads deliveries with.
    ///
    /// # Errors
    /// [`StartError`]; nothing was started.
    pub fn start<Q: Send + 'static>(
        sharding: &Sharding,
        identity: ProducerIdentity,
        region: Region<WithDelivery<T, Q>>,
        codec: impl Codec<T>,
        settings: DeliverySettings,
    ) -> Result<Self, StartError> {
        Self::open(sharding.remoting().clone(), identity, Arc::new(region), Arc::new(codec), &settings)
    }

    /// Starts a producer for the entities of a region whose second message type is forgotten.
    pub(super) fn open(
        remoting: Arc<dyn Remoting>,
        identity: ProducerIdentity,
        downstream: Arc<dyn Downstream<T>>,
        codec: Arc<dyn Codec<T>>,
        settings: &DeliverySettings,
    ) -> Result<Self, StartError> {
        settings.validate()?;
        settings.validate_for_lane(remoting.maximum_message_size(LaneKind::Ordinary))?;
        // The path is never given to another controller, so a message for this one cannot reach another.
        let path: Arc<str> = format!("{PATHS}{}", uuid::Uuid::new_v4().simple()).into();
        let node = remoting.self_address().clone();
        let machine = Machine::new(settings.sharding_producer(), identity, node, path.clone());
        let (upstream, from_consumers) = mpsc::channel(UPSTREAM_INBOX);
        // Consumers repeat messages that find the inbox full, and messages after the end do not matter any more.
        remoting.declare_repeated(PATHS, None, &[DeadLetterReason::NoSuchRecipient, DeadLetterReason::MailboxFull]);
        remoting.register(&path, Arc::new(Upstream { inbox: upstream, remoting: remoting.clone() }));
        let shared = Arc::new(SharedState {
            codec,
            downstream,
            next_ticket: AtomicU64::new(1),
            chunk_bytes: settings.producer.chunk_large_messages,
            max_message_bytes: settings.producer.max_message_bytes,
            confirmed: watch::channel(SeqNr::NONE).0,
            stats: Mutex::default(),
            fenced: Mutex::default(),
        });
        let (commands, inbox) = mpsc::channel(INBOX);
        let (withdrawals, withdrawn) = mpsc::unbounded_channel();
        let events = shared.downstream.subscribe();
        let task = Task {
            machine,
            shared: shared.clone(),
            remoting,
            path,
            waiters: BTreeMap::new(),
            drains: Vec::new(),
            effects: Vec::new(),
            drain_on_drop: settings.producer.drain_on_drop,
        };
        tokio::spawn(task.run(inbox, withdrawn, from_consumers, events));
        Ok(Self { commands, withdrawals, shared })
    }

    /// Sends a message, and waits until there is room for it. From then on it is delivered, whatever
    /// becomes of this call; its number is returned.
    ///
    /// # Errors
    /// [`SendError`]; the message was not sent.
    pub async fn send(&self, entity: impl Into<Arc<str>>, message: T) -> Result<SeqNr, SendError<T>> {
        self.submit(entity.into(), message, None).await
    }

    /// Sends a message, and waits until its entity has confirmed it.
    ///
    /// # Errors
    /// [`SendError`]; after [`SendError::Unconfirmed`] it may have been processed.
    pub async fn send_confirmed(&self, entity: impl Into<Arc<str>>, message: T) -> Result<SeqNr, SendError<T>> {
        self.send_tracked(entity, message).await?.confirmed().await.map_err(SendError::from)
    }

    /// Sends a message as [`ShardingProducer::send`] does; the result tells of its confirmation.
    ///
    /// # Errors
    /// [`SendError`]; the message was not sent.
    pub async fn send_tracked(&self, entity: impl Into<Arc<str>>, message: T) -> Result<Sent, SendError<T>> {
        let (confirmed, confirmation) = oneshot::channel();
        let seq_nr = self.submit(entity.into(), message, Some(confirmed)).await?;
        Ok(Sent::accepted(seq_nr, confirmation))
    }

    async fn submit(
        &self,
        entity: Arc<str>,
        message: T,
        confirmed: Option<oneshot::Sender<SeqNr>>,
    ) -> Result<SeqNr, SendError<T>> {
        let shard = match self.shared.downstream.shard_of(&entity) {
            Ok(shard) => shard,
            Err(reason) => return Err(SendError::InvalidEntity { message, id: entity.to_string(), reason }),
        };
        let payload = Payload::encode(message, &*self.shared.codec)
            .map_err(|(message, error)| SendError::Encode(message, error))?;
        let (size, max) = (payload.size(), self.shared.max_message_bytes);
        if size > max {
            return Err(match payload.into_value() {
                Some(message) => SendError::MessageTooLarge { message, size, max },
                None => SendError::Closed(None),
            });
        }
        let ticket = self.shared.next_ticket.fetch_add(1, Ordering::Relaxed);
        let (accepted, answer) = oneshot::channel();
        let send = Submission { ticket, entity: entity.clone(), shard, payload, accepted, confirmed };
        if let Err(mpsc::error::SendError(Command::Send(unsent))) =
            self.commands.send(Command::Send(Box::new(send))).await
        {
            return Err(self.ended(Some(Frames::Whole(unsent.payload))));
        }
        let mut withdrawal = Withdrawal { producer: self, ticket, entity: Some(entity) };
        let answer = answer.await;
        withdrawal.entity = None;
        match answer {
            Ok(Ok(seq_nr)) => Ok(seq_nr),
            Ok(Err(frames)) => Err(self.ended(Some(frames))),
            Err(_) => Err(self.ended(None)),
        }
    }

    fn ended(&self, unsent: Option<Frames<Payload<T>>>) -> SendError<T> {
        let message = unsent.and_then(Frames::into_value);
        match *lock(&self.shared.fenced) {
            Some(newer) => SendError::Fenced { newer: Some(newer), message },
            None => SendError::Closed(message),
        }
    }

    /// Waits until everything sent so far is confirmed.
    ///
    /// # Errors
    /// [`Undelivered`] if that takes longer than `patience`; the producer goes on delivering.
    pub async fn drain(&self, patience: Duration) -> Result<(), Undelivered> {
        let drained = async {
            let (done, drained) = oneshot::channel();
            self.commands.send(Command::Drain(done)).await.ok()?;
            drained.await.ok()
        };
        match tokio::time::timeout(patience, drained).await {
            Ok(Some(())) => Ok(()),
            _ => {
                let stats = self.stats();
                Err(Undelivered { unconfirmed: stats.unconfirmed + stats.waiting })
            }
        }
    }

    /// Ends the producer now: links are closed, and unconfirmed messages are given up.
    pub async fn close(&self) {
        let (done, closed) = oneshot::channel();
        if self.commands.send(Command::Close(done)).await.is_ok() {
            closed.await.ok();
        }
    }

    /// The last of the contiguously confirmed numbers.
    pub fn confirmed(&self) -> watch::Receiver<SeqNr> {
        self.shared.confirmed.subscribe()
    }

    /// What the producer has seen so far.
    pub fn stats(&self) -> ProducerStats {
        *lock(&self.shared.stats)
    }
}

impl<T> Clone for ShardingProducer<T> {
    fn clone(&self) -> Self {
        Self { commands: self.commands.clone(), withdrawals: self.withdrawals.clone(), shared: self.shared.clone() }
    }
}

impl<T> fmt::Debug for ShardingProducer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ShardingProducer").field("stats", &*lock(&self.shared.stats)).finish_non_exhaustive()
    }
}

fn lock<V>(mutex: &Mutex<V>) -> std::sync::MutexGuard<'_, V> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
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

struct Task<T> {
    machine: Machine<Payload<T>>,
    shared: Arc<SharedState<T>>,
    remoting: Arc<dyn Remoting>,
    path: Arc<str>,
    waiters: BTreeMap<u64, Waiter<T>>,
    drains: Vec<oneshot::Sender<()>>,
    effects: Vec<Effect<Payload<T>>>,
    drain_on_drop: Duration,
}

impl<T: Send + Sync + 'static> Task<T> {
    async fn run(
        mut self,
        mut commands: mpsc::Receiver<Command<T>>,
        mut withdrawals: mpsc::UnboundedReceiver<(u64, Arc<str>)>,
        mut upstream: mpsc::Receiver<UpstreamMessage>,
        mut events: RegionEvents,
    ) {
        let mut timer = std::pin::pin!(tokio::time::sleep_until(Instant::now().into()));
        let mut gives_up_at = None;
        let mut closed = None;
        while closed.is_none() && !self.is_over(gives_up_at) {
            let deadline = [self.machine.next_deadline(), gives_up_at].into_iter().flatten().min();
            if let Some(deadline) = deadline
                && timer.deadline() != deadline.into()
            {
                timer.as_mut().reset(deadline.into());
            }
            tokio::select! {
                () = timer.as_mut(), if deadline.is_some() => self.tell(Input::Tick),
                Some(message) = upstream.recv() => {
                    self.tell(Input::Received(message));
                    for _ in 0..RUN {
                        let Ok(message) = upstream.try_recv() else { break };
                        self.tell(Input::Received(message));
                    }
                }
                Some((ticket, entity)) = withdrawals.recv() => self.withdraw(ticket, entity),
                Some(event) = events.next() => self.on_event(event),
                command = commands.recv(), if gives_up_at.is_none() => match command {
                    None => gives_up_at = Some(Instant::now() + self.drain_on_drop),
                    Some(command) => {
                        closed = self.on_command(command);
                        for _ in 0..RUN {
                            if closed.is_some() {
                                break;
                            }
                            let Ok(command) = commands.try_recv() else { break };
                            closed = self.on_command(command);
                        }
                    }
                },
            }
            self.carry_out();
        }
        self.tell(Input::Close);
        self.carry_out();
        self.remoting.unregister(&self.path);
        // The answer comes last, so that the task that closed the producer finds everything settled.
        commands.close();
        while let Ok(command) = commands.try_recv() {
            drop(self.on_command(command));
            self.carry_out();
        }
        drop(closed);
    }

    /// Whether the task may end: the producer is closed and nothing is left to deliver, or that took too long; or it is
    /// fenced.
    fn is_over(&self, gives_up_at: Option<Instant>) -> bool {
        let now = Instant::now();
        let drained = || {
            let stats = self.machine.stats(now);
            stats.unconfirmed == 0 && stats.waiting == 0
        };
        gives_up_at.is_some_and(|at| at <= now || drained()) || lock(&self.shared.fenced).is_some()
    }

    fn tell(&mut self, input: Input<Payload<T>>) {
        self.machine.handle(Instant::now(), input, &mut self.effects);
    }

    fn on_command(&mut self, command: Command<T>) -> Option<oneshot::Sender<()>> {
        match command {
            Command::Send(send) => {
                let Submission { ticket, entity, shard, payload, accepted, confirmed } = *send;
                if accepted.is_closed() {
                    // Its sender gave up before it was even looked at.
                    return None;
                }
                let (bytes, ack) = (payload.size(), confirmed.is_some());
                self.waiters.insert(ticket, Waiter { accepted: Some(accepted), confirmed });
                let frames = payload.frames(self.shared.chunk_bytes);
                self.tell(Input::Admit { ticket, entity, shard, frames, bytes, ack });
            }
            Command::Drain(done) => self.drains.push(done),
            Command::Close(done) => return Some(done),
        }
        None
    }

    fn withdraw(&mut self, ticket: u64, entity: Arc<str>) {
        // One that was accepted meanwhile has no waiter, or waits for its confirmation only.
        if self.waiters.get(&ticket).is_some_and(|waiter| waiter.accepted.is_some()) {
            self.waiters.remove(&ticket);
            self.tell(Input::Withdraw { ticket, entity });
        }
    }

    fn on_event(&mut self, event: greylag_sharding::Event) {
        match news(event) {
            None => {}
            Some(RouteNews::Moved(shard)) => self.tell(Input::ShardMoved(shard)),
            Some(RouteNews::Routed(shard, routed)) => self.tell(Input::RouteChanged { shard, routed }),
            Some(RouteNews::LookAtUnrouted) => {
                let shards: Vec<Arc<str>> = self.machine.shards().cloned().collect();
                for shard in shards {
                    if !self.shared.downstream.is_routed(&shard) {
                        self.tell(Input::RouteChanged { shard: shard.clone(), routed: false });
                        self.tell(Input::ShardMoved(shard));
                    }
                }
            }
            Some(RouteNews::LookAtAll) => {
                let shards: Vec<Arc<str>> = self.machine.shards().cloned().collect();
                for shard in shards {
                    let routed = self.shared.downstream.is_routed(&shard);
                    self.tell(Input::RouteChanged { shard: shard.clone(), routed });
                    self.tell(Input::ShardMoved(shard));
                }
            }
        }
    }

    fn carry_out(&mut self) {
        let mut batch: Option<(Arc<str>, SequencedBatch<Payload<T>>)> = None;
        let mut bytes = 0;
        for effect in std::mem::take(&mut self.effects) {
            if let Effect::Transmit { entity, header, message } = effect {
                let size = message.frame.payload.size();
                match &mut batch {
                    Some((_, open))
                        if open.header == header && open.frames.len() < RUN && bytes + size <= BATCH_BYTES =>
                    {
                        bytes += size;
                        open.frames.push(message);
                    }
                    _ => {
                        bytes = size;
                        let next = (entity, SequencedBatch { header, frames: vec![message] });
                        if let Some((entity, full)) = batch.replace(next) {
                            self.shared.downstream.send(entity, full);
                        }
                    }
                }
                continue;
            }
            // Order between a batch and later effects matters only within its link.
            self.carry_out_one(effect);
        }
        if let Some((entity, last)) = batch {
            self.shared.downstream.send(entity, last);
        }
        self.publish();
    }

    fn carry_out_one(&mut self, effect: Effect<Payload<T>>) {
        match effect {
            Effect::Transmit { .. } => {}
            Effect::Admitted { ticket, total } => {
                let Some(waiter) = self.waiters.get_mut(&ticket) else { return };
                if let Some(accepted) = waiter.accepted.take() {
                    accepted.send(Ok(total)).ok();
                }
                if waiter.confirmed.is_none() {
                    self.waiters.remove(&ticket);
                }
            }
            Effect::Confirmed { ticket, total } => {
                if let Some(confirmed) = self.waiters.remove(&ticket).and_then(|waiter| waiter.confirmed) {
                    confirmed.send(total).ok();
                }
            }
            Effect::Refused { ticket, frames } => {
                if let Some(accepted) = self.waiters.remove(&ticket).and_then(|waiter| waiter.accepted) {
                    accepted.send(Err(frames)).ok();
                }
            }
            Effect::Undelivered { ticket, entity, .. } => {
                self.waiters.remove(&ticket);
                self.remoting.dead_letter(DeadLetterReason::ProducerClosed, &entity, wire::BATCH);
            }
            Effect::Stop { to, message } => self.shared.downstream.stopped(&to, message),
            Effect::Fenced { newer } => {
                tracing::error!(%newer, "the stream has a newer producer; this one ends");
                *lock(&self.shared.fenced) = Some(newer);
            }
        }
    }

    fn publish(&mut self) {
        let stats = self.machine.stats(Instant::now());
        *lock(&self.shared.stats) = stats;
        let confirmed = self.machine.confirmed();
        self.shared.confirmed.send_if_modified(|known| std::mem::replace(known, confirmed) != confirmed);
        if stats.unconfirmed == 0 && stats.waiting == 0 {
            for done in self.drains.drain(..) {
                done.send(()).ok();
            }
        }
    }
}
