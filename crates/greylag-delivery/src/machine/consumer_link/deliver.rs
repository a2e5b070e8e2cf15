//! From the buffer to the application and back: deliveries, confirmations, redeliveries.
//!
//! Source: delivery C7 to C9, C12, C13, K3 to K6.

use std::time::{Duration, Instant};

use super::{
    Assembly, ConsumerLink, DeliveryKey, DeliveryState, Effect, HeldAck, Life, MAX_REDELIVERY_BACKOFF, Outstanding,
    PoisonPolicy,
};
use crate::dedupe::Watermarks;
use crate::machine::producer_link::Frames;
use crate::message::{Content, SequencedMessage};

/// What a prefix of confirmed messages asks to be told upstream.
#[derive(Default)]
struct Advance {
    had_first: bool,
    had_ack: bool,
    count: u64,
}

impl<P: Content> ConsumerLink<P> {
    /// C7: takes the next messages in order, as long as the application may have more in hand.
    pub(super) fn deliver(&mut self, now: Instant, watermarks: &mut Watermarks, out: &mut Vec<Effect<P>>) {
        let received = self.received;
        while self.life != Life::Finishing
            && self.started
            && self.unconfirmed < self.settings.max_outstanding_deliveries.max(1)
            && self.is_next_buffered()
            && !self.waits_for_earlier_total()
        {
            let Some(message) = self.buffer.pop_front() else { break };
            if message.frame.seq_nr > self.received + 1 {
                // Flow control only: the gap is jumped, with the group that it tore (K6).
                self.assembly = None;
            }
            self.received = message.frame.seq_nr;
            self.highest_seen = self.highest_seen.max(self.received);
            self.take(now, message, watermarks, out);
        }
        if self.received != received {
            self.ask_for_lost(out);
        }
    }

    /// A renumbered message (K7) waits until its earlier copy is settled; C8 then drops it.
    fn waits_for_earlier_total(&self) -> bool {
        let (Some(producer), Some(next)) = (&self.producer, self.buffer.front()) else { return false };
        producer.ordered
            && self
                .outstanding
                .iter()
                .any(|earlier| earlier.stream == producer.stream && earlier.total >= next.frame.total)
    }

    fn take(
        &mut self,
        now: Instant,
        message: SequencedMessage<P>,
        watermarks: &mut Watermarks,
        out: &mut Vec<Effect<P>>,
    ) {
        let SequencedMessage { frame, first } = message;
        let (seq_nr, total, ack) = (frame.seq_nr, frame.total, frame.ack);
        let (first, parts) = match (frame.first_chunk, frame.last_chunk) {
            (true, true) => {
                self.assembly = None;
                (first, Frames::Whole(frame.payload))
            }
            (true, false) => {
                self.assembly = Some(Assembly::begin(first, frame, self.settings.max_message_bytes));
                return self.grant_more_chunks(now, seq_nr, out);
            }
            (false, last) => {
                let assembly = match self.assembly.take() {
                    Some(mut assembly) => {
                        assembly.add(frame);
                        assembly
                    }
                    // K6: the gap that was jumped took its beginning with it.
                    None if self.settings.only_flow_control => return,
                    None => Assembly::torn(first, frame),
                };
                if !last {
                    self.assembly = Some(assembly);
                    return self.grant_more_chunks(now, seq_nr, out);
                }
                (assembly.first, assembly.into_frames())
            }
        };
        self.delivered = seq_nr;
        let Some(producer) = &self.producer else { return };
        let delivery = Outstanding {
            number: self.next_number,
            last_seq: seq_nr,
            producer_id: producer.producer_id.clone(),
            stream: producer.stream,
            ordered: producer.ordered,
            total,
            ack,
            first,
            attempt: 0,
            state: DeliveryState::Stalled,
            parts,
        };
        self.next_number += 1;
        self.unconfirmed += 1;
        self.outstanding.push_back(delivery);
        self.attempt_again(now, self.outstanding.len() - 1, watermarks, out);
        self.advance(now, watermarks, out);
    }

    /// K5: a message of more chunks than the window must not wait for its own end.
    fn grant_more_chunks(&mut self, now: Instant, seq_nr: u64, out: &mut Vec<Effect<P>>) {
        if self.requested.saturating_sub(seq_nr) <= self.window / 2 {
            self.requested = seq_nr + self.window;
            self.send_request(now, out);
        }
    }

    /// Hands out a delivery, unless its message is known to be processed: C8 is asked before every
    /// attempt.
    pub(super) fn attempt_again(
        &mut self,
        now: Instant,
        index: usize,
        watermarks: &Watermarks,
        out: &mut Vec<Effect<P>>,
    ) {
        let delivery = &mut self.outstanding[index];
        if delivery.ordered && delivery.total <= watermarks.confirmed(delivery.stream) {
            delivery.state = DeliveryState::Confirmed;
            self.unconfirmed -= 1;
            out.push(Effect::Suppressed(delivery.id()));
            return;
        }
        delivery.attempt = delivery.attempt.saturating_add(1);
        delivery.state = DeliveryState::Handed { since: now };
        let key = DeliveryKey { number: delivery.number, attempt: delivery.attempt };
        out.push(Effect::Deliver { key, id: delivery.id(), parts: delivery.parts.clone() });
    }

