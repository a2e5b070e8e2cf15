//! Classifies a frame by its sender: taken, parked, answered, or dropped.
//!
//! The order of the checks in [`ConsumerLink::on_frame`] is part of the protocol. A refused frame changes no state but
//! the list of replaced producers, so a late frame of a dead producer cannot take over a link.
//!
//! Source: delivery C2 to C6, §1.4.

use std::time::Instant;

use super::arrivals::Arrival;
use super::senders::Displaced;
use super::{ConsumerLink, Effect, Life};
use crate::ids::{ControllerRef, Epoch, NUMBER_LIMIT};
use crate::machine::dedupe::Watermarks;
use crate::machine::omissions::Clause;
use crate::message::{BatchHeader, Content, SequencedMessage, Upstream};

impl<P: Content> ConsumerLink<P> {
    /// Handles a frame (C2).
    pub(super) fn on_frame(
        &mut self,
        now: Instant,
        header: &BatchHeader,
        message: SequencedMessage<P>,
        watermarks: &mut Watermarks,
        out: &mut Vec<Effect<P>>,
    ) {
        // Refuse numbers near the end of their range: such an epoch would fence every producer of its stream, such a
        // total every message.
        let numbers = [message.frame.seq_nr, message.frame.total.get(), header.epoch.0];
        if numbers.iter().any(|number| !(1..NUMBER_LIMIT).contains(number)) || header.lowest >= NUMBER_LIMIT {
            self.counters.unexpected += 1;
            return;
        }
        let registering_here = self.senders.registering() == Some(&header.controller);
        let registering_elsewhere = self.senders.registering().is_some() && !registering_here;
        if self.senders.is_current(header) {
            // C2c: a frame of the current producer.
            if !registering_elsewhere {
                self.receive(now, header, message, watermarks, out);
            }
            return;
        }
        let newest = watermarks.epoch(header.stream_id);
        if header.epoch < newest {
            // C2a: an older epoch is fenced.
            if !self.omits(Clause::FencedAnswer) {
                answer(header, Upstream::Fenced { stream_id: header.stream_id, newer: newest }, out);
            }
            return;
        }
        if let (false, Some(displaced)) = (registering_here, self.senders.displaced(header)) {
            self.on_displaced(displaced, header, out);
        } else if message.first || self.settings.only_flow_control {
            // C2d: a `first` frame starts a new association; it also cancels a stop.
            if !registering_elsewhere {
                if self.life == Life::Draining {
                    self.life = Life::Running;
                }
                self.switch_or_park(now, header, message, watermarks, out);
            }
        } else {
            // C2e: an unknown sender is told to start over.
            answer(header, Upstream::Resend { from: 0, to: 0 }, out);
        }
    }

    /// C2b: a producer that was displaced by a `first` frame may be alive, and the `first` frame may be from a dead
    /// one. Tell the displaced producer to start over; a dead producer does not respond.
    fn on_displaced(&mut self, displaced: Displaced, header: &BatchHeader, out: &mut Vec<Effect<P>>) {
        if displaced == Displaced::ForGood || self.is_busy() {
            self.counters.unexpected += 1;
            return;
        }
        self.senders.undo_displacement(header);
        answer(header, Upstream::Resend { from: 0, to: 0 }, out);
    }

    fn switch_or_park(
        &mut self,
        now: Instant,
        header: &BatchHeader,
        message: SequencedMessage<P>,
        watermarks: &mut Watermarks,
        out: &mut Vec<Effect<P>>,
    ) {
        if self.senders.current().is_some() && self.is_busy() {
            // C4: messages that a producer has delivered here are processed before those of its successor.
            let confirmed_none = Upstream::Request {
                confirmed: 0,
                up_to: message.frame.seq_nr,
                support_resend: !self.settings.only_flow_control,
                via_timeout: false,
            };
            answer(header, confirmed_none, out);
            self.senders.park(header, message);
        } else {
            self.switch(now, header, message, watermarks, out);
        }
    }

    pub(super) fn unpark(&mut self, now: Instant, watermarks: &mut Watermarks, out: &mut Vec<Effect<P>>) {
        if !self.is_busy()
            && let Some((header, message)) = self.senders.unpark()
        {
            self.switch(now, &header, message, watermarks, out);
            self.deliver(now, watermarks, out);
        }
    }

