//! The messages between the two ends of a link.
//!
//! ```text
//! producer --SequencedBatch[frames, lowest]--> consumer
//! producer <--Request | Ack | Resend | RegisterConsumer | Fenced-- consumer
//! producer --ProducerStopped--> consumer
//! ```
//!
//! Confirmations and grants are cumulative and merged with `max`, so reordering is harmless. Every upstream message
//! that confirms also grants, so each one makes up for a lost earlier one.
//!
//! Source: delivery §1.1. `P` is the payload of a frame: opaque to the machines.

use crate::ids::{ControllerRef, Epoch, ProducerId, SeqNr, StreamId};

/// The payload of a frame, as far as the machines inspect it: enough to bound the memory of a chunked message.
pub trait Content: Clone {
    /// Size in bytes.
    fn size(&self) -> u64;

    /// In the first of several chunks: the size of the whole message in bytes, as declared by its sender.
    fn total_len(&self) -> Option<u64>;
}

/// For tests and simulations: a number is a message of eight bytes.
impl Content for u64 {
    fn size(&self) -> u64 {
        8
    }

    fn total_len(&self) -> Option<u64> {
        None
    }
}

/// One numbered frame of a link: a whole message, or a chunk of one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame<P> {
    /// Link number; 1 for the first, contiguous.
    pub seq_nr: u64,
    /// Number of the message in its stream.
    pub total: SeqNr,
    /// Whether the sender waits for the confirmation. Set on the last frame of a message only.
    pub ack: bool,
    /// Whether the frame begins a message.
    pub first_chunk: bool,
    /// Whether the frame ends a message. A whole message is one frame with both flags set.
    pub last_chunk: bool,
    /// The content.
    pub payload: P,
}

impl<P> Frame<P> {
    /// Replaces the payload.
    pub fn map<Q>(self, content: impl FnOnce(P) -> Q) -> Frame<Q> {
        let Self { seq_nr, total, ack, first_chunk, last_chunk, payload } = self;
        Frame { seq_nr, total, ack, first_chunk, last_chunk, payload: content(payload) }
    }
}

/// The frames of one message, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Frames<P> {
    /// The message is one frame.
    Whole(P),
    /// The message is cut into these chunks; at least one.
    Chunks(Vec<P>),
}

/// A frame on the wire, with the flag `first`, which is determined at each transmission and thus not kept with the
/// frame (P4).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SequencedMessage<P> {
    /// The frame.
    pub frame: Frame<P>,
    /// Whether a consumer that does not know the link may attach with this frame.
    pub first: bool,
}

/// Fields common to the frames of one batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BatchHeader {
    /// The logical producer.
    pub producer_id: ProducerId,
    /// The stream (numbering space) of the totals.
    pub stream_id: StreamId,
    /// The producer's incarnation.
    pub epoch: Epoch,
    /// The link: the address for answers, and its instance.
    pub controller: ControllerRef,
    /// Whether totals increase strictly at each consumer, so that a consumer may drop known messages (C8).
    pub ordered: bool,
    /// The first frame that the producer still holds; every frame below is confirmed, by any consumer. 0 in
    /// flow-control-only mode, where no frames are held.
    pub lowest: u64,
}

/// A batch: frames of one link in one message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SequencedBatch<P> {
    /// The common fields.
    pub header: BatchHeader,
    /// The frames, in the order of transmission.
    pub frames: Vec<SequencedMessage<P>>,
}

/// A message of a consumer to a producer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Upstream {
    /// Every frame up to `confirmed` is processed; frames up to `up_to` may be transmitted.
    Request {
        /// The last link number of the longest processed prefix.
        confirmed: u64,
        /// The grant; at least `confirmed + 1`.
        up_to: u64,
        /// Whether the consumer requests lost frames again; false in flow-control-only mode.
        support_resend: bool,
        /// Whether the request was sent because nothing arrived for a while: transmitted frames may be lost.
        via_timeout: bool,
    },
    /// A confirmation between two requests.
    Ack {
        /// As in `Request`.
        confirmed: u64,
        /// As in `Request`.
        up_to: u64,
    },
    /// Frames are missing. `to` 0: every frame from `from` on. `from` 0: start over.
    Resend {
        /// The first missing frame.
        from: u64,
        /// The last missing frame, or 0.
        to: u64,
    },
    /// Attach the consumer controller that sends this.
    RegisterConsumer,
    /// A controller with a higher epoch of the stream is active: stop.
    Fenced {
        /// The stream.
        stream_id: StreamId,
        /// The active epoch.
        newer: Epoch,
    },
}

/// An upstream message with its addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UpstreamMessage {
    /// The consumer controller that sends the message.
    pub from: ControllerRef,
    /// The producer's link.
    pub to: ControllerRef,
    /// The epoch of the batches to which the message refers; `None` in a registration.
    pub epoch: Option<Epoch>,
    /// The message.
    pub message: Upstream,
}

/// The graceful end of a link, sent to its last consumer directly; it must not wake an entity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProducerStopped {
    /// The link that ended.
    pub controller: ControllerRef,
    /// The epoch of the link.
    pub epoch: Epoch,
}
