//! A circuit breaker: refuses calls to a store that does not answer, so that waiting does not make an outage worse.
//!
//! ```text
//! Closed --max_failures in a row--> Open --its next probe--> HalfOpen --answered--> Closed
//!                                     ^                         | fails
//!                                     +-------------------------+
//! a failure --100 ms--> probe --fails--> probe, after twice as long, up to reset_timeout
//!                         +--answered--> what backs off starts at once
//! ```
//! Only a sign that the store does not answer counts as a failure: time-outs and I/O errors. A
//! refusal (rejected, fenced, a conflict, not found, a damaged record) is an answer. Probing begins with the first
//! failure, not when the breaker opens: where few calls are made, all entities that made one may back off long before
//! there are `max_failures`, and no call would detect that the store is back. While the breaker is not closed
//! every call of a user is refused: the driver makes the probe, a read of a reserved id, so that no user's message
//! is lost to find out whether the store is back. Time is an argument; the driver asks before each call
//! ([`Breaker::admit`]), reports its outcome, and ticks. Source: persistence §4.1; sharding scenario 114.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::time::{Duration, Instant};

use super::error::StoreFailure;
use super::records::event::WriterUuid;
use super::records::persistence_id::PersistenceId;
use super::settings::SettingsError;

/// Wait between a failure and the first probe, unless `reset_timeout` is shorter.
const FIRST_PROBE: Duration = Duration::from_millis(100);

/// When a breaker opens, and how often it probes. Source: persistence §9.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BreakerSettings {
    /// Number of failures in a row, failed probes included, after which the breaker opens. Default 10; for snapshot
    /// stores 5.
    pub max_failures: NonZeroU32,
    /// Longest wait for one call, and for one probe. Default 10 s; for snapshot stores 20 s.
    pub call_timeout: Duration,
    /// Longest wait for the next probe while the store does not answer: the first probe comes 100 ms after a failure,
    /// each failed probe doubles the wait up to this. Default 500 ms.
    pub reset_timeout: Duration,
}

impl Default for BreakerSettings {
    fn default() -> Self {
        Self {
            max_failures: NonZeroU32::new(10).expect("not zero"),
            call_timeout: Duration::from_secs(10),
            reset_timeout: Duration::from_millis(500),
        }
    }
}

impl BreakerSettings {
    /// Settings for snapshot stores, whose calls move more bytes and can wait.
    pub fn snapshots() -> Self {
        Self {
            max_failures: NonZeroU32::new(5).expect("not zero"),
            call_timeout: Duration::from_secs(20),
            ..Self::default()
        }
    }

    /// Checks the values that the types do not rule out.
    ///
    /// # Errors
    /// [`SettingsError`], naming the key.
    pub fn validate(&self) -> Result<(), SettingsError> {
        let times = [("breaker.call_timeout", self.call_timeout), ("breaker.reset_timeout", self.reset_timeout)];
        match times.into_iter().find(|(_, duration)| duration.is_zero()) {
            Some((key, _)) => Err(SettingsError::ZeroDuration { key }),
            None => Ok(()),
        }
    }
}

/// The state of a breaker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BreakerMode {
    /// Calls pass.
    Closed,
    /// Calls are refused.
    Open {
        /// Time left until the next probe.
        left: Duration,
        /// The failure that opened the breaker, or that of its last probe.
        cause: String,
    },
    /// Calls are refused, and a probe is under way.
    HalfOpen {
        /// The failure that opened the breaker, or that of the previous probe.
        cause: String,
    },
}

/// The activity of a breaker since it was made. Source: persistence §10.16.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BreakerStats {
    /// The breaker's present state.
    pub mode: BreakerMode,
    /// Calls that showed that the store does not answer: timed out, or an I/O error.
    pub failures: u64,
    /// Number of times that the breaker opened.
    pub opened: u64,
    /// Calls that the breaker refused; the store never saw them.
    pub refused: u64,
    /// Probes that the breaker started.
    pub probes: u64,
}

/// The breakers of one store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Breakers {
    /// The breaker of writes.
    pub writes: BreakerStats,
    /// The breaker of reads.
    pub reads: BreakerStats,
}

/// Permission for one call; the caller returns it with the outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Admission {
    /// The breaker's term when the call began; outcomes of calls of an earlier term are ignored.
    term: u64,
}

/// The end of a call, as far as it tells something about the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CallOutcome {
    /// The store answered, possibly with a refusal.
    Answered,
    /// The store did not answer; the text is the failure.
    Failed(String),
    /// The call was dropped before its end.
    Abandoned,
}

/// An input to a [`Breaker`]: ends of calls and probes, and the passing of time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BreakerInput {
    /// A call that was admitted has ended.
    Ended(Admission, CallOutcome),
    /// The probe of [`BreakerEffect::Probe`] has ended.
    Probed(CallOutcome),
    /// The store itself reports that it was away and can be reached again: a probe that is waited for starts now.
    Reachable,
    /// [`Breaker::next_deadline`] has come. Early and repeated ticks are harmless.
    Tick,
}

