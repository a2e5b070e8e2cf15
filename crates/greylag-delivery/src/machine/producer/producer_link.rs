//! The producer's side of one link: numbers frames, keeps them until they are confirmed, and transmits up to the
//! consumer's grant.
//!
//! One *cursor* runs over the held frames. Sending, resending, going back and starting over all set the cursor and then
//! pump frames up to the grant, so none of them can flood a consumer. Two timed repeats keep a link alive when messages
//! are lost: the first frame of an association is repeated until it is answered (P8), and the head is sent again when a
//! link with unconfirmed frames falls silent (P9).
//!
//! ```text
//! Accept ─▶ [confirmed+1 .. cursor-1 transmitted][cursor .. next_seq-1 waiting]   pump while cursor <= granted
//! ```
//!
//! Source: delivery §1.2, P1 to P12, P14.

mod cursor;
mod held;
mod peers;
mod protocol;
mod repeats;

use std::time::Instant;

use crate::ids::{ControllerRef, Epoch, NUMBER_LIMIT, SeqNr, StreamId};
use crate::machine::omissions::{Clause, Omissions};
use crate::message::Upstream;
use cursor::Cursor;
use held::Held;
use peers::Peers;
use repeats::Repeats;

pub use crate::message::Frames;
pub use protocol::{Effect, Input, LinkMode, ProducerLinkSettings};

/// The machine. See the module's documentation.
#[derive(Debug, Clone)]
pub struct ProducerLink<P> {
    mode: LinkMode,
    stream_id: StreamId,
    epoch: Epoch,
    held: Held<P>,
    cursor: Cursor,
    confirmed: u64,
    support_resend: bool,
    peers: Peers,
    repeats: Repeats,
    fenced: bool,
    demand: u64,
    violations: u64,
    omissions: Omissions,
}

impl<P: Clone> ProducerLink<P> {
    /// A new link. It may transmit one frame without a grant, which wakes a sharded consumer (P1).
    pub fn new(settings: ProducerLinkSettings, now: Instant) -> Self {
        let ProducerLinkSettings { mode, stream_id, epoch, .. } = settings;
        let ProducerLinkSettings { resend_first_interval, resend_first_unconfirmed_idle_timeout, omissions, .. } =
            settings;
        Self {
            mode,
            stream_id,
            epoch,
            held: Held::new(),
            cursor: Cursor::new(),
            confirmed: 0,
            support_resend: true,
            peers: Peers::default(),
            repeats: Repeats::new(resend_first_interval, resend_first_unconfirmed_idle_timeout, now),
            fenced: false,
            demand: 1,
            violations: 0,
            omissions,
        }
    }

