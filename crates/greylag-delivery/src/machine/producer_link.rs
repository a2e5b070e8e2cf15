//! The producer's side of one link: numbers frames, keeps them until they are confirmed, and
//! transmits as far as the consumer has granted.
//!
//! One *cursor* runs over the frames that are still held. Sending, resending, going back and starting
//! over are all the cursor put somewhere and pumped as far as the grant allows, so none of them can
//! flood a consumer. Two timed repeats keep a link alive when messages are lost: the first frame of an
//! association is repeated until it is answered (P8), and the head is shown again when a link with
//! unconfirmed frames falls silent (P9).
//!
//! ```text
//! Accept ─▶ [confirmed+1 .. cursor-1 transmitted][cursor .. next_seq-1 waiting]   pump while cursor <= granted
//! ```
//!
//! Source: delivery §1.2, P1 to P12, P14.

mod held;
mod peers;
mod repeats;

use std::time::{Duration, Instant};

use crate::ids::{ControllerRef, Epoch, NUMBER_LIMIT, SeqNr, StreamId};
use crate::message::{Frame, Upstream};
use crate::sabotage::Sabotage;
use held::Held;
use peers::Peers;
use repeats::Repeats;

/// What is at the other end of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinkMode {
    /// One registered consumer controller (P5a guards against a late registration).
    PointToPoint,
    /// Whichever incarnation the region routes to; no registration is needed.
    Sharding,
}

/// What a link needs to know when it is made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProducerLinkSettings {
    /// What is at the other end.
    pub mode: LinkMode,
    /// The stream whose messages it carries; only a fence for this one counts.
    pub stream_id: StreamId,
    /// The epoch it speaks under; answers to another one are dropped.
    pub epoch: Epoch,
    /// Pace of P8 until anything is heard.
    pub resend_first_interval: Duration,
    /// Pace of P8 afterwards, and the silence after which P9 probes.
    pub resend_first_unconfirmed_idle_timeout: Duration,
}

/// The pieces of one message, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Frames<P> {
    /// The message is one frame.
    Whole(P),
    /// The message is cut into these; at least one.
    Chunks(Vec<P>),
}

/// An input to the producer's side of a link: accepted messages, answers of the consumer controller, and that time
/// passed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Input<P> {
    /// A message was accepted; its total is above every earlier one of this link.
    Accept {
        /// Its number in the stream.
        total: SeqNr,
        /// Its pieces.
        frames: Frames<P>,
        /// The sender waits for its confirmation.
        ack: bool,
    },
    /// A consumer controller spoke.
    Received {
        /// The consumer controller.
        from: ControllerRef,
        /// The epoch it answered; `None` in a registration.
        epoch: Option<Epoch>,
        /// What it said.
        message: Upstream,
    },
    /// The consumer is known to be gone or elsewhere: start over with the consumer that is there now (P10).
    Reassociate,
    /// Whether frames leave for the consumer's node at present, or wait in the region's buffer.
    RouteChanged(bool),
    /// The queue of the producer was opened anew, under this epoch: the link speaks under this epoch, and starts over
    /// with the consumer that it has (P10). Its numbers go on.
    NewEpoch(Epoch),
    /// The controller holds the link: it transmits nothing and has no deadline, until it is let go. It then shows its
    /// head. Source: delivery S8.
    Hold(bool),
    /// The lane or an inbox had no room for these frames: they are transmitted again soon.
    Refused {
        /// The first of them.
        from: u64,
        /// The last of them.
        to: u64,
    },
    /// No copy of the head lies in the region's buffer: it was not taken, or was dropped there. Source: delivery S7.
    NotBuffered,
    /// A deadline may have passed.
    Tick,
}

/// What a link asks for, in this order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect<P> {
    /// Send a frame.
    Transmit {
        /// The frame.
        frame: Frame<P>,
        /// A consumer may attach with it.
        first: bool,
        /// For the batch header.
        lowest: u64,
        /// The frame was transmitted before.
        again: bool,
    },
    /// Every message up to this total is confirmed.
    ConfirmedUpTo(SeqNr),
    /// So many frames may be accepted and would be transmitted at once.
    DemandChanged(u64),
    /// The stream has a newer incarnation; nothing is transmitted any more.
    Fenced {
        /// Its epoch.
        newer: Epoch,
    },
}

/// The machine. See the module's documentation.
#[derive(Debug, Clone)]
pub struct ProducerLink<P> {
    mode: LinkMode,
    stream_id: StreamId,
    epoch: Epoch,
    held: Held<P>,
    cursor: u64,
    granted: u64,
    first_seq: u64,
    confirmed: u64,
    support_resend: bool,
    peers: Peers,
    repeats: Repeats,
    fenced: bool,
    highest_transmitted: u64,
    demand: u64,
    violations: u64,
    sabotage: Option<Sabotage>,
}