/// An action that a breaker asks of its driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BreakerEffect {
    /// Read a reserved id from the store, wait no longer than [`Breaker::call_timeout`] for the answer, and send
    /// [`BreakerInput::Probed`].
    Probe,
    /// The store answers again, and calls pass: end the back-off of the entities that wait for the store.
    StoreBack,
}

/// Progress of probing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Probing {
    /// No probe is due: no call failed since the store last answered a probe.
    Idle,
    /// The next probe starts at this time.
    At(Instant),
    UnderWay,
}

/// A breaker for calls of one direction of one store.
#[derive(Debug)]
pub struct Breaker {
    /// Name of the breaker in errors.
    name: String,
    settings: BreakerSettings,
    /// Whether calls are refused.
    is_open: bool,
    probing: Probing,
    /// Failures in a row, failed probes included; an answered call resets the count.
    failures: u32,
    /// Wait before the next probe.
    wait: Duration,
    last_cause: String,
    /// Raised whenever the breaker opens or closes, so that outcomes of earlier calls are recognized.
    term: u64,
    /// Totals, as the three fields below; see [`BreakerStats`].
    failed: u64,
    opened: u64,
    refused: u64,
    probes: u64,
}

impl Breaker {
    /// A closed breaker, called `name` in errors.
    pub fn new(name: impl Into<String>, settings: BreakerSettings) -> Self {
        Self {
            name: name.into(),
            settings,
            is_open: false,
            probing: Probing::Idle,
            failures: 0,
            wait: Duration::ZERO,
            last_cause: String::new(),
            term: 0,
            failed: 0,
            opened: 0,
            refused: 0,
            probes: 0,
        }
    }

    /// Asks whether a call may be sent now.
    ///
    /// # Errors
    /// A failure that names the breaker, the last cause and the time left. The call is not sent.
    pub fn admit(&mut self, now: Instant) -> Result<Admission, StoreFailure> {
        let state = match self.mode(now) {
            BreakerMode::Closed => return Ok(Admission { term: self.term }),
            BreakerMode::Open { left, .. } => format!("open for another {left:.1?}"),
            BreakerMode::HalfOpen { .. } => "open, and being probed,".to_owned(),
        };
        self.refused += 1;
        let Self { failures, last_cause, .. } = self;
        Err(StoreFailure::new(
            &self.name,
            format!("{state} after {failures} failures in a row, the last: {last_cause}"),
        ))
    }

    /// Takes one input.
    pub fn handle(&mut self, now: Instant, input: BreakerInput, out: &mut Vec<BreakerEffect>) {
        match input {
            BreakerInput::Ended(admission, outcome) => self.on_ended(now, admission, outcome),
            BreakerInput::Probed(outcome) => self.on_probed(now, outcome, out),
            BreakerInput::Reachable => self.on_reachable(out),
            BreakerInput::Tick => self.on_tick(now, out),
        }
        self.check_invariants();
    }

    fn check_invariants(&self) {
        debug_assert!(!self.is_open || self.probing != Probing::Idle, "an open breaker is probed");
        let has_failed = self.failures >= self.settings.max_failures.get();
        debug_assert_eq!(self.is_open, has_failed, "a breaker is open after so many failures in a row");
        debug_assert!(self.wait <= self.settings.reset_timeout, "the wait for a probe is bounded");
    }

    /// When a [`BreakerInput::Tick`] next has work to do; `None` while the store answers, or a probe is under way.
    pub fn next_deadline(&self) -> Option<Instant> {
        match self.probing {
            Probing::At(probe_at) => Some(probe_at),
            Probing::Idle | Probing::UnderWay => None,
        }
    }

    fn on_ended(&mut self, now: Instant, admission: Admission, outcome: CallOutcome) {
        self.failed += u64::from(matches!(outcome, CallOutcome::Failed(_)));
        if admission.term != self.term {
            // The call began before the breaker opened or closed: ignore its outcome; the probe tells the present
            // state.
            return;
        }
        match outcome {
            CallOutcome::Abandoned => {}
            // Probe even so: only an answered probe ends the back-off of the entities whose calls failed before.
            CallOutcome::Answered => self.failures = 0,
            CallOutcome::Failed(cause) => {
                self.note_failure(cause);
                if self.probing == Probing::Idle {
                    self.wait = FIRST_PROBE.min(self.settings.reset_timeout);
                    self.probing = Probing::At(now + self.wait);
                }
                self.open_if_due();
            }
        }
    }

    fn on_reachable(&mut self, out: &mut Vec<BreakerEffect>) {
        if matches!(self.probing, Probing::At(_)) {
            self.begin_probe(out);
        }
    }

    fn on_tick(&mut self, now: Instant, out: &mut Vec<BreakerEffect>) {
        if self.next_deadline().is_some_and(|deadline| deadline <= now) {
            self.begin_probe(out);
        }
    }

    fn begin_probe(&mut self, out: &mut Vec<BreakerEffect>) {
        self.probing = Probing::UnderWay;
        self.probes += 1;
        out.push(BreakerEffect::Probe);
    }

