//! The orderly end of a node: runs the phases one after another, and the cluster's own work in its phases.
//!
//! A shutdown runs once; the first reason wins. A node that is Down, or could not join, skips the phases that make
//! sense only for a member that leaves, but still waits until its singletons have ended.
//!
//! Source: cluster M26, M35.

use std::sync::Arc;
use std::time::Duration;

use greylag_core::UniqueAddress;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use super::tasks::ShutdownTasks;
use crate::core::Command;
use crate::driver::events::{ClusterEvents, EventHub};
use crate::driver::input::DriverInput;
use crate::membership::event::{EventKind, InitialState};
use crate::membership::member::MemberStatus;
use crate::membership::shutdown::{Phase, ShutdownReason};
use crate::membership::view::MembershipView;

/// The state that a shutdown works with.
pub(crate) struct CoordinatedShutdown {
    pub(crate) node: UniqueAddress,
    pub(crate) reason: ShutdownReason,
    /// Whether the node is a member that leaves, or was no member at all.
    pub(crate) graceful: bool,
    pub(crate) leave_timeout: Duration,
    pub(crate) tasks: Arc<ShutdownTasks>,
    pub(crate) hub: Arc<EventHub>,
    pub(crate) inbox: mpsc::Sender<DriverInput>,
}

impl CoordinatedShutdown {
    pub(crate) async fn run(self) {
        if self.tasks.own_timeout(Phase::ClusterLeave).is_none() {
            self.tasks.raise_timeout(Phase::ClusterLeave, self.leave_timeout);
        }
        let mut clean = true;
        let mut ended = false;
        for phase in Phase::ALL {
            let ok = match phase {
                Phase::ClusterLeave => self.leave().await,
                // Also if the node is Down: its listener must outlive its singletons.
                Phase::ClusterExiting => self.exit().await,
                _ if phase.is_graceful() && !self.graceful => true,
                _ => self.tasks.run(phase).await,
            };
            clean &= ok || !phase.decides_clean();
            if phase == Phase::ClusterLeave {
                self.tell(DriverInput::Command(Command::LeavePhasePassed)).await;
            }
            if phase == Phase::ClusterExitingDone {
                self.end_membership(clean).await;
                ended = true;
            }
            if !ok && !self.tasks.recovers(phase) {
                tracing::error!(%phase, "a phase without recovery failed; the remaining phases are skipped");
                break;
            }
        }
        if !ended {
            self.end_membership(false).await;
        }
        self.tasks.wait_for_late_tasks().await;
        self.tell(DriverInput::Close(self.reason)).await;
    }

    async fn tell(&self, input: DriverInput) {
        let _node_has_ended = self.inbox.send(input).await;
    }

    async fn leave(&self) -> bool {
        if !self.graceful {
            return true;
        }
        self.tell(DriverInput::Command(Command::AbandonJoin)).await;
        self.tell(DriverInput::Command(Command::Leave(self.node.clone()))).await;
        let left = |view: &MembershipView| view.self_status().is_none_or(|status| status >= MemberStatus::Exiting);
        let limit = self.tasks.timeout(Phase::ClusterLeave);
        let (in_time, own) = tokio::join!(self.wait_for(left, limit), self.tasks.run(Phase::ClusterLeave));
        in_time && own
    }

    /// Hands over singletons, and runs the tasks that must end before others take over.
    async fn exit(&self) -> bool {
        let (reply, handed_over) = oneshot::channel();
        self.tell(DriverInput::ExitingPhase(reply)).await;
        let limit = self.tasks.timeout(Phase::ClusterExiting);
        let tasks = async { !self.graceful || self.tasks.run(Phase::ClusterExiting).await };
        let (singletons, own) = tokio::join!(timeout(limit, handed_over), tasks);
        let in_time = matches!(singletons, Ok(Ok(())));
        if !in_time {
            tracing::warn!("singletons did not end in time; the exit is not clean");
        }
        own && in_time
    }

    async fn end_membership(&self, clean: bool) {
        let exiting = self.hub.view().self_status() == Some(MemberStatus::Exiting);
        let command = if exiting { Command::ExitingTasksDone { clean } } else { Command::Stop(self.reason) };
        self.tell(DriverInput::Command(command)).await;
        self.wait_for(|view| view.members.is_empty(), Duration::from_secs(5)).await;
    }

    /// Waits until `wanted` accepts the view. True if in time.
    async fn wait_for(&self, wanted: impl Fn(&MembershipView) -> bool, limit: Duration) -> bool {
        let mut events: ClusterEvents = self.hub.subscribe(EventKind::ALL.into(), InitialState::Snapshot);
        let reached = async {
            while !wanted(&self.hub.view()) {
                if events.next().await.is_none() {
                    return;
                }
            }
        };
        let in_time = timeout(limit, reached).await.is_ok();
        if !in_time {
            tracing::warn!("leaving timed out");
        }
        in_time
    }
}