    /// Switches to the frame's sender (C3).
    fn switch(
        &mut self,
        now: Instant,
        header: &BatchHeader,
        message: SequencedMessage<P>,
        watermarks: &mut Watermarks,
        out: &mut Vec<Effect<P>>,
    ) {
        debug_assert!(self.deliveries.is_empty(), "what is outstanding is of the producer listened to");
        if let Some(former) = self.senders.switch(header) {
            out.push(Effect::Replaced { former, by: header.controller.clone() });
        }
        watermarks.switch(now, &header.producer_id, header.stream_id, header.epoch);
        let before = message.frame.seq_nr - 1;
        self.arrivals.start_after(before);
        self.confirmed = 0;
        self.window.start_over();
        self.requested = before + self.window.size();
        self.answers.start_over(now, &self.settings);
        self.send_request(now, out);
        self.receive(now, header, message, watermarks, out);
    }

    /// Takes a frame of the current producer (C5).
    fn receive(
        &mut self,
        now: Instant,
        header: &BatchHeader,
        message: SequencedMessage<P>,
        watermarks: &mut Watermarks,
        out: &mut Vec<Effect<P>>,
    ) {
        let missed_frames = self.arrivals.misses_frames();
        self.answers.on_frame(now, missed_frames, &self.settings);
        self.window.on_frame(now);
        if header.lowest > self.arrivals.received() + 1 {
            self.skip_to(now, header.lowest, out);
        }
        let (first, window) = (message.first, self.window.size());
        // Frames up to the last grant are accepted, even if the window has shrunk since.
        let reach = self.requested.max(self.arrivals.received() + window);
        match self.arrivals.arrive(message, reach, window) {
            Arrival::Duplicate => return self.on_duplicate(now, first, out),
            Arrival::Kept => {}
            // C6: keep out-of-order frames, and request only the missing ones.
            Arrival::AfterGap { from, to } => {
                self.counters.gaps += 1;
                self.ask_again(from, to, out);
            }
            Arrival::BeyondWindow => self.counters.beyond_window += 1,
        }
        self.deliver(now, watermarks, out);
        if missed_frames {
            self.answers.postpone_retry(now, self.arrivals.misses_frames());
        }
    }

    /// Skips numbers that an earlier consumer confirmed; no producer holds these messages any more.
    fn skip_to(&mut self, now: Instant, lowest: u64, out: &mut Vec<Effect<P>>) {
        self.arrivals.skip_to(lowest);
        self.confirmed = self.arrivals.received();
        self.requested = self.requested.max(self.confirmed + self.window.size());
        self.send_request(now, out);
        self.ask_for_lost(out);
    }

    /// C6: requests the frames dropped beyond the window, once the window has reached them.
    pub(super) fn ask_for_lost(&mut self, out: &mut Vec<Effect<P>>) {
        if let Some(from) = self.arrivals.reached_lost() {
            self.ask_again(from, 0, out);
        }
    }

    /// Answers a duplicate (C10), at a limited rate unless it is a `first` frame.
    fn on_duplicate(&mut self, now: Instant, first: bool, out: &mut Vec<Effect<P>>) {
        self.counters.duplicates += 1;
        if self.answers.duplicate(now, first) {
            self.send_ack(out);
        }
    }

    /// Registers to a producer controller (§1.4).
    pub(super) fn on_register_to(&mut self, now: Instant, controller: ControllerRef, out: &mut Vec<Effect<P>>) {
        if self.senders.register_to(&controller) {
            self.arrivals.start_after_delivered();
            self.answers.on_frame(now, false, &self.settings);
            out.push(Effect::Reply { to: controller, epoch: None, message: Upstream::RegisterConsumer });
        }
    }
}

/// Answers the controller that sent the frame, which need not be the current producer.
fn answer<P>(header: &BatchHeader, message: Upstream, out: &mut Vec<Effect<P>>) {
    let epoch: Option<Epoch> = Some(header.epoch);
    out.push(Effect::Reply { to: header.controller.clone(), epoch, message });
}
