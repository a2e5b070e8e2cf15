//! The producer controller of a point-to-point producer: admits messages on demand of its consumer, has them stored,
//! and sends them over one link.
//!
//! The controller starts once it has a producer, a consumer, and its queue if there is one, in any order. From then on
//! a message is admitted while the consumer has granted room for it and no admitted message still waits (P11). A sender
//! may reserve room first, as a *permit*, and decide on its message later.
//!
//! ```text
//! Admit ─▶ [waiting, first come first served] ─▶ demand? ─▶ Storing ─▶ Released ─▶ link ─▶ Transmit
//! Reserve ─▶ [waiting] ─▶ demand? ─▶ permit ─▶ Use ─────────▲
//! ```
//!
//! Source: delivery §1.2, P1, P2, P11 to P15, D8, D9.

mod life;
mod unconfirmed;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::admission::{Admission, Waiter};
use crate::ids::{ControllerRef, Epoch, ProducerId, SeqNr, StreamId};
use crate::machine::controller::{Controller, ControllerStats, Effect, Failure, Input, Message, Refusal};
use crate::machine::omissions::Omissions;
use crate::machine::producer_link::{self, Frames, LinkMode, ProducerLink, ProducerLinkSettings};
use crate::machine::storing::{self, Storing, StoringState, Unstored};
use crate::message::{BatchHeader, SequencedMessage, Upstream, UpstreamMessage};
use crate::queue::{Confirmation, QueueState, TimestampMillis};
use unconfirmed::{Sent, Unconfirmed};

/// Settings of the controller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PointToPointSettings {
    /// The logical producer.
    pub producer_id: ProducerId,
    /// The controller's own reference: consumers register here, and answer to it.
    pub controller: ControllerRef,
    /// Stream and epoch of a producer that stores nothing; a durable producer takes both from its queue.
    pub stream: Option<(StreamId, Epoch)>,
    /// Interval of P8 until the first answer.
    pub resend_first_interval: Duration,
    /// Interval of P8 afterwards, and the silence after which P9 probes.
    pub resend_first_unconfirmed_idle_timeout: Duration,
    /// The wall clock at the creation of the controller, and the instant of that time.
    pub clock: (TimestampMillis, Instant),
    /// Clauses to omit, in simulations.
    #[doc(hidden)]
    pub omissions: Omissions,
}

/// Numbers of the messages that are being stored, with the frames of each.
#[derive(Debug, Clone, Default)]
struct InStore {
    messages: BTreeMap<u64, u64>,
    frames: u64,
}

impl InStore {
    fn insert(&mut self, ticket: u64, frames: u64) {
        self.messages.insert(ticket, frames);
        self.frames += frames;
    }

