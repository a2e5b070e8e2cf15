//! Moves messages from the buffer to the application: deliveries, confirmations, redeliveries.
//!
//! Source: delivery C7 to C9, C12, C13, K3 to K6.

use std::time::{Duration, Instant};

use super::arrivals::{Step, Taken};
use super::deliveries::DeliveryState;
use super::{ConsumerLink, DeliveryKey, Effect, Life, PoisonPolicy, later};
use crate::ids::{MessageId, SeqNr};
use crate::machine::dedupe::{Attempts, Watermarks};
use crate::machine::omissions::Clause;
use crate::message::Content;

/// The longest pause before a redelivery. Source: delivery §8.
const MAX_REDELIVERY_BACKOFF: Duration = Duration::from_secs(30);

/// Acks requested by the messages of a newly confirmed prefix.
#[derive(Default)]
struct Advance {
    had_first: bool,
    had_ack: bool,
    count: u64,
}

impl<P: Content> ConsumerLink<P> {
    /// C7: hands out the next messages in order, while the application may have more in hand.
    pub(super) fn deliver(&mut self, now: Instant, watermarks: &mut Watermarks, out: &mut Vec<Effect<P>>) {
        let received = self.arrivals.received();
        while self.life != Life::Finishing
            && self.before_start.is_none()
            && self.has_room()
            && !self.waits_for_earlier_total()
            && let Some(step) = self.arrivals.take(self.settings.max_message_bytes)
        {
            match step {
                Step::Message(message) => self.hand_out(now, message, watermarks, out),
                Step::Chunk { seq_nr } => self.grant_more_chunks(now, seq_nr, out),
                Step::Torn => {}
            }
        }
        if self.arrivals.received() != received {
            self.ask_for_lost(out);
        }
    }

    /// Whether the next message is a renumbered copy (K7) whose earlier copy is still outstanding; C8 later suppresses
    /// it.
    fn waits_for_earlier_total(&self) -> bool {
        let (Some(producer), Some(next)) = (self.senders.current(), self.arrivals.next_total()) else { return false };
        producer.ordered && self.deliveries.iter().any(|earlier| earlier.total >= next)
    }

    /// Handles a message just taken from the buffer. Attempts of an earlier controller of this consumer count, and so
    /// does the pause after them (C14).
    fn hand_out(&mut self, now: Instant, message: Taken<P>, watermarks: &mut Watermarks, out: &mut Vec<Effect<P>>) {
        let Some(producer) = self.senders.current() else { return };
        let total = message.total;
        let earlier = watermarks.take_attempts(producer.stream, total).unwrap_or_default();
        let index = self.deliveries.push(message, earlier.count);
        match self.held(now, total, earlier, watermarks) {
            Some(state) => {
                self.deliveries.set_state(index, state);
                out.extend(self.message_id(total).map(Effect::Held));
            }
            None => self.attempt_again(now, index, watermarks, out),
        }
        self.advance(now, watermarks, out);
    }

    /// The initial state of a message that must not be handed out at once, because of attempts of an earlier
    /// controller.
    fn held(&self, now: Instant, total: SeqNr, earlier: Attempts, watermarks: &Watermarks) -> Option<DeliveryState> {
        let limit = self.settings.max_delivery_attempts;
        if self.is_known(total, watermarks) {
            return None;
        }
        match earlier.until {
            // Its attempts were used up under the policy to wait, which a new value of the consumer does not change.
            _ if limit > 0 && earlier.count >= limit => Some(DeliveryState::Stalled),
            Some(until) if until > now => Some(DeliveryState::Waiting { until }),
            _ => None,
        }
    }

    /// C8: whether a message is known to be processed.
    fn is_known(&self, total: SeqNr, watermarks: &Watermarks) -> bool {
        self.senders
            .current()
            .is_some_and(|producer| producer.ordered && total <= watermarks.confirmed(producer.stream))
            && !self.omits(Clause::Dedupe)
    }

