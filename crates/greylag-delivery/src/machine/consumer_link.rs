//! The consumer's side of one link: puts frames back in order, hands out messages, passes on the application's
//! confirmations, and asks again for missing frames.
//!
//! Frames pass three stages, each a prefix of the one before: *received* (taken from the buffer, in
//! order), *delivered* (handed to the application), *confirmed*. Messages that the application never confirms
//! are handed to it again, here, without the producer. A message whose total the watermark covers is
//! confirmed and not delivered, and that is asked anew before every attempt.
//!
//! ```text
//! Frames ─▶ classify (C2) ─▶ buffer (C5, C6) ─▶ deliver (C7, C8) ─▶ Confirm ─▶ Request / Ack (C9)
//! ```
//!
//! Which producer a frame is from decides everything: `classify.rs` has that, and the switch from one
//! producer to the next. Source: delivery §1.3, C1 to C16.

mod answers;
mod chunks;
mod classify;
mod deliver;
mod retry;
mod window;

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::dedupe::{Attempts, Dedupe, Watermarks};
use crate::ids::{ControllerRef, Epoch, MessageId, ProducerId, SeqNr, StreamId};
use crate::machine::producer_link::Frames;
use crate::message::{BatchHeader, Content, SequencedMessage, Upstream};
use answers::Answers;
use chunks::Assembly;
use window::Window;

pub(crate) use chunks::MAX_CHUNKS;

/// What becomes of a message whose attempts are used up. Source: delivery §9.
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

/// What a consumer link needs to know when it is made.
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
    /// After how long confirmations are told that no sender asked for; `None` leaves them to what is told anyway.
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
    /// What happens then.
    pub on_poison: PoisonPolicy,
    /// A delivery that took so long is reported as overdue (C13).
    pub confirm_warn_after: Duration,
    /// A delivery that took so long is treated as abandoned; `None` waits for ever.
    pub confirm_timeout: Option<Duration>,
    /// A message of more bytes is not put together; it becomes a delivery that cannot be read (K3).
    pub max_message_bytes: u64,
    /// Point to point the retry tick goes on at its longest interval; elsewhere it falls asleep.
    pub keeps_asking: bool,
}

/// The longest pause before a redelivery. Source: delivery §8.
const MAX_REDELIVERY_BACKOFF: Duration = Duration::from_secs(30);
/// A moment further away than this is never.
const NEVER: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

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
        /// What they have in common.
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
    /// The message cannot be read. It keeps its place until it is confirmed, and nobody has it in hand.
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

/// What a link asks for, in this order.
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
        /// The one before.
        former: ControllerRef,
        /// The one now.
        by: ControllerRef,
    },
    /// The controller has ended.
    Stopped,
}

/// What a link counts; all of it is harmless, and much of it means trouble elsewhere.
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

/// A sender: two epochs of one controller are two senders.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Sender {
    controller: ControllerRef,
    epoch: Epoch,
}

impl Sender {
    fn of(header: &BatchHeader) -> Self {
        Self { controller: header.controller.clone(), epoch: header.epoch }
    }

    fn sent(&self, header: &BatchHeader) -> bool {
        self.epoch == header.epoch && self.controller == header.controller
    }
}

/// Why a producer is no longer the one listened to.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Replaced {
    ByFirst(Sender),
    ByRegistration(ControllerRef),
}

