//! The common half of all producers: the handles that applications send by, and the task behind them.
//!
//! A message is encoded by its caller, unless it stays on its node, and goes to the task under a number of its own, the
//! *ticket*; the task answers by it. The three kinds of producer differ in where a message goes ([`Address`]), and in the machine and the way of its frames
//! ([`Engine`]).
//!
//! ```text
//! send ─▶ encode ─▶ entrance ─ Admit ─▶ task ─▶ engine: machine ─ Accepted | Refused ─▶ task ─▶ replies ─▶ answer
//! request_next ─▶ entrance ─ Reserve ─▶ … ─ Permitted ─▶ permit ─ Admit ─▶ …
//! ```
//!
//! Source: delivery §6, P11 to P13.

mod base;
mod batches;
mod engine;
mod entrance;
mod frames;
mod handle;
mod links;
mod permit;
mod replies;
mod sent;
mod sink;
mod task;
mod upstream;

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use greylag_core::{Codec, Encoded};
use greylag_transport::{LaneKind, Remoting};
use tokio::sync::{oneshot, watch};

use super::queue::DurableProducerQueue;
use crate::error::{ProducerError, SentError};
use crate::ids::{ControllerRef, SeqNr};
use crate::machine::controller::Message;
use crate::machine::producer_link::Frames;
use crate::payload::{Format, Payload};
use crate::settings::{DeliverySettings, LANE_MARGIN};

pub(crate) use base::{Base, Keeping};
pub(crate) use batches::{Addressed, Batches};
pub(crate) use engine::{Engine, Input, Outcome};
pub(crate) use entrance::OnDrop;
pub(crate) use handle::{Sending, WeakSending};
pub(crate) use links::{Links, LinksSeen};
pub use permit::RequestNext;
pub(crate) use permit::{Granted, Permit};
pub use sent::Sent;
pub use sink::ProducerSink;
pub(crate) use sink::Sinking;
pub(crate) use upstream::{register, say, say_far, say_near};

/// Where a message goes: to whichever consumer the producer has, or to one entity.
pub(crate) trait Address: Clone + Send + Sync + Unpin + 'static {
    /// The state that the task shows to handles.
    type Seen: Seen;
    /// The demand that a permit shows beside its numbers.
    type Demand: fmt::Debug + Send + Sync + 'static;

    /// Whether a message that does not wait may go there, by the state that the task showed last.
    fn has_room(&self, _: &mut Self::Seen) -> bool {
        true
    }

    /// Whether a message stays on this node on its way there, as far as is known, so that it needs no bytes (K7).
    fn stays(&self) -> bool {
        false
    }
}

/// The state that the task shows to handles.
pub(crate) trait Seen: Default + Send + 'static {
    /// Messages that are not confirmed, and senders that wait.
    fn undelivered(&self) -> u64;
}

/// What handles tell the task of their producer.
pub(crate) enum Command<T, A: Address> {
    /// The handles of this session take over; permits of earlier ones are void.
    Start {
        session: u64,
    },
    /// Attach this consumer controller.
    Register(ControllerRef),
    /// A message is to be sent.
    Admit(Box<Admit<T, A>>),
    /// A caller gave up while its message waited for room.
    Withdraw {
        ticket: u64,
        to: A,
    },
    /// A caller wants room for a message that it does not have yet.
    Reserve {
        session: u64,
        permit: u64,
        granted: oneshot::Sender<Granted<A>>,
    },
    /// A permit is given back, or its request is withdrawn.
    Release {
        permit: u64,
    },
    Drain(oneshot::Sender<()>),
    Close(oneshot::Sender<()>),
}

/// A message on its way to the task.
pub(crate) struct Admit<T, A> {
    session: u64,
    ticket: u64,
    letter: Letter<T, A>,
    permit: Option<u64>,
    accepted: replies::Accepted<T>,
    confirmed: replies::Confirmed,
}

/// A message that may be sent.
pub(crate) struct Letter<T, A> {
    to: A,
    message: Message<Payload<T>>,
}

/// How messages become frames, and how large they may be.
pub(crate) struct Encoding<T> {
    format: Arc<Format<T>>,
    /// Messages are stored, so a message that was accepted outlives its producer.
    is_durable: bool,
}

impl<T: 'static> Encoding<T> {
    /// Messages that are not cut must fit into a frame of the lane.
    fn new(
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
        let format = Arc::new(Format { codec, chunk_bytes, max_message_bytes });
        Self { format, is_durable: queue.is_some() }
    }

    /// A stored message as it is sent. One that this codec cannot read is sent all the same: its consumer may.
    pub(crate) fn frames_of(&self, encoded: Encoded) -> Frames<Payload<T>> {
        self.format.frames(self.format.read(encoded))
    }
}

/// What handles and task both see.
pub(crate) struct Shared<T, A: Address> {
    encoding: Arc<Encoding<T>>,
    confirmed: watch::Sender<SeqNr>,
    seen: Mutex<A::Seen>,
    /// Why the producer has ended, if it was not closed.
    end: Mutex<Option<ProducerError>>,
    is_running: AtomicBool,
}

impl<T, A: Address> Shared<T, A> {
    fn new(encoding: Arc<Encoding<T>>, seen: A::Seen) -> Self {
        let (end, is_running) = (Mutex::default(), AtomicBool::new(true));
        Self { encoding, confirmed: watch::channel(SeqNr::NONE).0, seen: Mutex::new(seen), end, is_running }
    }

    /// Whether the producer's task runs.
    fn is_running(&self) -> bool {
        self.is_running.load(Ordering::Relaxed)
    }

    /// Why the producer has ended by itself, if it has.
    fn failure(&self) -> Option<ProducerError> {
        lock(&self.end).clone()
    }

    /// Why no more permits are given: the producer's own error, or that it was closed.
    fn error(&self) -> ProducerError {
        self.failure().unwrap_or(ProducerError::Closed)
    }

    /// Why no more messages are sent.
    fn end(&self) -> SentError {
        match self.error() {
            ProducerError::Fenced { newer, .. } => SentError::Fenced { newer },
            _ => SentError::Closed,
        }
    }
}

/// The instant of the clock that timers run by.
pub(crate) fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

fn lock<V>(mutex: &Mutex<V>) -> MutexGuard<'_, V> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