    fn remove(&mut self, ticket: u64) {
        self.frames -= self.messages.remove(&ticket).unwrap_or(0);
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Life {
    Running,
    /// Confirmations are being stored.
    Closing,
    Closed,
}

/// The machine. See the module's documentation.
#[derive(Debug, Clone)]
pub struct PointToPoint<P> {
    settings: PointToPointSettings,
    life: Life,
    /// Stream and epoch, once known.
    stream: Option<(StreamId, Epoch)>,
    link: Option<ProducerLink<P>>,
    /// A consumer that was registered before the link existed.
    consumer: Option<ControllerRef>,
    /// Messages of the loaded queue, until the link exists.
    recovered: Vec<(SeqNr, Frames<P>, bool)>,
    storing: Storing<Frames<P>>,
    admission: Admission<P>,
    in_store: InStore,
    unconfirmed: Unconfirmed,
    confirmed: SeqNr,
    stats: ControllerStats,
    from_link: Vec<producer_link::Effect<P>>,
    from_storing: Vec<storing::Effect<Frames<P>>>,
}

impl<P: Clone> PointToPoint<P> {
    /// A controller without producer and consumer. The effects in `out` must be carried out first: a durable controller
    /// needs its queue's answer as first input.
    pub fn new(
        settings: PointToPointSettings,
        storing: Storing<Frames<P>>,
        now: Instant,
        out: &mut Vec<Effect<P>>,
    ) -> Self {
        let mut machine = Self {
            stream: settings.stream.filter(|_| !storing.is_durable()),
            settings,
            life: Life::Running,
            link: None,
            consumer: None,
            recovered: Vec::new(),
            storing,
            admission: Admission::default(),
            in_store: InStore::default(),
            unconfirmed: Unconfirmed::default(),
            confirmed: SeqNr::NONE,
            stats: ControllerStats::default(),
            from_link: Vec::new(),
            from_storing: Vec::new(),
        };
        machine.store(now, storing::Input::Start, out);
        machine
    }

    fn on_input(&mut self, now: Instant, input: Input<P>, out: &mut Vec<Effect<P>>) {
        match input {
            Input::Start { session } => {
                if self.admission.start(session, out) {
                    self.open_link(now, out);
                }
            }
            Input::RegisterConsumer(consumer) => self.on_register(now, consumer, out),
            Input::Admit { session, ticket, message, waits } => {
                let (waiter, room) = (Waiter { ticket, message: Some(message) }, self.demand());
                self.admission.admit(session, waiter, waits, room, out);
            }
            Input::Reserve { session, ticket } => {
                self.admission.admit(session, Waiter { ticket, message: None }, true, 0, out);
            }
            Input::Use { permit, ticket, message } => {
                if let Some(message) = self.admission.redeem(permit, ticket, message, out) {
                    self.accept(now, ticket, message, out);
                }
            }
            Input::Workers(_) => {}
            Input::Withdraw { ticket } => self.admission.withdraw(ticket),
            Input::Received(message) => self.on_received(now, message, out),
            Input::Answered { call, answer } => self.store(now, storing::Input::Answered { call, answer }, out),
            Input::Close => self.close(now, out),
            Input::Tick => {
                self.store(now, storing::Input::Tick, out);
                self.handle_input(now, producer_link::Input::Tick, out);
            }
        }
        self.admit_waiting(now, out);
    }

    /// Serves waiting senders while there is room.
    fn admit_waiting(&mut self, now: Instant, out: &mut Vec<Effect<P>>) {
        while self.demand() > 0
            && let Some(Waiter { ticket, message }) = self.admission.next()
        {
            match message {
                Some(message) => self.accept(now, ticket, message, out),
                None => {
                    let (current_seq_nr, confirmed_seq_nr) = (self.current_seq_nr(), self.confirmed);
                    out.push(Effect::Permitted { ticket, current_seq_nr, confirmed_seq_nr });
                }
            }
        }
    }

    /// Number of further messages for which the consumer has room (P11). 0 while the queue is not open.
    fn demand(&self) -> u64 {
        if !matches!(self.storing.state(), StoringState::InMemory | StoringState::Open) {
            return 0;
        }
        let granted = self.link.as_ref().map_or(0, ProducerLink::demand);
        granted.saturating_sub(self.in_store.frames).saturating_sub(self.admission.permits())
    }

    fn accept(&mut self, now: Instant, ticket: u64, message: Message<P>, out: &mut Vec<Effect<P>>) {
        let Message { frames, bytes, ack } = message;
        let count = match &frames {
            Frames::Whole(_) => 1,
            Frames::Chunks(chunks) => chunks.len() as u64,
        };
        self.in_store.insert(ticket, count);
        let timestamp_ms = self.timestamp(now);
        let message = Unstored { ticket, qualifier: "".into(), message: frames, bytes, ack, timestamp_ms };
        self.store(now, storing::Input::Accept { message, reserved: None }, out);
    }

    fn on_register(&mut self, now: Instant, consumer: ControllerRef, out: &mut Vec<Effect<P>>) {
        self.consumer = Some(consumer.clone());
        let message = Upstream::RegisterConsumer;
        self.handle_input(now, producer_link::Input::Received { from: consumer, epoch: None, message }, out);
    }

    fn on_received(&mut self, now: Instant, message: UpstreamMessage, out: &mut Vec<Effect<P>>) {
        let UpstreamMessage { from, to, epoch, message } = message;
        if to != self.settings.controller {
            self.stats.ignored += 1;
            return;
        }
        if message == Upstream::RegisterConsumer {
            return self.on_register(now, from, out);
        }
        let asks_for_no_repeats = matches!(message, Upstream::Request { support_resend: false, .. });
        if asks_for_no_repeats && self.storing.is_durable() && self.consumer() == Some(&from) {
            return self.fail(now, Failure::IncompatibleConsumer, out);
        }
        self.handle_input(now, producer_link::Input::Received { from, epoch, message }, out);
    }

    /// Gives the link an input, and carries out its effects. The link's consumer may have changed afterwards.
    fn handle_input(&mut self, now: Instant, input: producer_link::Input<P>, out: &mut Vec<Effect<P>>) {
        let Some(link) = &mut self.link else { return };
        let mut effects = std::mem::take(&mut self.from_link);
        link.handle(now, input, &mut effects);
        for effect in effects.drain(..) {
            match effect {
                producer_link::Effect::Transmit { frame, first, lowest, again } => {
                    self.stats.resent += u64::from(again);
                    self.transmit(SequencedMessage { frame, first }, lowest, out);
                }
                producer_link::Effect::ConfirmedUpTo(total) => self.on_confirmed(now, total, out),
                producer_link::Effect::DemandChanged(_) => {}
                producer_link::Effect::Fenced { newer } => {
                    self.fail(now, Failure::Fenced { newer: Some(newer), by: None }, out);
                }
            }
        }
        self.from_link = effects;
    }

    fn transmit(&self, message: SequencedMessage<P>, lowest: u64, out: &mut Vec<Effect<P>>) {
        let (Some(to), Some((stream_id, epoch))) = (self.consumer(), self.stream) else { return };
        let header = BatchHeader {
            producer_id: self.settings.producer_id.clone(),
            stream_id,
            epoch,
            controller: self.settings.controller.clone(),
            ordered: true,
            lowest,
        };
        out.push(Effect::Transmit { to: to.clone(), header, message });
    }

    fn on_confirmed(&mut self, now: Instant, total: SeqNr, out: &mut Vec<Effect<P>>) {
        let mut messages = 0;
        while let Some(done) = self.unconfirmed.confirm(total) {
            messages += 1;
            self.confirmed = self.confirmed.max(done.total);
            out.extend(done.ticket.map(|ticket| Effect::Confirmed { ticket, total: done.total }));
        }
        self.stats.confirmed += messages as u64;
        if messages > 0 {
            let timestamp_ms = self.timestamp(now);
            let confirmation = Confirmation::UpTo { qualifier: "".into(), seq_nr: total, timestamp_ms };
            self.store(now, storing::Input::Confirm { confirmation, messages }, out);
        }
    }

    fn timestamp(&self, now: Instant) -> TimestampMillis {
        let (ms, at) = self.settings.clock;
        let since = now.saturating_duration_since(at).as_millis();
        ms.saturating_add(u64::try_from(since).unwrap_or(u64::MAX))
    }

    /// Gives the storing machine an input, and carries out its effects.
    fn store(&mut self, now: Instant, input: storing::Input<Frames<P>>, out: &mut Vec<Effect<P>>) {
        let mut effects = std::mem::take(&mut self.from_storing);
        self.storing.handle(now, input, &mut effects);
        // Handle an end first: messages given back are refused because of it.
        let end = effects.iter().position(|effect| matches!(effect, storing::Effect::Ended(_)));
        if let Some(storing::Effect::Ended(end)) = end.map(|index| effects.remove(index)) {
            self.on_storing_ended(end, out);
        }
        for effect in effects.drain(..) {
            match effect {
                storing::Effect::Call { id, call } => out.push(Effect::Call { id, call }),
                storing::Effect::Opened(state) => self.on_opened(now, state, out),
                storing::Effect::Released { ticket, sent } => {
                    self.in_store.remove(ticket);
                    self.stats.sent += 1;
                    self.unconfirmed.add(now, Sent { total: sent.seq_nr, ticket: Some(ticket) });
                    out.push(Effect::Accepted { ticket, total: sent.seq_nr });
                    let (total, frames, ack) = (sent.seq_nr, sent.message, sent.ack);
                    self.handle_input(now, producer_link::Input::Accept { total, frames, ack }, out);
                }
                storing::Effect::Unknown { ticket, seq_nr, .. } => {
                    self.in_store.remove(ticket);
                    out.push(Effect::Unknown { ticket, total: seq_nr });
                }
                storing::Effect::GivenBack(message) => {
                    self.in_store.remove(message.ticket);
                    let why = if self.life == Life::Running { Refusal::Unavailable } else { Refusal::Closed };
                    out.push(Effect::Refused { ticket: message.ticket, frames: Some(message.message), why });
                }
                storing::Effect::Closed => self.on_storing_closed(out),
                storing::Effect::Ended(_) => {}
            }
        }
        self.from_storing = effects;
    }

    fn check_invariants(&self) {
        self.unconfirmed.check_invariants();
        debug_assert!(self.link.is_none() || self.stream.is_some(), "a link has a stream");
        debug_assert!(self.link.is_none() || self.recovered.is_empty(), "a link has what was recovered");
    }
}

impl<P: Clone> Controller<P> for PointToPoint<P> {
    fn handle(&mut self, now: Instant, input: Input<P>, out: &mut Vec<Effect<P>>) {
        match (self.life, input) {
            (Life::Running, input) => self.on_input(now, input, out),
            (Life::Closing, Input::Answered { call, answer }) => {
                self.store(now, storing::Input::Answered { call, answer }, out);
            }
            (Life::Closing, Input::Tick) => self.store(now, storing::Input::Tick, out),
            (_, Input::Admit { ticket, message, .. } | Input::Use { ticket, message, .. }) => {
                out.push(Effect::Refused { ticket, frames: Some(message.frames), why: Refusal::Closed });
            }
            (_, Input::Reserve { ticket, .. }) => {
                out.push(Effect::Refused { ticket, frames: None, why: Refusal::Closed });
            }
            _ => {}
        }
        self.check_invariants();
    }

    fn next_deadline(&self) -> Option<Instant> {
        let link = self.link.as_ref().filter(|_| self.life == Life::Running).and_then(ProducerLink::next_deadline);
        let storing = if self.life == Life::Closed { None } else { self.storing.next_deadline() };
        [link, storing].into_iter().flatten().min()
    }

    fn stats(&self) -> ControllerStats {
        ControllerStats {
            unconfirmed: self.unconfirmed.len() as u64
                + self.recovered.len() as u64
                + self.in_store.messages.len() as u64,
            waiting: self.admission.waiting(),
            permits: self.admission.permits(),
            links_with_demand: u64::from(self.link.as_ref().is_some_and(|link| link.demand() > 0)),
            ignored: self.stats.ignored + self.link.as_ref().map_or(0, ProducerLink::violations),
            ..self.stats
        }
    }

    fn confirmed(&self) -> SeqNr {
        self.confirmed
    }

    fn current_seq_nr(&self) -> SeqNr {
        self.storing.current_seq_nr()
    }

    fn room(&self) -> u64 {
        if self.life == Life::Running && self.admission.waiting() == 0 { self.demand() } else { 0 }
    }

    fn storing_state(&self) -> StoringState {
        self.storing.state()
    }

    fn oldest_unconfirmed(&self) -> Option<Instant> {
        self.unconfirmed.oldest()
    }

    fn has_unconfirmed_recovered(&self) -> bool {
        self.storing.state() == StoringState::Loading
            || !self.recovered.is_empty()
            || self.unconfirmed.has_unconfirmed_recovered()
    }

    fn consumer(&self) -> Option<&ControllerRef> {
        self.link.as_ref().map_or(self.consumer.as_ref(), ProducerLink::consumer)
    }
}

/// A link of the stream, without a consumer.
fn new_link<P: Clone>(settings: &PointToPointSettings, stream: (StreamId, Epoch), now: Instant) -> ProducerLink<P> {
    let (stream_id, epoch) = stream;
    let settings = ProducerLinkSettings {
        mode: LinkMode::PointToPoint,
        stream_id,
        epoch,
        resend_first_interval: settings.resend_first_interval,
        resend_first_unconfirmed_idle_timeout: settings.resend_first_unconfirmed_idle_timeout,
        omissions: settings.omissions,
    };
    ProducerLink::new(settings, now)
}

/// Converts the unconfirmed messages of a loaded queue for the link.
fn to_recover<P>(state: QueueState<Frames<P>>) -> Vec<(SeqNr, Frames<P>, bool)> {
    state.unconfirmed.into_iter().map(|sent| (sent.seq_nr, sent.message, sent.ack)).collect()
}
