//! Inputs, effects and settings of the storing machine, and its calls of the queue.

use std::time::Duration;

use crate::ids::{ControllerRef, SeqNr};
use crate::queue::{Confirmation, MessageSent, Qualifier, QueueError, QueueState, TimestampMillis};

/// Settings for a durable producer's use of its queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoringSettings {
    /// Timeout of a store or a confirmation, which is then repeated unchanged.
    pub request_timeout: Duration,
    /// Attempts before messages are given up and the queue is loaded again; at least 1.
    pub retry_attempts: u32,
    /// Maximum number of messages in one append; at least 1.
    pub max_batch: usize,
    /// Maximum bytes of one append; a larger message is stored alone.
    pub max_batch_bytes: usize,
    /// Number of confirmed messages after which confirmations are stored.
    pub confirm_flush_count: usize,
    /// Time after which confirmations are stored in any case.
    pub confirm_flush_interval: Duration,
    /// First pause before the queue is loaded again.
    pub restart_min_backoff: Duration,
    /// Longest pause; pauses double up to it.
    pub restart_max_backoff: Duration,
}

/// An accepted message that is not stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unstored<M> {
    /// The controller's number of the message.
    pub ticket: u64,
    /// The group in which confirmations are cumulative: the entity's id, or `""`.
    pub qualifier: Qualifier,
    /// The message.
    pub message: M,
    /// Size of the message in bytes.
    pub bytes: usize,
    /// Whether the sender waits for the confirmation.
    pub ack: bool,
    /// When the message was accepted.
    pub timestamp_ms: TimestampMillis,
}

impl<M> Unstored<M> {
    /// Adds the number.
    pub(super) fn numbered(self, seq_nr: SeqNr) -> MessageSent<M> {
        let Self { qualifier, message, ack, timestamp_ms, .. } = self;
        MessageSent { seq_nr, message, ack, qualifier, timestamp_ms }
    }
}

/// A call of the queue. A later call replaces an earlier one without an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Call<M> {
    /// Load the queue, which raises its epoch.
    Load,
    /// Store these messages, all or none.
    Store(Vec<MessageSent<M>>),
    /// Store these confirmations.
    Confirm(Vec<Confirmation>),
    /// Return messages that others wrote into the queue's store, at most this number.
    Poll(usize),
}

impl<M> Call<M> {
    /// Converts the call's messages.
    pub(crate) fn map<N>(self, mut message: impl FnMut(M) -> N) -> Call<N> {
        match self {
            Self::Load => Call::Load,
            Self::Store(batch) => Call::Store(batch.into_iter().map(|sent| sent.map(&mut message)).collect()),
            Self::Confirm(confirmations) => Call::Confirm(confirmations),
            Self::Poll(max_messages) => Call::Poll(max_messages),
        }
    }
}

/// The queue's answer to a [`Call`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer<M> {
    /// To [`Call::Load`].
    Loaded(Result<QueueState<M>, QueueError>),
    /// To [`Call::Store`]: the highest number up to which messages are stored.
    Stored(Result<SeqNr, QueueError>),
    /// To [`Call::Confirm`].
    Confirmed(Result<(), QueueError>),
    /// To [`Call::Poll`]: messages that are stored, by rising numbers.
    Polled(Result<Vec<MessageSent<M>>, QueueError>),
}

impl<M> Answer<M> {
    /// Converts the answer's messages; an error of the conversion replaces the answer.
    pub(crate) fn try_map<N>(
        self,
        message: impl FnMut(MessageSent<M>) -> Result<MessageSent<N>, QueueError>,
    ) -> Answer<N> {
        match self {
            Self::Loaded(loaded) => Answer::Loaded(loaded.and_then(|state| state.try_map(message))),
            Self::Stored(stored) => Answer::Stored(stored),
            Self::Confirmed(stored) => Answer::Confirmed(stored),
            Self::Polled(polled) => {
                Answer::Polled(polled.and_then(|messages| messages.into_iter().map(message).collect()))
            }
        }
    }
}

/// A message that others wrote into the queue's store. It is stored, and thus may be sent at once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found<M> {
    /// The number of the previous message; numbers in between were never assigned.
    pub after: SeqNr,
    /// The message.
    pub sent: MessageSent<M>,
}

/// An input of the storing machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Input<M> {
    /// Start: a durable machine loads its queue.
    Start,
    /// The controller accepted a message.
    Accept {
        /// The message.
        message: Unstored<M>,
        /// A number from [`Storing::reserve`](super::Storing::reserve); `None` for a durable producer, which numbers messages when storing them.
        reserved: Option<SeqNr>,
    },
    /// Messages were confirmed by their consumer.
    Confirm {
        /// The confirmed messages.
        confirmation: Confirmation,
        /// How many messages are newly confirmed.
        messages: usize,
    },
    /// The queue answered.
    Answered {
        /// The id of the call.
        call: u64,
        /// The answer.
        answer: Answer<M>,
    },
    /// End: store the confirmations, and give messages back that are not in a store call.
    Close,
    /// A controller with a higher epoch of the stream is known to be active: store nothing more (P14).
    Fence,
    /// A deadline may have passed.
    Tick,
}

/// An effect of the machine; effects must be carried out in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect<M> {
    /// Call the queue.
    Call {
        /// The id of the call, to be returned with the answer.
        id: u64,
        /// The call.
        call: Call<M>,
    },
    /// The queue is loaded, the first time or again. From here on, messages must be sent under the epoch of this state.
    /// Its unconfirmed messages are those to be sent; messages confirmed meanwhile, or about to be released, are not
    /// among them.
    Opened(QueueState<M>),
    /// A message may be sent: it is stored, or the machine is in-memory. In the order of numbers.
    Released {
        /// The message's ticket.
        ticket: u64,
        /// The message with its number.
        sent: MessageSent<M>,
    },
    /// It is unknown whether this message is stored. If it is, a later [`Effect::Opened`] includes it.
    Unknown {
        /// The message's ticket.
        ticket: u64,
        /// The qualifier of the message.
        qualifier: Qualifier,
        /// The number of the message if it is stored.
        seq_nr: SeqNr,
    },
    /// A message was not stored, and will not be.
    GivenBack(Unstored<M>),
    /// Storing has ended; nothing more is released. Messages given back because of the end come after this effect.
    Ended(End),
    /// Everything that could be stored is stored; the answer to [`Input::Close`].
    Closed,
}

/// Why storing has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    /// Another controller writes the queue.
    Fenced {
        /// The controller of the writer, if the queue reported it.
        by: Option<ControllerRef>,
    },
    /// The queue has fewer messages than it acknowledged, so messages are lost.
    Lost {
        /// The number at which the queue continues: the first lost message.
        expected: SeqNr,
    },
    /// The numbers of the stream are used up.
    Exhausted,
}

/// The state of a producer's storing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoringState {
    /// In-memory: nothing is stored.
    InMemory,
    /// The queue is being loaded for the first time.
    Loading,
    /// The queue takes messages.
    Open,
    /// The queue failed and is being loaded again; messages wait.
    Degraded,
    /// Storing has ended: closed, fenced, or out of numbers.
    Ended,
}