    /// Handles one input. Invalid messages are dropped and counted.
    pub fn handle(&mut self, now: Instant, input: Input<P>, out: &mut Vec<Effect<P>>) {
        if self.fenced {
            return;
        }
        match input {
            Input::Accept { total, frames, ack } => self.on_accept(now, total, frames, ack, out),
            Input::Received { from, epoch, message } => self.on_received(now, from, epoch, message, out),
            Input::Reassociate => {
                self.peers.displace();
                // A copy of the first frame waits for a route, and will reach the present consumer in any case.
                if !(self.repeats.waits_in_buffer() && self.cursor.is_first(self.held.base())) {
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

    /// The next time at which a tick has an effect.
    ///
    /// A link with unconfirmed frames has a deadline, unless its controller holds it. The deadline is far away while a
    /// copy of the head waits in the region's buffer for a route.
    pub fn next_deadline(&self) -> Option<Instant> {
        if self.held.is_empty() || self.fenced || !self.is_attached() {
            return None;
        }
        if self.omissions.has(Clause::Repeats) {
            return self.repeats.refused_until();
        }
        self.repeats.deadline(self.cursor.is_first(self.held.base()))
    }

    /// Number of frames that could be accepted and transmitted at once (P11).
    pub fn demand(&self) -> u64 {
        if self.cursor.next() < self.held.next_seq() || self.fenced || !self.is_attached() || self.repeats.is_held() {
            return 0;
        }
        self.cursor.granted_from(self.held.next_seq())
    }

    /// Whether every accepted message is confirmed.
    pub fn is_settled(&self) -> bool {
        self.held.is_settled()
    }

    /// The link number that the next accepted frame gets.
    pub fn next_seq(&self) -> u64 {
        self.held.next_seq()
    }

    /// The consumer controller that attached last; if none did, the one from which the last message came.
    pub fn consumer(&self) -> Option<&ControllerRef> {
        self.peers.last_known()
    }

    /// The attached consumer controller, unless it is known to be gone.
    pub fn attached(&self) -> Option<&ControllerRef> {
        self.peers.present()
    }

    /// The contents of the held frames, in order.
    pub fn frames(&self) -> impl Iterator<Item = &P> {
        self.held.frames()
    }

    /// The messages whose frames are all held, in order, each with the flag that its sender waits: the messages for a
    /// link that replaces this one (K7).
    pub fn into_messages(self) -> Vec<(SeqNr, Frames<P>, bool)> {
        self.held.into_messages()
    }

    /// Whether the attached consumer left two repeats in a row unanswered (P5a, W6).
    pub fn is_silent(&self) -> bool {
        self.repeats.are_unanswered()
    }

    /// Number of received messages with numbers that were never assigned: confirmations of frames not sent, and invalid
    /// epochs.
    pub fn violations(&self) -> u64 {
        self.violations
    }

    /// Totals of the unconfirmed messages, in order.
    pub fn unconfirmed(&self) -> impl Iterator<Item = SeqNr> + '_ {
        self.held.unconfirmed()
    }

    fn is_attached(&self) -> bool {
        self.mode == LinkMode::Sharding || self.peers.has_present()
    }

    fn on_accept(&mut self, now: Instant, total: SeqNr, frames: Frames<P>, ack: bool, out: &mut Vec<Effect<P>>) {
        // The first message on an idle link requests its confirmation, since no earlier message's confirmation will
        // include it.
        let ack = ack || self.is_settled();
        self.held.append(total, frames, ack);
        self.pump(now, out);
    }

    /// P3: transmits frames up to the grant. Only repeats of transmitted frames (P8, P9, and P7 with an end) bypass
    /// this gate.
    fn pump(&mut self, now: Instant, out: &mut Vec<Effect<P>>) {
        if !self.is_attached() || !self.repeats.is_free() {
            return;
        }
        while self.cursor.next() < self.held.next_seq() && self.cursor.is_granted() {
            self.transmit(now, self.cursor.next(), out);
            self.cursor.advance();
            if !self.support_resend {
                self.held.release_below(self.cursor.next());
            }
        }
    }

    fn transmit(&mut self, now: Instant, seq_nr: u64, out: &mut Vec<Effect<P>>) {
        if !self.repeats.is_free() {
            return;
        }
        let Some(frame) = self.held.get(seq_nr) else { return };
        let again = self.cursor.note_transmitted(seq_nr);
        let lowest = if self.support_resend { self.held.base() } else { 0 };
        out.push(Effect::Transmit { frame: frame.clone(), first: self.cursor.is_first(seq_nr), lowest, again });
        self.repeats.transmitted(now, seq_nr == self.held.base());
    }

    fn hold(&mut self, now: Instant, held: bool, out: &mut Vec<Effect<P>>) {
        let was_held = self.repeats.is_held();
        self.repeats.hold(held);
        if was_held && !held {
            if self.cursor.next() > self.held.base() {
                self.transmit(now, self.held.base(), out);
            }
            self.pump(now, out);
        }
    }

    /// Moves the cursor back over refused frames that were transmitted last. Other refused frames were repeats, which
    /// the protocol repeats anyway.
    fn on_refused(&mut self, now: Instant, from: u64, to: u64) {
        if to.checked_add(1) == Some(self.cursor.next()) && self.support_resend {
            self.cursor.go_back_to(from, self.held.base());
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
            return self.on_other_consumer(now, from, same_epoch, message, out);
        }
        if !same_epoch {
            return;
        }
        self.attach(&from, &message);
        self.note_consumer_message(now, &from);
        match message {
            Upstream::Request { confirmed, up_to, support_resend, via_timeout } => {
                self.on_request(now, confirmed, up_to, support_resend, via_timeout, out);
            }
            Upstream::Ack { confirmed, up_to } => {
                if self.confirm(confirmed, out) {
                    self.cursor.grant(confirmed, up_to);
                    self.pump(now, out);
                }
            }
            Upstream::Resend { from: 0, .. } => self.reassociate(now, out),
            Upstream::Resend { from, to } => self.on_resend(now, from, to, out),
            Upstream::RegisterConsumer | Upstream::Fenced { .. } => {}
        }
    }

    /// Sharding: the consumer that attached last is the present one.
    fn attach(&mut self, from: &ControllerRef, message: &Upstream) {
        let attaches = matches!(
            message,
            Upstream::Request { confirmed: 0, via_timeout: false, .. } | Upstream::Resend { from: 0, .. }
        );
        if self.mode == LinkMode::Sharding && attaches {
            self.peers.attach(from);
        }
    }

    fn note_consumer_message(&mut self, now: Instant, from: &ControllerRef) {
        let (is_present, is_known) = self.peers.on_message(from, self.repeats.are_unanswered());
        self.repeats.on_consumer_message(now, is_present, is_known);
    }

    /// P5a: handles a message of a consumer that is not the registered one, and may have been displaced by a late
    /// registration.
    fn on_other_consumer(
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
            self.cursor.grant(confirmed, 0);
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

    /// Handles a request (P5).
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
            // Every granted frame was lost, and this consumer does not request resends: grant the same number again.
            up_to = self.held.next_seq().saturating_add(up_to.saturating_sub(confirmed));
        }
        self.cursor.grant(confirmed, up_to);
        self.set_support_resend(support_resend);
        if via_timeout && support_resend {
            self.cursor.go_back_to(self.held.base(), self.held.base());
        }
        if via_timeout {
            // The consumer has heard nothing for a while, so the link is idle, like most links most of the time.
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
        self.cursor.skip_to(self.confirmed + 1);
        out.extend(total.map(Effect::ConfirmedUpTo));
        true
    }

    fn set_support_resend(&mut self, support_resend: bool) {
        if self.support_resend && !support_resend {
            self.held.release_below(self.cursor.next());
        }
        self.support_resend = support_resend;
    }

    /// Handles a resend request (P7), except a start-over.
    fn on_resend(&mut self, now: Instant, from: u64, to: u64, out: &mut Vec<Effect<P>>) {
        if to == 0 {
            self.cursor.go_back_to(from, self.held.base());
            self.pump(now, out);
        } else {
            let head = self.held.base();
            // Frames below the head are confirmed, perhaps by another consumer than the one that requests them. Sending
            // the head tells the consumer so by the header's `lowest`; the idle probe might never do so, since each of
            // the consumer's requests postpones it.
            let end = to.max(head).min(self.cursor.next().saturating_sub(1));
            for seq_nr in from.max(head)..=end {
                self.transmit(now, seq_nr, out);
            }
        }
    }

    /// Starts over with the present consumer (P10).
    fn reassociate(&mut self, now: Instant, out: &mut Vec<Effect<P>>) {
        self.cursor.start_over(self.held.base());
        self.repeats.started_over();
        // Assume that the consumer requests resends until its first message tells. Until then the first frame is held
        // and repeated, since only that frame announces this link.
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
        self.cursor.check_invariants(&(self.held.base()..=self.held.next_seq()), self.confirmed);
    }
}
