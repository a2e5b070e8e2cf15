//! Time-outs and breakers around any store.
//!
//! [`Guarded`] wraps a journal, a snapshot, state or offset store: each call has `call_timeout`, writes
//! and reads have a breaker each, and calls of an open breaker are refused at once. A write that
//! was never sent is answered "not stored", unless the same write was sent before and not answered: then its outcome
//! is unknown. A store that did not answer is probed by a read of a reserved id, `gl.probe|breaker`, until it does.
//! Source: persistence §4.1 (timeouts and breaker), J10.

mod clock;
mod journal;
mod probing;
mod stores;

use std::fmt;
use std::sync::{Arc, Mutex, OnceLock};

use futures::future::BoxFuture;

use self::clock::{lock, now};
use self::probing::{Probe, ProbedBreaker};
use super::store_returns::StoreReturns;
use crate::contract::breaker::{
    Admission, Breaker, BreakerInput, BreakerMode, BreakerSettings, BreakerStats, Breakers, CallOutcome, InDoubtWrites,
};
use crate::contract::error::{ReadError, StoreFailure};
use crate::contract::journal::Health;
use crate::contract::records::event::WriterUuid;
use crate::contract::records::persistence_id::PersistenceId;
use crate::contract::settings::SettingsError;

/// Number of ids whose write in doubt is kept; beyond it all writes count as in doubt.
const MAX_IN_DOUBT: usize = 16_384;

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
        settings.validate()?;
        let store_returns = StoreReturns::of_one();
        let probed = |direction| {
            let breaker = Breaker::new(format!("{direction} breaker of {name}"), settings.clone());
            Arc::new(ProbedBreaker::new(breaker, store_returns.clone()))
        };
        let guard = Guard {
            writes: probed("write"),
            reads: probed("read"),
            in_doubt: Mutex::new(InDoubtWrites::new(MAX_IN_DOUBT)),
            probe: OnceLock::new(),
            store_returns: store_returns.clone(),
        };
        Ok(Self { inner, guard })
    }

    /// State of the breaker of writes.
    pub fn write_breaker(&self) -> BreakerMode {
        lock(&self.guard.writes.breaker).mode(now())
    }

    /// State of the breaker of reads.
    pub fn read_breaker(&self) -> BreakerMode {
        lock(&self.guard.reads.breaker).mode(now())
    }

    /// Counts and state of both breakers. Source: persistence §10.16.
    pub fn breakers(&self) -> Breakers {
        let stats = |probed: &ProbedBreaker| -> BreakerStats { lock(&probed.breaker).stats(now()) };
        Breakers { writes: stats(&self.guard.writes), reads: stats(&self.guard.reads) }
    }
}

impl<S: ?Sized + Send + Sync + 'static> Guarded<S> {
    /// The guard, which is told at the first call how to probe the store: `call` reads the reserved id and returns its
    /// failure, and `reached` counts the returns that the store itself notices; such a return starts a waiting probe.
    fn probed_by(
        &self,
        call: fn(Arc<S>) -> BoxFuture<'static, Option<StoreFailure>>,
        reached: fn(&S) -> Option<&StoreReturns>,
    ) -> &Guard {
        self.guard.probe.get_or_init(|| {
            // The probe holds no strong reference, so that it does not keep the store alive.
            let store = Arc::downgrade(&self.inner);
            let call = Arc::new(move || {
                let answer = call(store.upgrade()?);
                let outcome: BoxFuture<'static, _> = Box::pin(async move { outcome_of(answer.await) });
                Some(outcome)
            });
            Probe { call, reached: StoreReturns::of_all([reached(&self.inner)]) }
        });
        &self.guard
    }
}

/// The outcome for the breaker of a call that ended with `failure`, or with another answer.
fn outcome_of(failure: Option<StoreFailure>) -> CallOutcome {
    match failure.filter(|failure| !failure.is_answer()) {
        Some(failure) => CallOutcome::Failed(failure.to_string()),
        None => CallOutcome::Answered,
    }
}

/// The id that probes read; no entity has it, and a probe writes nothing.
fn reserved_id() -> PersistenceId {
    PersistenceId::of("gl.probe", "breaker").expect("its parts are names")
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

/// Why the store did not answer a call.
enum NoAnswer {
    /// The call was never sent.
    NotSent(StoreFailure),
    /// The call was sent, and may have been carried out.
    TimedOut(StoreFailure),
}

impl NoAnswer {
    /// The failure, for calls where both variants mean the same.
    fn failure(self) -> StoreFailure {
        match self {
            Self::NotSent(failure) | Self::TimedOut(failure) => failure,
        }
    }
}

/// The key of a write, whose outcome is in doubt until an answer comes.
#[derive(Debug, Clone, Copy)]
struct Attempt<'a> {
    id: &'a PersistenceId,
    writer_uuid: WriterUuid,
    /// The sequence number or revision that the write makes.
    number: u64,
}

