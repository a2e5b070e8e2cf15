//! The tasks of the orderly shutdown, by phase, and the running of a phase.
//!
//! Tasks of a phase run at the same time; a phase ends when all have, or at its timeout. A task
//! that fails or is late is logged, and the next phase starts all the same. Source: cluster M35.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::driver::future::BoxFuture;
use crate::membership::shutdown::Phase;
use crate::settings::CoordinatedShutdownSettings;

type Task = Box<dyn FnOnce() -> BoxFuture<'static, bool> + Send>;

/// The tasks to run when the node ends, by phase.
pub(crate) struct ShutdownTasks {
    state: Mutex<State>,
    running: RunningHere,
    /// Whether the shutdown has begun; it never ends without the node.
    begun: AtomicBool,
}

/// Counts the single writers that run on a node: while any runs, the node's port stays bound, past its orderly end too.
/// Clones share the count. Source: cluster T33, S20.
#[derive(Debug, Clone, Default)]
pub struct RunningHere(Arc<watch::Sender<usize>>);

/// Counts one single writer as running until dropped.
#[derive(Debug)]
pub struct Runs(Arc<watch::Sender<usize>>);

impl RunningHere {
    /// Counts a single writer that begins now.
    pub fn begin(&self) -> Runs {
        self.0.send_modify(|count| *count += 1);
        Runs(self.0.clone())
    }

    /// The number of single writers that run.
    pub fn count(&self) -> usize {
        *self.0.borrow()
    }

    /// Waits until none runs.
    pub async fn ended(&self) {
        // Fails only without a sender, and `self` holds one.
        self.0.subscribe().wait_for(|count| *count == 0).await.ok();
    }
}

impl Drop for Runs {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}

struct State {
    tasks: BTreeMap<Phase, Vec<(String, Task)>>,
    settings: CoordinatedShutdownSettings,
}

impl ShutdownTasks {
    pub(crate) fn new(settings: CoordinatedShutdownSettings) -> Self {
        let state = Mutex::new(State { tasks: BTreeMap::new(), settings });
        Self { state, running: RunningHere::default(), begun: AtomicBool::new(false) }
    }

    /// Notes that the shutdown begins.
    pub(crate) fn begin(&self) {
        self.begun.store(true, Ordering::Release);
    }

    pub(crate) fn has_begun(&self) -> bool {
        self.begun.load(Ordering::Acquire)
    }

    /// The counter of user code.
    pub(crate) fn running(&self) -> &RunningHere {
        &self.running
    }

    /// Whether any counted code has not ended, such as a late task of a phase that is over.
    pub(crate) fn anything_runs(&self) -> bool {
        self.running.count() > 0
    }

    pub(crate) fn add(&self, phase: Phase, name: &str, task: Task) {
        self.with(|state| state.tasks.entry(phase).or_default().push((name.to_owned(), task)));
    }

    pub(crate) fn raise_timeout(&self, phase: Phase, timeout: Duration) {
        self.with(|state| {
            let default = state.settings.default_phase_timeout;
            let current = state.settings.phase_timeouts.entry(phase).or_insert(default);
            *current = timeout.max(*current);
        });
    }

    pub(crate) fn timeout(&self, phase: Phase) -> Duration {
        self.own_timeout(phase).unwrap_or_else(|| self.with(|state| state.settings.default_phase_timeout))
    }

    /// Waits once more for late tasks, as long as the default phase timeout.
    pub(crate) async fn wait_for_late_tasks(&self) {
        let limit = self.with(|state| state.settings.default_phase_timeout);
        let _late_still = tokio::time::timeout(limit, self.running.ended()).await;
    }

    /// The timeout that the settings give to this very phase.
    pub(crate) fn own_timeout(&self, phase: Phase) -> Option<Duration> {
        self.with(|state| state.settings.phase_timeouts.get(&phase).copied())
    }

    /// Whether the shutdown continues when this phase fails.
    pub(crate) fn recovers(&self, phase: Phase) -> bool {
        self.with(|state| state.settings.phase_recover.get(&phase).copied().unwrap_or(true))
    }

    /// Runs the tasks of a phase. True if all ended in order and in time.
    pub(crate) async fn run(&self, phase: Phase) -> bool {
        let tasks = self.with(|state| state.tasks.remove(&phase).unwrap_or_default());
        let deadline = Instant::now() + self.timeout(phase);
        let mut names = BTreeMap::new();
        let mut running = JoinSet::new();
        for (name, task) in tasks {
            let runs = self.running.begin();
            let handle = running.spawn(async move {
                let _until_it_ends = runs;
                task().await
            });
            names.insert(handle.id(), name);
        }
        let mut clean = true;
        while !running.is_empty() {
            let Ok(Some(ended)) = tokio::time::timeout_at(deadline, running.join_next_with_id()).await else {
                let late: Vec<&String> = names.values().collect();
                tracing::warn!(%phase, ?late, "tasks did not end in time; the shutdown goes on without them");
                // Do not abort late tasks: one that hands over must not be interrupted.
                running.detach_all();
                return false;
            };
            let (id, ok) = match ended {
                Ok((id, ok)) => (id, ok),
                Err(error) => (error.id(), false),
            };
            let name = names.remove(&id).unwrap_or_default();
            if !ok {
                tracing::warn!(%phase, task = name, "a shutdown task failed");
                clean = false;
            }
        }
        clean
    }

    fn with<T>(&self, f: impl FnOnce(&mut State) -> T) -> T {
        f(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
