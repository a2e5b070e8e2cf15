//! What handles say to the task of their producer, and what they wait for.

use std::fmt;

use tokio::sync::oneshot;

use crate::delivery::payload::Payload;
use crate::error::SentError;
use crate::ids::{ControllerRef, SeqNr};
use crate::machine::controller::Message;

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
    pub(super) session: u64,
    pub(super) ticket: u64,
    pub(super) outgoing: OutgoingMessage<T, A>,
    pub(super) permit: Option<u64>,
    pub(super) accepted: Accepted<T>,
    pub(super) confirmed: Confirmed,
}

/// An encoded message with its target.
pub(crate) struct OutgoingMessage<T, A> {
    pub(super) to: A,
    pub(super) message: Message<Payload<T>>,
}

/// Receives the number of a message when it is confirmed, or the error when it is given up.
pub(crate) type Confirmed = oneshot::Sender<Result<SeqNr, SentError>>;

/// Receives the number of a message when it is accepted, or the error when it is refused.
pub(crate) enum Accepted<M> {
    /// A caller that gets its message back if it is not sent.
    Returning(oneshot::Sender<Result<SeqNr, (SentError, Option<M>)>>),
    /// A [`Sent`](super::handles::Sent), which does not get the message back.
    Plain(oneshot::Sender<Result<SeqNr, SentError>>),
}

impl<M> Accepted<M> {
    pub(super) fn accept(self, seq_nr: SeqNr) {
        match self {
            Self::Returning(caller) => drop(caller.send(Ok(seq_nr))),
            Self::Plain(caller) => drop(caller.send(Ok(seq_nr))),
        }
    }

    pub(super) fn refuse(self, error: SentError, message: Option<M>) {
        match self {
            Self::Returning(caller) => drop(caller.send(Err((error, message)))),
            Self::Plain(caller) => drop(caller.send(Err(error))),
        }
    }
}

/// A permit granted by the task.
#[derive(Debug)]
pub(crate) struct Granted<A: Address> {
    pub(crate) permit: u64,
    pub(crate) current_seq_nr: SeqNr,
    pub(crate) confirmed_seq_nr: SeqNr,
    pub(crate) demand: A::Demand,
}
