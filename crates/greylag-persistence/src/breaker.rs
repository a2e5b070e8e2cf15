//! Keeps calls from a store that does not answer, so that an outage is not made worse by waiting.
//!
//! ```text
//! Closed --max_failures in a row--> Open --reset_timeout--> HalfOpen: one probe call
//!    ^                                ^                         |
//!    |                                +---- it fails: twice as long, up to 5 min
//!    +------------------------------------- it is answered
//! ```
//! Only what shows that the store does not answer counts as a failure: time-outs and I/O errors. A
//! refusal (rejected, fenced, a conflict, not found, a damaged record) is an answer. Time is an
//! argument; the driver asks before each call and tells its outcome. Source: persistence §4.1.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::time::{Duration, Instant};

use crate::error::StoreFailure;
use crate::event::WriterUuid;
use crate::persistence_id::PersistenceId;
use crate::settings::SettingsError;

/// When a breaker opens, and for how long. Source: persistence §9.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BreakerSettings {
    /// It opens after so many failures in a row. Default 10; for snapshot stores 5.
    pub max_failures: NonZeroU32,
    /// Longest wait for one call. Default 10 s; for snapshot stores 20 s.
    pub call_timeout: Duration,
    /// How long it stays open the first time. Default 30 s; for snapshot stores 60 s.
    pub reset_timeout: Duration,
    /// How long it stays open at most, after probes failed. Default 5 min.
    pub max_reset_timeout: Duration,
}

impl Default for BreakerSettings {
    fn default() -> Self {
        Self {
            max_failures: NonZeroU32::new(10).expect("not zero"),
            call_timeout: Duration::from_secs(10),
            reset_timeout: Duration::from_secs(30),
            max_reset_timeout: Duration::from_secs(300),
        }
    }
}

impl BreakerSettings {
    /// For snapshot stores, whose calls move more bytes and can wait.
    pub fn snapshots() -> Self {
        Self {
            max_failures: NonZeroU32::new(5).expect("not zero"),
            call_timeout: Duration::from_secs(20),
            reset_timeout: Duration::from_secs(60),
            ..Self::default()
        }
    }

    /// Checks what the types leave open.
    ///
    /// # Errors
    /// [`SettingsError`], naming the keys.
    pub fn check(&self) -> Result<(), SettingsError> {
        let times = [("breaker.call_timeout", self.call_timeout), ("breaker.reset_timeout", self.reset_timeout)];
        if let Some((key, _)) = times.into_iter().find(|(_, duration)| duration.is_zero()) {
            return Err(SettingsError::ZeroDuration { key });
        }
        if self.max_reset_timeout < self.reset_timeout {
            let (reset, max) = (self.reset_timeout, self.max_reset_timeout);
            return Err(SettingsError::BreakerOrder { reset, max });
        }
        Ok(())
    }
}

/// Where a breaker stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BreakerMode {
    /// Calls pass.
    Closed,
    /// Calls are refused for so long.
    Open {
        /// Time left.
        left: Duration,
        /// The failure that opened it.
        cause: String,
    },
    /// One call may try, or is trying.
    HalfOpen,
}

/// What a breaker has done since it was made. Source: persistence §10.16.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BreakerStats {
    /// Where it stands now.
    pub mode: BreakerMode,
    /// Calls that showed that the store does not answer: timed out, or an I/O error.
    pub failures: u64,
    /// How often it opened, after a failed probe too.
    pub opened: u64,
    /// Calls that it refused, which the store never saw.
    pub refused: u64,
}

/// The breakers of one store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Breakers {
    /// Of what changes something.
    pub writes: BreakerStats,
    /// Of the rest.
    pub reads: BreakerStats,
}

/// Leave for one call; its outcome is told with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Admission {
    /// The state that the call began in; what comes from an earlier one says nothing about now.
    term: u64,
    probe: bool,
}

/// How a call ended, as far as it says something about the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CallOutcome {
    /// The store answered, be it a refusal.
    Answered,
    /// It did not: what the failure was.
    Failed(String),
    /// Nobody waited for the end.
    Abandoned,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Mode {
    Closed,
    Open { until: Instant },
    HalfOpen { probing: bool },
}

/// A breaker for calls of one direction of one store.
#[derive(Debug)]
pub struct Breaker {
    /// As errors call it.
    name: String,
    settings: BreakerSettings,
    mode: Mode,
    /// In a row.
    failures: u32,
    /// How long it stays open the next time.
    reset: Duration,
    last_cause: String,
    /// Raised by every change of mode.
    term: u64,
    /// In all, as the two below; see [`BreakerStats`].
    failed: u64,
    opened: u64,
    refused: u64,
}

impl Breaker {
    /// A closed one, called `name` in errors.
    pub fn new(name: impl Into<String>, settings: BreakerSettings) -> Self {
        let reset = settings.reset_timeout;
        let (name, last_cause) = (name.into(), String::new());
        Self {
            name,
            settings,
            mode: Mode::Closed,
            failures: 0,
            reset,
            last_cause,
            term: 0,
            failed: 0,
            opened: 0,
            refused: 0,
        }
    }

