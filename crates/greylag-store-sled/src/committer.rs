//! The one thread that writes to a store, and the watchdog beside it.
//!
//! ```text
//! submit ─▶ queue ─▶ plan ─▶ apply_batch ─▶ flush ─▶ sync_data ─▶ guard ─▶ answers      (one group)
//!              ▲ fills while the previous group is synced, so groups grow with the load
//! ```
//!
//! **Poison.** After an error, a panic or a stall nothing is known about the last group, and sled
//! shows what it could not write. So everything pending stays unanswered, the handle is dropped on a
//! throwaway thread (dropping may hang too), and the store is opened anew with back-off.
//! Source: persistence §4.3.

use std::collections::VecDeque;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock};
use std::thread;
use std::time::{Duration, Instant};

use futures::channel::oneshot;

use crate::ballast::Ballast;
use crate::batch::Batch;
use crate::engine::{Engine, forget_cached};
use crate::error::{OpenError, Refused, StoreError};
use crate::guard::TailGuard;
use crate::planner::{Planner, Request};
use crate::reader::Reader;
use crate::settings::StoreSettings;
use crate::store::{Health, StoreStats};

/// Written at every open, to find out at once whether the store can be written. The first byte
/// `ff` is the engine's; planners use the others.
const PROBE_KEY: &[u8] = &[0xff];
const SLOW_COMMIT: Duration = Duration::from_secs(1);
const SLOW_OPEN: Duration = Duration::from_secs(10);
const BLOB_CHECK_INTERVAL: Duration = Duration::from_secs(60);

/// What the handles, the committer and the watchdog share.
pub(crate) struct Shared<P: Planner> {
    path: PathBuf,
    settings: StoreSettings,
    state: Mutex<State<P>>,
    /// The committer waits here for work.
    work: Condvar,
    /// Whoever waits for the phase waits here.
    phase_changed: Condvar,
    reader: RwLock<Option<Reader>>,
}

enum Phase {
    Up,
    Down(Arc<str>),
    Closed,
}

struct State<P: Planner> {
    phase: Phase,
    closing: bool,
    waiting: VecDeque<(P::Request, oneshot::Sender<P::Answer>)>,
    waiting_bytes: usize,
    /// Who waits for the group in hand. The watchdog drops them when it stalls.
    committing: Vec<oneshot::Sender<P::Answer>>,
    committing_since: Option<Instant>,
    /// Since when the engine given up last has not been let go of: a commit or the closing of it hangs.
    hung_since: Option<Instant>,
    has_blobs: bool,
    stats: StoreStats,
}

impl<P: Planner> State<P> {
    fn take_group(&mut self, settings: &StoreSettings) -> Vec<P::Request> {
        let mut requests = Vec::new();
        let mut bytes = 0;
        while let Some((request, _)) = self.waiting.front() {
            bytes += request.bytes();
            let full = requests.len() >= settings.max_group_requests || bytes > settings.max_group_bytes;
            if full && !requests.is_empty() {
                break;
            }
            let Some((request, sender)) = self.waiting.pop_front() else { break };
            self.waiting_bytes -= request.bytes();
            requests.push(request);
            self.committing.push(sender);
        }
        requests
    }

    /// Lets everything pending know, by dropping it, that it will not be answered.
    fn abandon_pending(&mut self) {
        self.committing.clear();
        self.committing_since = None;
        self.waiting.clear();
        self.waiting_bytes = 0;
    }
}

impl<P: Planner> Shared<P> {
    pub(crate) fn submit(&self, request: P::Request) -> Result<oneshot::Receiver<P::Answer>, Refused> {
        let mut state = self.lock();
        match &state.phase {
            Phase::Down(reason) => return Err(Refused::Down(reason.clone())),
            Phase::Up if !state.closing => {}
            _ => return Err(Refused::Down("it was closed".into())),
        }
        let pending_bytes = state.waiting_bytes + request.bytes();
        if pending_bytes > self.settings.max_pending_bytes && !state.waiting.is_empty() {
            return Err(Refused::Busy { pending_bytes: state.waiting_bytes });
        }
        let (sender, receiver) = oneshot::channel();
        state.waiting_bytes = pending_bytes;
        state.waiting.push_back((request, sender));
        // The committer sleeps only on an empty queue, so only the first request needs to wake it.
        let first = state.waiting.len() == 1;
        drop(state);
        if first {
            self.work.notify_one();
        }
        Ok(receiver)
    }

