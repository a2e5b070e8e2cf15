//! The state that the handles, the two halves of the committer and the watchdog share: the queue and the phase.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Instant;

use futures::channel::oneshot;

use super::group_sizing::GroupSizing;
use super::queue::Queue;
use crate::error::{Refused, StoreError};
use crate::health::{Health, StoreStats};
use crate::planner::{Planner, Request};
use crate::reader::Reader;
use crate::settings::StoreSettings;

/// The state shared by the handles, the committer and the watchdog.
pub(crate) struct StoreInner<P: Planner> {
    pub(crate) path: PathBuf,
    pub(crate) settings: StoreSettings,
    state: Mutex<State<P>>,
    /// Signalled when the committer has work.
    pub(crate) work: Condvar,
    /// Signalled when the phase has changed.
    pub(crate) phase_changed: Condvar,
    reader: RwLock<Option<Reader>>,
    /// While a test holds this lock, no group is synced.
    #[cfg(test)]
    pub(crate) sync: Mutex<()>,
}

pub(crate) enum StorePhase {
    Up,
    Down(Arc<str>),
    Closed,
}

pub(crate) struct State<P: Planner> {
    pub(crate) phase: StorePhase,
    pub(crate) closing: bool,
    waiting: Queue<P::Request, P::Answer>,
    /// The groups in hand, the oldest first. The watchdog drops them when a commit stalls.
    pub(crate) committing: VecDeque<Committing<P::Answer>>,
    pub(crate) sizing: GroupSizing,
    /// Since when the engine given up last is still held: its commit or its closing hangs.
    pub(crate) hung_since: Option<Instant>,
    pub(crate) has_blobs: bool,
    pub(crate) stats: StoreStats,
}

/// A group that was taken from the queue and is not answered yet.
pub(crate) struct Committing<A> {
    /// The channels of the requests that wait for the group.
    pub(crate) senders: Vec<oneshot::Sender<A>>,
    pub(crate) since: Instant,
}

impl<P: Planner> State<P> {
    /// The number of requests of the groups in hand.
    fn in_hand(&self) -> usize {
        self.committing.iter().map(|group| group.senders.len()).sum()
    }

    /// Whether enough requests wait to take the next group.
    pub(crate) fn has_enough(&self) -> bool {
        let waiting = self.waiting.len();
        let needed = if self.closing { 1 } else { self.sizing.min_waiting(self.in_hand(), waiting) };
        waiting >= needed
    }

    pub(crate) fn nothing_waits(&self) -> bool {
        self.waiting.is_empty()
    }

    pub(crate) fn take_group(&mut self, settings: &StoreSettings) -> Vec<P::Request> {
        let max_taken = self.sizing.max_taken(self.in_hand(), self.waiting.len()).min(settings.max_group_requests);
        let (requests, senders) = self.waiting.take(max_taken, settings.max_group_bytes);
        self.committing.push_back(Committing { senders, since: Instant::now() });
        requests
    }

    /// Drops everything pending, which tells the callers that no answer will come.
    pub(crate) fn abandon_pending(&mut self) {
        self.committing.clear();
        self.waiting.clear();
    }
}

impl<P: Planner> StoreInner<P> {
    /// The state of a store that was just opened.
    pub(crate) fn new(path: PathBuf, settings: StoreSettings, reader: Reader) -> Self {
        let state = State {
            phase: StorePhase::Up,
            closing: false,
            waiting: Queue::default(),
            committing: VecDeque::new(),
            sizing: GroupSizing::default(),
            hung_since: None,
            has_blobs: reader.has_blobs(),
            stats: StoreStats::default(),
        };
        Self {
            path,
            settings,
            state: Mutex::new(state),
            work: Condvar::new(),
            phase_changed: Condvar::new(),
            reader: RwLock::new(Some(reader)),
            #[cfg(test)]
            sync: Mutex::default(),
        }
    }

    pub(crate) fn submit(&self, request: P::Request) -> Result<oneshot::Receiver<P::Answer>, Refused> {
        let mut state = self.lock();
        match &state.phase {
            StorePhase::Down(reason) => return Err(Refused::Down(reason.clone())),
            StorePhase::Up if !state.closing => {}
            _ => return Err(Refused::Down("it was closed".into())),
        }
        let pending_bytes = state.waiting.bytes() + request.bytes();
        if pending_bytes > self.settings.max_pending_bytes && !state.waiting.is_empty() {
            return Err(Refused::Busy { pending_bytes: state.waiting.bytes() });
        }
        let (sender, receiver) = oneshot::channel();
        // The committer sleeps only while too few requests wait, so only the request that makes them enough wakes it.
        let had_enough = state.has_enough();
        state.waiting.push(request, sender);
        let just_enough = !had_enough && state.has_enough();
        drop(state);
        if just_enough {
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
            StorePhase::Down(reason) => return Health::Down(reason.to_string()),
            StorePhase::Closed => return Health::Down("it was closed".into()),
            StorePhase::Up if state.closing => return Health::Down("it is being closed".into()),
            StorePhase::Up => {}
        }
        let mut reasons = Vec::new();
        if state.waiting.bytes() > self.settings.max_pending_bytes / 2 {
            reasons.push(format!("{} bytes wait for the committer", state.waiting.bytes()));
        }
        if state.has_blobs {
            reasons.push("blobs/ is not empty: values lie outside the synced log".into());
        }
        if reasons.is_empty() { Health::Up } else { Health::Degraded(reasons) }
    }

    pub(crate) fn stats(&self) -> StoreStats {
        self.lock().stats.clone()
    }

    /// Accepts no further requests; the committer ends once it has answered the waiting ones.
    pub(crate) fn begin_close(&self) {
        self.lock().closing = true;
        self.work.notify_all();
        self.phase_changed.notify_all();
    }

    /// Waits until the committer, asked by [`StoreInner::begin_close`], has ended.
    pub(crate) fn wait_closed(&self) -> Result<(), StoreError> {
        let give_up_at = Instant::now() + self.settings.commit_stall_timeout;
        let mut state = self.lock();
        while !matches!(state.phase, StorePhase::Closed) {
            let left = give_up_at.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(StoreError::Stalled(self.settings.commit_stall_timeout));
            }
            state = self.phase_changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        Ok(())
    }

    pub(crate) fn set_reader(&self, reader: Option<Reader>) {
        *self.reader.write().unwrap_or_else(PoisonError::into_inner) = reader;
    }

    /// Gives up the handle and everything pending. The watchdog finds a stall first, and later the committer, once it
    /// moves again: the first call counts.
    pub(crate) fn poison(&self, error: &StoreError) {
        self.poison_locked(&mut self.lock(), error);
    }

    pub(crate) fn poison_locked(&self, state: &mut State<P>, error: &StoreError) {
        state.abandon_pending();
        if !matches!(state.phase, StorePhase::Up) {
            return;
        }
        tracing::error!(path = %self.path.display(), %error, "store failed; pending requests have an unknown outcome");
        self.set_reader(None);
        state.stats.poisoned += 1;
        state.phase = StorePhase::Down(error.to_string().into());
        self.phase_changed.notify_all();
        self.work.notify_all();
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State<P>> {
        // Ignore poisoning: no code panics while it holds this lock, so the state is sound.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
