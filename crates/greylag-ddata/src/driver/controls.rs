//! Calls that a replicator must never refuse: subscriptions, their ends, flushes and the stop.
//!
//! A queue of these calls would be unbounded, since a program may subscribe, drop and flush as often as it likes before
//! the replicator's task runs. So pending calls are kept as a state: one request for each live subscription that has
//! not begun, one number for each begun subscription that was dropped, and whether to flush and to stop. The state is
//! never larger than what the program itself holds.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// The next call for the task; `R` are the requests that it runs.
pub(super) enum Control<R> {
    /// Begin a subscription.
    Begin(R),
    /// Notify subscribers now.
    Flush,
    /// A begun subscription was dropped.
    End(u64),
    /// Stop in order.
    Stop,
}

/// The pending calls; see the module.
pub(super) struct Controls<R> {
    state: Mutex<State<R>>,
    wake: Notify,
}

struct State<R> {
    /// The subscriptions to begin, by number.
    begin: BTreeMap<u64, R>,
    end: BTreeSet<u64>,
    flush: bool,
    stop: bool,
    /// Set when the task has ended and takes no more calls.
    closed: bool,
}

/// The task's handle of the controls: dropping it closes them.
pub(super) struct Closing<R>(pub(super) Arc<Controls<R>>);

impl<R> Drop for Closing<R> {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl<R> Default for Controls<R> {
    fn default() -> Self {
        let state = State { begin: BTreeMap::new(), end: BTreeSet::new(), flush: false, stop: false, closed: false };
        Self { state: Mutex::new(state), wake: Notify::new() }
    }
}

impl<R> Controls<R> {
    /// Begins a subscription by `request`. If the replicator has stopped, `request` is dropped, which the reader
    /// notices.
    pub(super) fn begin(&self, number: u64, request: R) {
        let mut state = self.lock();
        if !state.closed {
            state.begin.insert(number, request);
            self.release(state);
        }
    }

    /// Ends a subscription, whether it has begun or not.
    pub(super) fn end(&self, number: u64) {
        let mut state = self.lock();
        // Drop the request after the lock: it holds values of the program, whose drop must not run under the lock.
        let _unbegun = match state.begin.remove(&number) {
            None if !state.closed => {
                state.end.insert(number);
                None
            }
            unbegun => unbegun,
        };
        self.release(state);
    }

    /// Notifies subscribers as soon as the task runs; several calls before that count as one.
    pub(super) fn flush(&self) {
        let mut state = self.lock();
        state.flush = true;
        self.release(state);
    }

    /// Stops the replicator.
    pub(super) fn stop(&self) {
        let mut state = self.lock();
        state.stop = true;
        self.release(state);
    }

    /// The next call: beginnings of subscriptions first, then flushes and ends, the stop last. Cancel safe.
    pub(super) async fn next(&self) -> Control<R> {
        loop {
            if let Some(control) = self.lock().take() {
                return control;
            }
            self.wake.notified().await;
        }
    }

    /// Marks the task as ended, and ends subscriptions that never began.
    fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        let unbegun = std::mem::take(&mut state.begin);
        drop(state);
        drop(unbegun);
    }

    fn release(&self, state: MutexGuard<'_, State<R>>) {
        drop(state);
        self.wake.notify_one();
    }

    fn lock(&self) -> MutexGuard<'_, State<R>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<R> State<R> {
    fn take(&mut self) -> Option<Control<R>> {
        if let Some((_, request)) = self.begin.pop_first() {
            return Some(Control::Begin(request));
        }
        if std::mem::take(&mut self.flush) {
            return Some(Control::Flush);
        }
        if let Some(number) = self.end.pop_first() {
            return Some(Control::End(number));
        }
        std::mem::take(&mut self.stop).then_some(Control::Stop)
    }
}

impl<R> std::fmt::Debug for Controls<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let state = self.lock();
        f.debug_struct("Controls").field("begin", &state.begin.len()).field("end", &state.end).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    /// A request by which `kept` shows whether the request still exists.
    fn request(kept: &Arc<()>) -> Arc<()> {
        kept.clone()
    }

    /// Calls that a program takes back before the task runs leave nothing, however many they are.
    #[test]
    fn cancelled_calls_leave_nothing_waiting() {
        let (controls, kept) = (Controls::default(), Arc::new(()));
        for number in 0..10_000 {
            controls.begin(number, request(&kept));
            controls.flush();
            if number >= 3 {
                controls.end(number - 3);
            }
        }
        assert_eq!(Arc::strong_count(&kept) - 1, 3);
        let mut seen = Vec::new();
        while let Some(control) = controls.next().now_or_never() {
            seen.push(match control {
                Control::Begin(_) => "begin",
                Control::Flush => "flush",
                Control::End(_) => "end",
                Control::Stop => "stop",
            });
        }
        assert_eq!(seen, ["begin", "begin", "begin", "flush"]);
    }

    /// A begun subscription ends once, before the stop; after the end nothing begins.
    #[test]
    fn begun_subscriptions_end_once_before_the_stop() {
        let (controls, kept) = (Arc::new(Controls::default()), Arc::new(()));
        let task = Closing(controls.clone());
        controls.begin(1, request(&kept));
        assert!(matches!(controls.next().now_or_never(), Some(Control::Begin(_))));
        controls.stop();
        controls.end(1);
        assert!(matches!(controls.next().now_or_never(), Some(Control::End(1))));
        assert!(matches!(controls.next().now_or_never(), Some(Control::Stop)));
        assert!(controls.next().now_or_never().is_none());
        controls.begin(2, request(&kept));
        drop(task);
        controls.begin(3, request(&kept));
        controls.end(3);
        assert_eq!(Arc::strong_count(&kept), 1);
        assert!(controls.next().now_or_never().is_none());
    }
}