    pub(crate) fn reader(&self) -> Result<Reader, StoreError> {
        let reader = self.reader.read().unwrap_or_else(PoisonError::into_inner).clone();
        reader.ok_or_else(|| match self.health() {
            Health::Down(reason) => StoreError::Down(reason.into()),
            _ => StoreError::Down("it is being opened".into()),
        })
    }

    pub(crate) fn health(&self) -> Health {
        let state = self.lock();
        match &state.phase {
            Phase::Down(reason) => return Health::Down(reason.to_string()),
            Phase::Closed => return Health::Down("it was closed".into()),
            Phase::Up if state.closing => return Health::Down("it is being closed".into()),
            Phase::Up => {}
        }
        let mut reasons = Vec::new();
        if state.waiting_bytes > self.settings.max_pending_bytes / 2 {
            reasons.push(format!("{} bytes wait for the committer", state.waiting_bytes));
        }
        if state.has_blobs {
            reasons.push("blobs/ is not empty: values lie outside the synced log".into());
        }
        if reasons.is_empty() { Health::Up } else { Health::Degraded(reasons) }
    }

    pub(crate) fn stats(&self) -> StoreStats {
        self.lock().stats.clone()
    }

    /// Takes no further requests; the committer ends once it has answered those that wait.
    pub(crate) fn begin_close(&self) {
        self.lock().closing = true;
        self.work.notify_all();
        self.phase_changed.notify_all();
    }

    /// Waits for the end that [`Shared::begin_close`] began.
    pub(crate) fn wait_closed(&self) -> Result<(), StoreError> {
        let give_up_at = Instant::now() + self.settings.commit_stall_timeout;
        let mut state = self.lock();
        while !matches!(state.phase, Phase::Closed) {
            let left = give_up_at.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(StoreError::Stalled(self.settings.commit_stall_timeout));
            }
            state = self.phase_changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        Ok(())
    }

    fn set_reader(&self, reader: Option<Reader>) {
        *self.reader.write().unwrap_or_else(PoisonError::into_inner) = reader;
    }

    fn poison(&self, error: &StoreError) {
        tracing::error!(path = %self.path.display(), %error, "store failed; what was pending has an unknown outcome");
        self.set_reader(None);
        let mut state = self.lock();
        // A stall is found by the watchdog first, and by the committer once it moves again.
        state.stats.poisoned += u64::from(matches!(state.phase, Phase::Up));
        state.phase = Phase::Down(error.to_string().into());
        state.abandon_pending();
        self.phase_changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, State<P>> {
        // Nothing panics while it holds this lock, so its state is sound whatever happened.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Opens the store and starts its threads.
pub(crate) fn start<P: Planner>(
    path: PathBuf,
    settings: StoreSettings,
    mut planner: P,
) -> Result<Arc<Shared<P>>, OpenError> {
    let opened = open_recovered(&path, &settings, &mut planner)?;
    let engine = &opened.engine;
    let state = State {
        phase: Phase::Up,
        closing: false,
        waiting: VecDeque::new(),
        waiting_bytes: 0,
        committing: Vec::new(),
        committing_since: None,
        hung_since: None,
        has_blobs: engine.has_blobs(),
        stats: StoreStats::default(),
    };
    let shared = Arc::new(Shared {
        path: path.clone(),
        settings,
        state: Mutex::new(state),
        work: Condvar::new(),
        phase_changed: Condvar::new(),
        reader: RwLock::new(Some(Reader::new(engine.clone()))),
    });
    let failed = |error: std::io::Error| OpenError::Failed { path: path.clone(), source: error.into() };
    let committer = Committer { shared: shared.clone(), planner };
    thread::Builder::new().name("greylag-commit".into()).spawn(move || committer.run(opened)).map_err(&failed)?;
    let watched = shared.clone();
    thread::Builder::new().name("greylag-watch".into()).spawn(move || watch(&watched)).map_err(failed)?;
    Ok(shared)
}

/// A store whose records were found sound, with its guard, if its tail is guarded.
struct Opened {
    engine: Arc<Engine>,
    guard: Option<TailGuard>,
}

/// Opens the store; on a full disk once more, without the ballast.
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
        planner.recover(&Reader::new(engine.clone()), &mut batch)?;
        let tail = planner.tail();
        // Judged before anything is written; and a new store has its guard before its first commit.
        let mut guard = tail.map(|found| TailGuard::open(path, found)).transpose()?;
        batch.put(PROBE_KEY, b"probe");
        engine.commit(batch)?;
        // A killed process may have left more than was acknowledged. It is synced now, and stays.
        tail.zip(guard.as_mut()).map(|(tail, guard)| guard.raise_to(tail)).transpose()?;
        Ok(guard)
    }));
    let guard = recovered
        .unwrap_or_else(|panic| Err(StoreError::from_panic(&*panic)))
        .map_err(|source| OpenError::of(path, source, repair))?;
    Ok(Opened { engine, guard })
}

