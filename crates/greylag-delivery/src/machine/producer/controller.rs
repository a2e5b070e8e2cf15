//! Inputs and effects of the producer controllers for point to point and work pulling.
//!
//! Both controllers admit messages, have them stored, send them over links, and report the outcome to the senders; they
//! differ in the consumers of the links, and in the source of room. So one driver serves both.
//!
//! Source: delivery §10, P11 to P15.

use std::time::Instant;

use crate::ids::{ControllerRef, Epoch, SeqNr};
use crate::machine::storing::{Answer, Call, End, StoringState};
use crate::message::{BatchHeader, Frames, ProducerStopped, SequencedMessage, UpstreamMessage};

/// A message to be sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message<P> {
    /// The content.
    pub frames: Frames<P>,
    /// Size of the message in bytes.
    pub bytes: usize,
    /// Whether the sender waits for the confirmation.
    pub ack: bool,
}

/// A worker, as a directory lists it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ListedWorker {
    /// The worker's consumer controller.
    pub worker: ControllerRef,
    /// Whether the worker's node is reachable, so that the worker gets messages.
    pub selectable: bool,
}

/// An input to the producer controller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Input<P> {
    /// A producer takes over (P13). Sessions are numbered from 1; the highest one is the current producer.
    Start {
        /// The session's number.
        session: u64,
    },
    /// Attach this consumer controller. Point to point only.
    RegisterConsumer(ControllerRef),
    /// The complete present list of workers. Work pulling only.
    Workers(Vec<ListedWorker>),
    /// Send a message, as soon as there is room for it.
    Admit {
        /// The session of the sending producer.
        session: u64,
        /// The sender's number; every later one is larger.
        ticket: u64,
        /// The message.
        message: Message<P>,
        /// Whether the message waits for room; otherwise it is refused without room.
        waits: bool,
    },
    /// Reserve room for a message that the sender does not have yet.
    Reserve {
        /// The session of the producer.
        session: u64,
        /// The number of the request, from the sequence of tickets.
        ticket: u64,
    },
    /// Send a message with the room of a permit.
    Use {
        /// The number of the request for the permit.
        permit: u64,
        /// The ticket of the message.
        ticket: u64,
        /// The message.
        message: Message<P>,
    },
    /// A sender gave up waiting for room, or gives its permit back.
    Withdraw {
        /// The ticket of the message, or the number of the request.
        ticket: u64,
    },
    /// A message of a consumer controller arrived.
    Received(UpstreamMessage),
    /// The queue answered.
    Answered {
        /// The id of the call.
        call: u64,
        /// The answer.
        answer: Answer<Frames<P>>,
    },
    /// End the controller: no more is sent, confirmations are stored, and the link ends.
    Close,
    /// A deadline may have passed.
    Tick,
}

/// Why a message was not accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// The controller is closed, or has failed.
    Closed,
    /// Another producer has started.
    Superseded,
    /// There is no room, and the message does not wait.
    Full,
    /// The queue cannot store the message.
    Unavailable,
}

/// Why a controller ended before it was closed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failure {
    /// A controller with a higher epoch of the stream is active (P14).
    Fenced {
        /// The active epoch, if a consumer reported it.
        newer: Option<Epoch>,
        /// The active controller, if the queue reported it.
        by: Option<ControllerRef>,
    },
    /// The consumer does not ask for lost frames, so stored messages might never reach it (§1.6).
    IncompatibleConsumer,
    /// The queue has lost messages that it had acknowledged.
    QueueLost {
        /// The number at which the queue continues: the first lost message.
        expected: SeqNr,
    },
    /// The numbers of the stream are used up.
    Exhausted,
}

impl From<End> for Failure {
    fn from(end: End) -> Self {
        match end {
            End::Fenced { by } => Self::Fenced { newer: None, by },
            End::Lost { expected } => Self::QueueLost { expected },
            End::Exhausted => Self::Exhausted,
        }
    }
}

