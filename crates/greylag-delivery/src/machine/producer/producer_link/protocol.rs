//! Inputs, effects and settings of the producer's side of a link.

use std::time::Duration;

use crate::ids::{ControllerRef, Epoch, SeqNr, StreamId};
use crate::machine::omissions::Omissions;
use crate::message::{Frame, Frames, Upstream};

/// The kind of the consumer's side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinkMode {
    /// One registered consumer controller (P5a guards against a late registration).
    PointToPoint,
    /// Any incarnation to which the region routes; without registration.
    Sharding,
}

/// Settings of a link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProducerLinkSettings {
    /// The kind of the consumer's side.
    pub mode: LinkMode,
    /// The stream of the link's messages; fences of other streams are ignored.
    pub stream_id: StreamId,
    /// The epoch of the link; answers to other epochs are dropped.
    pub epoch: Epoch,
    /// Interval of P8 until the first answer.
    pub resend_first_interval: Duration,
    /// Interval of P8 afterwards, and the silence after which P9 probes.
    pub resend_first_unconfirmed_idle_timeout: Duration,
    /// Clauses to omit, in simulations.
    #[doc(hidden)]
    pub omissions: Omissions,
}

/// An input to the producer's side of a link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Input<P> {
    /// Send a message; its total must be above every earlier one of this link.
    Accept {
        /// The number of the message in the stream.
        total: SeqNr,
        /// The frames of the message.
        frames: Frames<P>,
        /// Whether the sender waits for the confirmation.
        ack: bool,
    },
    /// A message of a consumer controller arrived.
    Received {
        /// The consumer controller.
        from: ControllerRef,
        /// The epoch to which it refers; `None` in a registration.
        epoch: Option<Epoch>,
        /// The message.
        message: Upstream,
    },
    /// The consumer is known to be gone or elsewhere: start over with its successor (P10).
    Reassociate,
    /// Whether the region has a route, so that frames are sent, or not, so that they wait in its buffer.
    RouteChanged(bool),
    /// The producer's queue was loaded again, under this epoch: the link takes the epoch, and starts over with its
    /// consumer (P10). Link numbers go on.
    NewEpoch(Epoch),
    /// Hold the link (`true`): it transmits nothing and has no deadline, until released (`false`). A released link
    /// sends its head. Source: delivery S8.
    Hold(bool),
    /// The lane or an inbox had no room for these frames: transmit them again soon.
    Refused {
        /// The first refused frame.
        from: u64,
        /// The last refused frame.
        to: u64,
    },
    /// The region's buffer has no copy of the head: it did not take the copy, or dropped it. Source: delivery S7.
    NotBuffered,
    /// A deadline may have passed.
    Tick,
}

/// An effect of a link; effects must be carried out in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect<P> {
    /// Send a frame.
    Transmit {
        /// The frame.
        frame: Frame<P>,
        /// Whether the frame begins an association, so that a consumer may attach with it.
        first: bool,
        /// The lowest held frame, for the batch header; 0 without resending.
        lowest: u64,
        /// Whether the frame was transmitted before.
        again: bool,
    },
    /// Every message up to this total is confirmed.
    ConfirmedUpTo(SeqNr),
    /// The number of frames that could be accepted and transmitted at once has changed to this.
    DemandChanged(u64),
    /// A controller with a higher epoch of the stream is active; the link transmits nothing more.
    Fenced {
        /// The active epoch.
        newer: Epoch,
    },
}