struct Committer<P: Planner> {
    shared: Arc<Shared<P>>,
    planner: P,
}

impl<P: Planner> Committer<P> {
    fn run(mut self, mut opened: Opened) {
        loop {
            match self.serve(&mut opened) {
                Ok(()) => break self.close(opened.engine),
                Err(error) => {
                    self.shared.poison(&error);
                    let (engine, shared) = (opened.engine, self.shared.clone());
                    shared.lock().hung_since = Some(Instant::now());
                    // Dropping a failed handle may hang; the lock it holds then keeps `reopen` waiting.
                    let throwaway = thread::Builder::new().name("greylag-drop".into()).spawn(move || {
                        drop(engine);
                        shared.lock().hung_since = None;
                    });
                    if let Err(error) = throwaway {
                        tracing::error!(%error, "no thread to drop a failed store on");
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
    fn serve(&mut self, opened: &mut Opened) -> Result<(), StoreError> {
        let reader = Reader::new(opened.engine.clone());
        while let Some(requests) = self.next_group() {
            let count = requests.len();
            let began_at = Instant::now();
            let committed = catch_unwind(AssertUnwindSafe(|| self.commit(requests, &reader, opened)))
                .unwrap_or_else(|panic| Err(StoreError::from_panic(&*panic)));
            let (answers, keys, bytes) = committed?;
            assert_eq!(answers.len(), count, "a planner answers every request");
            let took = began_at.elapsed();
            if took > SLOW_COMMIT {
                tracing::warn!(path = %self.shared.path.display(), ?took, requests = count, "slow group commit");
            }
            self.answer(answers, keys, bytes, took)?;
        }
        Ok(())
    }

    /// Waits for work. `None` once the store is closed and nothing waits any more.
    fn next_group(&mut self) -> Option<Vec<P::Request>> {
        let mut state = self.shared.lock();
        while state.waiting.is_empty() {
            if state.closing {
                return None;
            }
            if self.planner.has_background_work() {
                break;
            }
            state = self.shared.work.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        let requests = state.take_group(&self.shared.settings);
        state.committing_since = Some(Instant::now());
        Some(requests)
    }

    fn commit(
        &mut self,
        requests: Vec<P::Request>,
        reader: &Reader,
        opened: &mut Opened,
    ) -> Result<(Vec<P::Answer>, usize, usize), StoreError> {
        let mut batch = Batch::default();
        let answers = self.planner.plan(requests, reader, &mut batch)?;
        let (keys, bytes) = (batch.len(), batch.bytes());
        if !batch.is_empty() {
            opened.engine.commit(batch)?;
            let tail = self.planner.tail();
            tail.zip(opened.guard.as_mut()).map(|(tail, guard)| guard.raise_to(tail)).transpose()?;
        }
        self.planner.durable();
        Ok((answers, keys, bytes))
    }

    fn answer(&self, answers: Vec<P::Answer>, keys: usize, bytes: usize, took: Duration) -> Result<(), StoreError> {
        let waiting = {
            let mut state = self.shared.lock();
            state.committing_since = None;
            if let Phase::Down(_) = state.phase {
                // The watchdog has given this group up, and may not be contradicted.
                return Err(StoreError::Stalled(self.shared.settings.commit_stall_timeout));
            }
            let stats = &mut state.stats;
            stats.groups += u64::from(keys > 0);
            stats.requests += answers.len() as u64;
            stats.keys += keys as u64;
            stats.bytes += bytes as u64;
            stats.longest_commit = stats.longest_commit.max(took);
            mem::take(&mut state.committing)
        };
        for (sender, answer) in waiting.into_iter().zip(answers) {
            // Whoever asked may have gone; the write stands all the same (persistence J13).
            let _gone = sender.send(answer);
        }
        Ok(())
    }

    /// Opens the store anew, however long that takes; `None` if it was closed meanwhile.
    fn reopen(&mut self) -> Option<Opened> {
        let settings = self.shared.settings.clone();
        let mut backoff = settings.reopen_min_backoff;
        loop {
            let state = self.shared.lock();
            let waited = self.shared.phase_changed.wait_timeout_while(state, backoff, |state| !state.closing);
            if waited.unwrap_or_else(PoisonError::into_inner).0.closing {
                return None;
            }
            // What a failed sync left in memory is not on the disk, but would be read as if it were.
            forget_cached(&self.shared.path);
            match open_recovered(&self.shared.path, &settings, &mut self.planner) {
                Ok(opened) => {
                    self.shared.set_reader(Some(Reader::new(opened.engine.clone())));
                    self.shared.lock().phase = Phase::Up;
                    tracing::info!(path = %self.shared.path.display(), "store is up again");
                    return Some(opened);
                }
                Err(error) => {
                    tracing::error!(%error, "store cannot be opened again yet");
                    self.shared.lock().phase = Phase::Down(error.to_string().into());
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
        // Reads in progress hold the engine for a moment; the last holder releases its lock.
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
        state.phase = Phase::Closed;
        self.shared.phase_changed.notify_all();
    }
}

/// Finds stalled commits, and values outside the log.
fn watch<P: Planner>(shared: &Shared<P>) {
    let interval = (shared.settings.commit_stall_timeout / 4).clamp(Duration::from_millis(1), BLOB_CHECK_INTERVAL);
    let mut blobs_checked_at = Instant::now();
    let mut state = shared.lock();
    while !matches!(state.phase, Phase::Closed) {
        let stalled = |since: Instant| since.elapsed() > shared.settings.commit_stall_timeout;
        if matches!(state.phase, Phase::Up) && state.committing_since.is_some_and(stalled) {
            drop(state);
            shared.poison(&StoreError::Stalled(shared.settings.commit_stall_timeout));
            state = shared.lock();
            state.hung_since = Some(Instant::now());
        }
        if shared.settings.abort_when_stuck && state.hung_since.is_some_and(stalled) {
            tracing::error!(path = %shared.path.display(), "the store hangs and cannot be let go of; ending the process");
            std::process::abort();
        }
        if blobs_checked_at.elapsed() >= BLOB_CHECK_INTERVAL {
            blobs_checked_at = Instant::now();
            drop(state);
            let reader = shared.reader();
            let has_blobs = reader.is_ok_and(|reader| reader.has_blobs());
            Ballast::new(&shared.path, shared.settings.ballast_bytes).restore();
            state = shared.lock();
            state.has_blobs = has_blobs;
        }
        state = shared.phase_changed.wait_timeout(state, interval).unwrap_or_else(PoisonError::into_inner).0;
    }
}
