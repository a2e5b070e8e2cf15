//! A sharding producer: the handle that applications send through, and the task behind it.
//!
//! A send is encoded by its caller and queued to the task; the task runs the machine, groups frames
//! of one link into batches, and hands them to the region. What consumers say arrives at a recipient
//! path of the producer's own, straight from the transport.

mod batches;
mod sink;
mod start;
mod stored;
mod task;
mod watched;

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use greylag_core::Codec;
use tokio::sync::{oneshot, watch};

use super::entrance::{Entrance, NotEntered, NotSubmitted};
use super::permits::{Granted, ShardingRequestNext};
use super::region::Downstream;
use super::replies::{Accepted, Confirmed};
use super::sent::Sent;
use crate::error::{ProducerError, SendError, SentError, TrySendError, Undelivered};
use crate::ids::SeqNr;
use crate::machine::sharding_producer::{DemandSets, ProducerStats};
use crate::machine::storing::StoringState;
use crate::payload::Payload;

pub use sink::ShardingSink;
pub(crate) use start::Keeping;

/// Sends messages to entities: in order per entity, with backpressure, again until confirmed.
///
/// Clones are the same producer. When the last one is dropped, unconfirmed messages are delivered in
/// the background for a while ([`ProducerSettings::drain_on_drop`](crate::ProducerSettings)).
///
/// Sends are numbered in the order in which their futures are first polled. A producer with a stable
/// identity that repeats the same sends in the same order gives every message the same number again,
/// and consumers suppress messages that they have processed. A durable producer numbers messages when it stores them.
/// Source: delivery §3.1, §6.
pub struct ShardingProducer<T> {
    entrance: Entrance<Command<T>>,
    shared: Arc<SharedState<T>>,
}

/// What handles and task share.
struct SharedState<T> {
    codec: Arc<dyn Codec<T>>,
    downstream: Arc<dyn Downstream<T>>,
    limits: Limits,
    is_durable: bool,
    confirmed: watch::Sender<SeqNr>,
    seen: Mutex<Seen>,
    /// A handle asks for room without waiting, so the task keeps `seen.demand` up to date.
    wants_demand: AtomicBool,
    /// Why the producer has ended, if it was not closed.
    end: Mutex<Option<ProducerError>>,
    /// The task runs.
    is_running: AtomicBool,
}

#[derive(Debug, Clone, Copy)]
struct Limits {
    /// Messages are cut into frames of so many bytes; 0 for one frame each.
    chunk_bytes: usize,
    max_message_bytes: usize,
    buffer_size: usize,
    buffer_size_per_entity: usize,
}

/// What the task has seen so far.
#[derive(Debug)]
struct Seen {
    stats: ProducerStats,
    store: StoringState,
    demand: DemandSets,
}

/// What handles ask of the task.
pub(super) enum Command<T> {
    Send(Box<Submission<T>>),
    /// A caller gave up while its message waited for room.
    Withdraw {
        ticket: u64,
        entity: Arc<str>,
    },
    Permit {
        permit: u64,
        reply: oneshot::Sender<Granted>,
    },
    Release {
        permit: u64,
    },
    /// Permits of earlier handles are void.
    StartAgain,
    Drain(oneshot::Sender<()>),
    Close(oneshot::Sender<()>),
}

pub(super) struct Submission<T> {
    ticket: u64,
    letter: Letter<T>,
    permit: Option<u64>,
    accepted: Accepted<T>,
    confirmed: Confirmed,
}

/// A message that may be sent.
struct Letter<T> {
    entity: Arc<str>,
    shard: Arc<str>,
    payload: Payload<T>,
    /// Its sender waits for its confirmation.
    ack: bool,
}