    fn message_id(&self, total: SeqNr) -> Option<MessageId> {
        self.senders.current().map(|producer| producer.message_id(total))
    }

    /// K5: grants frames within a message, since a message with more chunks than the window must not block itself.
    fn grant_more_chunks(&mut self, now: Instant, seq_nr: u64, out: &mut Vec<Effect<P>>) {
        if self.requested.saturating_sub(seq_nr) <= self.window.size() / 2 {
            self.requested = seq_nr + self.window.size();
            self.send_request(now, out);
        }
    }

    /// C14: messages that the former consumer had in hand go to the next one. Messages that wait for their next
    /// attempt, are stalled or undecodable keep their state, unless they are known to be processed.
    pub(super) fn hand_to_next_consumer(
        &mut self,
        now: Instant,
        watermarks: &mut Watermarks,
        out: &mut Vec<Effect<P>>,
    ) {
        for index in 0..self.deliveries.len() {
            let delivery = self.deliveries.at(index);
            let is_known = self.is_known(delivery.total, watermarks);
            match delivery.state() {
                DeliveryState::Confirmed => {}
                DeliveryState::Waiting { .. } | DeliveryState::Stalled | DeliveryState::Unreadable if !is_known => {}
                _ => self.attempt_again(now, index, watermarks, out),
            }
        }
    }

    /// Starts an attempt, unless the message is known to be processed; C8 is checked before every attempt.
    fn attempt_again(&mut self, now: Instant, index: usize, watermarks: &Watermarks, out: &mut Vec<Effect<P>>) {
        let total = self.deliveries.at(index).total;
        let Some(id) = self.message_id(total) else { return };
        if self.is_known(total, watermarks) {
            out.push(Effect::Suppressed(id));
            return self.deliveries.set_state(index, DeliveryState::Confirmed);
        }
        let (key, parts) = self.deliveries.attempt(now, index);
        out.push(Effect::Deliver { key, id, parts });
    }

    /// Handles several confirmations at once, with one message to the producer.
    pub(super) fn on_confirm_all(
        &mut self,
        now: Instant,
        keys: &[DeliveryKey],
        watermarks: &mut Watermarks,
        out: &mut Vec<Effect<P>>,
    ) {
        for key in keys {
            match self.deliveries.position(*key) {
                Some(index) if !self.deliveries.at(index).is_confirmed() => {
                    self.deliveries.set_state(index, DeliveryState::Confirmed);
                }
                _ => self.counters.late_confirmations += 1,
            }
        }
        self.advance(now, watermarks, out);
    }

    /// C9: advances the confirmed prefix, and sends at most one message about it.
    pub(super) fn advance(&mut self, now: Instant, watermarks: &mut Watermarks, out: &mut Vec<Effect<P>>) {
        let before = self.confirmed;
        let mut advance = Advance::default();
        let stream = self.stream();
        while let Some(done) = self.deliveries.pop_confirmed() {
            if let Some(stream) = stream {
                watermarks.confirm(now, stream, done.total);
            }
            self.confirmed = self.confirmed.max(done.last_seq);
            advance.had_first |= done.first;
            advance.had_ack |= done.ack;
            advance.count += 1;
        }
        if self.confirmed != before {
            self.tell_confirmed(now, &advance, out);
        }
    }

    fn tell_confirmed(&mut self, now: Instant, advance: &Advance, out: &mut Vec<Effect<P>>) {
        self.window.confirmed(self.confirmed, self.deliveries.is_empty() && self.arrivals.is_empty());
        let window = self.window.size();
        let half = window / 2;
        // `requested` may be below `confirmed` without resending; the subtraction saturates.
        let room = |requested: u64| {
            let left = requested.saturating_sub(self.confirmed);
            if self.omits(Clause::HalfWindow) { left == half } else { left <= half }
        };
        if advance.had_first {
            let requested = self.requested.max(self.confirmed - 1 + window);
            self.requested = if room(requested) { self.confirmed + window } else { requested };
            self.send_request(now, out);
        } else if room(self.requested) {
            self.requested = self.confirmed + window;
            self.send_request(now, out);
        } else if advance.had_ack || self.answers.is_held() {
            let (most, is_next_here) = (window / 4, self.arrivals.is_next_here());
            if self.answers.confirmed_with_ack(now, advance.count, most, is_next_here, self.settings.ack_max_delay) {
                self.send_ack(out);
            }
        } else {
            self.answers.confirmed_without_ack(now, self.settings.delayed_ack_timeout);
        }
    }

