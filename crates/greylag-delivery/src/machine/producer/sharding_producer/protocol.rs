//! Inputs, effects and settings of a sharding producer.

use std::sync::Arc;
use std::time::Duration;

use crate::ids::{ControllerRef, Epoch, SeqNr};
use crate::machine::omissions::Omissions;
use crate::machine::portable::UnsendableError;
use crate::machine::storing;
use crate::message::{BatchHeader, Frames, ProducerStopped, SequencedMessage, UpstreamMessage};

/// Settings of the controller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShardingProducerSettings {
    /// Interval of P8 until the first answer.
    pub resend_first_interval: Duration,
    /// Interval of P8 afterwards, and the silence after which P9 probes.
    pub resend_first_unconfirmed_idle_timeout: Duration,
    /// Limit of messages in all buffers.
    pub buffer_size: usize,
    /// Limit of messages in the buffer of one entity.
    pub buffer_size_per_entity: usize,
    /// Limit of unconfirmed messages; `None` for no limit but that of bytes.
    pub max_in_flight_messages: Option<usize>,
    /// Limit of bytes of all unconfirmed messages.
    pub max_in_flight_bytes: usize,
    /// Limit of bytes of one entity's unconfirmed messages.
    pub max_in_flight_bytes_per_entity: usize,
    /// Idle time after which an entity's state is dropped.
    pub cleanup_unused_after: Duration,
    /// Limit of links of recovered messages whose first frame is unanswered at the same time.
    pub recovery_parallelism: usize,
    /// Clauses to omit, in simulations.
    #[doc(hidden)]
    pub omissions: Omissions,
}

/// A message on its way through the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RoutedMessage<P> {
    /// The shard of the message's entity.
    pub shard: Arc<str>,
    /// Size of the message in bytes.
    pub bytes: usize,
    /// The frames of the message.
    pub frames: Frames<P>,
}

/// An input to the producer controller of one entity type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Input<P> {
    /// Start the controller: a durable one loads its queue.
    Start,
    /// Send a message.
    Admit {
        /// The sender's ticket; every later one is larger.
        ticket: u64,
        /// The id of the entity.
        entity: Arc<str>,
        /// The shard of the entity.
        shard: Arc<str>,
        /// The frames of the message.
        frames: Frames<P>,
        /// Size of the message in bytes.
        bytes: usize,
        /// Whether the sender waits for the confirmation.
        ack: bool,
    },
    /// A sender gave up waiting for room; nothing was sent.
    Withdraw {
        /// The sender's ticket.
        ticket: u64,
        /// The entity of its message.
        entity: Arc<str>,
    },
    /// Reserve room for one message.
    RequestPermit {
        /// The permit's number, from the sequence of tickets.
        permit: u64,
    },
    /// The sender with this ticket, which asks next, uses a permit.
    UsePermit {
        /// The permit.
        permit: u64,
        /// The sender's ticket.
        ticket: u64,
    },
    /// Release a permit, or withdraw the request for it.
    ReleasePermit {
        /// The permit.
        permit: u64,
    },
    /// The queue answered.
    Queue {
        /// The call of [`Effect::Queue`].
        call: u64,
        /// The answer.
        answer: storing::Answer<RoutedMessage<P>>,
    },
    /// A message of a consumer controller arrived.
    Received(UpstreamMessage),
    /// A shard has lost its home, or has a new one (S7).
    ShardMoved(Arc<str>),
    /// The region has found or lost the route of a shard.
    RouteChanged {
        /// The shard.
        shard: Arc<str>,
        /// Whether messages are sent now, or wait in the region.
        routed: bool,
    },
    /// The home of a shard: this node or another one. A shard with unknown home counts as one of this node; a change of
    /// its route does not change that. Comes before [`ShardMoved`](Self::ShardMoved) (K7).
    Homed {
        /// The shard.
        shard: Arc<str>,
        /// Whether its entities are on this node, so that messages need no encoding.
        is_here: bool,
    },
    /// The region may have dropped its copies for the entities of a shard (S7).
    NotBuffered(Arc<str>),
    /// The region has no copy of an entity's frames: it did not buffer the copy, or dropped it. The next copy is due
    /// one timeout after the last (S7).
    NotKept(Arc<str>),
    /// Frames of a link found no room on their lane, or in an inbox; they are transmitted again soon.
    Refused {
        /// The instance of the link.
        instance: u64,
        /// The first frame.
        from: u64,
        /// The last frame.
        to: u64,
    },
    /// End the controller: nothing more is sent, links end, and confirmations are stored.
    Close,
    /// A deadline may have passed.
    Tick,
}

/// An effect of the controller; effects must be carried out in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect<P> {
    /// A sender's message was accepted under this number.
    Admitted {
        /// The sender's ticket.
        ticket: u64,
        /// The number of its message.
        total: SeqNr,
    },
    /// Send a frame to an entity. Consecutive frames with equal headers may share a batch.
    Transmit {
        /// The entity.
        entity: Arc<str>,
        /// The header of the frame's batch.
        header: BatchHeader,
        /// The frame.
        message: SequencedMessage<P>,
    },
    /// A permit is granted.
    Permit {
        /// The permit's number.
        permit: u64,
    },
    /// Call the queue.
    Queue {
        /// The id of the call, to be returned with the answer.
        id: u64,
        /// The call.
        call: storing::Call<RoutedMessage<P>>,
    },
    /// A message was confirmed by its entity.
    Confirmed {
        /// The ticket of its sender; 0 for a message from the queue.
        ticket: u64,
        /// The number of the message.
        total: SeqNr,
    },
    /// Tell a consumer controller that its link has ended.
    Stop {
        /// The consumer controller.
        to: ControllerRef,
        /// The message.
        message: ProducerStopped,
    },
    /// The controller closed with this message unconfirmed.
    Undelivered {
        /// The ticket of its sender; 0 for a message from the queue.
        ticket: u64,
        /// The entity of the message.
        entity: Arc<str>,
        /// The number of the message.
        total: SeqNr,
    },
    /// It is unknown whether a sender's message is stored; it will be delivered if it is.
    StoreUnknown {
        /// The sender's ticket.
        ticket: u64,
        /// The number of the message if it is stored.
        total: SeqNr,
    },
    /// The queue cannot store a sender's message, and has not stored it: it was not accepted.
    Unavailable {
        /// The sender's ticket.
        ticket: u64,
        /// The frames of the message.
        frames: Frames<P>,
    },
    /// A message accepted for an entity of this node cannot be sent to the entity's new node: it is given up alone. The
    /// entity may have processed it before (K7).
    Unsendable {
        /// The ticket of its sender; 0 for a message from the queue.
        ticket: u64,
        /// The entity of the message.
        entity: Arc<str>,
        /// The number of the message.
        total: SeqNr,
        /// Why the message cannot be sent.
        error: UnsendableError,
    },
    /// The controller is closed or fenced: this sender's message was not accepted.
    Refused {
        /// The sender's ticket.
        ticket: u64,
        /// The frames of the message.
        frames: Frames<P>,
    },
    /// A controller with a higher epoch of the stream is active; nothing more is sent.
    Fenced {
        /// The active epoch.
        newer: Epoch,
    },
    /// The queue has ended: nothing more is stored or sent.
    QueueEnded(storing::End),
    /// The controller has ended.
    Closed,
}
