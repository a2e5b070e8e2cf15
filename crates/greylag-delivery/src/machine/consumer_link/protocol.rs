//! The inputs, effects, settings and counters of a consumer link.

use std::time::Duration;

use crate::dedupe::Dedupe;
use crate::ids::{ControllerRef, Epoch, MessageId};
use crate::machine::producer_link::Frames;
use crate::message::{BatchHeader, SequencedMessage, Upstream};
use crate::sabotage::Sabotage;

/// The fate of a message whose attempts are used up. Source: delivery §9.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PoisonPolicy {
    /// The message is reported and confirmed.
    #[default]
    DeadLetter,
    /// The message is reported, and the link waits.
    Stall,
    /// The message is reported, and the controller stops.
    StopConsumer,
}

/// Settings of a consumer link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConsumerLinkSettings {
    /// Frames in flight; at least 1.
    pub flow_control_window: u32,
    /// As far as the window may grow where it holds the producer up (§7); the window itself for one that never grows.
    pub flow_control_window_max: u32,
    /// Deliveries handed out and not confirmed; at least 1, at most the window.
    pub max_outstanding_deliveries: u32,
    /// How long an `Ack` may be held back while further frames are ready (C9b).
    pub ack_max_delay: Duration,
    /// The longest delay of a confirmation that no sender asked for; with `None` it waits for the next message that is sent
    /// to the producer for another reason.
    pub delayed_ack_timeout: Option<Duration>,
    /// First interval of the retry tick (C11).
    pub resend_interval_min: Duration,
    /// Last interval of the retry tick.
    pub resend_interval_max: Duration,
    /// Lost frames are gone; nothing is asked for again.
    pub only_flow_control: bool,
    /// Pause before an abandoned delivery is handed out again; doubles per attempt, up to 30 s.
    pub redelivery_backoff: Duration,
    /// Attempts before the poison policy decides; 0 is unlimited.
    pub max_delivery_attempts: u32,
    /// The fate of a message whose attempts are used up.
    pub on_poison: PoisonPolicy,
    /// A delivery that took so long is reported as overdue (C13).
    pub confirm_warn_after: Duration,
    /// A delivery that took so long is treated as abandoned; `None` waits for ever.
    pub confirm_timeout: Option<Duration>,
    /// A message of more bytes is not put together; it becomes a delivery that cannot be read (K3).
    pub max_message_bytes: u64,
    /// Point to point the retry tick goes on at its longest interval; elsewhere it falls asleep.
    pub keeps_asking: bool,
    /// For simulations: a clause that is left out, to see that the checkers notice.
    #[doc(hidden)]
    pub sabotage: Option<Sabotage>,
}

/// One attempt at one delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct DeliveryKey {
    /// Number of the delivery in this controller, the same in every attempt.
    pub number: u64,
    /// 1 for the first attempt.
    pub attempt: u32,
}

/// An input to the consumer's side of a link: frames of the producer, what the application did with deliveries, and
/// that time passed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Input<P> {
    /// Frames arrived.
    Frames {
        /// The header of their batch.
        header: BatchHeader,
        /// The frames.
        frames: Vec<SequencedMessage<P>>,
    },
    /// The application has processed a delivery; any attempt counts.
    Confirm(DeliveryKey),
    /// The application has processed several deliveries at once.
    ConfirmAll(Vec<DeliveryKey>),
    /// The application gave up on an attempt; again after the pause, or after the usual backoff.
    Abandon(DeliveryKey, Option<Duration>),
    /// An attempt that the application never looked at, or could not make yet, comes back: it counts for nothing, and is
    /// made again after the pause.
    Return(DeliveryKey, Duration),
    /// The message cannot be read. It keeps its place until it is confirmed, and does not count as being in hand.
    Unreadable(DeliveryKey),
    /// A consumer is attached, or another one in its place.
    Start(Dedupe),
    /// Attach to this producer controller.
    RegisterTo(ControllerRef),
    /// Deliver the messages that are here in order, then stop.
    DeliverThenStop,
    /// Deliver nothing new, wait for the deliveries that the application has in hand, then stop.
    Finish,
    /// Stop now.
    Stop,
    /// A deadline may have passed.
    Tick,
}

/// An effect of a consumer link; their order is the order in which to carry them out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect<P> {
    /// Hand a message to the application.
    Deliver {
        /// Which attempt at which delivery.
        key: DeliveryKey,
        /// The message.
        id: MessageId,
        /// Its content.
        parts: Frames<P>,
    },
    /// Send to a producer controller.
    Reply {
        /// The link addressed.
        to: ControllerRef,
        /// The epoch that is answered; `None` in a registration.
        epoch: Option<Epoch>,
        /// What to say.
        message: Upstream,
    },
    /// A message that was processed before came again; it is confirmed and not delivered.
    Suppressed(MessageId),
    /// The attempts at a message are used up.
    Poisoned {
        /// The message.
        id: MessageId,
        /// How many attempts there were.
        attempts: u32,
    },
    /// A message waits for its next attempt without having been handed out here, because an earlier controller had.
    Held(MessageId),
    /// The application has had a message in hand for as long as is worth a warning. Once per attempt.
    Overdue(MessageId),
    /// Another controller is listened to from now on, in place of one that may still live.
    Replaced {
        /// The former controller.
        former: ControllerRef,
        /// The present controller.
        by: ControllerRef,
    },
    /// The controller has ended.
    Stopped,
}

/// Counts of events that do a link no harm; many of one kind mean trouble elsewhere.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ConsumerCounters {
    /// Frames that were here before (C10).
    pub duplicates: u64,
    /// Gaps that were asked for (C6).
    pub gaps: u64,
    /// Frames beyond the window.
    pub beyond_window: u64,
    /// Frames of producers that have no business here (C2f), and nonsense numbers.
    pub unexpected: u64,
    /// Confirmations that came after their controller, or twice (C16).
    pub late_confirmations: u64,
}

impl ConsumerCounters {
    /// Adds what a link counted since `before`.
    pub(crate) fn add_since(&mut self, before: &Self, now: &Self) {
        self.duplicates += now.duplicates - before.duplicates;
        self.gaps += now.gaps - before.gaps;
        self.beyond_window += now.beyond_window - before.beyond_window;
        self.unexpected += now.unexpected - before.unexpected;
        self.late_confirmations += now.late_confirmations - before.late_confirmations;
    }
}
