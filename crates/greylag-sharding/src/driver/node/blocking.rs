//! The blocking pool of a node: runs entities' work that may block, on a limited number of threads, with a bounded
//! queue.
//!
//! A place is taken when work is requested, so that an entity hears of a full pool in the requesting handler, and freed
//! when the work has run or is dropped. Work of an incarnation that has ended is not begun.
//!
//! Source: sharding §4.3 (`ctx.blocking`).

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use greylag_persistence::BlockingPoolFull;
use tokio::runtime::Handle;

use crate::held::discard;
use crate::settings::BlockingPoolSettings;

/// Work of an entity; the closure itself returns its result.
type Job = Box<dyn FnOnce() + Send>;

/// See the module's description.
pub(crate) struct BlockingPool {
    shared: Arc<PoolInner>,
    runtime: Handle,
}

struct PoolInner {
    settings: BlockingPoolSettings,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Places taken.
    places: usize,
    running: usize,
    waiting: VecDeque<(Weak<()>, Job)>,
}

/// Room for one piece of work; freed on drop.
pub(crate) struct BlockingPermit(Arc<PoolInner>);

impl Drop for BlockingPermit {
    fn drop(&mut self) {
        self.0.lock().places -= 1;
    }
}

/// Kept by the entity that began a job; the pool does not start a job whose `JobHandle` is dropped, since its result has
/// no receiver.
pub(crate) struct JobHandle(Arc<()>);

impl JobHandle {
    /// Whether the work has run, or was dropped.
    pub(crate) fn is_over(&self) -> bool {
        Arc::weak_count(&self.0) == 0
    }
}

impl BlockingPool {
    pub(crate) fn new(settings: BlockingPoolSettings, runtime: Handle) -> Self {
        Self { shared: Arc::new(PoolInner { settings, state: Mutex::default() }), runtime }
    }

    /// Takes a place for one piece of work.
    pub(crate) fn place(&self) -> Result<BlockingPermit, BlockingPoolFull> {
        let BlockingPoolSettings { threads, queue } = self.shared.settings;
        let mut state = self.shared.lock();
        if state.places >= threads.saturating_add(queue) {
            return Err(BlockingPoolFull { running: state.running, waiting: state.waiting.len() });
        }
        state.places += 1;
        Ok(BlockingPermit(self.shared.clone()))
    }

    /// Runs `job`, at once if a thread is free. The job must hold its [`BlockingPermit`] itself.
    pub(crate) fn run(&self, job: impl FnOnce() + Send + 'static) -> JobHandle {
        let handle = Arc::new(());
        let mut state = self.shared.lock();
        state.waiting.push_back((Arc::downgrade(&handle), Box::new(job)));
        if state.running < self.shared.settings.threads {
            state.running += 1;
            let shared = self.shared.clone();
            self.runtime.spawn_blocking(move || shared.work());
        }
        JobHandle(handle)
    }
}

impl PoolInner {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs waiting jobs until none is left. Called on a pool thread.
    fn work(&self) {
        while let Some((handle, job)) = self.next() {
            // Hold `handle` until the job is over: the entity sees its end by [`JobHandle::is_over`].
            if handle.upgrade().is_some() {
                job();
            } else {
                discard(job);
            }
        }
    }

    fn next(&self) -> Option<(Weak<()>, Job)> {
        let mut state = self.lock();
        let next = state.waiting.pop_front();
        if next.is_none() {
            state.running -= 1;
        }
        next
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(10);

    /// A pool of one thread and one place: the first job runs, the second waits, the third is refused.
    #[tokio::test]
    async fn work_beyond_the_threads_and_the_queue_is_refused() {
        let pool = BlockingPool::new(BlockingPoolSettings { threads: 1, queue: 1 }, Handle::current());
        let (let_go, gate) = mpsc::channel::<()>();
        let (done, results) = mpsc::channel();
        let (first, second) = (pool.place().unwrap(), pool.place().unwrap());
        assert!(pool.place().is_err());
        let (began, begun) = mpsc::channel();
        let _one = pool.run({
            let done = done.clone();
            move || {
                began.send(()).unwrap();
                gate.recv().unwrap();
                drop(first);
                done.send(1).unwrap();
            }
        });
        let _two = pool.run(move || {
            drop(second);
            done.send(2).unwrap();
        });
        begun.recv_timeout(PATIENCE).unwrap();
        let full = pool.place().err().unwrap();
        assert_eq!((full.running, full.waiting), (1, 1));
        let_go.send(()).unwrap();
        assert_eq!([results.recv_timeout(PATIENCE), results.recv_timeout(PATIENCE)], [Ok(1), Ok(2)]);
        assert!(pool.place().is_ok());
    }

    #[tokio::test]
    async fn work_that_is_not_wanted_any_more_is_not_begun() {
        let pool = BlockingPool::new(BlockingPoolSettings { threads: 1, queue: 9 }, Handle::current());
        let (let_go, gate) = mpsc::channel::<()>();
        let (done, results) = mpsc::channel();
        let first = pool.run(move || gate.recv().unwrap());
        let unwanted = pool.run({
            let done = done.clone();
            move || done.send("unwanted").unwrap()
        });
        let last = pool.run(move || done.send("last").unwrap());
        assert!(!unwanted.is_over());
        drop(unwanted);
        let_go.send(()).unwrap();
        assert_eq!(results.recv_timeout(PATIENCE), Ok("last"));
        assert!(results.recv_timeout(PATIENCE).is_err(), "its closure was dropped");
        assert!(first.is_over());
        drop(last);
    }
}