impl<T: Send + Sync + 'static> ShardingProducer<T> {
    /// Sends a message, and waits until there is room for it, and of a durable producer until it is stored. From then on
    /// it is delivered, whatever becomes of the result, which tells its number and waits for its confirmation.
    ///
    /// Dropped before there is room, the call sends nothing. Dropped later, the message is delivered all the same.
    ///
    /// # Errors
    /// [`SendError`]; the message was not sent, or after [`SendError::StoreUnknown`] perhaps.
    pub async fn send(&self, entity: impl Into<Arc<str>>, message: T) -> Result<Sent, SendError<T>> {
        self.submit(self.letter(entity.into(), message, false)?).await
    }

    /// Sends a message, and waits until it is safe: stored, if the producer is durable, and confirmed by its entity
    /// otherwise. Returns its number.
    ///
    /// # Errors
    /// As [`send`](Self::send); after [`SendError::Unconfirmed`] the message may have been processed.
    pub async fn ask(&self, entity: impl Into<Arc<str>>, message: T) -> Result<SeqNr, SendError<T>> {
        let sent = self.submit(self.letter(entity.into(), message, true)?).await?;
        self.safe(sent).await.map_err(|error| SendError::of(error, None))
    }

    /// Sends a message, and waits until its entity has confirmed it. Returns its number.
    ///
    /// # Errors
    /// As [`send`](Self::send); after [`SendError::Unconfirmed`] the message may have been processed.
    pub async fn send_confirmed(&self, entity: impl Into<Arc<str>>, message: T) -> Result<SeqNr, SendError<T>> {
        let sent = self.submit(self.letter(entity.into(), message, true)?).await?;
        sent.confirmed().await.map_err(|error| SendError::of(error, None))
    }

    /// Sends a message if there is room at present, without waiting: neither too many messages wait for room, nor for the
    /// entity's demand. The number is known when the message is accepted, see [`Sent::seq_nr`].
    ///
    /// # Errors
    /// [`TrySendError::Full`] with the message, or the [`SendError`] of [`send`](Self::send).
    pub fn try_send(&self, entity: impl Into<Arc<str>>, message: T) -> Result<Sent, TrySendError<T>> {
        let letter = self.letter(entity.into(), message, false).map_err(TrySendError::Refused)?;
        self.shared.wants_demand.store(true, Ordering::Relaxed);
        let full = lock(&self.shared.seen).demand.buffered(&letter.entity) >= self.shared.limits.buffer_size_per_entity;
        let limit = if full { 0 } else { self.shared.limits.buffer_size as u64 };
        self.enter(limit, letter, None)
    }

    /// Waits until there is room in the whole, and sets it aside for one message: a permit, which also says which
    /// entities could take a message at once. Several permits may be held at a time. May be dropped without losing
    /// anything, as may the permit.
    ///
    /// # Errors
    /// [`ProducerError`]: there will be no permit.
    pub async fn request_next(&self) -> Result<ShardingRequestNext<'_, T>, ProducerError> {
        let granted = self.permit().await?;
        Ok(ShardingRequestNext::new(self, granted))
    }

    async fn permit(&self) -> Result<(Granted, super::entrance::OnDrop<Command<T>>), ProducerError> {
        let (reply, granted) = oneshot::channel();
        let permit = self.entrance.call(|permit| Command::Permit { permit, reply }).map_err(|not| match not {
            NotEntered::Superseded => ProducerError::Superseded,
            NotEntered::Ended => self.shared.error(),
        })?;
        let release = self.entrance.on_drop(Command::Release { permit });
        match granted.await {
            Ok(granted) => Ok((granted, release)),
            Err(_) if self.entrance.is_superseded() => Err(ProducerError::Superseded),
            Err(_) => Err(self.shared.error()),
        }
    }

    /// Begins again with the same producer, as a part of the application that was restarted does: earlier handles and
    /// permits are [`Superseded`](SendError::Superseded); numbers, and what is on its way, are untouched.
    /// Source: delivery P13.
    #[must_use = "it is the only handle that sends from here on"]
    pub fn start_again(&self) -> Self {
        Self { entrance: self.entrance.start_again(Command::StartAgain), shared: self.shared.clone() }
    }

    /// The message as it is sent.
    fn letter(&self, entity: Arc<str>, message: T, ack: bool) -> Result<Letter<T>, SendError<T>> {
        let shard = match self.shared.downstream.shard_of(&entity) {
            Ok(shard) => shard,
            Err(reason) => return Err(SendError::InvalidEntity { message, id: entity.to_string(), reason }),
        };
        let payload = Payload::encode(message, &*self.shared.codec)
            .map_err(|(message, error)| SendError::Encode(message, error))?;
        let (size, max) = (payload.size(), self.shared.limits.max_message_bytes);
        if size > max {
            return Err(match payload.into_value() {
                Some(message) => SendError::MessageTooLarge { message, size, max },
                None => SendError::Closed(None),
            });
        }
        Ok(Letter { entity, shard, payload, ack })
    }

    /// Sends a message, and waits until it is accepted.
    async fn submit(&self, letter: Letter<T>) -> Result<Sent, SendError<T>> {
        let (accepted, answer) = oneshot::channel();
        let (confirmed, confirmation) = oneshot::channel();
        let entity = letter.entity.clone();
        let entered = self.entrance.submit(u64::MAX, letter, |ticket, letter| {
            let accepted = Accepted::Returning(accepted);
            Command::Send(Box::new(Submission { ticket, letter, permit: None, accepted, confirmed }))
        });
        let ticket = entered.map_err(|not| match self.not_sent(not) {
            TrySendError::Full(message) => SendError::Unavailable(Some(message)),
            TrySendError::Closed(message) => SendError::Closed(Some(message)),
            TrySendError::Refused(error) => error,
        })?;
        let withdraw = self.entrance.on_drop(Command::Withdraw { ticket, entity });
        let answer = answer.await;
        withdraw.disarm();
        match answer {
            Ok(Ok(seq_nr)) => Ok(Sent::accepted(seq_nr, confirmation)),
            Ok(Err((error, message))) => Err(SendError::of(error, message)),
            Err(_) => Err(SendError::of(self.shared.end(), None)),
        }
    }

    /// Sends a message without waiting, if no more than `limit` messages wait for room.
    fn enter(&self, limit: u64, letter: Letter<T>, permit: Option<u64>) -> Result<Sent, TrySendError<T>> {
        let (accepted, answer) = oneshot::channel();
        let (confirmed, confirmation) = oneshot::channel();
        let entered = self.entrance.submit(limit, letter, |ticket, letter| {
            let accepted = Accepted::Plain(accepted);
            Command::Send(Box::new(Submission { ticket, letter, permit, accepted, confirmed }))
        });
        match entered {
            Ok(_) => Ok(Sent::on_its_way(answer, confirmation)),
            Err(not) => Err(self.not_sent(not)),
        }
    }

    fn not_sent(&self, not: NotSubmitted<Letter<T>, Command<T>>) -> TrySendError<T> {
        let (error, letter) = match not {
            NotSubmitted::Superseded(letter) => (SentError::Superseded, Some(letter)),
            NotSubmitted::Ended(Command::Send(unsent)) => (self.shared.end(), Some(unsent.letter)),
            NotSubmitted::Ended(_) => (self.shared.end(), None),
            NotSubmitted::Full(letter) => match letter.payload.into_value() {
                Some(message) => return TrySendError::Full(message),
                None => (SentError::Unavailable, None),
            },
        };
        match (error, letter.and_then(|letter| letter.payload.into_value())) {
            (SentError::Closed, Some(message)) => TrySendError::Closed(message),
            (error, message) => TrySendError::Refused(SendError::of(error, message)),
        }
    }

    /// Waits until a message is safe.
    async fn safe(&self, mut sent: Sent) -> Result<SeqNr, SentError> {
        if self.shared.is_durable { sent.seq_nr().await } else { sent.confirmed().await }
    }

    /// Waits until everything that was sent before this call is confirmed; others may go on sending.
    ///
    /// # Errors
    /// [`Undelivered`] if that takes longer than `patience`; the producer goes on delivering.
    pub async fn drain(&self, patience: Duration) -> Result<(), Undelivered> {
        let (done, drained) = oneshot::channel();
        self.entrance.tell(Command::Drain(done));
        match tokio::time::timeout(patience, drained).await {
            Ok(Ok(())) => Ok(()),
            _ => {
                let stats = self.stats();
                Err(Undelivered { unconfirmed: stats.unconfirmed + stats.storing + stats.waiting })
            }
        }
    }

    /// Ends the producer now: links are closed, and a durable producer stores the confirmations that it has. Unconfirmed
    /// messages are given up, or stay in the queue.
    pub async fn close(&self) {
        let (done, closed) = oneshot::channel();
        if self.entrance.tell(Command::Close(done)) {
            closed.await.ok();
        }
    }

    /// The last of the contiguously confirmed numbers.
    pub fn confirmed(&self) -> watch::Receiver<SeqNr> {
        self.shared.confirmed.subscribe()
    }

    /// What the producer has seen so far.
    pub fn stats(&self) -> ProducerStats {
        lock(&self.shared.seen).stats
    }

    /// How its store fares; [`StoringState::Degraded`] if its queue does not answer.
    pub fn storing_state(&self) -> StoringState {
        lock(&self.shared.seen).store
    }

    /// A sink of messages with their entities. Flushed, everything is accepted, of a durable producer stored; closed,
    /// everything is confirmed and the producer has ended.
    pub fn into_sink(self) -> ShardingSink<T> {
        ShardingSink::new(self)
    }
}

