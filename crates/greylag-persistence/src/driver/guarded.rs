//! Time-outs and breakers around any store.
//!
//! [`Guarded`] wraps a journal, a snapshot, state or offset store: each call has `call_timeout`, writes
//! and reads have a breaker each, and while one is open its calls are answered at once. A call that
//! was never sent is not stored, unless the same write went out before and was not answered: then it
//! is unknown. Source: persistence §4.1 (timeouts and breaker), J10.

mod journal;
mod states;
mod stores;

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use crate::breaker::{Admission, Breaker, BreakerMode, BreakerSettings, Breakers, CallOutcome, Unanswered};
use crate::error::{ReadError, StoreFailure};
use crate::event::WriterUuid;
use crate::journal::Health;
use crate::persistence_id::PersistenceId;
use crate::settings::SettingsError;

/// Writes of so many ids may be unanswered before all count as doubtful.
const MAX_UNANSWERED: usize = 16_384;

/// A store behind a time-out and two breakers.
pub struct Guarded<S: ?Sized> {
    inner: Arc<S>,
    guard: Guard,
}

impl<S: ?Sized> Guarded<S> {
    /// Guards `inner`, called `name` in errors. Calls must run in a tokio runtime with time.
    ///
    /// # Errors
    /// [`SettingsError`] if the settings cannot work.
    pub fn new(inner: Arc<S>, name: &str, settings: BreakerSettings) -> Result<Self, SettingsError> {
        settings.check()?;
        let breaker = |direction| Mutex::new(Breaker::new(format!("{direction} breaker of {name}"), settings.clone()));
        let guard = Guard {
            writes: breaker("write"),
            reads: breaker("read"),
            unanswered: Mutex::new(Unanswered::new(MAX_UNANSWERED)),
        };
        Ok(Self { inner, guard })
    }

    /// Where the breaker of writes stands.
    pub fn write_breaker(&self) -> BreakerMode {
        lock(&self.guard.writes).mode(now())
    }

    /// Where the breaker of reads stands.
    pub fn read_breaker(&self) -> BreakerMode {
        lock(&self.guard.reads).mode(now())
    }

    /// What both have done, and where they stand. Source: persistence §10.16.
    pub fn breakers(&self) -> Breakers {
        Breakers { writes: lock(&self.guard.writes).stats(now()), reads: lock(&self.guard.reads).stats(now()) }
    }
}

impl<S: ?Sized> fmt::Debug for Guarded<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guarded")
            .field("writes", &self.write_breaker())
            .field("reads", &self.read_breaker())
            .finish_non_exhaustive()
    }
}

/// Which breaker a call belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Direction {
    Write,
    Read,
}

/// Why a call has no answer of the store.
enum NoAnswer {
    /// It was never sent.
    NotSent(StoreFailure),
    /// It was sent, and may be done.
    TimedOut(StoreFailure),
}

impl NoAnswer {
    /// For calls where both mean the same.
    fn failure(self) -> StoreFailure {
        match self {
            Self::NotSent(failure) | Self::TimedOut(failure) => failure,
        }
    }
}

/// A write: what stays doubtful while nobody hears how it ended.
#[derive(Debug, Clone, Copy)]
struct Attempt<'a> {
    id: &'a PersistenceId,
    writer_uuid: WriterUuid,
    /// The number that it makes.
    number: u64,
}

struct Guard {
    writes: Mutex<Breaker>,
    reads: Mutex<Breaker>,
    unanswered: Mutex<Unanswered>,
}

impl Guard {
    fn breaker(&self, direction: Direction) -> &Mutex<Breaker> {
        match direction {
            Direction::Write => &self.writes,
            Direction::Read => &self.reads,
        }
    }

