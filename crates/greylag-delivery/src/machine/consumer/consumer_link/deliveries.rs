//! The messages taken from the buffer but not in the confirmed prefix, in order.
//!
//! Source: delivery C7, C9, C12, C13.

use std::collections::VecDeque;
use std::time::Instant;

use super::arrivals::Taken;
use super::protocol::DeliveryKey;
use crate::ids::SeqNr;
use crate::message::Frames;

/// State of a message taken from the buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DeliveryState {
    /// Handed to the application; `overdue` once that was reported.
    Handed { since: Instant, overdue: bool },
    /// Given up, to be handed out again.
    Waiting { until: Instant },
    /// No attempts are left, and the policy is to wait.
    Stalled,
    /// The message cannot be decoded.
    Unreadable,
    /// The application has processed the message.
    Confirmed,
}

/// A message taken from the buffer but not in the confirmed prefix.
#[derive(Debug, Clone)]
pub(super) struct Outstanding<P> {
    number: u64,
    pub(super) last_seq: u64,
    pub(super) total: SeqNr,
    pub(super) ack: bool,
    pub(super) first: bool,
    pub(super) attempt: u32,
    state: DeliveryState,
    parts: Frames<P>,
}

impl<P> Outstanding<P> {
    pub(super) fn state(&self) -> DeliveryState {
        self.state
    }

    pub(super) fn is_confirmed(&self) -> bool {
        self.state == DeliveryState::Confirmed
    }
}

/// See the module's documentation.
#[derive(Debug, Clone)]
pub(super) struct Deliveries<P> {
    queue: VecDeque<Outstanding<P>>,
    /// Deliveries that the application has not confirmed.
    unconfirmed: u32,
    /// Unconfirmed deliveries that were reported as overdue.
    overdue: u32,
    next_number: u64,
}

impl<P: Clone> Deliveries<P> {
    pub(super) fn new() -> Self {
        Self { queue: VecDeque::new(), unconfirmed: 0, overdue: 0, next_number: 1 }
    }

    pub(super) fn len(&self) -> usize {
        self.queue.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Outstanding<P>> {
        self.queue.iter()
    }

    /// The delivery at `index`, which must be below [`len`](Self::len).
    pub(super) fn at(&self, index: usize) -> &Outstanding<P> {
        &self.queue[index]
    }

    /// Deliveries that the application has not confirmed.
    pub(super) fn unconfirmed(&self) -> u32 {
        self.unconfirmed
    }

    /// Deliveries that were reported as overdue.
    pub(super) fn overdue(&self) -> u32 {
        self.overdue
    }

    /// Whether the application has a delivery in hand.
    pub(super) fn has_in_hand(&self) -> bool {
        self.iter().any(|delivery| matches!(delivery.state, DeliveryState::Handed { .. }))
    }

    /// Whether the application has a delivery in hand, or will get one without further input.
    pub(super) fn is_at_work(&self) -> bool {
        let is_at_work = |state| matches!(state, DeliveryState::Handed { .. } | DeliveryState::Waiting { .. });
        self.iter().any(|delivery| is_at_work(delivery.state))
    }

    /// Adds a message that had `attempts` attempts before and is not handed out yet. Returns its index.
    pub(super) fn push(&mut self, taken: Taken<P>, attempts: u32) -> usize {
        let Taken { last_seq, total, ack, first, parts } = taken;
        let (number, state) = (self.next_number, DeliveryState::Stalled);
        self.next_number += 1;
        self.unconfirmed += 1;
        self.queue.push_back(Outstanding { number, last_seq, total, ack, first, attempt: attempts, state, parts });
        self.queue.len() - 1
    }

    /// The index of a delivery, for any of its attempts.
    pub(super) fn position(&self, key: DeliveryKey) -> Option<usize> {
        self.queue.binary_search_by_key(&key.number, |delivery| delivery.number).ok()
    }

    /// The index of an attempt that the application has in hand, if it is the latest attempt.
    pub(super) fn in_hand(&self, key: DeliveryKey) -> Option<usize> {
        let index = self.position(key)?;
        let delivery = &self.queue[index];
        let is_in_hand = delivery.attempt == key.attempt && matches!(delivery.state, DeliveryState::Handed { .. });
        is_in_hand.then_some(index)
    }

    /// The only place that changes the state of a delivery, so that the counts stay consistent.
    pub(super) fn set_state(&mut self, index: usize, state: DeliveryState) {
        let former = std::mem::replace(&mut self.queue[index].state, state);
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

    /// Starts another attempt; returns its key and the content to hand out.
    pub(super) fn attempt(&mut self, now: Instant, index: usize) -> (DeliveryKey, Frames<P>) {
        self.set_state(index, DeliveryState::Handed { since: now, overdue: false });
        let delivery = &mut self.queue[index];
        delivery.attempt = delivery.attempt.saturating_add(1);
        (DeliveryKey { number: delivery.number, attempt: delivery.attempt }, delivery.parts.clone())
    }

    /// Takes back an attempt, which is not counted; the next one is due at `until`.
    pub(super) fn take_back(&mut self, index: usize, until: Instant) {
        self.set_state(index, DeliveryState::Waiting { until });
        self.queue[index].attempt -= 1;
    }

    /// Removes the first delivery if it is confirmed.
    pub(super) fn pop_confirmed(&mut self) -> Option<Outstanding<P>> {
        self.queue.pop_front_if(|first| first.is_confirmed())
    }

    /// Frees memory that only a busy link needs.
    pub(super) fn shrink(&mut self) {
        self.queue.shrink_to_fit();
    }

    /// Resets the overdue count, since the link has ended.
    pub(super) fn stop(&mut self) {
        self.overdue = 0;
    }

    pub(super) fn check_invariants(&self) {
        let open = self.iter().filter(|delivery| !delivery.is_confirmed()).count();
        debug_assert_eq!(open, self.unconfirmed as usize);
        let is_overdue =
            |delivery: &&Outstanding<P>| matches!(delivery.state, DeliveryState::Handed { overdue: true, .. });
        debug_assert_eq!(self.overdue as usize, self.iter().filter(is_overdue).count());
    }
}