    fn on_probed(&mut self, now: Instant, outcome: CallOutcome, out: &mut Vec<BreakerEffect>) {
        if self.probing != Probing::UnderWay {
            return;
        }
        match outcome {
            CallOutcome::Answered => self.on_store_back(out),
            CallOutcome::Failed(cause) => {
                tracing::debug!(breaker = self.name, cause, "the store does not answer a probe");
                self.note_failure(cause);
                self.wait = self.wait.saturating_mul(2).min(self.settings.reset_timeout);
                self.probing = Probing::At(now + self.wait);
                self.open_if_due();
            }
            // A dropped probe tells nothing about the store, so the next one comes after the same wait.
            CallOutcome::Abandoned => self.probing = Probing::At(now + self.wait),
        }
    }

    fn note_failure(&mut self, cause: String) {
        self.failures = self.failures.saturating_add(1);
        self.last_cause = cause;
    }

    fn open_if_due(&mut self) {
        if self.is_open || self.failures < self.settings.max_failures.get() {
            return;
        }
        tracing::warn!(breaker = self.name, failures = self.failures, cause = self.last_cause, "breaker opens");
        self.is_open = true;
        self.opened += 1;
        self.term += 1;
    }

    fn on_store_back(&mut self, out: &mut Vec<BreakerEffect>) {
        self.probing = Probing::Idle;
        // Reset the failures only if the breaker was open: a store may answer probes and no calls.
        if std::mem::take(&mut self.is_open) {
            tracing::warn!(breaker = self.name, probes = self.probes, "breaker closes");
            self.failures = 0;
            self.term += 1;
        }
        out.push(BreakerEffect::StoreBack);
    }

    /// The breaker's present state.
    pub fn mode(&self, now: Instant) -> BreakerMode {
        let cause = || self.last_cause.clone();
        match self.next_deadline() {
            _ if !self.is_open => BreakerMode::Closed,
            Some(probe_at) => BreakerMode::Open { left: probe_at.saturating_duration_since(now), cause: cause() },
            None => BreakerMode::HalfOpen { cause: cause() },
        }
    }

    /// The breaker's counts and present state.
    pub fn stats(&self, now: Instant) -> BreakerStats {
        let Self { failed: failures, opened, refused, probes, .. } = *self;
        BreakerStats { mode: self.mode(now), failures, opened, refused, probes }
    }

    /// Name of the breaker in errors.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Longest wait for one call, or for one probe.
    pub fn call_timeout(&self) -> Duration {
        self.settings.call_timeout
    }
}

/// The writes whose outcome is unknown: a repeat of such a write must not be answered as if the write
/// were known not to be stored. Source: persistence J10.
///
/// Keeps the latest write of each id for [`IN_DOUBT_RETENTION`], longer than any caller repeats a write. Bounded:
/// while there are too many, every write counts as in doubt, which is never wrong, only less helpful.
#[derive(Debug)]
pub struct InDoubtWrites {
    by_id: BTreeMap<PersistenceId, InDoubtWrite>,
    capacity: usize,
    /// Until this time every write is in doubt, since some were not remembered.
    overflowed_until: Option<Instant>,
}

#[derive(Debug, Clone, Copy)]
struct InDoubtWrite {
    writer_uuid: WriterUuid,
    number: u64,
    until: Instant,
}

/// How long a write is remembered as in doubt; far longer than any `append_timeout`.
pub const IN_DOUBT_RETENTION: Duration = Duration::from_secs(600);

impl InDoubtWrites {
    /// Keeps the writes of up to `capacity` ids.
    pub fn new(capacity: usize) -> Self {
        Self { by_id: BTreeMap::new(), capacity, overflowed_until: None }
    }

    /// Notes that the write of `writer_uuid` that makes `number` was sent and not answered.
    pub fn note(&mut self, now: Instant, id: &PersistenceId, writer_uuid: WriterUuid, number: u64) {
        let until = now + IN_DOUBT_RETENTION;
        if self.by_id.len() >= self.capacity {
            self.by_id.retain(|_, write| write.until > now);
        }
        if self.by_id.len() < self.capacity || self.by_id.contains_key(id) {
            self.by_id.insert(id.clone(), InDoubtWrite { writer_uuid, number, until });
        } else {
            self.overflowed_until = Some(until);
        }
        debug_assert!(self.by_id.len() <= self.capacity, "the writes in doubt are bounded");
    }

    /// Notes that the outcome of the latest write of `id` is known.
    pub fn settle(&mut self, id: &PersistenceId) {
        self.by_id.remove(id);
    }

    /// Whether an earlier try of this write may be stored.
    pub fn is_in_doubt(&self, now: Instant, id: &PersistenceId, writer_uuid: WriterUuid, number: u64) -> bool {
        let same =
            |write: &InDoubtWrite| write.writer_uuid == writer_uuid && write.number == number && write.until > now;
        self.overflowed_until.is_some_and(|until| until > now) || self.by_id.get(id).is_some_and(same)
    }
}

#[cfg(test)]
mod tests;