    pub(super) fn on_confirm(
        &mut self,
        now: Instant,
        key: DeliveryKey,
        watermarks: &mut Watermarks,
        out: &mut Vec<Effect<P>>,
    ) {
        match self.outstanding.binary_search_by_key(&key.number, |delivery| delivery.number) {
            Ok(index) if self.outstanding[index].state != DeliveryState::Confirmed => {
                self.outstanding[index].state = DeliveryState::Confirmed;
                self.unconfirmed -= 1;
                self.advance(now, watermarks, out);
            }
            _ => self.counters.late_confirmations += 1,
        }
    }

    /// C9: moves the confirmed prefix and says so upstream, at most once.
    pub(super) fn advance(&mut self, now: Instant, watermarks: &mut Watermarks, out: &mut Vec<Effect<P>>) {
        let before = self.confirmed;
        let mut advance = Advance::default();
        while let Some(done) = self.outstanding.pop_front_if(|first| first.state == DeliveryState::Confirmed) {
            watermarks.confirm(now, done.stream, done.total);
            self.confirmed = self.confirmed.max(done.last_seq);
            advance.had_first |= done.first;
            advance.had_ack |= done.ack;
            advance.count += 1;
        }
        if self.confirmed == before {
            return;
        }
        let half = self.window / 2;
        // Signed on purpose: without resending, `confirmed` may lie beyond `requested`.
        let room = |requested: u64| requested.saturating_sub(self.confirmed) <= half;
        if advance.had_first {
            let requested = self.requested.max(self.confirmed - 1 + self.window);
            self.requested = if room(requested) { self.confirmed + self.window } else { requested };
            self.send_request(now, out);
        } else if room(self.requested) {
            self.requested = self.confirmed + self.window;
            self.send_request(now, out);
        } else if advance.had_ack || self.held_ack.is_some() {
            self.ack_or_hold(now, advance.count, out);
        }
    }

    /// C9b: an ack may wait for company, but never for company that is not here yet.
    fn ack_or_hold(&mut self, now: Instant, count: u64, out: &mut Vec<Effect<P>>) {
        let delay = self.settings.ack_max_delay;
        let held = self.held_ack.unwrap_or(HeldAck { until: now + delay, confirmations: 0 });
        let confirmations = held.confirmations + count;
        if delay.is_zero() || !self.is_next_buffered() || confirmations > self.window / 4 {
            self.send_ack(out);
        } else {
            self.held_ack = Some(HeldAck { confirmations, ..held });
        }
    }

    /// C12.
    pub(super) fn on_abandon(
        &mut self,
        now: Instant,
        key: DeliveryKey,
        pause: Option<Duration>,
        out: &mut Vec<Effect<P>>,
    ) {
        let Ok(index) = self.outstanding.binary_search_by_key(&key.number, |delivery| delivery.number) else { return };
        let delivery = &self.outstanding[index];
        if delivery.attempt == key.attempt && matches!(delivery.state, DeliveryState::Handed { .. }) {
            self.abandon(now, index, pause, out);
        }
    }

    fn abandon(&mut self, now: Instant, index: usize, pause: Option<Duration>, out: &mut Vec<Effect<P>>) {
        let delivery = &mut self.outstanding[index];
        let limit = self.settings.max_delivery_attempts;
        if limit == 0 || delivery.attempt < limit {
            let doubled = self.settings.redelivery_backoff.saturating_mul(1 << (delivery.attempt - 1).min(20));
            let pause = pause.unwrap_or(doubled.min(MAX_REDELIVERY_BACKOFF));
            delivery.state = DeliveryState::Waiting { until: now + pause };
            return;
        }
        out.push(Effect::Poisoned { id: delivery.id(), attempts: delivery.attempt });
        match self.settings.on_poisoned {
            PoisonPolicy::DeadLetter => {
                delivery.state = DeliveryState::Confirmed;
                self.unconfirmed -= 1;
            }
            PoisonPolicy::Stall => delivery.state = DeliveryState::Stalled,
            PoisonPolicy::StopConsumer => self.stop(out),
        }
    }

    pub(super) fn delivery_deadline(&self, delivery: &Outstanding<P>) -> Option<Instant> {
        match delivery.state {
            DeliveryState::Waiting { until } => Some(until),
            DeliveryState::Handed { since } => self.settings.confirm_timeout.map(|timeout| since + timeout),
            DeliveryState::Stalled | DeliveryState::Confirmed => None,
        }
    }

    /// Redelivers messages that waited long enough, and gives up on attempts that took too long (C13).
    pub(super) fn redeliver_due(&mut self, now: Instant, watermarks: &Watermarks, out: &mut Vec<Effect<P>>) {
        for index in 0..self.outstanding.len() {
            let delivery = &self.outstanding[index];
            if self.delivery_deadline(delivery).is_none_or(|deadline| deadline > now) {
                continue;
            }
            match delivery.state {
                DeliveryState::Waiting { .. } => self.attempt_again(now, index, watermarks, out),
                _ => self.abandon(now, index, None, out),
            }
            if self.life == Life::Stopped {
                return;
            }
        }
    }
}
