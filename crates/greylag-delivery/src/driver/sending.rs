//! What the handles of a producer share: a message is encoded by its caller and goes to the producer's task under a number of
//! its own, the *ticket*; the task answers by it.
//!
//! ```text
//! send ─▶ encode ─▶ ticket ─ Admit ─▶ task: machine ─ Accepted | Refused ─▶ desk ─▶ answer
//! request_next ─▶ ticket ─ Reserve ─▶ … ─ Permitted ─▶ permit ─ Use ─▶ …
//! ```
//!
//! Tickets go to the task in the order in which they are drawn, so calls are served in the order of their first polls.
//! Source: delivery §6, P11 to P13.

mod desk;
mod frames;
mod permit;
mod sink;
mod task;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use greylag_core::{Codec, Encoded};
use greylag_transport::{LaneKind, Remoting};
use tokio::sync::{mpsc, oneshot, watch};

use super::queue::DurableProducerQueue;
use super::sent::Sent;
use crate::error::{ProducerError, SendError, SentError, StartError, TrySendError, Undelivered};
use crate::ids::{ControllerRef, SeqNr};
use crate::machine::controller::{ControllerStats, Failure, Message};
use crate::machine::producer_link::Frames;
use crate::machine::work_pulling::WorkerStats;
use crate::payload::Payload;
use crate::settings::{DeliverySettings, LANE_MARGIN};

pub(crate) use desk::{Answer, Replies};
pub use permit::RequestNext;
pub use sink::ProducerSink;
pub(crate) use task::{PATHS, Parts, Task, now, upstream};

/// What handles tell the task of their producer.
pub(crate) enum Command<T> {
    /// A producer takes over.
    Start {
        session: u64,
    },
    Register(ControllerRef),
    Admit(Box<Admit<T>>),
    Reserve {
        session: u64,
        ticket: u64,
        granted: oneshot::Sender<Result<Grant, ProducerError>>,
    },
    Use {
        ticket: u64,
        message: Message<Payload<T>>,
        replies: Replies<T>,
    },
    Withdraw {
        ticket: u64,
    },
    Drain(oneshot::Sender<()>),
    Close(oneshot::Sender<()>),
}

/// A message that waits for room.
pub(crate) struct Admit<T> {
    session: u64,
    ticket: u64,
    message: Message<Payload<T>>,
    /// Room was counted off for it already.
    prepaid: bool,
    replies: Replies<T>,
}

/// Room for one message.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Grant {
    pub(crate) current_seq_nr: SeqNr,
    pub(crate) confirmed_seq_nr: SeqNr,
}

/// How messages become frames, and how large they may be.
pub(crate) struct Encoding<T> {
    pub(crate) codec: Arc<dyn Codec<T>>,
    chunk_bytes: usize,
    pub(crate) max_message_bytes: usize,
    /// Messages are stored, so a message that was accepted outlives its producer.
    pub(crate) is_durable: bool,
}

impl<T: 'static> Encoding<T> {
    /// Messages that are not cut must fit into a frame of the lane.
    pub(crate) fn new(
        codec: Arc<dyn Codec<T>>,
        settings: &DeliverySettings,
        remoting: &Arc<dyn Remoting>,
        queue: Option<&dyn DurableProducerQueue<Encoded>>,
    ) -> Self {
        let chunk_bytes = settings.producer.chunk_large_messages;
        let lane = remoting.maximum_message_size(LaneKind::Ordinary);
        let max = settings.producer.max_message_bytes;
        let in_one_piece = if chunk_bytes == 0 { lane.saturating_sub(LANE_MARGIN) } else { usize::MAX };
        let stored = queue.map_or(usize::MAX, DurableProducerQueue::max_message_bytes);
        let max_message_bytes = max.min(in_one_piece).min(stored);
        Self { codec, chunk_bytes, max_message_bytes, is_durable: queue.is_some() }
    }

    /// A stored message as it is sent. One that this codec cannot read is sent all the same: its consumer may.
    fn frames_of(&self, encoded: Encoded) -> Frames<Payload<T>> {
        Payload::decode(encoded, &*self.codec).frames(self.chunk_bytes)
    }
}

/// What handles and task both see.
pub(crate) struct Shared {
    next_ticket: AtomicU64,
    sessions: AtomicU64,
    room: Mutex<Room>,
    pub(crate) confirmed: watch::Sender<SeqNr>,
    stats: Mutex<ControllerStats>,
    workers: Mutex<WorkerStats>,
    failure: Mutex<Option<Failure>>,
    has_ended: AtomicBool,
}

/// Room for messages that do not wait.
#[derive(Debug, Clone, Copy, Default)]
struct Room {
    /// What the machine had when the task last looked.
    free: u64,
    /// Taken by messages that have not reached the machine.
    on_the_way: u64,
}

