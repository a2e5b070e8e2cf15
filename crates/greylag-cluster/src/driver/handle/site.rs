//! The parts of a running node that its handles use.

use std::sync::Arc;

use greylag_transport::Remoting;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, watch};

use crate::driver::ending::tasks::ShutdownTasks;
use crate::driver::events::EventHub;
use crate::driver::input::DriverInput;
use crate::driver::pulse::Pulse;
use crate::membership::shutdown::ShutdownReason;
use crate::settings::ClusterSettings;

/// A running node, from the outside of its task.
pub(crate) struct Site {
    pub(crate) settings: ClusterSettings,
    pub(crate) remoting: Arc<dyn Remoting>,
    pub(crate) inbox: mpsc::Sender<DriverInput>,
    pub(crate) hub: Arc<EventHub>,
    pub(crate) tasks: Arc<ShutdownTasks>,
    /// `Some` once this node has ended, every phase included.
    pub(crate) terminated: watch::Receiver<Option<ShutdownReason>>,
    pub(crate) pulse: Pulse,
    pub(crate) threads: Threads,
}

/// The runtimes of the node's tasks.
pub(crate) struct Threads {
    pub(crate) handle: Handle,
    /// The runtime of user code.
    pub(crate) user: Handle,
}

impl Site {
    /// Hands an input to the driver without waiting. If the inbox is full, a task waits in the caller's stead; commands
    /// of users are few, so that happens only on a node in trouble.
    pub(crate) fn input(&self, input: DriverInput) {
        if let Err(mpsc::error::TrySendError::Full(input)) = self.inbox.try_send(input) {
            let inbox = self.inbox.clone();
            self.threads.handle.spawn(async move { drop(inbox.send(input).await) });
        }
    }
}
