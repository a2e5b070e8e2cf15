//! Messages that others write into the queue's store: when they are asked for, and what came.

use std::time::{Duration, Instant};

use super::Found;
use crate::ids::SeqNr;
use crate::queue::MessageSent;

/// See the module's documentation. Source: delivery §4.4 (outbox).
#[derive(Debug, Clone)]
pub(super) struct Polling<M> {
    interval: Duration,
    /// When the queue is asked next; `None` until it was opened.
    at: Option<Instant>,
    /// How many messages the controller has room for.
    room: usize,
    /// How many the last call asked for.
    asked: usize,
    found: Vec<Found<M>>,
}

impl<M> Polling<M> {
    pub(super) fn new(interval: Duration) -> Self {
        Self { interval, at: None, room: 0, asked: 0, found: Vec::new() }
    }

    pub(super) fn set_room(&mut self, room: usize) {
        self.room = room;
    }

    /// The queue is open: it is asked at once.
    pub(super) fn opened(&mut self, now: Instant) {
        self.at = Some(now);
    }

    pub(super) fn due_at(&self) -> Option<Instant> {
        self.at
    }

    /// How many messages to ask for now. Without room the next time comes an interval later.
    pub(super) fn ask(&mut self, now: Instant, max: usize) -> Option<usize> {
        self.at.filter(|at| *at <= now)?;
        self.asked = self.room.min(max.max(1));
        if self.asked == 0 {
            self.at = Some(super::durable::after(now, self.interval));
            return None;
        }
        Some(self.asked)
    }

    /// The queue has answered: where there was as much as was asked for there may be more at once. `next` is the number
    /// of the next message.
    pub(super) fn answered(&mut self, now: Instant, messages: Vec<MessageSent<M>>, next: &mut u64) {
        let is_full = messages.len() >= self.asked;
        self.at = Some(if is_full { now } else { super::durable::after(now, self.interval) });
        self.room = self.room.saturating_sub(messages.len());
        for sent in messages {
            let after = SeqNr(next.saturating_sub(1));
            *next = (*next).max(sent.seq_nr.get().saturating_add(1));
            self.found.push(Found { after, sent });
        }
    }

    pub(super) fn take_found(&mut self) -> Vec<Found<M>> {
        std::mem::take(&mut self.found)
    }
}