impl<P: Clone> ProducerLink<P> {
    /// A link that may transmit one frame unasked, which is what wakes a sharded consumer (P1).
    pub fn new(settings: ProducerLinkSettings, now: Instant) -> Self {
        let ProducerLinkSettings { mode, stream_id, epoch, .. } = settings;
        let ProducerLinkSettings { resend_first_interval, resend_first_unconfirmed_idle_timeout, .. } = settings;
        Self {
            mode,
            stream_id,
            epoch,
            held: Held::new(),
            cursor: 1,
            granted: 1,
            first_seq: 1,
            confirmed: 0,
            support_resend: true,
            peers: Peers::default(),
            repeats: Repeats::new(resend_first_interval, resend_first_unconfirmed_idle_timeout, now),
            fenced: false,
            highest_transmitted: 0,
            demand: 1,
            violations: 0,
            sabotage: None,
        }
    }

    /// For simulations: a link without a clause, to see that the checkers notice.
    #[doc(hidden)]
    #[must_use]
    pub fn sabotaged(mut self, without: Option<Sabotage>) -> Self {
        self.sabotage = without;
        self
    }

    /// Takes one input. A message that makes no sense here is dropped and counted.
    pub fn handle(&mut self, now: Instant, input: Input<P>, out: &mut Vec<Effect<P>>) {
        if self.fenced {
            return;
        }
        match input {
            Input::Accept { total, frames, ack } => self.on_accept(now, total, frames, ack, out),
            Input::Received { from, epoch, message } => self.on_received(now, from, epoch, message, out),
            Input::Reassociate => {
                self.peers.displace();
                // A copy of the first frame that waits for a route will reach whoever is there then.
                if !(self.repeats.waits_in_buffer() && self.held.base() == self.first_seq) {
                    self.reassociate(now, out);
                }
            }
            Input::RouteChanged(routed) => self.repeats.route_changed(now, routed),
            Input::Hold(held) => self.hold(now, held, out),
            Input::Refused { from, to } => self.on_refused(now, from, to),
            Input::NotBuffered => self.repeats.not_buffered(),
            Input::NewEpoch(epoch) => {
                self.epoch = epoch;
                self.reassociate(now, out);
            }
            Input::Tick => self.on_tick(now, out),
        }
        self.report_demand(out);
        self.check_invariants();
    }

    /// When a tick next has work to do.
    ///
    /// A link with unconfirmed frames has a deadline, unless its controller holds it. It is far away while a copy of its
    /// head waits in the region's buffer for a route.
    pub fn next_deadline(&self) -> Option<Instant> {
        if self.held.is_empty() || self.fenced || !self.is_attached() {
            return None;
        }
        if !Sabotage::leaves_repeats(self.sabotage) {
            return self.repeats.refused_until();
        }
        self.repeats.deadline(self.held.base() == self.first_seq)
    }

    /// How many frames may be accepted now and leave at once (P11).
    pub fn demand(&self) -> u64 {
        if self.cursor < self.held.next_seq() || self.fenced || !self.is_attached() || self.repeats.is_held() {
            return 0;
        }
        self.granted.saturating_add(1).saturating_sub(self.held.next_seq())
    }

    /// Whether every accepted message is confirmed.
    pub fn is_settled(&self) -> bool {
        self.held.is_settled()
    }

    /// The link number that the next accepted frame gets.
    pub fn next_seq(&self) -> u64 {
        self.held.next_seq()
    }

    /// The consumer controller that attached last; if none did, the one that spoke last.
    pub fn consumer(&self) -> Option<&ControllerRef> {
        self.peers.last_known()
    }

    /// The consumer controller that is present, if one has attached since the last one was known to be gone.
    pub fn attached(&self) -> Option<&ControllerRef> {
        self.peers.present()
    }

    /// The contents of the frames that are held, in order.
    pub fn frames(&self) -> impl Iterator<Item = &P> {
        self.held.frames()
    }

    /// The messages whose frames are all held, in order, each with whether its sender waits: what a link that takes the place
    /// of this one is to send (K7).
    pub fn into_messages(self) -> Vec<(SeqNr, Frames<P>, bool)> {
        self.held.into_messages()
    }

    /// Whether the present consumer left two repeats in a row unanswered (P5a, W6).
    pub fn is_silent(&self) -> bool {
        self.repeats.are_unanswered()
    }

    /// Messages with numbers that were never given: confirmations of frames that were not sent, and epochs of no queue.
    pub fn violations(&self) -> u64 {
        self.violations
    }