impl Shared {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            next_ticket: AtomicU64::new(1),
            sessions: AtomicU64::new(0),
            room: Mutex::default(),
            confirmed: watch::channel(SeqNr::NONE).0,
            stats: Mutex::default(),
            workers: Mutex::default(),
            failure: Mutex::default(),
            has_ended: AtomicBool::new(false),
        })
    }

    pub(crate) fn failure(&self) -> Option<Failure> {
        lock(&self.failure).clone()
    }

    pub(crate) fn stats(&self) -> ControllerStats {
        *lock(&self.stats)
    }

    /// Whether the producer's task runs.
    pub(crate) fn is_running(&self) -> bool {
        !self.has_ended.load(Ordering::Relaxed)
    }

    pub(crate) fn workers(&self) -> WorkerStats {
        *lock(&self.workers)
    }

    fn take_room(&self) -> bool {
        let mut room = lock(&self.room);
        let has_room = room.on_the_way < room.free;
        room.on_the_way += u64::from(has_room);
        has_room
    }

    fn room_arrived(&self) {
        let mut room = lock(&self.room);
        room.on_the_way = room.on_the_way.saturating_sub(1);
        room.free = room.free.saturating_sub(1);
    }

    fn publish_room(&self, free: u64) {
        lock(&self.room).free = free;
    }
}

/// Refuses a queue that finds messages by itself: these producers do not ask for any, so its messages would wait for ever.
pub(crate) fn refuse_outbox(queue: Option<&dyn DurableProducerQueue<Encoded>>) -> Result<(), StartError> {
    match queue.and_then(DurableProducerQueue::poll_interval) {
        Some(_) => Err(StartError::Outbox),
        None => Ok(()),
    }
}

/// Milliseconds since the Unix epoch.
pub(crate) fn wall_clock_ms() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

fn lock<V>(mutex: &Mutex<V>) -> MutexGuard<'_, V> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The sending half of a producer's handle; clones are the same producer.
pub(crate) struct Sending<T> {
    commands: mpsc::UnboundedSender<Command<T>>,
    encoding: Arc<Encoding<T>>,
    pub(crate) shared: Arc<Shared>,
    session: u64,
}

impl<T> Clone for Sending<T> {
    fn clone(&self) -> Self {
        Self {
            commands: self.commands.clone(),
            encoding: self.encoding.clone(),
            shared: self.shared.clone(),
            session: self.session,
        }
    }
}

/// The way to a producer that does not keep it.
pub(crate) struct WeakSending<T> {
    commands: mpsc::WeakUnboundedSender<Command<T>>,
    encoding: Arc<Encoding<T>>,
    shared: Weak<Shared>,
    session: u64,
}

impl<T> WeakSending<T> {
    /// The producer, if it still has a handle.
    pub(crate) fn upgrade(&self) -> Option<Sending<T>> {
        let (commands, shared) = (self.commands.upgrade()?, self.shared.upgrade()?);
        Some(Sending { commands, encoding: self.encoding.clone(), shared, session: self.session })
    }
}

/// Tells the task that a sender gave up while it waited.
struct Withdrawal<'a, T> {
    commands: &'a mpsc::UnboundedSender<Command<T>>,
    ticket: Option<u64>,
}

impl<T> Drop for Withdrawal<'_, T> {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket.take() {
            self.commands.send(Command::Withdraw { ticket }).ok();
        }
    }
}

