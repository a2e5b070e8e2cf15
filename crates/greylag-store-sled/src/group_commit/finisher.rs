//! The second half of a group commit, on its own thread: sync, guard, answers.
//!
//! ```text
//! applied ─▶ flush ─▶ sync_data ─▶ guard ─▶ once_durable ─▶ answers
//!                         └─▶ the next group may be applied
//! ```
//! The guard names a group only when its sync is over, and requests are answered only when the guard is synced. After
//! any failure nothing more is answered. Source: persistence §4.3.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::shared::{StoreInner, StorePhase};
use crate::batch::Batch;
use crate::engine::Engine;
use crate::error::StoreError;
use crate::files::guard::TailGuard;
use crate::planner::{OnceDurable, Planner};

const SLOW_COMMIT: Duration = Duration::from_secs(1);

/// A group whose batch readers can see, but whose requests are not answered yet.
pub(crate) struct Applied<P: Planner> {
    pub(crate) answers: Vec<P::Answer>,
    /// The group's changes; an empty batch was not applied at all. Freed here, after the answers: most of its memory
    /// comes from the requesting threads, and freeing it may have to wait for their allocations.
    pub(crate) batch: Batch,
    /// The commit number to raise the guard to.
    pub(crate) tail: Option<u64>,
    pub(crate) once_durable: OnceDurable,
    pub(crate) began_at: Instant,
    /// The time that planning and applying took.
    pub(crate) work: Duration,
    pub(crate) applied_at: Instant,
}

/// The committer's handle of the finisher thread.
pub(crate) struct Finisher<P: Planner> {
    shared: Arc<StoreInner<P>>,
    steps: Arc<Mutex<Steps<P>>>,
    groups: Sender<Applied<P>>,
    synced: Receiver<()>,
    /// Whether the last group handed over may not be synced yet.
    is_unsynced: bool,
    thread: JoinHandle<Result<(), StoreError>>,
}

impl<P: Planner> Finisher<P> {
    pub(crate) fn start(
        shared: Arc<StoreInner<P>>,
        engine: Arc<Engine>,
        guard: Option<TailGuard>,
    ) -> Result<Self, StoreError> {
        let steps = Arc::new(Mutex::new(Steps { shared: shared.clone(), engine, guard }));
        let ((groups, applied), (report, synced)) = (channel(), channel());
        let (shared_steps, watched) = (steps.clone(), shared.clone());
        let run = move || {
            let outcome = catch_unwind(AssertUnwindSafe(|| finish_all(&shared_steps, &applied, &report)));
            let outcome = outcome.unwrap_or_else(|panic| Err(StoreError::from_panic(&*panic)));
            // Poison at once: the committer may be waiting for work.
            outcome.inspect_err(|error| watched.poison(error))
        };
        let thread = thread::Builder::new().name("greylag-sync".into()).spawn(run)?;
        Ok(Self { shared, steps, groups, synced, is_unsynced: false, thread })
    }

    /// Waits until the disk has every group handed over.
    pub(crate) fn wait_until_synced(&mut self) -> Result<(), StoreError> {
        if self.is_unsynced {
            self.synced.recv().map_err(|_| finisher_failed())?;
            self.is_unsynced = false;
        }
        Ok(())
    }

    /// Makes the group durable and answers it: on this thread if there is nothing else to do, else on the finisher
    /// thread.
    pub(crate) fn finish(&mut self, applied: Applied<P>) -> Result<(), StoreError> {
        let is_alone = {
            let state = self.shared.lock();
            state.nothing_waits() && state.committing.len() <= 1
        };
        if is_alone {
            let mut steps = self.steps.lock().unwrap_or_else(PoisonError::into_inner);
            steps.sync(&applied)?;
            return steps.acknowledge(applied);
        }
        self.is_unsynced = true;
        self.groups.send(applied).map_err(|_| finisher_failed())
    }

    /// Waits until every group handed over is finished.
    pub(crate) fn end(self) -> Result<(), StoreError> {
        drop(self.groups);
        self.thread.join().unwrap_or_else(|panic| Err(StoreError::from_panic(&*panic)))
    }
}

/// The error that the committer sees when the finisher failed; [`Finisher::end`] returns the cause.
fn finisher_failed() -> StoreError {
    StoreError::Down("a group before this one could not be made durable".into())
}

fn finish_all<P: Planner>(
    steps: &Mutex<Steps<P>>,
    groups: &Receiver<Applied<P>>,
    synced: &Sender<()>,
) -> Result<(), StoreError> {
    for applied in groups {
        let mut steps = steps.lock().unwrap_or_else(PoisonError::into_inner);
        steps.sync(&applied)?;
        // Ignore a committer that failed meanwhile: it does not affect this group.
        let _ended = synced.send(());
        steps.acknowledge(applied)?;
    }
    Ok(())
}

/// The steps that make a group durable, one group at a time.
struct Steps<P: Planner> {
    shared: Arc<StoreInner<P>>,
    engine: Arc<Engine>,
    guard: Option<TailGuard>,
}

impl<P: Planner> Steps<P> {
    fn sync(&self, applied: &Applied<P>) -> Result<(), StoreError> {
        if applied.batch.is_empty() {
            return Ok(());
        }
        #[cfg(test)]
        let _held = self.shared.sync.lock().unwrap_or_else(PoisonError::into_inner);
        self.engine.sync()
    }

