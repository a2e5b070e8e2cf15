//! Timers of messages to the producer: held-back and delayed acks, and retries.
//!
//! Source: delivery C9b, C10, C11.

use std::time::{Duration, Instant};

use super::ConsumerLinkSettings;

/// At most one answer to duplicates per link and interval. Source: delivery C10.
const DUPLICATE_ACK_INTERVAL: Duration = Duration::from_millis(100);

/// See the module's documentation.
#[derive(Debug, Clone)]
pub(super) struct Answers {
    retry_at: Option<Instant>,
    retry_interval: Duration,
    held_ack: Option<HeldAck>,
    /// When to confirm messages whose senders did not ask for an ack.
    delayed_ack_at: Option<Instant>,
    duplicate_ack_at: Option<Instant>,
}

/// An `Ack` held back to be combined with later ones (C9b).
#[derive(Debug, Clone, Copy)]
struct HeldAck {
    until: Instant,
    confirmations: u64,
}

impl Answers {
    pub(super) fn new(settings: &ConsumerLinkSettings) -> Self {
        Self {
            retry_at: None,
            retry_interval: settings.resend_interval_min,
            held_ack: None,
            delayed_ack_at: None,
            duplicate_ack_at: None,
        }
    }

    pub(super) fn next_deadline(&self) -> Option<Instant> {
        [self.retry_at, self.ack_at()].into_iter().flatten().min()
    }

    /// The current producer sent a frame, or another one is registered to: restarts the retry timer with its first
    /// interval.
    pub(super) fn on_frame(&mut self, now: Instant, misses_frames: bool, settings: &ConsumerLinkSettings) {
        self.retry_interval = settings.resend_interval_min;
        self.postpone_retry(now, misses_frames);
    }

    /// Postpones the retry timer, since the producer was heard or has been told everything. If frames are missing, an
    /// earlier deadline stands: on a busy link, arriving frames would otherwise postpone the resend request for ever
    /// (I7).
    pub(super) fn postpone_retry(&mut self, now: Instant, misses_frames: bool) {
        let at = now + self.retry_interval;
        let is_due_earlier = self.retry_at.is_some_and(|due| due < at);
        if !(is_due_earlier && misses_frames) {
            self.retry_at = Some(at);
        }
    }

    /// Resets the timers for another producer, which has been told nothing yet.
    pub(super) fn start_over(&mut self, now: Instant, settings: &ConsumerLinkSettings) {
        self.on_frame(now, false, settings);
        self.ack_sent();
        self.duplicate_ack_at = None;
    }

    /// A request was sent: it includes everything that an ack would say, and postpones the retry timer (C9).
    pub(super) fn requested(&mut self, now: Instant, misses_frames: bool) {
        self.ack_sent();
        self.postpone_retry(now, misses_frames);
    }

    /// A message with the present confirmations was sent, so no ack is due.
    pub(super) fn ack_sent(&mut self) {
        self.held_ack = None;
        self.delayed_ack_at = None;
    }

    /// Messages were confirmed whose senders asked for an ack. Returns whether to send the ack now; it is held back
    /// only while further frames are ready, for at most `most` confirmations and `delay`.
    pub(super) fn confirmed_with_ack(
        &mut self,
        now: Instant,
        count: u64,
        most: u64,
        is_next_here: bool,
        delay: Duration,
    ) -> bool {
        let held = self.held_ack.unwrap_or(HeldAck { until: now + delay, confirmations: 0 });
        let confirmations = held.confirmations + count;
        if delay.is_zero() || !is_next_here || confirmations > most {
            return true;
        }
        self.held_ack = Some(HeldAck { confirmations, ..held });
        false
    }

    /// Messages were confirmed whose senders did not ask for an ack.
    pub(super) fn confirmed_without_ack(&mut self, now: Instant, delay: Option<Duration>) {
        if let (None, Some(delay)) = (self.delayed_ack_at, delay) {
            self.delayed_ack_at = Some(now + delay);
        }
    }

    /// Whether an ack is held back.
    pub(super) fn is_held(&self) -> bool {
        self.held_ack.is_some()
    }

    /// Whether a held-back or delayed ack is due.
    pub(super) fn is_ack_due(&self, now: Instant) -> bool {
        self.ack_at().is_some_and(|at| at <= now)
    }

    fn ack_at(&self) -> Option<Instant> {
        [self.held_ack.map(|held| held.until), self.delayed_ack_at].into_iter().flatten().min()
    }

    /// Whether to answer a duplicate that arrives now.
    pub(super) fn duplicate(&mut self, now: Instant, always: bool) -> bool {
        let is_quiet = self.duplicate_ack_at.is_some_and(|at| now < at + DUPLICATE_ACK_INTERVAL);
        let answers = always || !is_quiet;
        if answers {
            self.duplicate_ack_at = Some(now);
        }
        answers
    }

    pub(super) fn is_retry_due(&self, now: Instant) -> bool {
        self.retry_at.is_some_and(|at| at <= now)
    }

    /// A retry was sent: the next interval is half as long again. If the link `may_sleep`, there is no further retry
    /// after the longest interval.
    pub(super) fn repeated(&mut self, now: Instant, may_sleep: bool, settings: &ConsumerLinkSettings) {
        let is_longest = self.retry_interval >= settings.resend_interval_max;
        self.retry_interval = self.retry_interval.mul_f64(1.5).min(settings.resend_interval_max);
        self.retry_at = (!(may_sleep && is_longest)).then(|| now + self.retry_interval);
    }
}
