//! What a sharding producer is told, and what it asks for.

use std::sync::Arc;
use std::time::Duration;

use crate::ids::{ControllerRef, Epoch, SeqNr};
use crate::machine::portable::UnsendableError;
use crate::machine::producer_link::Frames;
use crate::machine::storing;
use crate::message::{BatchHeader, ProducerStopped, SequencedMessage, UpstreamMessage};

/// What the controller needs to know when it is made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShardingProducerSettings {
    /// Pace of P8 until anything is heard.
    pub resend_first_interval: Duration,
    /// Pace of P8 afterwards, and the silence after which P9 probes.
    pub resend_first_unconfirmed_idle_timeout: Duration,
    /// Messages in all buffers.
    pub buffer_size: usize,
    /// Messages in the buffer of one entity.
    pub buffer_size_per_entity: usize,
    /// Messages that are not confirmed; `None` leaves them to the bytes.
    pub max_in_flight_messages: Option<usize>,
    /// Bytes of all messages that are not confirmed.
    pub max_in_flight_bytes: usize,
    /// Bytes of one entity's messages that are not confirmed.
    pub max_in_flight_bytes_per_entity: usize,
    /// An entity's state is dropped after so long without use.
    pub cleanup_unused_after: Duration,
    /// Links of recovered messages whose first frame is unanswered at the same time.
    pub recovery_parallelism: usize,
}

/// A message on its way through the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parcel<P> {
    /// The shard of its entity.
    pub shard: Arc<str>,
    /// Its size.
    pub bytes: usize,
    /// The message.
    pub frames: Frames<P>,
}

/// An input to the producer controller of one entity type: messages to send, answers of consumer controllers, moves of
/// shards, and that time passed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Input<P> {
    /// The controller begins: a durable one loads its queue.
    Start,
    /// A sender wants to send a message.
    Admit {
        /// The sender's number; every later one is larger.
        ticket: u64,
        /// The entity.
        entity: Arc<str>,
        /// Its shard.
        shard: Arc<str>,
        /// The message.
        frames: Frames<P>,
        /// Its size.
        bytes: usize,
        /// The sender waits for the confirmation.
        ack: bool,
    },
    /// A sender gave up while it waited for room; nothing was sent.
    Withdraw {
        /// The sender's number.
        ticket: u64,
        /// The entity it wanted to send to.
        entity: Arc<str>,
    },
    /// A sender wants room that is set aside for one message.
    RequestPermit {
        /// The permit's number, of one sequence with tickets.
        permit: u64,
    },
    /// The sender with this ticket, which asks next, uses a permit.
    UsePermit {
        /// The permit.
        permit: u64,
        /// The sender's number.
        ticket: u64,
    },
    /// A permit is not wanted any more.
    ReleasePermit {
        /// The permit.
        permit: u64,
    },
    /// The queue answered.
    Queue {
        /// The call of [`Effect::Queue`].
        call: u64,
        /// The answer.
        answer: storing::Answer<Parcel<P>>,
    },
    /// A consumer controller spoke.
    Received(UpstreamMessage),
    /// The entities of a shard have lost their home, or have a new one (S7).
    ShardMoved(Arc<str>),
    /// Whether the region knows where a shard is.
    RouteChanged {
        /// The shard.
        shard: Arc<str>,
        /// Whether its messages leave now, or wait in the region.
        routed: bool,
    },
    /// The home of a shard: this node or another one. A shard of unknown home counts as one of this node, and a change of
    /// its route alters nothing about that. Comes before [`ShardMoved`](Self::ShardMoved) (K7).
    Homed {
        /// The shard.
        shard: Arc<str>,
        /// Whether its entities are of this node, so that messages are handed to them as they are.
        is_here: bool,
    },
    /// The region may have dropped what it kept for the entities of a shard (S7).
    NotBuffered(Arc<str>),
    /// The region has no copy of an entity's frames: it did not take them into its buffer, or dropped them there. The next
    /// copy is due a timeout after the last one (S7).
    NotKept(Arc<str>),
    /// Frames of a link found no room on their lane, or in an inbox; they are transmitted again soon.
    Refused {
        /// The link.
        instance: u64,
        /// The first frame.
        from: u64,
        /// The last frame.
        to: u64,
    },
    /// No more is sent; links end, and confirmations are stored.
    Close,
    /// A deadline may have passed.
    Tick,
}

/// What the controller asks for, in this order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect<P> {
    /// A sender's message was accepted under this number.
    Admitted {
        /// The sender.
        ticket: u64,
        /// The number of its message.
        total: SeqNr,
    },
    /// Send a frame to an entity. Neighbours with equal headers may share a batch.
    Transmit {
        /// The entity.
        entity: Arc<str>,
        /// What the frame's batch says.
        header: BatchHeader,
        /// The frame.
        message: SequencedMessage<P>,
    },
    /// A permit is granted.
    Permit {
        /// Which.
        permit: u64,
    },
    /// Call the queue.
    Queue {
        /// Names the call in its answer.
        id: u64,
        /// What to do.
        call: storing::Call<Parcel<P>>,
    },
    /// A message was confirmed by its entity.
    Confirmed {
        /// Its sender; 0 if it was found in the queue.
        ticket: u64,
        /// Its number.
        total: SeqNr,
    },
    /// Tell a consumer controller that its link has ended.
    Stop {
        /// The consumer controller.
        to: ControllerRef,
        /// What to say.
        message: ProducerStopped,
    },
    /// The controller closed with this message unconfirmed.
    Undelivered {
        /// Its sender; 0 if it was found in the queue.
        ticket: u64,
        /// Its entity.
        entity: Arc<str>,
        /// Its number.
        total: SeqNr,
    },
    /// It cannot be known whether a sender's message is stored; it is delivered if it is.
    StoreUnknown {
        /// The sender.
        ticket: u64,
        /// The number that it has if it is stored.
        total: SeqNr,
    },
    /// The queue cannot store a sender's message, and has not: it was not accepted.
    Unavailable {
        /// The sender.
        ticket: u64,
        /// Its message.
        frames: Frames<P>,
    },
    /// A message was accepted for an entity of this node, and can never reach it on the node where it is now: it is given up,
    /// and those behind it go on. The entity may have processed it before (K7).
    Unsendable {
        /// Its sender; 0 if it was found in the queue.
        ticket: u64,
        /// Its entity.
        entity: Arc<str>,
        /// Its number.
        total: SeqNr,
        /// Why it cannot.
        error: UnsendableError,
    },
    /// The controller is closed or fenced: this sender's message was not accepted.
    Refused {
        /// The sender.
        ticket: u64,
        /// Its message.
        frames: Frames<P>,
    },
    /// A newer incarnation of the stream is active. Nothing is sent any more.
    Fenced {
        /// Its epoch.
        newer: Epoch,
    },
    /// Nothing can be stored any more. Nothing is sent any more either.
    QueueEnded(storing::End),
    /// The controller has ended.
    Closed,
}
