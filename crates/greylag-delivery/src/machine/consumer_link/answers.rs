//! The timers of a consumer's messages: of confirmations that are held back or delayed, and of questions that are repeated.
//!
//! Source: delivery C9b, C10, C11.

use std::time::{Duration, Instant};

use super::ConsumerLinkSettings;

/// At most one answer to duplicates per link and this long. Source: delivery C10.
const DUPLICATE_ACK_INTERVAL: Duration = Duration::from_millis(100);

/// See the module's documentation.
#[derive(Debug, Clone)]
pub(super) struct Answers {
    retry_at: Option<Instant>,
    retry_interval: Duration,
    held_ack: Option<HeldAck>,
    /// When confirmations that no sender asked for are told.
    delayed_ack_at: Option<Instant>,
    duplicate_ack_at: Option<Instant>,
}

/// An `Ack` that waits for company (C9b).
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

    /// The present producer spoke, or another one is asked: the retry timer begins anew with its first interval.
    pub(super) fn heard(&mut self, now: Instant, misses_frames: bool, settings: &ConsumerLinkSettings) {
        self.retry_interval = settings.resend_interval_min;
        self.put_off(now, misses_frames);
    }

    /// Puts the retry timer off, since the producer was heard or has been told everything. A link that misses frames asks for
    /// them in its time all the same: on a busy link frames would put the question off for as long as they arrive (I7).
    pub(super) fn put_off(&mut self, now: Instant, misses_frames: bool) {
        let at = now + self.retry_interval;
        let is_due_earlier = self.retry_at.is_some_and(|due| due < at);
        if !(is_due_earlier && misses_frames) {
            self.retry_at = Some(at);
        }
    }

    /// The link listens to another producer, which was told nothing yet.
    pub(super) fn start_over(&mut self, now: Instant, settings: &ConsumerLinkSettings) {
        self.heard(now, false, settings);
        self.told();
        self.duplicate_ack_at = None;
    }

    /// A request left. It says all that an ack would, and restarts the retry timer (C9).
    pub(super) fn requested(&mut self, now: Instant, misses_frames: bool) {
        self.told();
        self.put_off(now, misses_frames);
    }

    /// An ack left.
    pub(super) fn told(&mut self) {
        self.held_ack = None;
        self.delayed_ack_at = None;
    }

    /// Messages were confirmed whose senders wait for the ack. Returns whether the ack leaves now; it is held back only
    /// while further frames are ready, for at most `most` confirmations and `delay`.
    pub(super) fn asked(&mut self, now: Instant, count: u64, most: u64, is_next_here: bool, delay: Duration) -> bool {
        let held = self.held_ack.unwrap_or(HeldAck { until: now + delay, confirmations: 0 });
        let confirmations = held.confirmations + count;
        if delay.is_zero() || !is_next_here || confirmations > most {
            return true;
        }
        self.held_ack = Some(HeldAck { confirmations, ..held });
        false
    }

    /// Messages were confirmed whose senders did not ask for it.
    pub(super) fn unasked(&mut self, now: Instant, delay: Option<Duration>) {
        if let (None, Some(delay)) = (self.delayed_ack_at, delay) {
            self.delayed_ack_at = Some(now + delay);
        }
    }

    /// Whether an ack waits for company.
    pub(super) fn is_held(&self) -> bool {
        self.held_ack.is_some()
    }

    /// Whether an ack has waited for long enough.
    pub(super) fn is_ack_due(&self, now: Instant) -> bool {
        self.ack_at().is_some_and(|at| at <= now)
    }

    fn ack_at(&self) -> Option<Instant> {
        [self.held_ack.map(|held| held.until), self.delayed_ack_at].into_iter().flatten().min()
    }

    /// Whether a duplicate that came now is answered.
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

    /// A question was repeated: the next interval is half as long again. A link that `may_sleep` has no timer after the
    /// longest interval.
    pub(super) fn repeated(&mut self, now: Instant, may_sleep: bool, settings: &ConsumerLinkSettings) {
        let is_longest = self.retry_interval >= settings.resend_interval_max;
        self.retry_interval = self.retry_interval.mul_f64(1.5).min(settings.resend_interval_max);
        self.retry_at = (!(may_sleep && is_longest)).then(|| now + self.retry_interval);
    }
}