impl<T: Send + Sync + 'static> Sending<T> {
    /// A producer that takes over from those before it.
    pub(crate) fn start(
        commands: &mpsc::UnboundedSender<Command<T>>,
        encoding: &Arc<Encoding<T>>,
        shared: &Arc<Shared>,
    ) -> Self {
        let session = shared.sessions.fetch_add(1, Ordering::Relaxed) + 1;
        commands.send(Command::Start { session }).ok();
        Self { commands: commands.clone(), encoding: encoding.clone(), shared: shared.clone(), session }
    }

    pub(crate) fn downgrade(&self) -> WeakSending<T> {
        WeakSending {
            commands: self.commands.downgrade(),
            encoding: self.encoding.clone(),
            shared: Arc::downgrade(&self.shared),
            session: self.session,
        }
    }

    pub(crate) fn is_durable(&self) -> bool {
        self.encoding.is_durable
    }

    fn ticket(&self) -> u64 {
        self.shared.next_ticket.fetch_add(1, Ordering::Relaxed)
    }

    fn encode(&self, message: T, ack: bool) -> Result<Message<Payload<T>>, SendError<T>> {
        let payload = Payload::encode(message, &*self.encoding.codec)
            .map_err(|(message, error)| SendError::Encode(message, error))?;
        let (size, max) = (payload.size(), self.encoding.max_message_bytes);
        if size > max {
            return Err(match payload.into_value() {
                Some(message) => SendError::MessageTooLarge { message, size, max },
                None => SendError::Closed(None),
            });
        }
        Ok(Message { frames: payload.frames(self.encoding.chunk_bytes), bytes: size, ack })
    }

    pub(crate) async fn send(&self, message: T, ack: bool) -> Result<Sent, SendError<T>> {
        let message = self.encode(message, ack)?;
        let (ticket, (accepted, answer), (confirmed, confirmation)) =
            (self.ticket(), oneshot::channel(), oneshot::channel());
        let replies = Replies { accepted: Answer::WithMessage(accepted), confirmed };
        let admit = Admit { session: self.session, ticket, message, prepaid: false, replies };
        if let Err(mpsc::error::SendError(Command::Admit(unsent))) = self.commands.send(Command::Admit(Box::new(admit)))
        {
            return Err(self.ended(unsent.message));
        }
        let mut withdrawal = Withdrawal { commands: &self.commands, ticket: Some(ticket) };
        let answer = answer.await;
        withdrawal.ticket = None;
        match answer {
            Ok(Ok(seq_nr)) => Ok(Sent::accepted(seq_nr, confirmation)),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(SendError::Closed(None)),
        }
    }

    /// P12: waits until the message is stored where messages are, and otherwise until it is confirmed.
    pub(crate) async fn ask(&self, message: T) -> Result<SeqNr, SendError<T>> {
        let mut sent = self.send(message, true).await?;
        let outcome = if self.encoding.is_durable { sent.seq_nr().await } else { sent.confirmed().await };
        outcome.map_err(SendError::from)
    }

    pub(crate) async fn send_confirmed(&self, message: T) -> Result<SeqNr, SendError<T>> {
        self.send(message, true).await?.confirmed().await.map_err(SendError::from)
    }

    pub(crate) fn try_send(&self, message: T) -> Result<Sent, TrySendError<T>> {
        if self.commands.is_closed() {
            return Err(TrySendError::Closed(message));
        }
        if !self.shared.take_room() {
            return Err(TrySendError::Full(message));
        }
        let message = match self.encode(message, false) {
            Ok(message) => message,
            Err(error) => {
                self.shared.room_arrived();
                return Err(TrySendError::Refused(error));
            }
        };
        let (ticket, (replies, sent)) = (self.ticket(), replies());
        let admit = Admit { session: self.session, ticket, message, prepaid: true, replies };
        match self.commands.send(Command::Admit(Box::new(admit))) {
            Ok(()) => Ok(sent),
            Err(mpsc::error::SendError(Command::Admit(unsent))) => {
                Err(TrySendError::Refused(self.ended(unsent.message)))
            }
            Err(_) => Ok(sent),
        }
    }

    /// Asks for room; the answer comes by the returned receiver.
    fn reserve(&self) -> (u64, oneshot::Receiver<Result<Grant, ProducerError>>) {
        let (ticket, (granted, grant)) = (self.ticket(), oneshot::channel());
        self.commands.send(Command::Reserve { session: self.session, ticket, granted }).ok();
        (ticket, grant)
    }

    pub(crate) async fn request_next(&self) -> Result<RequestNext<'_, T>, ProducerError> {
        let (ticket, grant) = self.reserve();
        let mut withdrawal = Withdrawal { commands: &self.commands, ticket: Some(ticket) };
        let grant = grant.await;
        withdrawal.ticket = None;
        match grant {
            Ok(Ok(grant)) => Ok(RequestNext::new(self, ticket, grant)),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(self.error()),
        }
    }

    /// Uses a permit.
    fn redeem(&self, ticket: u64, message: Message<Payload<T>>) -> Sent {
        let (replies, sent) = replies();
        self.commands.send(Command::Use { ticket, message, replies }).ok();
        sent
    }

    fn give_back(&self, ticket: u64) {
        self.commands.send(Command::Withdraw { ticket }).ok();
    }

    fn error(&self) -> ProducerError {
        self.shared.failure().map_or(ProducerError::Closed, ProducerError::from)
    }

    fn ended(&self, unsent: Message<Payload<T>>) -> SendError<T> {
        desk::ended(self.shared.failure().as_ref(), unsent.frames.into_value())
    }

    /// Waits until what was accepted before is confirmed; false if the producer ends first.
    async fn drained(&self) -> bool {
        let (done, drained) = oneshot::channel();
        self.commands.send(Command::Drain(done)).ok();
        drained.await.is_ok()
    }

    pub(crate) async fn drain(&self, patience: Duration) -> Result<(), Undelivered> {
        match tokio::time::timeout(patience, self.drained()).await {
            Ok(true) => Ok(()),
            _ => Err(Undelivered { unconfirmed: self.shared.stats().unconfirmed }),
        }
    }

    pub(crate) async fn close(&self) {
        let (done, closed) = oneshot::channel();
        if self.commands.send(Command::Close(done)).is_ok() {
            closed.await.ok();
        }
    }
}

/// The two ends of a message's answers, where its sender does not want it back.
fn replies<T>() -> (Replies<T>, Sent) {
    let ((accepted, number), (confirmed, confirmation)) = (oneshot::channel(), oneshot::channel());
    (Replies { accepted: Answer::Alone(accepted), confirmed }, Sent::on_its_way(number, confirmation))
}

impl<T> From<SentError> for SendError<T> {
    fn from(error: SentError) -> Self {
        Self::of(error, None)
    }
}
