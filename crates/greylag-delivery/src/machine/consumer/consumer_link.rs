//! The consumer's side of one link: reorders frames, hands out messages, forwards the application's confirmations, and
//! requests missing frames again.
//!
//! Frames pass three stages, each a prefix of the one before: *received* (taken from the buffer, in order), *delivered*
//! (handed to the application), *confirmed*. Messages that the application does not confirm are handed out again from
//! here, without the producer. A message whose total the watermark covers is confirmed and not delivered; the watermark
//! is checked before every attempt.
//!
//! ```text
//! Frames ─▶ classify (C2) ─▶ buffer (C5, C6) ─▶ deliver (C7, C8) ─▶ Confirm ─▶ Request / Ack (C9)
//! ```
//!
//! A frame's handling depends on its sender: `classify.rs` has the cases, and the switch from one producer to the next.
//! Source: delivery §1.3, C1 to C16.

mod answers;
mod arrivals;
mod chunks;
mod classify;
mod deliver;
mod deliveries;
mod protocol;
mod senders;
mod window;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::ids::{ControllerRef, Epoch, ProducerId, SeqNr, StreamId};
use crate::machine::dedupe::{Attempts, Dedupe, Watermarks};
use crate::machine::omissions::Clause;
use crate::message::{BatchHeader, Content, SequencedMessage, Upstream};
use answers::Answers;
use arrivals::Arrivals;
use deliveries::{Deliveries, DeliveryState};
use senders::Senders;
use window::Window;

pub(crate) use chunks::MAX_CHUNKS;
pub use protocol::{ConsumerCounters, ConsumerLinkSettings, DeliveryKey, Effect, Input, PoisonPolicy};

/// Pauses are cut to this length, to keep instants representable.
const NEVER: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Life {
    Running,
    /// Ends when no delivery is outstanding and the next frame is missing (C15).
    Draining,
    /// Hands out nothing more; ends when no delivery is outstanding (S15).
    Finishing,
    Stopped,
}

/// The machine. See the module's documentation.
#[derive(Debug, Clone)]
pub struct ConsumerLink<P> {
    settings: Arc<ConsumerLinkSettings>,
    life: Life,
    /// Frames that arrived before a consumer was attached; `None` afterwards.
    before_start: Option<VecDeque<(BatchHeader, SequencedMessage<P>)>>,
    senders: Senders<P>,
    arrivals: Arrivals<P>,
    deliveries: Deliveries<P>,
    /// The last frame of the confirmed prefix.
    confirmed: u64,
    /// The last frame granted to the producer.
    requested: u64,
    window: Window,
    answers: Answers,
    counters: ConsumerCounters,
}

impl<P: Content> ConsumerLink<P> {
    /// A link without producer and consumer. Links of one consumer share their settings.
    pub fn new(settings: impl Into<Arc<ConsumerLinkSettings>>) -> Self {
        let settings = settings.into();
        Self {
            life: Life::Running,
            before_start: Some(VecDeque::new()),
            senders: Senders::new(),
            arrivals: Arrivals::new(settings.only_flow_control),
            deliveries: Deliveries::new(),
            confirmed: 0,
            requested: 0,
            window: Window::new(settings.flow_control_window, settings.flow_control_window_max),
            answers: Answers::new(&settings),
            counters: ConsumerCounters::default(),
            settings,
        }
    }