impl<'a, T: Send + Sync + 'static> ShardingRequestNext<'a, T> {
    /// Sends a message with the room that the permit sets aside, without waiting. The number is known when the message
    /// is accepted, see [`Sent::seq_nr`]: it may stand behind others for the same entity.
    ///
    /// # Errors
    /// [`SendError`] with the message; the room is given back, so ask for another permit.
    pub fn send(self, entity: impl Into<Arc<str>>, message: T) -> Result<Sent, SendError<T>> {
        self.submit(entity.into(), message, false)
    }

    /// As [`send`](Self::send), and waits until the message is safe: stored, if the producer is durable, and confirmed by
    /// its entity otherwise.
    ///
    /// # Errors
    /// As [`ShardingProducer::ask`].
    pub async fn ask(self, entity: impl Into<Arc<str>>, message: T) -> Result<SeqNr, SendError<T>> {
        let producer = self.producer;
        let sent = self.submit(entity.into(), message, true)?;
        producer.safe(sent).await.map_err(|error| SendError::of(error, None))
    }

    fn submit(self, entity: Arc<str>, message: T, ack: bool) -> Result<Sent, SendError<T>> {
        let letter = self.producer.letter(entity, message, ack)?;
        let sent = self.producer.enter(u64::MAX, letter, Some(self.granted.permit));
        match sent {
            Ok(sent) => {
                self.release.disarm();
                Ok(sent)
            }
            Err(TrySendError::Full(message)) => Err(SendError::Unavailable(Some(message))),
            Err(TrySendError::Closed(message)) => Err(SendError::Closed(Some(message))),
            Err(TrySendError::Refused(error)) => Err(error),
        }
    }
}

impl<T> SharedState<T> {
    /// Why there are no permits any more.
    fn error(&self) -> ProducerError {
        lock(&self.end).clone().unwrap_or(ProducerError::Closed)
    }

    /// Why nothing is sent any more.
    fn end(&self) -> SentError {
        match self.error() {
            ProducerError::Fenced { newer, .. } => SentError::Fenced { newer },
            _ => SentError::Closed,
        }
    }
}

impl<T> Clone for ShardingProducer<T> {
    fn clone(&self) -> Self {
        Self { entrance: self.entrance.clone(), shared: self.shared.clone() }
    }
}

impl<T> fmt::Debug for ShardingProducer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ShardingProducer").field("stats", &lock(&self.shared.seen).stats).finish_non_exhaustive()
    }
}

fn lock<V>(mutex: &Mutex<V>) -> std::sync::MutexGuard<'_, V> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