    /// Asks whether a call may go now.
    ///
    /// # Errors
    /// A failure that names the breaker, the last cause and the time left. Nothing was sent then.
    pub fn admit(&mut self, now: Instant) -> Result<Admission, StoreFailure> {
        if matches!(self.mode, Mode::Open { until } if until <= now) {
            self.become_mode(Mode::HalfOpen { probing: false });
        }
        let probe = match self.mode {
            Mode::Closed => false,
            Mode::HalfOpen { probing: false } => {
                self.mode = Mode::HalfOpen { probing: true };
                true
            }
            Mode::HalfOpen { probing: true } => return Err(self.refusal("one call is trying the store")),
            Mode::Open { until } => {
                let left = until.saturating_duration_since(now);
                return Err(self.refusal(&format!("open for another {left:.1?}")));
            }
        };
        Ok(Admission { term: self.term, probe })
    }

    /// Takes the end of a call.
    pub fn settle(&mut self, now: Instant, admission: Admission, outcome: CallOutcome) {
        self.failed += u64::from(matches!(outcome, CallOutcome::Failed(_)));
        if admission.term != self.term {
            // It began before the breaker opened or closed; the probe tells what holds now.
            return;
        }
        match outcome {
            CallOutcome::Abandoned if admission.probe => self.mode = Mode::HalfOpen { probing: false },
            CallOutcome::Abandoned => {}
            CallOutcome::Answered => {
                self.failures = 0;
                if admission.probe {
                    self.reset = self.settings.reset_timeout;
                    self.become_mode(Mode::Closed);
                }
            }
            CallOutcome::Failed(cause) => self.on_failure(now, admission, cause),
        }
    }

    fn on_failure(&mut self, now: Instant, admission: Admission, cause: String) {
        self.failures = self.failures.saturating_add(1);
        self.last_cause = cause;
        if admission.probe {
            self.reset = self.reset.saturating_mul(2).min(self.settings.max_reset_timeout);
        } else if self.failures < self.settings.max_failures.get() {
            return;
        }
        self.become_mode(Mode::Open { until: now + self.reset });
    }

    /// Where it stands now.
    pub fn mode(&self, now: Instant) -> BreakerMode {
        match self.mode {
            Mode::Closed => BreakerMode::Closed,
            Mode::Open { until } if until > now => {
                BreakerMode::Open { left: until.saturating_duration_since(now), cause: self.last_cause.clone() }
            }
            Mode::Open { .. } | Mode::HalfOpen { .. } => BreakerMode::HalfOpen,
        }
    }

    /// What it has done, and where it stands now.
    pub fn stats(&self, now: Instant) -> BreakerStats {
        let Self { failed: failures, opened, refused, .. } = *self;
        BreakerStats { mode: self.mode(now), failures, opened, refused }
    }

    /// As errors call it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Longest wait for one call.
    pub fn call_timeout(&self) -> Duration {
        self.settings.call_timeout
    }

    fn become_mode(&mut self, mode: Mode) {
        tracing::warn!(breaker = self.name, ?mode, failures = self.failures, cause = self.last_cause, "breaker");
        self.opened += u64::from(matches!(mode, Mode::Open { .. }));
        self.mode = mode;
        self.term += 1;
    }

    fn refusal(&mut self, state: &str) -> StoreFailure {
        self.refused += 1;
        let cause = &self.last_cause;
        StoreFailure::new(&self.name, format!("{state} after {} failures in a row, the last: {cause}", self.failures))
    }
}

/// The writes whose outcome nobody knows: what is asked again for one of them must not be answered
/// as if it were known not to be stored. Source: persistence J10.
///
/// One for each id, the latest, for [`DOUBT_LASTS`]: nobody repeats a write for longer. Bounded: while
/// there are too many, every write counts as doubtful, which is never wrong, only less helpful.
#[derive(Debug)]
pub struct Unanswered {
    by_id: BTreeMap<PersistenceId, Doubt>,
    capacity: usize,
    /// Until then some are not remembered.
    overflowed_until: Option<Instant>,
}

#[derive(Debug, Clone, Copy)]
struct Doubt {
    writer_uuid: WriterUuid,
    number: u64,
    until: Instant,
}

/// How long a write is remembered as unanswered; far longer than any `append_timeout`.
pub const DOUBT_LASTS: Duration = Duration::from_secs(600);

impl Unanswered {
    /// Remembers the writes of up to `capacity` ids.
    pub fn new(capacity: usize) -> Self {
        Self { by_id: BTreeMap::new(), capacity, overflowed_until: None }
    }

    /// The write of `writer_uuid` that makes `number` went out and was not answered.
    pub fn note(&mut self, now: Instant, id: &PersistenceId, writer_uuid: WriterUuid, number: u64) {
        let until = now + DOUBT_LASTS;
        if self.by_id.len() >= self.capacity {
            self.by_id.retain(|_, doubt| doubt.until > now);
        }
        if self.by_id.len() < self.capacity || self.by_id.contains_key(id) {
            self.by_id.insert(id.clone(), Doubt { writer_uuid, number, until });
        } else {
            self.overflowed_until = Some(until);
        }
    }

    /// The outcome of the latest write of `id` is known.
    pub fn settle(&mut self, id: &PersistenceId) {
        self.by_id.remove(id);
    }

    /// Whether an earlier try of this write may be stored.
    pub fn is_doubtful(&self, now: Instant, id: &PersistenceId, writer_uuid: WriterUuid, number: u64) -> bool {
        let same = |doubt: &Doubt| doubt.writer_uuid == writer_uuid && doubt.number == number && doubt.until > now;
        self.overflowed_until.is_some_and(|until| until > now) || self.by_id.get(id).is_some_and(same)
    }
}

#[cfg(test)]
mod tests;
