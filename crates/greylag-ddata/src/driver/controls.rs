//! What a replicator must never refuse: subscriptions, their ends, flushes and the stop.
//!
//! A queue of these would have no bound, since a program may subscribe, drop and flush as often as it likes before the
//! replicator's task runs. So what is to be done is kept as a state: one request for each live subscription that has not
//! begun, one number for each begun one that was dropped, and whether to flush and to stop. It is never larger than what
//! the program itself holds.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use super::task::Request;

/// What the task is to do next.
pub(super) enum Control {
    /// Begin a subscription.
    Begin(Request),
    /// Tell subscribers now.
    Flush,
    /// A begun subscription was dropped.
    End(u64),
    /// Stop in order.
    Stop,
}

/// See the module.
#[derive(Default)]
pub(super) struct Controls {
    state: Mutex<State>,
    wake: Notify,
}

#[derive(Default)]
struct State {
    /// By the number of the subscription.
    begin: BTreeMap<u64, Request>,
    end: BTreeSet<u64>,
    flush: bool,
    stop: bool,
    /// The task takes nothing any more.
    closed: bool,
}

/// The task's hold of them: they close with it.
pub(super) struct Closing(pub(super) Arc<Controls>);

impl Drop for Closing {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl Controls {
    /// Begins a subscription by `request`; one that finds the replicator stopped is dropped, which its reader sees.
    pub(super) fn begin(&self, number: u64, request: Request) {
        let mut state = self.lock();
        if !state.closed {
            state.begin.insert(number, request);
            self.release(state);
        }
    }

    /// Ends a subscription, whether it has begun or not.
    pub(super) fn end(&self, number: u64) {
        let mut state = self.lock();
        // Dropped after the lock: the request holds values of the program, whose drop must not run under it.
        let _unbegun = match state.begin.remove(&number) {
            None if !state.closed => {
                state.end.insert(number);
                None
            }
            unbegun => unbegun,
        };
        self.release(state);
    }

    /// Tells subscribers as soon as the task runs; several times before that are one.
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

    /// The next thing to do: beginnings of subscriptions before flushes and ends, and the stop last. Cancel safe.
    pub(super) async fn next(&self) -> Control {
        loop {
            if let Some(control) = self.lock().take() {
                return control;
            }
            self.wake.notified().await;
        }
    }

    /// The task has ended: subscriptions that never began end.
    fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        let unbegun = std::mem::take(&mut state.begin);
        drop(state);
        drop(unbegun);
    }

    fn release(&self, state: MutexGuard<'_, State>) {
        drop(state);
        self.wake.notify_one();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn take(&mut self) -> Option<Control> {
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

impl std::fmt::Debug for Controls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let state = self.lock();
        f.debug_struct("Controls").field("begin", &state.begin.len()).field("end", &state.end).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    /// A request that shows whether it is still kept.
    fn request(kept: &Arc<()>) -> Request {
        let kept = kept.clone();
        Box::new(move |_| drop(kept))
    }

    /// What a program takes back before the task runs leaves nothing, however often it does so.
    #[test]
    fn what_waits_is_no_more_than_what_the_program_holds() {
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
    fn what_has_begun_ends_and_the_stop_comes_last() {
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