    /// Totals of the messages that are not confirmed, in order.
    pub fn unconfirmed(&self) -> impl Iterator<Item = SeqNr> + '_ {
        self.held.unconfirmed()
    }

    fn is_attached(&self) -> bool {
        self.mode == LinkMode::Sharding || self.peers.has_present()
    }

    fn on_accept(&mut self, now: Instant, total: SeqNr, frames: Frames<P>, ack: bool, out: &mut Vec<Effect<P>>) {
        // The first message on an idle link asks for its confirmation: nothing that was sent before brings it along.
        let ack = ack || self.is_settled();
        self.held.append(total, frames, ack);
        self.pump(now, out);
    }

    /// P3: the one gate that every transmission but P8 and P9 passes.
    fn pump(&mut self, now: Instant, out: &mut Vec<Effect<P>>) {
        if !self.is_attached() || !self.repeats.is_free() {
            return;
        }
        while self.cursor < self.held.next_seq() && self.cursor <= self.granted {
            self.transmit(now, self.cursor, out);
            self.cursor += 1;
            if !self.support_resend {
                self.held.release_below(self.cursor);
            }
        }
    }

    fn transmit(&mut self, now: Instant, seq_nr: u64, out: &mut Vec<Effect<P>>) {
        if !self.repeats.is_free() {
            return;
        }
        let Some(frame) = self.held.get(seq_nr) else { return };
        let again = seq_nr <= self.highest_transmitted;
        let lowest = if self.support_resend { self.held.base() } else { 0 };
        out.push(Effect::Transmit { frame: frame.clone(), first: seq_nr == self.first_seq, lowest, again });
        self.highest_transmitted = self.highest_transmitted.max(seq_nr);
        self.repeats.transmitted(now, seq_nr == self.held.base());
    }

    fn hold(&mut self, now: Instant, held: bool, out: &mut Vec<Effect<P>>) {
        let was_held = self.repeats.is_held();
        self.repeats.hold(held);
        if was_held && !held {
            if self.cursor > self.held.base() {
                self.transmit(now, self.held.base(), out);
            }
            self.pump(now, out);
        }
    }

    /// Frames that were transmitted last go back behind the gate. Others are repeats, which come again by themselves.
    fn on_refused(&mut self, now: Instant, from: u64, to: u64) {
        if to.checked_add(1) == Some(self.cursor) && self.support_resend {
            self.cursor = self.held.base().max(self.cursor.min(from));
        }
        self.repeats.refused(now, from);
    }

    fn on_received(
        &mut self,
        now: Instant,
        from: ControllerRef,
        epoch: Option<Epoch>,
        message: Upstream,
        out: &mut Vec<Effect<P>>,
    ) {
        match message {
            Upstream::Fenced { stream_id, newer } => return self.on_fenced(stream_id, newer, out),
            Upstream::RegisterConsumer => return self.on_register(now, from, out),
            _ => {}
        }
        let same_epoch = epoch == Some(self.epoch);
        if self.mode == LinkMode::PointToPoint && !self.peers.is_present(&from) {
            return self.on_stranger(now, from, same_epoch, message, out);
        }
        if !same_epoch {
            return;
        }
        self.attach(&from, &message);
        self.note_heard(now, &from);
        match message {
            Upstream::Request { confirmed, up_to, support_resend, via_timeout } => {
                self.on_request(now, confirmed, up_to, support_resend, via_timeout, out);
            }
            Upstream::Ack { confirmed, up_to } => {
                if self.confirm(confirmed, out) {
                    self.grant(confirmed, up_to);
                    self.pump(now, out);
                }
            }
            Upstream::Resend { from: 0, .. } => self.reassociate(now, out),
            Upstream::Resend { from, to } => self.on_resend(now, from, to, out),
            Upstream::RegisterConsumer | Upstream::Fenced { .. } => {}
        }
    }

    /// In sharding the present consumer is the one that attached last.
    fn attach(&mut self, from: &ControllerRef, message: &Upstream) {
        let attaches = matches!(
            message,
            Upstream::Request { confirmed: 0, via_timeout: false, .. } | Upstream::Resend { from: 0, .. }
        );
        if self.mode == LinkMode::Sharding && attaches {
            self.peers.attach(from);
        }
    }

    fn note_heard(&mut self, now: Instant, from: &ControllerRef) {
        let (is_present, is_known) = self.peers.heard(from, self.repeats.are_unanswered());
        self.repeats.heard(now, is_present, is_known);
    }

    /// P5a: a consumer that is not the registered one, perhaps one that a late registration displaced.
    fn on_stranger(
        &mut self,
        now: Instant,
        from: ControllerRef,
        same_epoch: bool,
        message: Upstream,
        out: &mut Vec<Effect<P>>,
    ) {
        if let (true, Upstream::Request { confirmed, .. } | Upstream::Ack { confirmed, .. }) = (same_epoch, message)
            && self.confirm(confirmed, out)
        {
            self.grant(confirmed, 0);
            self.pump(now, out);
        }
        if self.repeats.are_unanswered() {
            self.peers.register(from);
            self.reassociate(now, out);
        }
    }

    fn on_register(&mut self, now: Instant, from: ControllerRef, out: &mut Vec<Effect<P>>) {
        if self.mode == LinkMode::Sharding {
            return;
        }
        if self.peers.is_present(&from) {
            self.transmit(now, self.held.base(), out);
        } else {
            self.peers.register(from);
            self.reassociate(now, out);
        }
    }

    fn on_fenced(&mut self, stream_id: StreamId, newer: Epoch, out: &mut Vec<Effect<P>>) {
        if newer.0 >= NUMBER_LIMIT {
            self.violations += 1;
        } else if stream_id == self.stream_id && newer > self.epoch {
            self.fenced = true;
            out.push(Effect::Fenced { newer });
        }
    }

    /// P5.
    fn on_request(
        &mut self,
        now: Instant,
        confirmed: u64,
        up_to: u64,
        support_resend: bool,
        via_timeout: bool,
        out: &mut Vec<Effect<P>>,
    ) {
        if !self.confirm(confirmed, out) {
            return;
        }
        let mut up_to = up_to;
        if !support_resend && up_to <= self.held.next_seq() {
            // Everything granted was lost, and this consumer asks for no repeats: grant as much anew.
            up_to = self.held.next_seq().saturating_add(up_to.saturating_sub(confirmed));
        }
        self.grant(confirmed, up_to);
        self.set_support_resend(support_resend);
        if via_timeout && support_resend {
            self.cursor = self.held.base();
        }
        if via_timeout {
            // The consumer has heard nothing for a while. Most links are idle for most of the time.
            self.held.shrink();
        }
        self.pump(now, out);
    }

    /// Drops confirmed frames; false if the confirmation is for a frame that does not exist.
    fn confirm(&mut self, confirmed: u64, out: &mut Vec<Effect<P>>) -> bool {
        if confirmed >= self.held.next_seq() {
            self.violations += 1;
            return false;
        }
        let total = self.held.confirm(confirmed);
        self.confirmed = self.confirmed.max(confirmed);
        self.cursor = self.cursor.max(self.confirmed + 1);
        out.extend(total.map(Effect::ConfirmedUpTo));
        true
    }

    fn grant(&mut self, confirmed: u64, up_to: u64) {
        // No confirmation can leave a producer without a next step, whatever a peer writes.
        let up_to = up_to.max(confirmed + 1).min(u64::MAX - 1);
        self.granted = self.granted.max(up_to);
    }

    fn set_support_resend(&mut self, support_resend: bool) {
        if self.support_resend && !support_resend {
            self.held.release_below(self.cursor);
        }
        self.support_resend = support_resend;
    }

    /// P7, but for a start-over.
    fn on_resend(&mut self, now: Instant, from: u64, to: u64, out: &mut Vec<Effect<P>>) {
        if to == 0 {
            self.cursor = self.held.base().max(self.cursor.min(from));
            self.pump(now, out);
        } else {
            let head = self.held.base();
            // Frames below the head are confirmed, perhaps by another consumer than the one that misses them: the head's `lowest`
            // tells it so. Its questions put the idle probe off, so that nothing else might.
            let end = to.max(head).min(self.cursor.saturating_sub(1));
            for seq_nr in from.max(head)..=end {
                self.transmit(now, seq_nr, out);
            }
        }
    }

    /// P10.
    fn reassociate(&mut self, now: Instant, out: &mut Vec<Effect<P>>) {
        let head = self.held.base();
        self.first_seq = head;
        self.granted = head;
        self.cursor = head;
        self.repeats.started_over();
        // Whether the consumer now there asks for lost frames is not known before it speaks. Until then
        // the first frame is kept to be repeated: nothing else would ever tell it of this link.
        self.support_resend = true;
        self.pump(now, out);
    }

    fn on_tick(&mut self, now: Instant, out: &mut Vec<Effect<P>>) {
        if self.repeats.end_of_pause(now) {
            self.pump(now, out);
        }
        if self.next_deadline().is_some_and(|deadline| deadline <= now) {
            self.repeats.repeated();
            self.transmit(now, self.held.base(), out);
        }
    }

    fn report_demand(&mut self, out: &mut Vec<Effect<P>>) {
        let demand = self.demand();
        if demand != self.demand {
            self.demand = demand;
            out.push(Effect::DemandChanged(demand));
        }
    }

    fn check_invariants(&self) {
        self.held.check_invariants();
        debug_assert!(self.confirmed < self.held.next_seq());
        debug_assert!(self.cursor >= self.held.base() && self.cursor <= self.held.next_seq());
        debug_assert!(self.granted > self.confirmed, "a producer always has a next step");
    }
}