    /// Raises the guard for a synced group, and answers its requests.
    fn acknowledge(&mut self, applied: Applied<P>) -> Result<(), StoreError> {
        if let Some((tail, guard)) = applied.tail.filter(|_| !applied.batch.is_empty()).zip(self.guard.as_mut()) {
            guard.raise_to(tail)?;
        }
        let durable = applied.applied_at.elapsed();
        (applied.once_durable)();
        let took = applied.began_at.elapsed();
        if took > SLOW_COMMIT {
            let requests = applied.answers.len();
            tracing::warn!(path = %self.shared.path.display(), ?took, requests, "slow group commit");
        }
        let senders = {
            let mut state = self.shared.lock();
            let group = match state.phase {
                StorePhase::Up => state.committing.pop_front(),
                // The watchdog has declared this group stalled; do not answer against it.
                _ => None,
            };
            let Some(group) = group else {
                return Err(StoreError::Stalled(self.shared.settings.commit_stall_timeout));
            };
            if !applied.batch.is_empty() {
                state.sizing.learn(applied.answers.len(), applied.work, durable);
            }
            let stats = &mut state.stats;
            stats.groups += u64::from(!applied.batch.is_empty());
            stats.requests += applied.answers.len() as u64;
            stats.keys += applied.batch.len() as u64;
            stats.bytes += applied.batch.bytes() as u64;
            stats.longest_commit = stats.longest_commit.max(took);
            group.senders
        };
        for (sender, answer) in senders.into_iter().zip(applied.answers) {
            // Ignore a caller that is gone: the write stands all the same (persistence J13).
            let _gone = sender.send(answer);
        }
        // Wake the committer last, so that it finds the next requests of the callers just answered.
        self.shared.work.notify_one();
        self.engine.merge_nearly_empty_pages(&applied.batch)
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{File, OpenOptions};
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;
    use crate::batch::Batch;
    use crate::files::guard::check;
    use crate::planner::Request;
    use crate::reader::Reader;
    use crate::settings::StoreSettings;

    struct Nothing;
    struct Ask;

    impl Request for Ask {
        fn bytes(&self) -> usize {
            1
        }
    }

    impl Planner for Nothing {
        type Request = Ask;
        type Answer = ();

        fn recover(&mut self, _: &Reader, _: &mut Batch) -> Result<(), StoreError> {
            Ok(())
        }

        fn plan(&mut self, asks: Vec<Ask>, _: &Reader, _: &mut Batch) -> Result<Vec<()>, StoreError> {
            Ok(vec![(); asks.len()])
        }
    }

    /// Finishes a group of commit 1, after `break_it`. Returns the outcome, whether `once_durable` ran, whether the
    /// request was answered, and whether the guard names the commit.
    fn finish(break_it: impl FnOnce(&mut Engine, &mut TailGuard)) -> (Result<(), StoreError>, bool, bool, bool) {
        let directory = tempfile::tempdir().unwrap();
        let settings = StoreSettings::test();
        let mut engine = Engine::open(directory.path(), &settings, "repair it").unwrap();
        let mut guard = TailGuard::open(directory.path(), 0).unwrap();
        let mut batch = Batch::default();
        batch.put(b"key", b"value");
        engine.apply(&batch).unwrap();
        break_it(&mut engine, &mut guard);
        let engine = Arc::new(engine);
        let shared = Arc::new(StoreInner::new(directory.path().into(), settings.clone(), Reader::new(engine.clone())));
        let mut asked = shared.submit(Ask).unwrap();
        shared.lock().take_group(&settings);
        let is_durable = Arc::new(AtomicBool::new(false));
        let say = is_durable.clone();
        let applied = Applied::<Nothing> {
            answers: vec![()],
            batch,
            tail: Some(1),
            once_durable: Box::new(move || say.store(true, Ordering::Relaxed)),
            began_at: Instant::now(),
            work: Duration::ZERO,
            applied_at: Instant::now(),
        };
        let mut finisher = Finisher::start(shared.clone(), engine, Some(guard)).unwrap();
        finisher.is_unsynced = true;
        finisher.groups.send(applied).unwrap();
        let synced = finisher.wait_until_synced();
        let outcome = finisher.end();
        // If the guard names commit 1, a store without that commit is refused.
        let is_guarded = check(directory.path(), 0).is_err();
        shared.lock().abandon_pending();
        let is_answered = matches!(asked.try_recv(), Ok(Some(())));
        assert!(synced.is_ok() || !is_guarded, "the guard follows the sync");
        (outcome, is_durable.load(Ordering::Relaxed), is_answered, is_guarded)
    }

    #[test]
    fn a_group_is_answered_when_data_and_guard_are_synced() {
        assert!(matches!(finish(|_, _| ()), (Ok(()), true, true, true)));
    }

    /// The data file is `/dev/null`, which answers a sync with EINVAL.
    #[test]
    fn without_the_sync_of_the_data_the_guard_is_not_raised_and_no_request_is_answered() {
        let outcome = finish(|engine, _| engine.set_data_file(File::open("/dev/null").unwrap()));
        assert!(matches!(outcome, (Err(StoreError::Io(_)), false, false, false)));
    }

    #[test]
    fn without_the_sync_of_the_guard_no_request_is_answered() {
        let broken = || OpenOptions::new().write(true).open("/dev/null").unwrap();
        let outcome = finish(|_, guard| guard.set_file(broken()));
        assert!(matches!(outcome, (Err(StoreError::Io(_)), false, false, false)));
    }
}
