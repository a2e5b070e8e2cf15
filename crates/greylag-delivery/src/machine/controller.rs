//! What the producer controllers outside of sharding are told and ask for: those of point to point and of work pulling.
//!
//! Both admit messages, have them stored, send them over links and tell their senders what became of them; they differ in
//! whom the links go to, and in where the room of a message comes from. So one driver serves both.
//!
//! Source: delivery §10, P11 to P15.

use std::time::Instant;

use crate::ids::{ControllerRef, Epoch, SeqNr};
use crate::machine::producer_link::Frames;
use crate::machine::storing::{Answer, Call, End, StoringState};
use crate::machine::work_pulling::{ListedWorker, WorkerStats};
use crate::message::{BatchHeader, ProducerStopped, SequencedMessage, UpstreamMessage};

/// A message that a producer wants to send.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message<P> {
    /// Its content.
    pub frames: Frames<P>,
    /// Its size.
    pub bytes: usize,
    /// Its sender waits for the confirmation.
    pub ack: bool,
}

/// An input to the producer controller: of producers, of consumer controllers, of the queue, and that time passed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Input<P> {
    /// A producer takes over (P13). Sessions are numbered from 1; the highest one is the producer.
    Start {
        /// Its number.
        session: u64,
    },
    /// Attach this consumer controller. Point to point only.
    RegisterConsumer(ControllerRef),
    /// The workers that there are now, all of them. Work pulling only.
    Workers(Vec<ListedWorker>),
    /// A message is to be sent, as soon as there is room for it.
    Admit {
        /// The producer that sends it.
        session: u64,
        /// The sender's number; every later one is larger.
        ticket: u64,
        /// The message.
        message: Message<P>,
        /// Whether it waits for room; otherwise it is refused where there is none.
        waits: bool,
    },
    /// A sender wants room for a message that it does not have yet.
    Reserve {
        /// The producer.
        session: u64,
        /// The sender's number.
        ticket: u64,
    },
    /// A sender with a permit has its message.
    Use {
        /// The number under which the permit was asked for.
        permit: u64,
        /// The number of the message.
        ticket: u64,
        /// The message.
        message: Message<P>,
    },
    /// A sender gave up while it waited for room, or gives its permit back.
    Withdraw {
        /// The sender's number.
        ticket: u64,
    },
    /// A consumer controller spoke.
    Received(UpstreamMessage),
    /// The queue answered.
    Answered {
        /// The call.
        call: u64,
        /// The answer.
        answer: Answer<Frames<P>>,
    },
    /// No more is sent: confirmations are written, and the link ends.
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
    /// There is no room, and the message would not wait.
    Full,
    /// The queue cannot store it.
    Unavailable,
}

/// Why a controller ended before it was closed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failure {
    /// A newer incarnation of the stream is active (P14).
    Fenced {
        /// Its epoch, where a consumer told.
        newer: Option<Epoch>,
        /// Its controller, where the queue told.
        by: Option<ControllerRef>,
    },
    /// The consumer asks for no repeats, so what is stored would not reach it (§1.6).
    IncompatibleConsumer,
    /// The queue has lost messages that it had acknowledged.
    QueueLost {
        /// The number that the queue would take next.
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

/// What the controller asks for, in this order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect<P> {
    /// A sender has a permit.
    Permitted {
        /// The sender.
        ticket: u64,
        /// The number that the next message gets.
        current_seq_nr: SeqNr,
        /// The highest number that was confirmed.
        confirmed_seq_nr: SeqNr,
    },
    /// A message was accepted, and stored if there is a queue.
    Accepted {
        /// Its sender.
        ticket: u64,
        /// Its number.
        total: SeqNr,
    },
    /// Send a frame. Neighbours with equal headers may share a batch.
    Transmit {
        /// The consumer controller.
        to: ControllerRef,
        /// What the frame's batch says.
        header: BatchHeader,
        /// The frame.
        message: SequencedMessage<P>,
    },
    /// A message was confirmed by its consumer.
    Confirmed {
        /// Its sender.
        ticket: u64,
        /// Its number.
        total: SeqNr,
    },
    /// Call the queue.
    Call {
        /// Names the call in its answer.
        id: u64,
        /// What to do.
        call: Call<Frames<P>>,
    },
    /// A message, or the wish for a permit, was refused.
    Refused {
        /// The sender.
        ticket: u64,
        /// The message, unless a permit was asked for.
        frames: Option<Frames<P>>,
        /// Why.
        why: Refusal,
    },
    /// It cannot be known whether the message is stored. If it is, it will be delivered.
    Unknown {
        /// The sender.
        ticket: u64,
        /// Its number, if it is stored.
        total: SeqNr,
    },
    /// Tell the consumer controller that the link has ended.
    Stop {
        /// The consumer controller.
        to: ControllerRef,
        /// What to say.
        message: ProducerStopped,
    },
    /// The controller ended with this message unconfirmed and kept nowhere.
    Undelivered {
        /// Its sender, unless that was another incarnation of the producer.
        ticket: Option<u64>,
        /// Its number.
        total: SeqNr,
    },
    /// The controller has failed; `Closed` follows.
    Failed(Failure),
    /// The controller has ended, and everything it had to store is stored.
    Closed,
}

/// What the controller has seen so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ControllerStats {
    /// Messages accepted.
    pub sent: u64,
    /// Frames transmitted again.
    pub resent: u64,
    /// Messages confirmed.
    pub confirmed: u64,
    /// Messages accepted and not confirmed, those that wait for their store too.
    pub unconfirmed: u64,
    /// Senders that wait for room.
    pub waiting: u64,
    /// Permits that are not used yet.
    pub permits: u64,
    /// Consumers that would take a message at once.
    pub links_with_demand: u64,
    /// Confirmations of frames that were never sent, and messages to other incarnations.
    pub ignored: u64,
}

/// A producer controller as its driver knows it.
pub trait Controller<P> {
    /// Takes one input.
    fn handle(&mut self, now: Instant, input: Input<P>, out: &mut Vec<Effect<P>>);

    /// When a tick next has work to do.
    fn next_deadline(&self) -> Option<Instant>;

    /// How many messages more would be accepted at once.
    fn room(&self) -> u64;

    /// The last of the contiguously confirmed numbers.
    fn confirmed(&self) -> SeqNr;

    /// The number that the next accepted message gets.
    fn current_seq_nr(&self) -> SeqNr;

    /// Counters so far.
    fn stats(&self) -> ControllerStats;

    /// How its store fares.
    fn storing_state(&self) -> StoringState;

    /// Whether messages of the queue are not confirmed, or not known yet.
    fn owes_recovered(&self) -> bool;

    /// When the oldest message that is not confirmed was accepted, or a little before.
    fn oldest_unconfirmed(&self) -> Option<Instant>;

    /// The workers, where there are some.
    fn worker_stats(&self) -> Option<WorkerStats> {
        None
    }

    /// The consumer controller that frames go to, where there is one alone.
    fn consumer(&self) -> Option<&ControllerRef> {
        None
    }
}
