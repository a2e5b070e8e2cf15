//! Timers for repeated frames, and conditions under which a link transmits nothing.
//!
//! P8 repeats the first frame of an association until it is answered; P9 sends the head when a link with unconfirmed
//! frames falls silent. Three conditions hold a link up: its controller holds it, since only a limited number of links
//! may begin at a time; a lane or an inbox has no room, and is retried soon; or a copy of the head waits in the
//! region's buffer for a route, so that a second copy would be useless unless the region loses the first.
//!
//! Source: delivery P8, P9, S7, S8.

use std::time::{Duration, Instant};

/// Unanswered repeats in a row after which the consumer counts as silent. Source: delivery P5a, W6.
const SILENT_AFTER: u32 = 2;

/// Shortest and longest pause after a refusal.
const REFUSED_PAUSE_MIN: Duration = Duration::from_millis(1);
const REFUSED_PAUSE_MAX: Duration = Duration::from_millis(100);
/// The pause is this fraction of the time since a frame was last taken, so a slow consumer waits at most a quarter
/// longer for its next frame than its own pace requires.
const REFUSED_PAUSE_PART: u32 = 4;

/// A copy in the region's buffer replaces this number of probe intervals. A limit is needed because the region does not
/// report every copy when it drops many.
const BUFFERED_FOR: u32 = 30;

/// See the module's documentation.
#[derive(Debug, Clone)]
pub(super) struct Repeats {
    first_interval: Duration,
    idle_timeout: Duration,
    /// Whether a message arrived since the last start-over.
    answered: bool,
    /// Repeats since the last message of the present consumer.
    unanswered: u32,
    routed: bool,
    /// Whether a copy of the head is in the region's buffer.
    in_buffer: bool,
    held: bool,
    /// Boxed, because most links have no refusal.
    refusal: Option<Box<Refusal>>,
    head_sent_at: Instant,
    /// Time of the last transmission, or of the last message of the present consumer.
    active_at: Instant,
}

/// Frames were refused for want of room, and no message of the consumer arrived since.
#[derive(Debug, Clone, Copy)]
struct Refusal {
    /// The first refused frame.
    from: u64,
    /// When the frame before it was taken, as far as is known.
    taken_at: Instant,
    /// The end of the pause; `None` once the pause is over.
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

    /// When the head of a link with unconfirmed frames must be sent again, or refused frames must; `is_first`: the head
    /// begins an association.
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
            // Without a route the region has already asked for the home; S7 then repeats more slowly.
            true if !self.answered && self.routed => self.head_sent_at + self.first_interval,
            true => self.head_sent_at + self.idle_timeout,
            false => self.active_at + self.idle_timeout,
        })
    }

    /// Whether frames may be transmitted now.
    pub(super) fn is_free(&self) -> bool {
        !self.held && self.refused_until().is_none()
    }

    /// When refused frames must be sent again.
    pub(super) fn refused_until(&self) -> Option<Instant> {
        self.refusal.as_ref().and_then(|refusal| refusal.until)
    }

    pub(super) fn is_held(&self) -> bool {
        self.held
    }

    pub(super) fn hold(&mut self, held: bool) {
        self.held = held;
    }

    /// Whether a copy of the head waits for a route, so that a start-over needs no second copy.
    pub(super) fn waits_in_buffer(&self) -> bool {
        self.in_buffer
    }

    /// Whether enough repeats in a row went unanswered that the present consumer counts as silent.
    pub(super) fn are_unanswered(&self) -> bool {
        self.unanswered >= SILENT_AFTER
    }

    // ---- events -------------------------------------------------------------------------------------

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

    /// Frames from `from` on were refused: sets a pause, which grows with the time since a frame was last taken.
    pub(super) fn refused(&mut self, now: Instant, from: u64) {
        let taken_at = match &self.refusal {
            Some(before) if from <= before.from => before.taken_at,
            _ => now,
        };
        let pause = now.saturating_duration_since(taken_at) / REFUSED_PAUSE_PART;
        let until = Some(now + pause.clamp(REFUSED_PAUSE_MIN, REFUSED_PAUSE_MAX));
        self.refusal = Some(Box::new(Refusal { from, taken_at, until }));
    }

    /// Ends the pause after a refusal if it is over; returns whether it ended.
    pub(super) fn end_of_pause(&mut self, now: Instant) -> bool {
        self.refusal.as_mut().is_some_and(|refusal| refusal.until.take_if(|until| *until <= now).is_some())
    }

    /// A message of a consumer arrived. The present consumer's inbox has thus moved on, which ends a refusal.
    /// `is_known`: the consumer is not the displaced one.
    pub(super) fn on_consumer_message(&mut self, now: Instant, is_present: bool, is_known: bool) {
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

    /// With a new route, a copy that waited for it is sent now.
    pub(super) fn route_changed(&mut self, now: Instant, routed: bool) {
        if routed && self.in_buffer {
            self.head_sent_at = now;
            self.active_at = now;
        }
        self.routed = routed;
        self.in_buffer = false;
    }

    /// The region has no copy: the next one is due one timeout after the last.
    pub(super) fn not_buffered(&mut self) {
        self.in_buffer = false;
    }
}
