//! The committer: the one thread that plans all writes of a store and reopens it after a failure.
//!
//! ```text
//! submit ─▶ queue ─▶ plan ───────▶ apply_batch           this thread
//!             ▲        │ meanwhile   │ then
//!             │      flush, sync    guard ─▶ answers     the finisher, of the group before
//!             └─ fills meanwhile, so groups grow with the load; see [`super::group_sizing`]
//! ```
//!
//! A group is planned while the group before is synced, and applied when that sync is over: the log never holds more
//! than one group that a loss of power could tear, so no later group can outlive an earlier one.
//!
//! **Poison.** After an error, a panic or a stall nothing is known about the groups in hand, and sled shows data that
//! it could not write. So everything pending stays unanswered, the handle is dropped on a throwaway thread (dropping
//! may hang too), and the store is reopened with back-off.
//! Source: persistence §4.3.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::finisher::{Applied, Finisher};
use super::shared::{StoreInner, StorePhase};
use super::watchdog::watch;
use crate::batch::Batch;
use crate::engine::{Engine, collect_garbage, drop_page_cache};
use crate::error::{OpenError, StoreError};
use crate::files::ballast::Ballast;
use crate::files::guard::TailGuard;
use crate::planner::Planner;
use crate::reader::Reader;
use crate::settings::StoreSettings;

/// The key of the test write at every open, which shows at once whether the store can be written. The first byte `ff`
/// is reserved for the engine; planners use the others.
const PROBE_KEY: &[u8] = &[0xff];
const SLOW_OPEN: Duration = Duration::from_secs(10);

/// Opens the store and starts its threads.
pub(crate) fn start<P: Planner>(
    path: PathBuf,
    settings: StoreSettings,
    mut planner: P,
) -> Result<Arc<StoreInner<P>>, OpenError> {
    let opened = open_recovered(&path, &settings, &mut planner)?;
    let shared = Arc::new(StoreInner::new(path.clone(), settings, Reader::new(opened.engine.clone())));
    let failed = |error: std::io::Error| OpenError::Failed { path: path.clone(), source: error.into() };
    let committer = Committer { shared: shared.clone(), planner };
    thread::Builder::new().name("greylag-commit".into()).spawn(move || committer.run(opened)).map_err(&failed)?;
    let watched = shared.clone();
    thread::Builder::new().name("greylag-watch".into()).spawn(move || watch(&watched)).map_err(failed)?;
    Ok(shared)
}

/// A store whose records were found sound, with its guard if the planner guards the tail.
struct Opened {
    engine: Arc<Engine>,
    guard: Option<TailGuard>,
}

/// Opens the store; if the disk is full, releases the ballast and tries once more.
fn open_recovered<P: Planner>(path: &Path, settings: &StoreSettings, planner: &mut P) -> Result<Opened, OpenError> {
    let began_at = Instant::now();
    let ballast = Ballast::new(path, settings.ballast_bytes);
    let opened = match open_once(path, settings, planner) {
        Err(error) if error.is_storage_full() && ballast.release() => {
            tracing::warn!(path = %path.display(), "the disk is full; the ballast was removed to open the store");
            open_once(path, settings, planner)?
        }
        outcome => {
            let opened = outcome?;
            ballast.restore();
            opened
        }
    };
    let took = began_at.elapsed();
    if took > SLOW_OPEN {
        tracing::warn!(path = %path.display(), ?took, "opening the store took long; a clean close makes the next one short");
    }
    Ok(opened)
}

fn open_once<P: Planner>(path: &Path, settings: &StoreSettings, planner: &mut P) -> Result<Opened, OpenError> {
    let repair = planner.repair();
    let engine = Arc::new(Engine::open(path, settings, repair)?);
    let recovered = catch_unwind(AssertUnwindSafe(|| {
        let mut batch = Batch::default();
        let reader = Reader::new(engine.clone());
        planner.recover(&reader, &mut batch)?;
        // Open the guard first: damage is found before anything is written, and a new store gets a guard before its
        // first commit.
        let mut guard = planner.tail().map(|found| TailGuard::open(path, found)).transpose()?;
        planner.verify(&reader, &mut batch)?;
        match engine.fetch_page(PROBE_KEY) {
            Ok(()) => batch.put(PROBE_KEY, b"probe"),
            // Go on: requests for records on the damaged page get the error, all others are served.
            Err(error) if error.is_corruption() => {
                tracing::warn!(path = %path.display(), %error, "the test write at open is skipped: its page is damaged");
            }
            Err(error) => return Err(error),
        }
        engine.commit(batch)?;
        // A killed process may have left more than was acknowledged. The commit has synced it, so the guard includes
        // it.
        planner.tail().zip(guard.as_mut()).map(|(tail, guard)| guard.raise_to(tail)).transpose()?;
        Ok(guard)
    }));
    let guard = recovered
        .unwrap_or_else(|panic| Err(StoreError::from_panic(&*panic)))
        .map_err(|source| OpenError::of(path, source, repair))?;
    Ok(Opened { engine, guard })
}

struct Committer<P: Planner> {
    shared: Arc<StoreInner<P>>,
    planner: P,
}