    /// Runs `call` if its breaker lets it; `failure_of` tells which errors show that the store does
    /// not answer. A call that makes an `attempt` and is dropped leaves it unanswered: it goes on in the
    /// store (J13).
    async fn run<T, E>(
        &self,
        direction: Direction,
        attempt: Option<Attempt<'_>>,
        call: impl Future<Output = Result<T, E>> + Send,
        failure_of: impl FnOnce(&E) -> Option<StoreFailure> + Send,
    ) -> Result<Result<T, E>, NoAnswer> {
        let breaker = self.breaker(direction);
        let (admission, call_timeout) = {
            let mut breaker = lock(breaker);
            (breaker.admit(now()).map_err(NoAnswer::NotSent)?, breaker.call_timeout())
        };
        let mut running = Running { guard: self, breaker, admission, attempt, ended: None };
        let answer = tokio::time::timeout(call_timeout, call).await;
        match answer {
            Ok(answer) => {
                let failure = answer.as_ref().err().and_then(failure_of).filter(|failure| !failure.is_answer);
                running.ended =
                    Some(failure.map_or(CallOutcome::Answered, |failure| CallOutcome::Failed(failure.to_string())));
                Ok(answer)
            }
            Err(_) => {
                let cause = format!("no answer within {call_timeout:?}");
                running.ended = Some(CallOutcome::Failed(cause.clone()));
                let name = lock(breaker).name().to_owned();
                Err(NoAnswer::TimedOut(StoreFailure::new(name, cause)))
            }
        }
    }

    /// As [`Guard::run`], for calls that may be asked again without harm.
    async fn ask<T, E>(
        &self,
        direction: Direction,
        call: impl Future<Output = Result<T, E>> + Send,
        failure_of: impl FnOnce(&E) -> Option<StoreFailure> + Send,
        unavailable: impl FnOnce(StoreFailure) -> E + Send,
    ) -> Result<T, E> {
        self.run(direction, None, call, failure_of).await.unwrap_or_else(|none| Err(unavailable(none.failure())))
    }

    fn is_doubtful(&self, Attempt { id, writer_uuid, number }: Attempt<'_>) -> bool {
        lock(&self.unanswered).is_doubtful(now(), id, writer_uuid, number)
    }

    fn note(&self, Attempt { id, writer_uuid, number }: Attempt<'_>) {
        lock(&self.unanswered).note(now(), id, writer_uuid, number);
    }

    fn settle(&self, id: &PersistenceId) {
        lock(&self.unanswered).settle(id);
    }

    /// What the store says of itself, and what its breakers do.
    fn health(&self, inner: Health) -> Health {
        let mut reasons = match inner {
            Health::Down(reason) => return Health::Down(reason),
            Health::Up => Vec::new(),
            Health::Degraded(reasons) => reasons,
        };
        for breaker in [&self.writes, &self.reads] {
            let breaker = lock(breaker);
            match breaker.mode(now()) {
                BreakerMode::Closed => {}
                BreakerMode::HalfOpen => reasons.push(format!("{} is half-open", breaker.name())),
                BreakerMode::Open { cause, .. } => {
                    return Health::Down(format!("{} is open: {cause}", breaker.name()));
                }
            }
        }
        if reasons.is_empty() { Health::Up } else { Health::Degraded(reasons) }
    }
}

/// A call on its way; tells its breaker how it ended, dropped calls included.
struct Running<'a> {
    guard: &'a Guard,
    breaker: &'a Mutex<Breaker>,
    admission: Admission,
    /// Of a write.
    attempt: Option<Attempt<'a>>,
    ended: Option<CallOutcome>,
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        let outcome = self.ended.take().unwrap_or(CallOutcome::Abandoned);
        if let (CallOutcome::Abandoned, Some(attempt)) = (&outcome, self.attempt) {
            self.guard.note(attempt);
        }
        lock(self.breaker).settle(now(), self.admission, outcome);
    }
}

/// What of a read's error shows that the store does not answer.
fn of_read(error: &ReadError) -> Option<StoreFailure> {
    match error {
        ReadError::Unavailable(failure) => Some(failure.clone()),
        ReadError::Corrupt(_) => None,
    }
}

/// The runtime's clock, so that a test may pause it.
fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

/// A lock whose holder never runs foreign code, so poison says nothing.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
