//! Polls for messages that others write into the queue's store.

use std::time::{Duration, Instant};

use super::Found;
use crate::ids::SeqNr;
use crate::machine::tracking::deadlines::after;
use crate::queue::MessageSent;

/// See the module's documentation. Source: delivery §4.4 (outbox).
#[derive(Debug, Clone)]
pub(super) struct Polling<M> {
    interval: Duration,
    /// The time of the next poll; `None` until the queue was loaded.
    at: Option<Instant>,
    /// Number of messages for which the controller has room.
    room: usize,
    /// Number of messages requested by the last poll.
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

    /// The queue was loaded: poll at once.
    pub(super) fn opened(&mut self, now: Instant) {
        self.at = Some(now);
    }

    pub(super) fn due_at(&self) -> Option<Instant> {
        self.at
    }

    /// Number of messages to request now, if a poll is due. Without room, the next poll is due one interval later.
    pub(super) fn ask(&mut self, now: Instant, max: usize) -> Option<usize> {
        self.at.filter(|at| *at <= now)?;
        self.asked = self.room.min(max.max(1));
        if self.asked == 0 {
            self.at = Some(after(now, self.interval));
            return None;
        }
        Some(self.asked)
    }

    /// Handles the result of a poll. If it is as large as requested, the next poll is due at once, since there may be
    /// more. `next` is the number of the next message.
    pub(super) fn answered(&mut self, now: Instant, messages: Vec<MessageSent<M>>, next: &mut u64) {
        let is_full = messages.len() >= self.asked;
        self.at = Some(if is_full { now } else { after(now, self.interval) });
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
