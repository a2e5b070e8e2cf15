//! The breaker of one direction of a store's calls, and the task that probes while it is open.
//!
//! The task lives from a failure until the store answers a probe, on the runtime of the call that failed. Where that
//! runtime ends first, the next call that fails or is refused begins another task.

use std::sync::{Arc, Mutex, Weak};
use std::time::Instant;

use futures::future::BoxFuture;
use tokio::runtime::Handle;
use tokio::task::AbortHandle;

use super::clock::{lock, now};
use crate::contract::breaker::{Breaker, BreakerEffect, BreakerInput, CallOutcome};
use crate::contract::driver::store_returns::StoreReturns;

/// The way to probe a store.
#[derive(Clone)]
pub(super) struct Probe {
    /// Reads a reserved id. `None` once the store is dropped.
    pub(super) call: Arc<dyn Fn() -> Option<BoxFuture<'static, CallOutcome>> + Send + Sync>,
    /// The store's own count of returns, if it keeps one.
    pub(super) reached: StoreReturns,
}

/// One breaker, and the task that probes for it.
pub(super) struct ProbedBreaker {
    pub(super) breaker: Mutex<Breaker>,
    store_returns: StoreReturns,
    task: Mutex<ProbeTask>,
}

enum ProbeTask {
    /// No task: no call has failed or been refused since the last task ended.
    Absent,
    Runs(AbortHandle),
    /// The store is closed: no more probes are sent.
    Over,
}

impl ProbedBreaker {
    pub(super) fn new(breaker: Breaker, store_returns: StoreReturns) -> Self {
        Self { breaker: Mutex::new(breaker), store_returns, task: Mutex::new(ProbeTask::Absent) }
    }

    /// Passes an input to the breaker, notes a return of the store, and answers whether the breaker wants a probe.
    pub(super) fn tell(&self, input: BreakerInput) -> bool {
        let mut effects = Vec::new();
        lock(&self.breaker).handle(now(), input, &mut effects);
        if effects.contains(&BreakerEffect::StoreBack) {
            self.store_returns.note();
        }
        effects.contains(&BreakerEffect::Probe)
    }

    /// Starts a probe task if probes are due and none runs.
    pub(super) fn ensure_probe_task(self: &Arc<Self>, probe: &Probe) {
        let mut task = lock(&self.task);
        let runs = match &*task {
            ProbeTask::Absent => false,
            ProbeTask::Runs(task) => !task.is_finished(),
            ProbeTask::Over => true,
        };
        if runs || lock(&self.breaker).next_deadline().is_none() {
            return;
        }
        // Without a runtime no task can run; the next refused call tries again.
        if let Ok(runtime) = Handle::try_current() {
            *task = ProbeTask::Runs(runtime.spawn(run(Arc::downgrade(self), probe.clone())).abort_handle());
        }
    }

    /// Ends probing for good.
    pub(super) fn end_probes(&self) {
        if let ProbeTask::Runs(task) = std::mem::replace(&mut *lock(&self.task), ProbeTask::Over) {
            task.abort();
        }
    }
}

impl Drop for ProbedBreaker {
    fn drop(&mut self) {
        self.end_probes();
    }
}

async fn run(probed: Weak<ProbedBreaker>, probe: Probe) {
    let mut seen = probe.reached.count();
    while let Some(deadline) = next_probe(&probed) {
        let input = tokio::select! {
            () = tokio::time::sleep_until(deadline.into()) => BreakerInput::Tick,
            () = probe.reached.clone().beyond(seen) => {
                seen = probe.reached.count();
                BreakerInput::Reachable
            }
        };
        let Some(call_timeout) = probed.upgrade().and_then(|probed| {
            let timeout = lock(&probed.breaker).call_timeout();
            probed.tell(input).then_some(timeout)
        }) else {
            continue;
        };
        let mut in_flight = ProbeInFlight { probed: probed.clone(), outcome: CallOutcome::Abandoned };
        let Some(call) = (probe.call)() else { return };
        in_flight.outcome = tokio::time::timeout(call_timeout, call)
            .await
            .unwrap_or_else(|_| CallOutcome::Failed(format!("no answer within {call_timeout:?}")));
    }
}

/// When the next probe is due. If none is due, marks the task as ended; the task then returns.
fn next_probe(probed: &Weak<ProbedBreaker>) -> Option<Instant> {
    let probed = probed.upgrade()?;
    // The lock makes the task's end and the start of a new one exclusive, so that due probes always have a task.
    let mut task = lock(&probed.task);
    let deadline = lock(&probed.breaker).next_deadline();
    if deadline.is_none() && matches!(*task, ProbeTask::Runs(_)) {
        *task = ProbeTask::Absent;
    }
    deadline
}

/// A probe under way; its drop reports the outcome to the breaker, also when the task was aborted.
struct ProbeInFlight {
    probed: Weak<ProbedBreaker>,
    outcome: CallOutcome,
}

impl Drop for ProbeInFlight {
    fn drop(&mut self) {
        if let Some(probed) = self.probed.upgrade() {
            probed.tell(BreakerInput::Probed(self.outcome.clone()));
        }
    }
}