/// The producer listened to.
#[derive(Debug, Clone)]
struct Producer {
    sender: Sender,
    producer_id: ProducerId,
    stream: StreamId,
    ordered: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DeliveryState {
    /// The application has it in hand. `overdue` once that was reported.
    Handed {
        since: Instant,
        overdue: bool,
    },
    /// Given up, to be handed out again.
    Waiting {
        until: Instant,
    },
    /// Its attempts are used up, and the policy is to wait.
    Stalled,
    /// It cannot be read.
    Unreadable,
    Confirmed,
}

/// A message that left the buffer and is not in the confirmed prefix.
#[derive(Debug, Clone)]
struct Outstanding<P> {
    number: u64,
    last_seq: u64,
    producer_id: ProducerId,
    stream: StreamId,
    ordered: bool,
    total: SeqNr,
    ack: bool,
    first: bool,
    attempt: u32,
    state: DeliveryState,
    parts: Frames<P>,
}

impl<P> Outstanding<P> {
    fn id(&self) -> MessageId {
        MessageId { producer_id: self.producer_id.clone(), stream_id: self.stream, seq_nr: self.total }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Life {
    Running,
    /// Ends when nothing is outstanding and the next frame is not here (C15).
    Draining,
    /// Delivers nothing new; ends when nothing is outstanding (S15).
    Finishing,
    Stopped,
}

/// The machine. See the module's documentation.
#[derive(Debug, Clone)]
pub struct ConsumerLink<P> {
    settings: ConsumerLinkSettings,
    window: Window,
    started: bool,
    life: Life,
    before_start: VecDeque<(BatchHeader, SequencedMessage<P>)>,
    producer: Option<Producer>,
    registering: Option<ControllerRef>,
    replaced: VecDeque<Replaced>,
    parked: Option<(BatchHeader, SequencedMessage<P>)>,
    /// Frames above `received`, ascending.
    buffer: VecDeque<SequencedMessage<P>>,
    assembly: Option<Assembly<P>>,
    outstanding: VecDeque<Outstanding<P>>,
    /// Of those outstanding, how many the application has not confirmed.
    unconfirmed: u32,
    /// Of those, how many were reported as overdue.
    overdue: u32,
    received: u64,
    highest_seen: u64,
    /// Last frame of the last message that was handed out or suppressed.
    delivered: u64,
    confirmed: u64,
    requested: u64,
    /// The lowest frame that was dropped because it lay beyond the window.
    lost_from: Option<u64>,
    lost_asked: bool,
    next_number: u64,
    answers: Answers,
    counters: ConsumerCounters,
}

impl<P: Content> ConsumerLink<P> {
    /// A link without producer and without consumer.
    pub fn new(settings: ConsumerLinkSettings) -> Self {
        Self {
            window: Window::new(settings.flow_control_window, settings.flow_control_window_max),
            answers: Answers::new(&settings),
            settings,
            started: false,
            life: Life::Running,
            before_start: VecDeque::new(),
            producer: None,
            registering: None,
            replaced: VecDeque::new(),
            parked: None,
            buffer: VecDeque::new(),
            assembly: None,
            outstanding: VecDeque::new(),
            unconfirmed: 0,
            overdue: 0,
            received: 0,
            highest_seen: 0,
            delivered: 0,
            confirmed: 0,
            requested: 0,
            lost_from: None,
            lost_asked: false,
            next_number: 1,
            counters: ConsumerCounters::default(),
        }
    }

    /// Takes one input. `watermarks` belong to the consumer and outlive this link (C8, S14).
    pub fn handle(&mut self, now: Instant, input: Input<P>, watermarks: &mut Watermarks, out: &mut Vec<Effect<P>>) {
        if self.life == Life::Stopped {
            match input {
                Input::Confirm(_) => self.counters.late_confirmations += 1,
                Input::ConfirmAll(keys) => self.counters.late_confirmations += keys.len() as u64,
                _ => {}
            }
            return;
        }
        match input {
            Input::Frames { header, frames } => self.on_frames(now, &header, frames, watermarks, out),
            Input::Confirm(key) => self.on_confirm_all(now, &[key], watermarks, out),
            Input::ConfirmAll(keys) => self.on_confirm_all(now, &keys, watermarks, out),
            Input::Abandon(key, pause) => self.on_abandon(now, key, pause, out),
            Input::Return(key, pause) => self.on_return(now, key, pause),
            Input::Unreadable(key) => self.on_unreadable(key),
            Input::Start(dedupe) => self.on_start(now, &dedupe, watermarks, out),
            Input::RegisterTo(controller) => self.on_register_to(now, controller, out),
            Input::DeliverThenStop if self.life == Life::Running => self.life = Life::Draining,
            Input::DeliverThenStop => {}
            Input::Finish => self.life = Life::Finishing,
            Input::Stop => self.stop(false, out),
            Input::Tick => self.on_tick(now, watermarks, out),
        }
        if self.life != Life::Stopped {
            self.settle(now, watermarks, out);
            self.check_invariants();
        }
    }

    /// When a tick next has work to do.
    pub fn next_deadline(&self) -> Option<Instant> {
        if self.life == Life::Stopped {
            return None;
        }
        let redelivery = self.outstanding.iter().filter_map(|delivery| self.delivery_deadline(delivery));
        redelivery.chain(self.answers.next_deadline()).min()
    }

    /// Whether anything of the producer is undelivered or unconfirmed.
    pub fn is_busy(&self) -> bool {
        !self.outstanding.is_empty() || self.is_next_buffered() || !self.before_start.is_empty()
    }

    /// Whether the application has something in hand, or will have without another message: it must not be passivated
    /// (S15). Messages that wait for a person do not keep it awake.
    pub fn keeps_awake(&self) -> bool {
        let is_at_work = |delivery: &Outstanding<P>| {
            matches!(delivery.state, DeliveryState::Handed { .. } | DeliveryState::Waiting { .. })
        };
        let is_deliverable = self.is_next_buffered() && self.has_room();
        is_deliverable || !self.before_start.is_empty() || self.outstanding.iter().any(is_at_work)
    }

    /// Deliveries that the application has had in hand for longer than is worth a warning.
    pub fn overdue(&self) -> u32 {
        self.overdue
    }

    /// Messages that left the buffer and are not confirmed, with their attempts, and when the next one is due.
    pub(crate) fn attempts(&self) -> impl Iterator<Item = (StreamId, SeqNr, Attempts)> + '_ {
        self.outstanding
            .iter()
            .filter(|delivery| delivery.attempt > 0 && delivery.state != DeliveryState::Confirmed)
            .map(|delivery| {
                let until = match delivery.state {
                    DeliveryState::Waiting { until } => Some(until),
                    _ => None,
                };
                (delivery.stream, delivery.total, Attempts { count: delivery.attempt, until })
            })
    }

    /// Whether it has ended.
    pub fn is_stopped(&self) -> bool {
        self.life == Life::Stopped
    }

    /// The producer controller listened to, with its epoch.
    pub fn producer(&self) -> Option<(&ControllerRef, Epoch)> {
        self.producer.as_ref().map(|producer| (&producer.sender.controller, producer.sender.epoch))
    }

    /// The stream of the producer listened to.
    pub fn stream(&self) -> Option<StreamId> {
        self.producer.as_ref().map(|producer| producer.stream)
    }

    /// The logical producer of the controller listened to.
    pub(crate) fn producer_id(&self) -> Option<&ProducerId> {
        self.producer.as_ref().map(|producer| &producer.producer_id)
    }

    /// What was counted so far.
    pub fn counters(&self) -> ConsumerCounters {
        self.counters
    }

    fn on_frames(
        &mut self,
        now: Instant,
        header: &BatchHeader,
        frames: Vec<SequencedMessage<P>>,
        watermarks: &mut Watermarks,
        out: &mut Vec<Effect<P>>,
    ) {
        for message in frames {
            if self.started {
                self.on_frame(now, header, message, watermarks, out);
            } else if (self.before_start.len() as u64) < self.window.size() {
                self.before_start.push_back((header.clone(), message));
            }
        }
    }

    fn on_start(&mut self, now: Instant, dedupe: &Dedupe, watermarks: &mut Watermarks, out: &mut Vec<Effect<P>>) {
        watermarks.merge(now, dedupe);
        if self.started {
            // C14: messages that the former consumer had in hand go to this one. Those that it gave up wait
            // their time all the same, unless they are known to be processed.
            for index in 0..self.outstanding.len() {
                let delivery = &self.outstanding[index];
                let is_known = delivery.ordered && delivery.total <= watermarks.confirmed(delivery.stream);
                match delivery.state {
                    DeliveryState::Confirmed => {}
                    DeliveryState::Waiting { .. } | DeliveryState::Stalled | DeliveryState::Unreadable if !is_known => {
                    }
                    _ => self.attempt_again(now, index, watermarks, out),
                }
            }
            return;
        }
        self.started = true;
        for (header, message) in std::mem::take(&mut self.before_start) {
            self.on_frame(now, &header, message, watermarks, out);
        }
    }

    /// Does all that the input made possible: confirmations, deliveries, a parked producer, the end.
    fn settle(&mut self, now: Instant, watermarks: &mut Watermarks, out: &mut Vec<Effect<P>>) {
        self.advance(now, watermarks, out);
        self.deliver(now, watermarks, out);
        self.unpark(now, watermarks, out);
        let ends = match self.life {
            Life::Running | Life::Stopped => false,
            Life::Draining => self.outstanding.is_empty() && !self.is_next_buffered(),
            Life::Finishing => !self.has_in_hand(),
        };
        if ends {
            self.stop(self.life == Life::Finishing, out);
        }
    }

    /// Whether the application has any delivery in hand.
    fn has_in_hand(&self) -> bool {
        self.outstanding.iter().any(|delivery| matches!(delivery.state, DeliveryState::Handed { .. }))
    }

    /// Whether the application may have one more delivery in hand.
    fn has_room(&self) -> bool {
        self.unconfirmed < self.settings.max_outstanding_deliveries.max(1)
    }

    /// C15: every stop says how far it got. Where another consumer is to take over what is left here, the producer hears
    /// of that, too, and need not find it out by its idle probe.
    fn stop(&mut self, hands_over: bool, out: &mut Vec<Effect<P>>) {
        self.life = Life::Stopped;
        self.overdue = 0;
        self.reply(Upstream::Ack { confirmed: self.confirmed, up_to: self.confirmed + 1 }, out);
        if hands_over && (self.is_busy() || !self.buffer.is_empty()) {
            self.reply(Upstream::Resend { from: 0, to: 0 }, out);
        }
        out.push(Effect::Stopped);
    }

    fn is_next_buffered(&self) -> bool {
        self.buffer.front().is_some_and(|next| {
            next.frame.seq_nr == self.received + 1 || (self.settings.only_flow_control && !self.buffer.is_empty())
        })
    }

    fn reply(&self, message: Upstream, out: &mut Vec<Effect<P>>) {
        if let Some(Producer { sender, .. }) = &self.producer {
            out.push(Effect::Reply { to: sender.controller.clone(), epoch: Some(sender.epoch), message });
        }
    }

    fn request(&self, via_timeout: bool) -> Upstream {
        Upstream::Request {
            confirmed: self.confirmed,
            up_to: self.requested.max(self.confirmed + 1),
            support_resend: !self.settings.only_flow_control,
            via_timeout,
        }
    }

    /// Any request restarts the retry timer (C9).
    fn send_request(&mut self, now: Instant, out: &mut Vec<Effect<P>>) {
        self.reply(self.request(false), out);
        self.window.granted(self.requested);
        self.answers.requested(now, self.misses_frames());
    }

    fn send_ack(&mut self, out: &mut Vec<Effect<P>>) {
        let up_to = self.requested.max(self.confirmed + 1);
        self.reply(Upstream::Ack { confirmed: self.confirmed, up_to }, out);
        self.answers.told();
    }

    fn check_invariants(&self) {
        debug_assert!(self.received <= self.highest_seen, "received runs behind what was seen");
        debug_assert!(self.buffer.iter().all(|message| message.frame.seq_nr > self.received));
        debug_assert!(self.buffer.iter().map(|message| message.frame.seq_nr).is_sorted());
        debug_assert!(self.buffer.len() as u64 <= self.window.largest(), "never more than a window is buffered");
        let open = self.outstanding.iter().filter(|delivery| delivery.state != DeliveryState::Confirmed);
        debug_assert_eq!(open.count(), self.unconfirmed as usize);
        debug_assert!(self.unconfirmed <= self.settings.max_outstanding_deliveries.max(1));
        let overdue =
            |delivery: &&Outstanding<P>| matches!(delivery.state, DeliveryState::Handed { overdue: true, .. });
        debug_assert_eq!(self.overdue as usize, self.outstanding.iter().filter(overdue).count());
    }
}

/// The moment so long after another, or one that never comes.
fn later(now: Instant, pause: Duration) -> Instant {
    now.checked_add(pause.min(NEVER)).unwrap_or(now)
}
