//! When a link transmits again what it has transmitted before, and when it may transmit nothing.
//!
//! P8 repeats the first frame of an association until it is answered; P9 shows the head when a link with unconfirmed
//! frames falls silent. Three things hold a link up: its controller, which lets a limited number of links begin at a
//! time; a lane or an inbox without room, which is tried again soon; and a copy that waits in the region's buffer for a
//! route, beside which a second one would be of no use, for as long as the region has not lost it.
//!
//! Source: delivery P8, P9, S7, S8.

use std::time::{Duration, Instant};

/// Repeats in a row without an answer after which the consumer counts as silent. Source: delivery P5a, W6.
const SILENT_AFTER: u32 = 2;

/// Shortest and longest pause after a refusal.
const REFUSED_PAUSE_MIN: Duration = Duration::from_millis(1);
const REFUSED_PAUSE_MAX: Duration = Duration::from_millis(100);
/// The pause is this part of the time for which no frame was taken. A slow consumer so waits a quarter longer for its next
/// frame than its pace requires, at most.
const REFUSED_PAUSE_PART: u32 = 4;

/// Probes that a copy in the region's buffer stands for. The region tells of copies that it drops, but not of every one
/// when it drops many.
const BUFFERED_FOR: u32 = 30;

/// See the module's documentation.
#[derive(Debug, Clone)]
pub(super) struct Repeats {
    first_interval: Duration,
    idle_timeout: Duration,
    /// Anything was heard since the last start-over.
    answered: bool,
    /// Repeats since the present consumer was last heard.
    unanswered: u32,
    routed: bool,
    /// A copy of the head lies in the region's buffer.
    in_buffer: bool,
    held: bool,
    /// Boxed, because most links have none.
    refusal: Option<Box<Refusal>>,
    head_sent_at: Instant,
    /// When anything was last transmitted, or heard from the present consumer.
    active_at: Instant,
}

/// Frames found no room, and nothing was heard since.
#[derive(Debug, Clone, Copy)]
struct Refusal {
    /// The first frame that found none.
    from: u64,
    /// When the frame before it was taken, as far as is known.
    taken_at: Instant,
    /// The end of the pause, until that is over.
    until: Option<Instant>,
}

impl Repeats {
    pub(super) fn new(first_interval: Duration, idle_timeout: Duration, now: Instant) -> Self {
        Self {
            first_interval,
            idle_timeout,
            answered: false,
            unanswered: 0,
            routed: true,
            in_buffer: false,
            held: false,
            refusal: None,
            head_sent_at: now,
            active_at: now,
        }
    }

    /// When the head of a link with unconfirmed frames is due again, or refused frames are; `is_first`: the head begins
    /// an association.
    pub(super) fn deadline(&self, is_first: bool) -> Option<Instant> {
        if self.held {
            return None;
        }
        if let Some(until) = self.refused_until() {
            return Some(until);
        }
        if self.in_buffer {
            return Some(self.head_sent_at + self.idle_timeout.saturating_mul(BUFFERED_FOR));
        }
        Some(match is_first {
            // Without a route the region has been asked already; S7 then slows down.
            true if !self.answered && self.routed => self.head_sent_at + self.first_interval,
            true => self.head_sent_at + self.idle_timeout,
            false => self.active_at + self.idle_timeout,
        })
    }

    /// Whether frames may be transmitted now.
    pub(super) fn is_free(&self) -> bool {
        !self.held && self.refused_until().is_none()
    }

    /// When frames that found no room are due again.
    pub(super) fn refused_until(&self) -> Option<Instant> {
        self.refusal.as_ref().and_then(|refusal| refusal.until)
    }

    pub(super) fn is_held(&self) -> bool {
        self.held
    }

    pub(super) fn hold(&mut self, held: bool) {
        self.held = held;
    }

    /// Whether a copy of the head waits for a route, so that a start-over needs no other one.
    pub(super) fn waits_in_buffer(&self) -> bool {
        self.in_buffer
    }

    /// Whether so many repeats in a row went unanswered that the present consumer counts as silent.
    pub(super) fn are_unanswered(&self) -> bool {
        self.unanswered >= SILENT_AFTER
    }

    // ---- what happened --------------------------------------------------------------------------

    pub(super) fn transmitted(&mut self, now: Instant, is_head: bool) {
        self.active_at = now;
        if is_head {
            self.head_sent_at = now;
            self.in_buffer = !self.routed;
        }
    }

    pub(super) fn repeated(&mut self) {
        self.unanswered = self.unanswered.saturating_add(1);
    }

    /// Frames from this number on found no room: they are tried again soon, and less often the longer none is taken.
    pub(super) fn refused(&mut self, now: Instant, from: u64) {
        let taken_at = match &self.refusal {
            Some(before) if from <= before.from => before.taken_at,
            _ => now,
        };
        let pause = now.saturating_duration_since(taken_at) / REFUSED_PAUSE_PART;
        let until = Some(now + pause.clamp(REFUSED_PAUSE_MIN, REFUSED_PAUSE_MAX));
        self.refusal = Some(Box::new(Refusal { from, taken_at, until }));
    }

    /// The pause after a refusal is over, if it is.
    pub(super) fn end_of_pause(&mut self, now: Instant) -> bool {
        self.refusal.as_mut().is_some_and(|refusal| refusal.until.take_if(|until| *until <= now).is_some())
    }

    /// A consumer spoke, so its inbox has moved on. `is_known`: it is not the one that was displaced.
    pub(super) fn heard(&mut self, now: Instant, is_present: bool, is_known: bool) {
        self.answered |= is_known;
        if is_present {
            self.unanswered = 0;
            self.active_at = now;
            self.refusal = None;
        }
    }

    pub(super) fn started_over(&mut self) {
        self.answered = false;
        self.unanswered = 0;
    }

    /// With a route, a copy that waited for it leaves now.
    pub(super) fn route_changed(&mut self, now: Instant, routed: bool) {
        if routed && self.in_buffer {
            self.head_sent_at = now;
            self.active_at = now;
        }
        self.routed = routed;
        self.in_buffer = false;
    }

    /// The region did not keep the copy, or lost it: the next one is due a timeout after it.
    pub(super) fn not_buffered(&mut self) {
        self.in_buffer = false;
    }
}
