//! The common part of all producers: the handles by which applications send, and the task behind them.
//!
//! A message is encoded by its caller, unless it stays on its node, and is sent to the task with a number of its own,
//! the *ticket*; the task's answers refer to the ticket. The three kinds of producer differ in the target of a message
//! ([`Address`]), and in the machine and the routing of its frames ([`Engine`]).
//!
//! ```text
//! send ─▶ encode ─▶ command sender ─ Admit ─▶ task ─▶ engine: machine ─ Accepted | Refused ─▶ task ─▶ replies ─▶ answer
//! request_next ─▶ command sender ─ Reserve ─▶ … ─ Permitted ─▶ permit ─ Admit ─▶ …
//! ```
//!
//! Source: delivery §6, P11 to P13.

mod base;
mod batches;
mod command_sender;
mod engine;
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

pub(crate) use base::{Base, MessageStorage};
pub(crate) use batches::{Addressed, Batches};
pub(crate) use command_sender::OnDrop;
pub(crate) use engine::{Engine, Input, Outcome};
pub(crate) use handle::{Sending, WeakSending};
pub(crate) use links::{Links, PublishedLinks};
pub use permit::RequestNext;
pub(crate) use permit::{Granted, Permit};
pub use sent::Sent;
pub use sink::ProducerSink;
pub(crate) use sink::SinkState;
pub(crate) use upstream::{register, send_upstream, send_upstream_local, send_upstream_remote};

/// The target of a message: any consumer of the producer, or one entity.
pub(crate) trait Address: Clone + Send + Sync + Unpin + 'static {
    /// The state that the task shows to handles.
    type State: PublishedState;
    /// The demand shown by a permit, in addition to its numbers.
    type Demand: fmt::Debug + Send + Sync + 'static;

    /// Whether a message that does not wait may be sent there, according to the state last published by the task.
    fn has_room(&self, _: &mut Self::State) -> bool {
        true
    }

    /// Whether a message stays on this node, as far as is known, and thus needs no encoding (K7).
    fn stays(&self) -> bool {
        false
    }
}

/// The state that the task publishes to handles.
pub(crate) trait PublishedState: Default + Send + 'static {
    /// Number of unconfirmed messages plus waiting senders.
    fn undelivered(&self) -> u64;
}

/// Commands of the handles to the task of their producer.
pub(crate) enum Command<T, A: Address> {
    /// The handles of this session take over; permits of earlier sessions are void.
    Start {
        session: u64,
    },
    /// Attach this consumer controller.
    Register(ControllerRef),
    /// Send a message.
    Admit(Box<Admit<T, A>>),
    /// A caller gave up while its message waited for room.
    Withdraw {
        ticket: u64,
        to: A,
    },
    /// Reserve room for a message that the caller does not have yet.
    Reserve {
        session: u64,
        permit: u64,
        granted: oneshot::Sender<Granted<A>>,
    },
    /// Give back a permit, or withdraw the request for it.
    Release {
        permit: u64,
    },
    Drain(oneshot::Sender<()>),
    Close(oneshot::Sender<()>),
}

/// A message, sent from a handle to the task.
pub(crate) struct Admit<T, A> {
    session: u64,
    ticket: u64,
    outgoing: OutgoingMessage<T, A>,
    permit: Option<u64>,
    accepted: replies::Accepted<T>,
    confirmed: replies::Confirmed,
}

/// An encoded message with its target.
pub(crate) struct OutgoingMessage<T, A> {
    to: A,
    message: Message<Payload<T>>,
}

/// Encodes messages, cuts them into frames, and limits their size.
pub(crate) struct Encoding<T> {
    format: Arc<Format<T>>,
    /// Whether messages are stored, so that an accepted message outlives its producer.
    is_durable: bool,
}

impl<T: 'static> Encoding<T> {
    /// Messages must fit into a frame of the lane if they are not cut.
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

    /// The frames of a stored message. A message that this codec cannot decode is sent all the same; its consumer's
    /// codec may be newer.
    pub(crate) fn frames_of(&self, encoded: Encoded) -> Frames<Payload<T>> {
        self.format.frames(self.format.read(encoded))
    }
}

/// State shared by handles and task.
pub(crate) struct Shared<T, A: Address> {
    encoding: Arc<Encoding<T>>,
    confirmed: watch::Sender<SeqNr>,
    published: Mutex<A::State>,
    /// Why the producer has ended; `None` if it was closed.
    end: Mutex<Option<ProducerError>>,
    is_running: AtomicBool,
}

impl<T, A: Address> Shared<T, A> {
    fn new(encoding: Arc<Encoding<T>>, published: A::State) -> Self {
        let (end, is_running) = (Mutex::default(), AtomicBool::new(true));
        Self { encoding, confirmed: watch::channel(SeqNr::NONE).0, published: Mutex::new(published), end, is_running }
    }

    /// Whether the producer's task runs.
    fn is_running(&self) -> bool {
        self.is_running.load(Ordering::Relaxed)
    }

    /// Why the producer has ended on its own, if it has.
    fn failure(&self) -> Option<ProducerError> {
        lock(&self.end).clone()
    }

    /// Why there are no more permits: the producer's own error, or that it was closed.
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

/// The present instant of tokio's clock.
pub(crate) fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

fn lock<V>(mutex: &Mutex<V>) -> MutexGuard<'_, V> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