    /// Gives up an attempt (C12).
    pub(super) fn on_abandon(
        &mut self,
        now: Instant,
        key: DeliveryKey,
        pause: Option<Duration>,
        out: &mut Vec<Effect<P>>,
    ) {
        if let Some(index) = self.deliveries.in_hand(key) {
            self.abandon(now, index, pause, out);
        }
    }

    pub(super) fn on_return(&mut self, now: Instant, key: DeliveryKey, pause: Duration) {
        if let Some(index) = self.deliveries.in_hand(key) {
            self.deliveries.take_back(index, later(now, pause));
        }
    }

    pub(super) fn on_unreadable(&mut self, key: DeliveryKey) {
        if let Some(index) = self.deliveries.in_hand(key) {
            self.deliveries.set_state(index, DeliveryState::Unreadable);
        }
    }

    fn abandon(&mut self, now: Instant, index: usize, pause: Option<Duration>, out: &mut Vec<Effect<P>>) {
        let delivery = self.deliveries.at(index);
        let (attempts, limit) = (delivery.attempt, self.settings.max_delivery_attempts);
        if limit == 0 || attempts < limit {
            let doublings = attempts.saturating_sub(1).min(20);
            let doubled = self.settings.redelivery_backoff.saturating_mul(1 << doublings);
            let until = later(now, pause.unwrap_or(doubled.min(MAX_REDELIVERY_BACKOFF)));
            return self.deliveries.set_state(index, DeliveryState::Waiting { until });
        }
        out.extend(self.message_id(delivery.total).map(|id| Effect::Poisoned { id, attempts }));
        match self.settings.on_poison {
            PoisonPolicy::DeadLetter => self.deliveries.set_state(index, DeliveryState::Confirmed),
            PoisonPolicy::Stall => self.deliveries.set_state(index, DeliveryState::Stalled),
            PoisonPolicy::StopConsumer => self.stop(false, out),
        }
    }

    /// The next time at which a tick has an effect on a delivery in this state.
    pub(super) fn delivery_deadline(&self, state: DeliveryState) -> Option<Instant> {
        match state {
            // A consumer that ends gets no further attempt.
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

    /// Reports deliveries that are unconfirmed for long (C13).
    pub(super) fn report_overdue(&mut self, now: Instant, out: &mut Vec<Effect<P>>) {
        for index in 0..self.deliveries.len() {
            let delivery = self.deliveries.at(index);
            if let DeliveryState::Handed { since, overdue: false } = delivery.state()
                && later(since, self.settings.confirm_warn_after) <= now
            {
                out.extend(self.message_id(delivery.total).map(Effect::Overdue));
                self.deliveries.set_state(index, DeliveryState::Handed { since, overdue: true });
            }
        }
    }

    /// Redelivers messages whose pause is over, and gives up attempts that took too long (C13).
    pub(super) fn redeliver_due(&mut self, now: Instant, watermarks: &Watermarks, out: &mut Vec<Effect<P>>) {
        for index in 0..self.deliveries.len() {
            match self.deliveries.at(index).state() {
                DeliveryState::Waiting { until } if until <= now && self.life != Life::Finishing => {
                    self.attempt_again(now, index, watermarks, out);
                }
                DeliveryState::Handed { since, .. } if self.timeout_at(since).is_some_and(|at| at <= now) => {
                    self.abandon(now, index, None, out);
                    // Without a pause the next attempt is due now; do not leave it to another tick at the same time.
                    let is_due = self.deliveries.at(index).state() == DeliveryState::Waiting { until: now };
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
