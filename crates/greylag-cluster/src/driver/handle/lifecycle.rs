//! The user's part in the life of this node: code that runs when the node is Up, while it ends, and when it has left.
//!
//! User code runs on the runtime that starts it, in tasks of its own: a panic there is logged and ends that code alone.
//! Source: cluster M34, M35, §7.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::cluster::Cluster;
use crate::driver::ending::tasks::RunningHere;
use crate::driver::future::BoxFuture;
use crate::driver::input::DriverInput;
use crate::driver::pulse::Pulse;
use crate::membership::shutdown::{Phase, ShutdownReason};

impl Cluster {
    /// Runs `f` once, when this node is a full member; at once if it is one already. Never, if the node ends before.
    /// Source: cluster M34.
    pub fn on_member_up(&self, f: impl FnOnce() + Send + 'static) {
        let cluster = self.clone();
        run_user_code("on_member_up", async move {
            if cluster.wait_up().await.is_ok() {
                let _runs = cluster.inner.site.tasks.running().begin();
                // Drop the handle, which must not keep the node alive while the user code runs.
                drop(cluster);
                f();
            }
        });
    }

    /// Runs `f` once, when this node is no member any more; also if it ends without ever having joined. The orderly
    /// shutdown waits for `f`. Source: cluster M34.
    pub fn on_member_removed(&self, f: impl FnOnce() + Send + 'static) {
        let once = Arc::new(Mutex::new(Some(f)));
        let take = |once: &Mutex<Option<_>>| once.lock().unwrap_or_else(PoisonError::into_inner).take();
        let in_shutdown = once.clone();
        self.on_phase(Phase::ClusterShutdown, "on_member_removed", move || {
            Box::pin(async move {
                if let Some(f) = take(&in_shutdown) {
                    f();
                }
                true
            })
        });
        // A membership can end without a shutdown of the node (`shutdown_when_down = false`).
        let (mut events, hub, tasks) = (self.subscribe(), self.inner.site.hub.clone(), self.inner.site.tasks.clone());
        run_user_code("on_member_removed", async move {
            let mut was_member = false;
            while events.next().await.is_some() {
                let is_member = hub.view().self_member().is_some();
                if was_member && !is_member {
                    break;
                }
                was_member |= is_member;
            }
            if let Some(f) = take(&once) {
                let _runs = tasks.running().begin();
                f();
            }
        });
    }

    /// Adds a task to a phase of the orderly shutdown. The task returns whether it ended in order: in the phases before
    /// and while exiting, `false` makes the other nodes wait before they take over. Source: cluster M35.
    pub fn on_phase(&self, phase: Phase, name: &str, task: impl FnOnce() -> BoxFuture<'static, bool> + Send + 'static) {
        self.inner.site.tasks.add(phase, name, Box::new(task));
    }

    /// Adds a task to [`Phase::ClusterExiting`], for work that this node must have handed over before the others are
    /// told that the node is gone.
    pub fn on_exiting(&self, name: &str, task: impl FnOnce() -> BoxFuture<'static, bool> + Send + 'static) {
        self.on_phase(Phase::ClusterExiting, name, task);
    }

    /// The standing at this node's tick: whether it is safe to run code that must not run on two nodes. For programs
    /// with work of their own in a singleton; mailboxes and shards check the pulse by themselves. Source: cluster F9.
    pub fn pulse(&self) -> Pulse {
        self.inner.site.pulse.clone()
    }

    /// The counter in which layers above count the work that may run only once in the cluster: singletons and tasks of
    /// phases are counted already. Source: cluster T33.
    pub fn running_here(&self) -> RunningHere {
        self.inner.site.tasks.running().clone()
    }

    /// Gives a phase of the orderly shutdown more time, never less than it has.
    pub fn raise_phase_timeout(&self, phase: Phase, timeout: Duration) {
        self.inner.site.tasks.raise_timeout(phase, timeout);
    }

    /// Leaves in order: hands over, tells the others, ends. Completes when every phase has run.
    pub async fn shutdown(&self) -> ShutdownReason {
        let _ended_already = self.inner.site.inbox.send(DriverInput::Shutdown(ShutdownReason::Left)).await;
        self.terminated().await
    }

    /// Begins the shutdown for another reason, such as a signal of the operating system; the first reason wins. Does
    /// not wait; see [`Cluster::terminated`].
    pub fn begin_shutdown(&self, reason: ShutdownReason) {
        self.inner.site.input(DriverInput::Shutdown(reason));
    }

    /// Whether this node shuts down, or has ended: phases run, and nothing new should be started on it.
    pub fn is_shutting_down(&self) -> bool {
        self.inner.site.tasks.has_begun() || self.ended().is_some()
    }

    /// Why this node has ended; `None` while it runs, its phases of shutdown included.
    pub fn ended(&self) -> Option<ShutdownReason> {
        *self.inner.site.terminated.borrow()
    }

    /// Waits until this node has ended, and returns why.
    pub async fn terminated(&self) -> ShutdownReason {
        let mut terminated = self.inner.site.terminated.clone();
        match terminated.wait_for(Option::is_some).await {
            Ok(reason) => reason.unwrap_or(ShutdownReason::Stopped),
            Err(_) => ShutdownReason::Stopped,
        }
    }
}

/// Runs user code, and logs its panic.
fn run_user_code(name: &'static str, code: impl Future<Output = ()> + Send + 'static) {
    let task = tokio::spawn(code);
    tokio::spawn(async move {
        if let Err(error) = task.await
            && error.is_panic()
        {
            tracing::error!(%error, "the callback of {name} panicked");
        }
    });
}
