//! The inputs, effects, settings and counters of a consumer link.

use std::time::Duration;

use crate::ids::{ControllerRef, Epoch, MessageId};
use crate::machine::dedupe::Dedupe;
use crate::machine::omissions::Omissions;
use crate::message::{BatchHeader, Frames, SequencedMessage, Upstream};

/// What to do with a message after its last permitted attempt. Source: delivery §9.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PoisonPolicy {
    /// The message is reported and confirmed.
    #[default]
    DeadLetter,
    /// The message is reported, and blocks the link.
    Stall,
    /// The message is reported, and the controller stops.
    StopConsumer,
}

/// Settings of a consumer link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConsumerLinkSettings {
    /// The window: frames in flight; at least 1.
    pub flow_control_window: u32,
    /// Limit up to which the window may grow if it throttles the producer (§7); equal to the window for a fixed one.
    pub flow_control_window_max: u32,
    /// Maximum number of unconfirmed deliveries in hand; at least 1, at most the window.
    pub max_outstanding_deliveries: u32,
    /// How long an `Ack` may be held back while further frames are ready (C9b).
    pub ack_max_delay: Duration,
    /// The longest delay of a confirmation that no sender asked for. `None`: sent with the next message to the
    /// producer.
    pub delayed_ack_timeout: Option<Duration>,
    /// First interval of the retry tick (C11).
    pub resend_interval_min: Duration,
    /// Last interval of the retry tick.
    pub resend_interval_max: Duration,
    /// Flow control only: lost frames are skipped, and no resend is requested.
    pub only_flow_control: bool,
    /// Pause before an abandoned delivery is handed out again; doubles per attempt, up to 30 s.
    pub redelivery_backoff: Duration,
    /// Attempts before the poison policy applies; 0 is unlimited.
    pub max_delivery_attempts: u32,
    /// What to do with a message after its last permitted attempt.
    pub on_poison: PoisonPolicy,
    /// Deliveries unconfirmed for this long are reported as overdue (C13).
    pub confirm_warn_after: Duration,
    /// Deliveries unconfirmed for this long are given up; `None` waits for ever.
    pub confirm_timeout: Option<Duration>,
    /// A longer message is not joined; it becomes an undecodable delivery (K3).
    pub max_message_bytes: u64,
    /// Whether retries go on at the longest interval (point to point), or end after it.
    pub retries_forever: bool,
    /// Clauses to omit, in simulations.
    #[doc(hidden)]
    pub omissions: Omissions,
}

/// One attempt at one delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct DeliveryKey {
    /// Number of the delivery in this link, the same for every attempt.
    pub number: u64,
    /// 1 for the first attempt.
    pub attempt: u32,
}

/// An input to the consumer's side of a link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Input<P> {
    /// Frames arrived.
    Frames {
        /// The header of the frames' batch.
        header: BatchHeader,
        /// The frames.
        frames: Vec<SequencedMessage<P>>,
    },
    /// The application has processed a delivery; the confirmation of any attempt counts.
    Confirm(DeliveryKey),
    /// The application has processed several deliveries at once.
    ConfirmAll(Vec<DeliveryKey>),
    /// The application gave an attempt up; the next one follows after the pause, or after the usual back-off.
    Abandon(DeliveryKey, Option<Duration>),
    /// Returns an attempt that the application has not looked at, or could not process yet. The attempt is not counted,
    /// and is repeated after the pause.
    Return(DeliveryKey, Duration),
    /// The message cannot be decoded. It keeps its place until it is confirmed, and does not count as in hand.
    Unreadable(DeliveryKey),
    /// A consumer starts; it replaces the present one, if there is one.
    Start(Dedupe),
    /// Attach to this producer controller.
    RegisterTo(ControllerRef),
    /// Deliver the messages already here in order, then stop.
    DeliverThenStop,
    /// Hand out nothing more, wait for the deliveries in hand, then stop.
    Finish,
    /// Stop now.
    Stop,
    /// A deadline may have passed.
    Tick,
}

/// An effect of a consumer link; effects must be carried out in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect<P> {
    /// Hand a message to the application.
    Deliver {
        /// The delivery and the number of the attempt.
        key: DeliveryKey,
        /// The id of the message.
        id: MessageId,
        /// The content of the message.
        parts: Frames<P>,
    },
    /// Send a message to a producer controller.
    Reply {
        /// The receiving link.
        to: ControllerRef,
        /// The epoch of the answered frames; `None` in a registration.
        epoch: Option<Epoch>,
        /// The message.
        message: Upstream,
    },
    /// A duplicate of a processed message; it is confirmed and not delivered.
    Suppressed(MessageId),
    /// The last permitted attempt at a message failed.
    Poisoned {
        /// The id of the message.
        id: MessageId,
        /// Number of attempts.
        attempts: u32,
    },
    /// A message waits for its next attempt and was not handed out here; an earlier controller had handed it out.
    Held(MessageId),
    /// A message is unconfirmed for `confirm_warn_after`. Once per attempt.
    Overdue(MessageId),
    /// The link switched to another controller; the former one may still be alive.
    Replaced {
        /// The former controller.
        former: ControllerRef,
        /// The current controller.
        by: ControllerRef,
    },
    /// The link has ended.
    Stopped,
}

/// Counts of harmless events; many of one kind indicate a problem elsewhere.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ConsumerCounters {
    /// Frames that had arrived before (C10).
    pub duplicates: u64,
    /// Gaps for which a resend was requested (C6).
    pub gaps: u64,
    /// Frames beyond the window.
    pub beyond_window: u64,
    /// Frames of senders that were displaced (C2f), and frames with invalid numbers.
    pub unexpected: u64,
    /// Confirmations that came twice, or after their link had ended (C16).
    pub late_confirmations: u64,
}

impl ConsumerCounters {
    /// Adds the counts of a link since `before`.
    pub(crate) fn add_since(&mut self, before: &Self, now: &Self) {
        self.duplicates += now.duplicates - before.duplicates;
        self.gaps += now.gaps - before.gaps;
        self.beyond_window += now.beyond_window - before.beyond_window;
        self.unexpected += now.unexpected - before.unexpected;
        self.late_confirmations += now.late_confirmations - before.late_confirmations;
    }
}