    /// Handles one input. `watermarks` belong to the consumer and outlive this link (C8, S14).
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
            self.follow_up(now, watermarks, out);
            self.check_invariants();
        }
    }

    /// The next time at which a tick has an effect.
    pub fn next_deadline(&self) -> Option<Instant> {
        if self.life == Life::Stopped {
            return None;
        }
        let deliveries = self.deliveries.iter().filter_map(|delivery| self.delivery_deadline(delivery.state()));
        deliveries.chain(self.answers.next_deadline()).min()
    }

    /// Whether a message of the producer is undelivered or unconfirmed.
    pub fn is_busy(&self) -> bool {
        !self.deliveries.is_empty() || self.arrivals.is_next_here() || self.has_early_frames()
    }

    /// Whether the application has a delivery in hand, or will get one without further input: it must not be passivated
    /// (S15). Undecodable and stalled messages do not prevent passivation.
    pub fn keeps_awake(&self) -> bool {
        let is_deliverable = self.arrivals.is_next_here() && self.has_room();
        is_deliverable || self.has_early_frames() || self.deliveries.is_at_work()
    }

    fn has_early_frames(&self) -> bool {
        self.before_start.as_ref().is_some_and(|frames| !frames.is_empty())
    }

    /// Deliveries that were reported as overdue.
    pub fn overdue(&self) -> u32 {
        self.deliveries.overdue()
    }

    /// Unconfirmed messages taken from the buffer, with their attempts and the time of the next one.
    pub(crate) fn attempts(&self) -> impl Iterator<Item = (StreamId, SeqNr, Attempts)> + '_ {
        let stream = self.stream();
        let attempted = self.deliveries.iter().filter(|delivery| delivery.attempt > 0 && !delivery.is_confirmed());
        attempted.filter_map(move |delivery| {
            let until = match delivery.state() {
                DeliveryState::Waiting { until } => Some(until),
                _ => None,
            };
            Some((stream?, delivery.total, Attempts { count: delivery.attempt, until }))
        })
    }

    /// Whether the link has ended.
    pub fn is_stopped(&self) -> bool {
        self.life == Life::Stopped
    }

    /// The current producer controller, with its epoch.
    pub fn producer(&self) -> Option<(&ControllerRef, Epoch)> {
        self.senders.current().map(|producer| (&producer.sender.controller, producer.sender.epoch))
    }

    /// The stream of the current producer.
    pub fn stream(&self) -> Option<StreamId> {
        self.senders.current().map(|producer| producer.stream)
    }

    /// The id of the current producer.
    pub(crate) fn producer_id(&self) -> Option<&ProducerId> {
        self.senders.current().map(|producer| &producer.producer_id)
    }

    /// Counts since the link's start.
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
            match &mut self.before_start {
                None => self.on_frame(now, header, message, watermarks, out),
                Some(early) if (early.len() as u64) < self.window.size() => early.push_back((header.clone(), message)),
                Some(_) => {}
            }
        }
    }

    fn on_start(&mut self, now: Instant, dedupe: &Dedupe, watermarks: &mut Watermarks, out: &mut Vec<Effect<P>>) {
        watermarks.merge(now, dedupe);
        let Some(early) = self.before_start.take() else {
            return self.hand_to_next_consumer(now, watermarks, out);
        };
        for (header, message) in early {
            self.on_frame(now, &header, message, watermarks, out);
        }
    }

    /// Follows up an input: advances confirmations, hands out messages, switches to a parked producer, and ends if due.
    fn follow_up(&mut self, now: Instant, watermarks: &mut Watermarks, out: &mut Vec<Effect<P>>) {
        self.advance(now, watermarks, out);
        self.deliver(now, watermarks, out);
        self.unpark(now, watermarks, out);
        let ends = match self.life {
            Life::Running | Life::Stopped => false,
            Life::Draining => self.deliveries.is_empty() && !self.arrivals.is_next_here(),
            Life::Finishing => !self.deliveries.has_in_hand(),
        };
        if ends {
            self.stop(self.life == Life::Finishing, out);
        }
    }

    fn on_tick(&mut self, now: Instant, watermarks: &mut Watermarks, out: &mut Vec<Effect<P>>) {
        self.redeliver_due(now, watermarks, out);
        if self.life == Life::Stopped {
            return;
        }
        self.report_overdue(now, out);
        if self.answers.is_ack_due(now) {
            self.send_ack(out);
        }
        if self.answers.is_retry_due(now) {
            self.retry(now, out);
        }
    }

    /// C11: repeats a message to the producer while the producer is silent. Any message may be lost, so every state in
    /// which the consumer waits has one to repeat: a registration, a resend request for a gap, a confirmation, a grant.
    /// The interval grows, and every frame of the current producer resets it, so a busy link never ticks.
    fn retry(&mut self, now: Instant, out: &mut Vec<Effect<P>>) {
        let idle = self.deliveries.is_empty();
        let registering = self.senders.registering().cloned();
        let quiet = !self.settings.retries_forever && !self.settings.only_flow_control && registering.is_none();
        if let Some(to) = registering {
            out.push(Effect::Reply { to, epoch: None, message: Upstream::RegisterConsumer });
        } else if let Some((from, to)) = self.arrivals.lowest_gap() {
            self.ask_again(from, to, out);
        } else if !idle {
            // A lost ack would otherwise block its sender until the next message is processed.
            self.send_ack(out);
        } else {
            if self.settings.only_flow_control {
                self.requested = self.requested.max(self.arrivals.received() + (self.window.size() / 2).max(1));
            }
            self.reply(self.request(true), out);
            self.answers.ack_sent();
        }
        if idle {
            self.shrink();
        }
        self.answers.repeated(now, quiet && idle, &self.settings);
    }

    /// Frees memory that only a busy link needs; most links of an entity are idle most of the time.
    fn shrink(&mut self) {
        self.arrivals.shrink();
        self.deliveries.shrink();
    }

    /// Whether the application may get one more delivery.
    fn has_room(&self) -> bool {
        self.deliveries.unconfirmed() < self.settings.max_outstanding_deliveries.max(1)
    }

    /// C15: every stop reports the confirmed prefix. If another consumer is to take over the rest (`hands_over`), the
    /// producer is also told to start over, instead of finding out by its idle probe.
    fn stop(&mut self, hands_over: bool, out: &mut Vec<Effect<P>>) {
        self.life = Life::Stopped;
        self.deliveries.stop();
        self.reply(Upstream::Ack { confirmed: self.confirmed, up_to: self.confirmed + 1 }, out);
        if hands_over && (self.is_busy() || !self.arrivals.is_empty()) {
            self.reply(Upstream::Resend { from: 0, to: 0 }, out);
        }
        out.push(Effect::Stopped);
    }

    fn reply(&self, message: Upstream, out: &mut Vec<Effect<P>>) {
        if let Some(producer) = self.senders.current() {
            let (to, epoch) = (producer.sender.controller.clone(), Some(producer.sender.epoch));
            out.push(Effect::Reply { to, epoch, message });
        }
    }

    /// Requests missing frames again; `to` 0 means all frames from `from` on.
    fn ask_again(&self, from: u64, to: u64, out: &mut Vec<Effect<P>>) {
        if !self.omits(Clause::Resend) {
            self.reply(Upstream::Resend { from, to }, out);
        }
    }

    fn omits(&self, clause: Clause) -> bool {
        self.settings.omissions.has(clause)
    }

    fn request(&self, via_timeout: bool) -> Upstream {
        Upstream::Request {
            confirmed: self.confirmed,
            up_to: self.requested.max(self.confirmed + 1),
            support_resend: !self.settings.only_flow_control,
            via_timeout,
        }
    }

    /// Sends a request, which restarts the retry timer (C9), except for one that is due earlier for missing frames.
    fn send_request(&mut self, now: Instant, out: &mut Vec<Effect<P>>) {
        self.reply(self.request(false), out);
        self.window.granted(self.requested);
        self.answers.requested(now, self.arrivals.misses_frames());
    }

    fn send_ack(&mut self, out: &mut Vec<Effect<P>>) {
        let up_to = self.requested.max(self.confirmed + 1);
        self.reply(Upstream::Ack { confirmed: self.confirmed, up_to }, out);
        self.answers.ack_sent();
    }

    fn check_invariants(&self) {
        self.arrivals.check_invariants(self.window.largest());
        self.deliveries.check_invariants();
        debug_assert!(self.deliveries.unconfirmed() <= self.settings.max_outstanding_deliveries.max(1));
    }
}

/// `now` plus the pause, cut to [`NEVER`].
fn later(now: Instant, pause: Duration) -> Instant {
    now.checked_add(pause.min(NEVER)).unwrap_or(now)
}
