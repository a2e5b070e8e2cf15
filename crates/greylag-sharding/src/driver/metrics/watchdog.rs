//! Detects handlers that do not return: a thread beside the runtimes, since handlers that block may block all of those.
//!
//! ```text
//! shard's task: counter + 1, handler, counter + 1        watchdog: now and then a sample of each counter
//! ```
//! Source: sharding §2.10, §6.5 (ShardStuck), §7.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use crate::driver::shard::control_item::Control;
use crate::machine::shard::{SampleOutcome, StuckHandler};
use crate::settings::{RuntimeSettings, ShardingSettings, StuckShardAction};

/// How long after its handoff timeout a stuck shard may end the process. Source: sharding §2.10.
const ABORT_RESERVE: Duration = Duration::from_secs(10);

/// A shard's handlers, as reported by its task.
#[derive(Debug, Default)]
pub(crate) struct Probe {
    /// Rises at the begin and at the end of each handler.
    turn: AtomicU64,
    /// When the shard was told to stop.
    stopping_since: OnceLock<Instant>,
}

impl Probe {
    /// Publishes the task's own count, which no other task writes.
    pub(crate) fn tell(&self, turn: u64) {
        self.turn.store(turn, Ordering::Relaxed);
    }

    /// Notes a control item for the shard: the first order to end sets `stopping_since`.
    pub(crate) fn stops_by<M>(&self, control: &Control<M>) {
        if matches!(control, Control::Stop | Control::Kill | Control::LeaseLost(_)) {
            self.stopping_since.get_or_init(Instant::now);
        }
    }
}

/// Called with the time for which a handler has run.
type Report = Arc<dyn Fn(Duration) + Send + Sync>;

struct Watched {
    probe: Weak<Probe>,
    watch: StuckHandler,
    report: Report,
}

#[derive(Default)]
struct State {
    shards: Vec<Watched>,
    /// Whether the watchdog's thread runs.
    runs: bool,
}

#[derive(Default)]
struct WatchdogInner {
    state: Mutex<State>,
    changed: Condvar,
}

/// The watchdog of a node. Its thread runs while there are shards.
#[derive(Default)]
pub(crate) struct Watchdog(Arc<WatchdogInner>);

impl Watchdog {
    /// Watches the handlers of a shard for as long as the probe lives. `report` is called by the watchdog's thread.
    pub(crate) fn watch(
        &self,
        settings: &ShardingSettings,
        report: impl Fn(Duration) + Send + Sync + 'static,
    ) -> Arc<Probe> {
        let RuntimeSettings { stuck_handler_threshold, stuck_shard_action, .. } = &settings.runtime;
        let abort_after = match stuck_shard_action {
            StuckShardAction::Report => None,
            StuckShardAction::AbortProcess => Some(settings.handoff_timeout.saturating_add(ABORT_RESERVE)),
        };
        let probe = Arc::new(Probe::default());
        let watch = StuckHandler::new(*stuck_handler_threshold, abort_after, Instant::now());
        let mut state = self.0.lock();
        state.shards.push(Watched { probe: Arc::downgrade(&probe), watch, report: Arc::new(report) });
        if state.runs {
            self.0.changed.notify_one();
        } else {
            let shared = self.0.clone();
            let thread = std::thread::Builder::new().name(format!("{}-watchdog", settings.runtime.guardian_name));
            match thread.spawn(move || shared.run()) {
                Ok(_) => state.runs = true,
                Err(error) => tracing::error!(%error, "handlers are not watched: their thread did not start"),
            }
        }
        probe
    }
}

impl WatchdogInner {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Samples every shard until none is left.
    fn run(&self) {
        loop {
            let mut state = self.lock();
            let now = Instant::now();
            state.shards.retain(|shard| shard.probe.strong_count() > 0);
            let Some(interval) = state.shards.iter().map(|shard| shard.watch.interval()).min() else {
                state.runs = false;
                return;
            };
            let told: Vec<_> = state.shards.iter_mut().filter_map(|shard| shard.sample(now)).collect();
            if told.is_empty() {
                drop(self.changed.wait_timeout(state, interval));
                continue;
            }
            // Subscribers, and the log's writer, are called without the lock.
            drop(state);
            told.into_iter().for_each(act);
        }
    }
}

impl Watched {
    fn sample(&mut self, now: Instant) -> Option<(Report, SampleOutcome)> {
        let probe = self.probe.upgrade()?;
        let sample = self.watch.sample(now, probe.turn.load(Ordering::Relaxed), probe.stopping_since.get().copied());
        (sample != SampleOutcome::Fine).then(|| (self.report.clone(), sample))
    }
}

fn act((report, sample): (Report, SampleOutcome)) {
    match sample {
        SampleOutcome::Fine => {}
        SampleOutcome::Stuck(running_for) => report(running_for),
        SampleOutcome::Abort(running_for) => {
            tracing::error!(
                ?running_for,
                "a handler keeps its shard from stopping, and stuck_shard_action is \"abort_process\": the process ends"
            );
            std::process::abort();
        }
    }
}