struct Guard {
    writes: Arc<ProbedBreaker>,
    reads: Arc<ProbedBreaker>,
    in_doubt: Mutex<InDoubtWrites>,
    /// Set by the first call.
    probe: OnceLock<Probe>,
    /// Count of returns of the store, shared by both breakers.
    store_returns: StoreReturns,
}

impl Guard {
    fn breaker_of(&self, direction: Direction) -> &Arc<ProbedBreaker> {
        match direction {
            Direction::Write => &self.writes,
            Direction::Read => &self.reads,
        }
    }

    /// Runs `call` if its breaker admits it; `failure_of` returns the failure of an error that shows that the store
    /// does not answer. If the future is dropped, its `attempt` is noted as in doubt: the call goes on in the store
    /// (J13).
    async fn run<T, E>(
        &self,
        direction: Direction,
        attempt: Option<Attempt<'_>>,
        call: impl Future<Output = Result<T, E>> + Send,
        failure_of: impl FnOnce(&E) -> Option<StoreFailure> + Send,
    ) -> Result<Result<T, E>, NoAnswer> {
        let probed = self.breaker_of(direction);
        let (admitted, call_timeout) = {
            let mut breaker = lock(&probed.breaker);
            (breaker.admit(now()), breaker.call_timeout())
        };
        let admission = admitted.map_err(|refusal| {
            self.ensure_probe_task(probed);
            NoAnswer::NotSent(refusal)
        })?;
        let mut in_flight = CallInFlight { guard: self, probed, admission, attempt, ended: None };
        let answer = tokio::time::timeout(call_timeout, call).await;
        match answer {
            Ok(answer) => {
                in_flight.ended = Some(outcome_of(answer.as_ref().err().and_then(failure_of)));
                Ok(answer)
            }
            Err(_) => {
                let cause = format!("no answer within {call_timeout:?}");
                in_flight.ended = Some(CallOutcome::Failed(cause.clone()));
                let name = lock(&probed.breaker).name().to_owned();
                Err(NoAnswer::TimedOut(StoreFailure::new(name, cause)))
            }
        }
    }

    fn ensure_probe_task(&self, probed: &Arc<ProbedBreaker>) {
        if let Some(probe) = self.probe.get() {
            probed.ensure_probe_task(probe);
        }
    }

    /// Ends the probes, because the store is being closed; only calls that a caller waits for are still sent.
    fn end_probes(&self) {
        self.writes.end_probes();
        self.reads.end_probes();
    }

    /// As [`Guard::run`], for calls that may be repeated without harm.
    async fn ask<T, E>(
        &self,
        direction: Direction,
        call: impl Future<Output = Result<T, E>> + Send,
        failure_of: impl FnOnce(&E) -> Option<StoreFailure> + Send,
        unavailable: impl FnOnce(StoreFailure) -> E + Send,
    ) -> Result<T, E> {
        self.run(direction, None, call, failure_of).await.unwrap_or_else(|none| Err(unavailable(none.failure())))
    }

    fn is_in_doubt(&self, Attempt { id, writer_uuid, number }: Attempt<'_>) -> bool {
        lock(&self.in_doubt).is_in_doubt(now(), id, writer_uuid, number)
    }

    fn note(&self, Attempt { id, writer_uuid, number }: Attempt<'_>) {
        lock(&self.in_doubt).note(now(), id, writer_uuid, number);
    }

    fn settle(&self, id: &PersistenceId) {
        lock(&self.in_doubt).settle(id);
    }

    /// The store's health, or `Down` while a breaker is open.
    fn health(&self, inner: Health) -> Health {
        if matches!(inner, Health::Down(_)) {
            return inner;
        }
        for probed in [&self.writes, &self.reads] {
            let breaker = lock(&probed.breaker);
            match breaker.mode(now()) {
                BreakerMode::Closed => {}
                // Half-open too: calls are refused while a probe is under way.
                BreakerMode::Open { cause, .. } | BreakerMode::HalfOpen { cause } => {
                    return Health::Down(format!("{} is open: {cause}", breaker.name()));
                }
            }
        }
        inner
    }
}

/// A call under way; its drop reports the outcome to its breaker, also for a dropped call.
struct CallInFlight<'a> {
    guard: &'a Guard,
    probed: &'a Arc<ProbedBreaker>,
    admission: Admission,
    /// The attempt, for a write.
    attempt: Option<Attempt<'a>>,
    ended: Option<CallOutcome>,
}

impl Drop for CallInFlight<'_> {
    fn drop(&mut self) {
        let outcome = self.ended.take().unwrap_or(CallOutcome::Abandoned);
        if let (CallOutcome::Abandoned, Some(attempt)) = (&outcome, self.attempt) {
            self.guard.note(attempt);
        }
        let failed = matches!(outcome, CallOutcome::Failed(_));
        self.probed.tell(BreakerInput::Ended(self.admission, outcome));
        if failed {
            self.guard.ensure_probe_task(self.probed);
        }
    }
}

/// The failure in a read error that shows that the store does not answer.
fn of_read(error: &ReadError) -> Option<StoreFailure> {
    match error {
        ReadError::Unavailable(failure) => Some(failure.clone()),
        ReadError::Corrupt(_) => None,
    }
}