/// An effect of the controller; effects must be carried out in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect<P> {
    /// A permit is granted.
    Permitted {
        /// The number of the request.
        ticket: u64,
        /// The number that the next message gets.
        current_seq_nr: SeqNr,
        /// The highest confirmed number.
        confirmed_seq_nr: SeqNr,
    },
    /// A message was accepted, and stored if there is a queue.
    Accepted {
        /// The sender's ticket.
        ticket: u64,
        /// The number of the message.
        total: SeqNr,
    },
    /// Send a frame. Consecutive frames with equal headers may share a batch.
    Transmit {
        /// The consumer controller.
        to: ControllerRef,
        /// The header of the frame's batch.
        header: BatchHeader,
        /// The frame.
        message: SequencedMessage<P>,
    },
    /// A message was confirmed by its consumer.
    Confirmed {
        /// The sender's ticket.
        ticket: u64,
        /// The number of the message.
        total: SeqNr,
    },
    /// Call the queue.
    Call {
        /// The id of the call, to be returned with the answer.
        id: u64,
        /// The call.
        call: Call<Frames<P>>,
    },
    /// A message, or the request for a permit, was refused.
    Refused {
        /// The sender's ticket, or the number of the request.
        ticket: u64,
        /// The content of the message; `None` for a permit.
        frames: Option<Frames<P>>,
        /// Why it was refused.
        why: Refusal,
    },
    /// It is unknown whether the message is stored. If it is, it will be delivered.
    Unknown {
        /// The sender's ticket.
        ticket: u64,
        /// The number of the message if it is stored.
        total: SeqNr,
    },
    /// Tell the consumer controller that the link has ended.
    Stop {
        /// The consumer controller.
        to: ControllerRef,
        /// The message.
        message: ProducerStopped,
    },
    /// The controller ended with this message unconfirmed and stored nowhere.
    Undelivered {
        /// The sender's ticket; `None` if an earlier incarnation of the producer sent the message.
        ticket: Option<u64>,
        /// The number of the message.
        total: SeqNr,
    },
    /// The controller has failed; `Closed` follows.
    Failed(Failure),
    /// The controller has ended, and everything it had to store is stored.
    Closed,
}

/// Counters of the controller, and gauges.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ControllerStats {
    /// Messages accepted.
    pub sent: u64,
    /// Frames transmitted again.
    pub resent: u64,
    /// Messages confirmed.
    pub confirmed: u64,
    /// Messages accepted but not confirmed, including those being stored.
    pub unconfirmed: u64,
    /// Senders that wait for room.
    pub waiting: u64,
    /// Permits that are not used yet.
    pub permits: u64,
    /// Consumers with demand: a message to one of them is sent at once.
    pub links_with_demand: u64,
    /// Confirmations of frames that were never sent, and messages to other incarnations.
    pub ignored: u64,
}

/// Counts of a producer's workers, and of its messages.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WorkerStats {
    /// Registered workers.
    pub number_of_workers: u64,
    /// Workers that get messages: reachable, and not silent.
    pub selectable: u64,
    /// Messages held by workers.
    pub in_flight: u64,
    /// Pending messages.
    pub pending: u64,
}

/// The interface of a producer controller to its driver.
pub trait Controller<P> {
    /// Handles one input.
    fn handle(&mut self, now: Instant, input: Input<P>, out: &mut Vec<Effect<P>>);

    /// The next time at which a tick has an effect.
    fn next_deadline(&self) -> Option<Instant>;

    /// Number of further messages that would be accepted at once.
    fn room(&self) -> u64;

    /// The highest number up to which all messages are confirmed.
    fn confirmed(&self) -> SeqNr;

    /// The number that the next accepted message gets.
    fn current_seq_nr(&self) -> SeqNr;

    /// The counters now.
    fn stats(&self) -> ControllerStats;

    /// State of the queue.
    fn storing_state(&self) -> StoringState;

    /// Whether messages of the queue are unconfirmed, or not loaded yet.
    fn has_unconfirmed_recovered(&self) -> bool;

    /// When the oldest unconfirmed message was accepted, or a little earlier.
    fn oldest_unconfirmed(&self) -> Option<Instant>;

    /// Counts of workers; work pulling only.
    fn worker_stats(&self) -> Option<WorkerStats> {
        None
    }

    /// The registered consumer controller; point to point only.
    fn consumer(&self) -> Option<&ControllerRef> {
        None
    }
}