impl<P: Planner> Committer<P> {
    fn run(mut self, mut opened: Opened) {
        loop {
            let guard = opened.guard.take();
            match self.serve(&opened.engine, guard) {
                Ok(()) => break self.close(opened.engine),
                Err(error) => {
                    self.shared.poison(&error);
                    let (engine, shared) = (opened.engine, self.shared.clone());
                    shared.lock().hung_since = Some(Instant::now());
                    // Use a throwaway thread: dropping a failed handle may hang, and its lock then keeps `reopen`
                    // waiting.
                    let throwaway = thread::Builder::new().name("greylag-drop".into()).spawn(move || {
                        drop(engine);
                        shared.lock().hung_since = None;
                    });
                    if let Err(error) = throwaway {
                        // Without a thread the engine was dropped right here, so nothing hangs any more.
                        self.shared.lock().hung_since = None;
                        tracing::error!(%error, "no thread could be started to drop a failed store");
                    }
                }
            }
            match self.reopen() {
                Some(reopened) => opened = reopened,
                None => break self.end(),
            }
        }
    }

    /// Commits groups until the store is closed (`Ok`) or fails.
    fn serve(&mut self, engine: &Arc<Engine>, guard: Option<TailGuard>) -> Result<(), StoreError> {
        let mut finisher = Finisher::start(self.shared.clone(), engine.clone(), guard)?;
        let served = catch_unwind(AssertUnwindSafe(|| self.commit_groups(engine, &mut finisher)));
        // Groups that were applied before may still be made durable and answered, whatever happened here.
        finisher.end()?;
        served.unwrap_or_else(|panic| Err(StoreError::from_panic(&*panic)))
    }

    fn commit_groups(&mut self, engine: &Arc<Engine>, finisher: &mut Finisher<P>) -> Result<(), StoreError> {
        let reader = Reader::new(engine.clone());
        while let Some(requests) = self.next_group()? {
            let (began_at, count) = (Instant::now(), requests.len());
            let mut batch = Batch::default();
            let answers = self.planner.plan(requests, &reader, &mut batch)?;
            assert_eq!(answers.len(), count, "a planner answers every request");
            engine.fetch(&batch)?;
            let (tail, once_durable) = (self.planner.tail(), self.planner.once_durable());
            let planned = began_at.elapsed();
            finisher.wait_until_synced()?;
            let ready_at = Instant::now();
            let keys = batch.len();
            if keys > 0 {
                engine.apply(&batch)?;
            }
            let (applied_at, work) = (Instant::now(), planned + ready_at.elapsed());
            finisher.finish(Applied { answers, batch, tail, once_durable, began_at, work, applied_at })?;
            collect_garbage(keys);
        }
        Ok(())
    }

    /// Waits for work. `None` once the store is closed and the queue is empty.
    fn next_group(&mut self) -> Result<Option<Vec<P::Request>>, StoreError> {
        let mut state = self.shared.lock();
        loop {
            if let StorePhase::Down(reason) = &state.phase {
                return Err(StoreError::Down(reason.clone()));
            }
            if state.committing.is_empty() || !self.planner.needs_durable() {
                if state.has_enough() {
                    break;
                }
                if state.nothing_waits() && state.closing {
                    return Ok(None);
                }
                if state.committing.is_empty() && self.planner.has_background_work() {
                    break;
                }
            }
            state = self.shared.work.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        Ok(Some(state.take_group(&self.shared.settings)))
    }

    /// Reopens the store, however long that takes; `None` if the store was closed meanwhile.
    fn reopen(&mut self) -> Option<Opened> {
        let settings = self.shared.settings.clone();
        let mut backoff = settings.reopen_min_backoff;
        loop {
            let state = self.shared.lock();
            let waited = self.shared.phase_changed.wait_timeout_while(state, backoff, |state| !state.closing);
            if waited.unwrap_or_else(PoisonError::into_inner).0.closing {
                return None;
            }
            // After a failed sync the page cache holds data that the disk does not have; drop it before reading.
            drop_page_cache(&self.shared.path);
            match open_recovered(&self.shared.path, &settings, &mut self.planner) {
                Ok(opened) => {
                    self.shared.set_reader(Some(Reader::new(opened.engine.clone())));
                    self.shared.lock().phase = StorePhase::Up;
                    tracing::info!(path = %self.shared.path.display(), "store is up again");
                    return Some(opened);
                }
                Err(error) => {
                    tracing::error!(%error, "reopening the store failed; trying again");
                    self.shared.lock().phase = StorePhase::Down(error.to_string().into());
                }
            }
            backoff = (backoff * 2).min(settings.reopen_max_backoff);
        }
    }

    fn close(&self, engine: Arc<Engine>) {
        self.shared.set_reader(None);
        if engine.has_blobs() {
            tracing::warn!(path = %self.shared.path.display(), "blobs/ is not empty: values lie outside the synced log");
        }
        // Wait for reads in progress, which hold the engine for a moment: the last holder releases the lock.
        let give_up_at = Instant::now() + self.shared.settings.lock_retry;
        while Arc::strong_count(&engine) > 1 && Instant::now() < give_up_at {
            thread::sleep(Duration::from_millis(1));
        }
        drop(engine);
        self.end();
    }

    fn end(&self) {
        let mut state = self.shared.lock();
        state.abandon_pending();
        state.phase = StorePhase::Closed;
        self.shared.phase_changed.notify_all();
    }
}
