//! The end of the node as its task sees it: joins that wait, the reason why the membership has ended, and the shutdown.
//!
//! Source: cluster M26, M35.

use std::sync::Arc;
use std::time::Duration;

use greylag_core::UniqueAddress;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot, watch};

use crate::driver::ending::shutdown::CoordinatedShutdown;
use crate::driver::ending::tasks::ShutdownTasks;
use crate::driver::events::EventHub;
use crate::driver::input::DriverInput;
use crate::error::JoinError;
use crate::membership::shutdown::ShutdownReason;

/// The end of a node, and what waits for it.
pub(super) struct Exit {
    tasks: Arc<ShutdownTasks>,
    terminated: watch::Sender<Option<ShutdownReason>>,
    joining: Vec<oneshot::Sender<Result<(), JoinError>>>,
    shutting_down: bool,
    /// Why the membership has ended, if it has: this node joins no cluster any more.
    ended: Option<ShutdownReason>,
}

impl Exit {
    pub(super) fn new(tasks: Arc<ShutdownTasks>, terminated: watch::Sender<Option<ShutdownReason>>) -> Self {
        Self { tasks, terminated, joining: Vec::new(), shutting_down: false, ended: None }
    }

    pub(super) fn is_shutting_down(&self) -> bool {
        self.shutting_down
    }

    /// Whether any task of the shutdown still runs.
    pub(super) fn anything_runs(&self) -> bool {
        self.tasks.anything_runs()
    }

    /// Keeps the reply to a join until its outcome is known. False if this node joins no cluster any more, which the
    /// reply then says.
    pub(super) fn on_join(&mut self, reply: oneshot::Sender<Result<(), JoinError>>) -> bool {
        if let Some(reason) = self.ended {
            let _caller_has_gone = reply.send(Err(JoinError::ShuttingDown(reason)));
            return false;
        }
        self.joining.push(reply);
        true
    }

    /// Answers all joins that wait.
    pub(super) fn answer_joining(&mut self, result: &Result<(), JoinError>) {
        for reply in self.joining.drain(..) {
            let _caller_has_gone = reply.send(result.clone());
        }
    }

    /// Notes that the membership has ended; the first reason wins.
    pub(super) fn on_membership_ended(&mut self, reason: ShutdownReason) {
        self.ended.get_or_insert(reason);
    }

    /// Begins the shutdown, once: its phases run on the runtime `user`.
    pub(super) fn begin(
        &mut self,
        node: &UniqueAddress,
        (reason, graceful): (ShutdownReason, bool),
        leave_timeout: Duration,
        hub: &Arc<EventHub>,
        inbox: &mpsc::Sender<DriverInput>,
        user: &Handle,
    ) {
        if self.shutting_down {
            return;
        }
        self.shutting_down = true;
        self.tasks.begin();
        self.ended.get_or_insert(reason);
        self.answer_joining(&Err(JoinError::ShuttingDown(reason)));
        tracing::info!(%node, %reason, "this node shuts down");
        let shutdown = CoordinatedShutdown {
            node: node.clone(),
            reason,
            graceful,
            leave_timeout,
            tasks: self.tasks.clone(),
            hub: hub.clone(),
            inbox: inbox.clone(),
        };
        let phases = user.spawn(shutdown.run());
        let inbox = inbox.clone();
        tokio::spawn(async move {
            if phases.await.is_err() {
                tracing::warn!(
                    "the program's runtime has ended before its node; what was left of the shutdown does not run"
                );
                let _node_has_ended = inbox.send(DriverInput::Close(reason)).await;
            }
        });
    }

    /// Tells those that wait for the end that every phase has run.
    pub(super) fn finish(&self, reason: ShutdownReason) {
        self.terminated.send_replace(Some(reason));
    }
}
