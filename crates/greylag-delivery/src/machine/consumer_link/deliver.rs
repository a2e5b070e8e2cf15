//! From the buffer to the application and back: deliveries, confirmations, redeliveries.
//!
//! Source: delivery C7 to C9, C12, C13, K3 to K6.

use std::time::{Duration, Instant};

use super::{
    Assembly, ConsumerLink, DeliveryKey, DeliveryState, Effect, Life, MAX_REDELIVERY_BACKOFF, Outstanding,
    PoisonPolicy, later,
};
use crate::dedupe::{Attempts, Watermarks};
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
            && self.has_room()
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
        let earlier = watermarks.take_attempts(producer.stream, total).unwrap_or_default();
        let delivery = Outstanding {
            number: self.next_number,
            last_seq: seq_nr,
            producer_id: producer.producer_id.clone(),
            stream: producer.stream,
            ordered: producer.ordered,
            total,
            ack,
            first,
            attempt: earlier.count,
            state: DeliveryState::Stalled,
            parts,
        };
        self.next_number += 1;
        self.unconfirmed += 1;
        self.outstanding.push_back(delivery);
        self.begin(now, self.outstanding.len() - 1, earlier, watermarks, out);
        self.advance(now, watermarks, out);
    }

    /// K5: a message of more chunks than the window must not wait for its own end.
    fn grant_more_chunks(&mut self, now: Instant, seq_nr: u64, out: &mut Vec<Effect<P>>) {
        if self.requested.saturating_sub(seq_nr) <= self.window.size() / 2 {
            self.requested = seq_nr + self.window.size();
            self.send_request(now, out);
        }
    }

    /// Hands out a delivery for the first time here. Attempts that an earlier controller of this consumer made count, as does
    /// the pause after them (C14).
    fn begin(
        &mut self,
        now: Instant,
        index: usize,
        earlier: Attempts,
        watermarks: &Watermarks,
        out: &mut Vec<Effect<P>>,
    ) {
        let limit = self.settings.max_delivery_attempts;
        let delivery = &mut self.outstanding[index];
        let is_known = delivery.ordered && delivery.total <= watermarks.confirmed(delivery.stream);
        let held = match earlier.until {
            // The policy was to wait, and a new value of the consumer does not change that.
            _ if limit > 0 && earlier.count >= limit && !is_known => DeliveryState::Stalled,
            Some(until) if until > now && !is_known => DeliveryState::Waiting { until },
            _ => return self.attempt_again(now, index, watermarks, out),
        };
        delivery.state = held;
        out.push(Effect::Held(delivery.id()));
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
        let delivery = &self.outstanding[index];
        if delivery.ordered && delivery.total <= watermarks.confirmed(delivery.stream) {
            out.push(Effect::Suppressed(delivery.id()));
            return self.set_state(index, DeliveryState::Confirmed);
        }
        self.set_state(index, DeliveryState::Handed { since: now, overdue: false });
        let delivery = &mut self.outstanding[index];
        delivery.attempt = delivery.attempt.saturating_add(1);
        let key = DeliveryKey { number: delivery.number, attempt: delivery.attempt };
        out.push(Effect::Deliver { key, id: delivery.id(), parts: delivery.parts.clone() });
    }

    /// Every change of a delivery's state passes here, so that what is counted of them stays true.
    fn set_state(&mut self, index: usize, state: DeliveryState) {
        let former = std::mem::replace(&mut self.outstanding[index].state, state);
        if matches!(former, DeliveryState::Handed { overdue: true, .. }) {
            self.overdue -= 1;
        }
        if matches!(state, DeliveryState::Handed { overdue: true, .. }) {
            self.overdue += 1;
        }
        if state == DeliveryState::Confirmed && former != DeliveryState::Confirmed {
            self.unconfirmed -= 1;
        }
    }

    /// Several confirmations at once, which are told upstream as one.
    pub(super) fn on_confirm_all(
        &mut self,
        now: Instant,
        keys: &[DeliveryKey],
        watermarks: &mut Watermarks,
        out: &mut Vec<Effect<P>>,
    ) {
        for key in keys {
            match self.outstanding.binary_search_by_key(&key.number, |delivery| delivery.number) {
                Ok(index) if self.outstanding[index].state != DeliveryState::Confirmed => {
                    self.set_state(index, DeliveryState::Confirmed);
                }
                _ => self.counters.late_confirmations += 1,
            }
        }
        self.advance(now, watermarks, out);
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
        self.window.confirmed(self.confirmed, self.outstanding.is_empty() && self.buffer.is_empty());
        let window = self.window.size();
        let half = window / 2;
        // Signed on purpose: without resending, `confirmed` may lie beyond `requested`.
        let room = |requested: u64| requested.saturating_sub(self.confirmed) <= half;
        if advance.had_first {
            let requested = self.requested.max(self.confirmed - 1 + window);
            self.requested = if room(requested) { self.confirmed + window } else { requested };
            self.send_request(now, out);
        } else if room(self.requested) {
            self.requested = self.confirmed + window;
            self.send_request(now, out);
        } else if advance.had_ack || self.answers.is_held() {
            let most = window / 4;
            if self.answers.asked(now, advance.count, most, self.is_next_buffered(), self.settings.ack_max_delay) {
                self.send_ack(out);
            }
        } else {
            self.answers.unasked(now, self.settings.delayed_ack_timeout);
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
        if let Some(index) = self.in_hand(key) {
            self.abandon(now, index, pause, out);
        }
    }

    /// An attempt that the application has in hand, if it is the latest one.
    fn in_hand(&self, key: DeliveryKey) -> Option<usize> {
        let index = self.outstanding.binary_search_by_key(&key.number, |delivery| delivery.number).ok()?;
        let delivery = &self.outstanding[index];
        let is_in_hand = delivery.attempt == key.attempt && matches!(delivery.state, DeliveryState::Handed { .. });
        is_in_hand.then_some(index)
    }

    pub(super) fn on_return(&mut self, now: Instant, key: DeliveryKey, pause: Duration) {
        if let Some(index) = self.in_hand(key) {
            self.set_state(index, DeliveryState::Waiting { until: later(now, pause) });
            self.outstanding[index].attempt -= 1;
        }
    }

    pub(super) fn on_unreadable(&mut self, key: DeliveryKey) {
        if let Some(index) = self.in_hand(key) {
            self.set_state(index, DeliveryState::Unreadable);
        }
    }

    fn abandon(&mut self, now: Instant, index: usize, pause: Option<Duration>, out: &mut Vec<Effect<P>>) {
        let delivery = &self.outstanding[index];
        let limit = self.settings.max_delivery_attempts;
        if limit == 0 || delivery.attempt < limit {
            let doublings = delivery.attempt.saturating_sub(1).min(20);
            let doubled = self.settings.redelivery_backoff.saturating_mul(1 << doublings);
            let until = later(now, pause.unwrap_or(doubled.min(MAX_REDELIVERY_BACKOFF)));
            return self.set_state(index, DeliveryState::Waiting { until });
        }
        out.push(Effect::Poisoned { id: delivery.id(), attempts: delivery.attempt });
        match self.settings.on_poison {
            PoisonPolicy::DeadLetter => self.set_state(index, DeliveryState::Confirmed),
            PoisonPolicy::Stall => self.set_state(index, DeliveryState::Stalled),
            PoisonPolicy::StopConsumer => self.stop(false, out),
        }
    }

    pub(super) fn delivery_deadline(&self, delivery: &Outstanding<P>) -> Option<Instant> {
        match delivery.state {
            // Nothing new is handed out to a consumer that ends.
            DeliveryState::Waiting { until } => (self.life != Life::Finishing).then_some(until),
            DeliveryState::Handed { since, overdue } => {
                let warn_at = (!overdue).then(|| later(since, self.settings.confirm_warn_after));
                [self.timeout_at(since), warn_at].into_iter().flatten().min()
            }
            DeliveryState::Stalled | DeliveryState::Unreadable | DeliveryState::Confirmed => None,
        }
    }

    fn timeout_at(&self, since: Instant) -> Option<Instant> {
        self.settings.confirm_timeout.map(|timeout| later(since, timeout))
    }

    /// Warns of deliveries that are in hand for long (C13).
    pub(super) fn report_overdue(&mut self, now: Instant, out: &mut Vec<Effect<P>>) {
        for index in 0..self.outstanding.len() {
            let delivery = &self.outstanding[index];
            if let DeliveryState::Handed { since, overdue: false } = delivery.state
                && later(since, self.settings.confirm_warn_after) <= now
            {
                out.push(Effect::Overdue(delivery.id()));
                self.set_state(index, DeliveryState::Handed { since, overdue: true });
            }
        }
    }

    /// Redelivers messages that waited long enough, and gives up on attempts that took too long (C13).
    pub(super) fn redeliver_due(&mut self, now: Instant, watermarks: &Watermarks, out: &mut Vec<Effect<P>>) {
        for index in 0..self.outstanding.len() {
            match self.outstanding[index].state {
                DeliveryState::Waiting { until } if until <= now && self.life != Life::Finishing => {
                    self.attempt_again(now, index, watermarks, out);
                }
                DeliveryState::Handed { since, .. } if self.timeout_at(since).is_some_and(|at| at <= now) => {
                    self.abandon(now, index, None, out);
                    // Without a pause the next attempt is due now, and is not left to another tick of this moment.
                    let is_due = self.outstanding[index].state == DeliveryState::Waiting { until: now };
                    if is_due && self.life != Life::Finishing && self.life != Life::Stopped {
                        self.attempt_again(now, index, watermarks, out);
                    }
                }
                _ => {}
            }
            if self.life == Life::Stopped {
                return;
            }
        }
    }
}
