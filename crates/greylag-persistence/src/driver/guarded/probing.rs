//! The calls of one direction of a store: their breaker, and the task that probes while it is open.
//!
//! The task lives from a failure until the store answers a probe, on the runtime of the call that failed. Where that
//! runtime ends first, the next call that fails or is refused begins another task.

use std::sync::{Arc, Mutex, Weak};
use std::time::Instant;

use futures::future::BoxFuture;
use tokio::runtime::Handle;
use tokio::task::AbortHandle;

use super::{lock, now};
use crate::breaker::{Breaker, BreakerEffect, BreakerInput, CallOutcome};
use crate::driver::reopenings::Reopenings;

/// How a store shows that it is there.
#[derive(Clone)]
pub(super) struct Probe {
    /// Reads a reserved id. None once the store is gone.
    pub(super) call: Arc<dyn Fn() -> Option<BoxFuture<'static, CallOutcome>> + Send + Sync>,
    /// What the store counts itself, if it knows when it can be reached again.
    pub(super) reached: Reopenings,
}

/// One breaker, and the task that probes for it.
pub(super) struct Side {
    pub(super) breaker: Mutex<Breaker>,
    reopenings: Reopenings,
    task: Mutex<ProbeTask>,
}

enum ProbeTask {
    /// The store answers, or no call has failed or been refused since a task ended.
    Absent,
    Runs(AbortHandle),
    /// The store is closed: nothing is to be asked of it any more.
    Over,
}

impl Side {
    pub(super) fn new(breaker: Breaker, reopenings: Reopenings) -> Self {
        Self { breaker: Mutex::new(breaker), reopenings, task: Mutex::new(ProbeTask::Absent) }
    }

    /// Tells the breaker, does what it asks but probing, and answers whether it asks for a probe.
    pub(super) fn tell(&self, input: BreakerInput) -> bool {
        let mut effects = Vec::new();
        lock(&self.breaker).handle(now(), input, &mut effects);
        if effects.contains(&BreakerEffect::StoreBack) {
            self.reopenings.note();
        }
        effects.contains(&BreakerEffect::Probe)
    }

    /// Sees to it that a task probes the store while probes are due.
    pub(super) fn see_to_probes(self: &Arc<Self>, probe: &Probe) {
        let mut task = lock(&self.task);
        let runs = match &*task {
            ProbeTask::Absent => false,
            ProbeTask::Runs(task) => !task.is_finished(),
            ProbeTask::Over => true,
        };
        if runs || lock(&self.breaker).next_deadline().is_none() {
            return;
        }
        // Without a runtime nothing can wait here; the next call that is refused comes with one.
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

impl Drop for Side {
    fn drop(&mut self) {
        self.end_probes();
    }
}

async fn run(side: Weak<Side>, probe: Probe) {
    let mut seen = probe.reached.count();
    while let Some(deadline) = next_probe(&side) {
        let input = tokio::select! {
            () = tokio::time::sleep_until(deadline.into()) => BreakerInput::Tick,
            () = probe.reached.clone().beyond(seen) => {
                seen = probe.reached.count();
                BreakerInput::Reachable
            }
        };
        let Some(call_timeout) = side.upgrade().and_then(|side| {
            let timeout = lock(&side.breaker).call_timeout();
            side.tell(input).then_some(timeout)
        }) else {
            continue;
        };
        let mut under_way = UnderWay { side: side.clone(), outcome: CallOutcome::Abandoned };
        let Some(call) = (probe.call)() else { return };
        under_way.outcome = tokio::time::timeout(call_timeout, call)
            .await
            .unwrap_or_else(|_| CallOutcome::Failed(format!("no answer within {call_timeout:?}")));
    }
}

/// When the next probe is due. With none the task ends, as its `Side` then knows.
fn next_probe(side: &Weak<Side>) -> Option<Instant> {
    let side = side.upgrade()?;
    // The task's end and the next one's begin exclude each other, so a store that is looked for always has one.
    let mut task = lock(&side.task);
    let deadline = lock(&side.breaker).next_deadline();
    if deadline.is_none() && matches!(*task, ProbeTask::Runs(_)) {
        *task = ProbeTask::Absent;
    }
    deadline
}

/// A probe on its way; tells the breaker how it ended, one whose task was ended included.
struct UnderWay {
    side: Weak<Side>,
    outcome: CallOutcome,
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        if let Some(side) = self.side.upgrade() {
            side.tell(BreakerInput::Probed(self.outcome.clone()));
        }
    }
}
