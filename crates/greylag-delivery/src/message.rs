//! The messages between the two ends of a link.
//!
//! ```text
//! producer --SequencedBatch[frames, lowest]--> consumer
//! producer <--Request | Ack | Resend | RegisterConsumer | Fenced-- consumer
//! producer --ProducerStopped--> consumer
//! ```
//!
//! Confirmations and grants are cumulative and merged with `max`, so reordering is harmless, and
//! every upstream message that confirms also grants, so each repairs a lost predecessor.
//!
//! Source: delivery §1.1. `P` is the payload of a frame: opaque to the machines.

use crate::ids::{ControllerRef, Epoch, ProducerId, SeqNr, StreamId};

/// What frames carry, as far as the machines look into it: enough to bound what a chunked message takes.
pub trait Content: Clone {
    /// Its size in bytes.
    fn size(&self) -> u64;

    /// In the first of several chunks: the size of the whole message in bytes, as its sender says.
    fn total_len(&self) -> Option<u64>;
}

/// A number is a message of eight bytes: for tests and simulations.
impl Content for u64 {
    fn size(&self) -> u64 {
        8
    }

    fn total_len(&self) -> Option<u64> {
        None
    }
}

/// One numbered piece of a link: a whole message, or a chunk of one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame<P> {
    /// Link number; 1 for the first, contiguous.
    pub seq_nr: u64,
    /// Number of the message in its stream.
    pub total: SeqNr,
    /// The sender waits for the confirmation. Set on the last frame of a message only.
    pub ack: bool,
    /// Begins a message.
    pub first_chunk: bool,
    /// Ends a message. A whole message is one frame with both set.
    pub last_chunk: bool,
    /// The content.
    pub payload: P,
}

impl<P> Frame<P> {
    /// The same frame with another content.
    pub fn map<Q>(self, content: impl FnOnce(P) -> Q) -> Frame<Q> {
        let Self { seq_nr, total, ack, first_chunk, last_chunk, payload } = self;
        Frame { seq_nr, total, ack, first_chunk, last_chunk, payload: content(payload) }
    }
}

/// A frame on the wire: `first` is decided when it is transmitted and not kept with the frame (P4).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SequencedMessage<P> {
    /// The frame.
    pub frame: Frame<P>,
    /// A consumer that knows nothing of the link may attach with this frame.
    pub first: bool,
}

/// What the frames of one batch have in common.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BatchHeader {
    /// The logical producer.
    pub producer_id: ProducerId,
    /// The numbering space of the totals.
    pub stream_id: StreamId,
    /// The producer's incarnation.
    pub epoch: Epoch,
    /// Where answers go, and which link this is.
    pub controller: ControllerRef,
    /// Totals increase strictly at each consumer, so that it may drop messages that it knows (C8).
    pub ordered: bool,
    /// The first frame that the producer still holds; everything below is confirmed, by whichever
    /// consumer. 0 in flow-control-only mode, where nothing is held.
    pub lowest: u64,
}

/// Frames of one link that travel together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SequencedBatch<P> {
    /// What they have in common.
    pub header: BatchHeader,
    /// The frames, in the order of transmission.
    pub frames: Vec<SequencedMessage<P>>,
}

/// What a consumer says to a producer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Upstream {
    /// Everything up to `confirmed` is processed; frames up to `up_to` may be transmitted.
    Request {
        /// The last link number of the longest processed prefix.
        confirmed: u64,
        /// The grant; at least `confirmed + 1`.
        up_to: u64,
        /// The consumer asks for lost frames again; false in flow-control-only mode.
        support_resend: bool,
        /// Sent because nothing arrived for a while: transmitted frames may be lost.
        via_timeout: bool,
    },
    /// A confirmation outside the rhythm of requests.
    Ack {
        /// As in `Request`.
        confirmed: u64,
        /// As in `Request`.
        up_to: u64,
    },
    /// Frames are missing. `to` 0: everything from `from` on. `from` 0: start over.
    Resend {
        /// The first missing frame.
        from: u64,
        /// The last missing frame, or 0.
        to: u64,
    },
    /// Attach the consumer controller that sends this.
    RegisterConsumer,
    /// A newer incarnation of the stream is active: stop.
    Fenced {
        /// The stream.
        stream_id: StreamId,
        /// Its active epoch.
        newer: Epoch,
    },
}

/// An upstream message with its addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UpstreamMessage {
    /// The consumer controller that speaks.
    pub from: ControllerRef,
    /// The link it answers.
    pub to: ControllerRef,
    /// The epoch of the batches that it answers; `None` in a registration, which answers none.
    pub epoch: Option<Epoch>,
    /// What it says.
    pub message: Upstream,
}

/// The graceful end of a link, sent to its last consumer directly; it must not wake an entity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProducerStopped {
    /// The link that ended.
    pub controller: ControllerRef,
    /// Its epoch.
    pub epoch: Epoch,
}
