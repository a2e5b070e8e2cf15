//! The inputs of the task that owns the machines.

use std::sync::Arc;

use greylag_core::{NodeAddress, Share};
use tokio::sync::oneshot;

use super::singleton::order::StartSingleton;
use crate::core::{Command, Input};
use crate::error::JoinError;
use crate::membership::health::Health;
use crate::membership::shutdown::ShutdownReason;
use crate::singleton::SingletonMessage;
use crate::singleton::manager::signals::ManagerInput;

/// Inputs that may wait for the driver's task. Control traffic of a node is far below this; inputs beyond are dropped
/// and counted, and every protocol here repeats itself.
pub(crate) const INBOX: usize = 8192;

/// Bytes that messages of peers may have together in one inbox of the cluster's own protocols. The messages of a
/// thousand members at once have a tenth of it; messages beyond are dropped and counted like the rest.
pub(crate) const INBOX_BYTES: usize = 64 * 1024 * 1024;

/// An input of the task that owns the machines.
pub(crate) enum DriverInput {
    /// A peer's message, with its share of [`INBOX_BYTES`].
    Received(Box<Self>, Share),
    /// Join, and answer with the outcome.
    Join { seeds: Vec<NodeAddress>, reply: oneshot::Sender<Result<(), JoinError>> },
    /// A user's command.
    Command(Command),
    /// Answer with this node's health.
    Health(oneshot::Sender<Health>),
    /// A message, a fact about a peer, the end of a dial.
    Core(Input),
    /// Begin the orderly shutdown.
    Shutdown(ShutdownReason),
    /// Run a singleton.
    Singleton(Box<StartSingleton>),
    /// This node sends to a singleton that others run; it answers for older processes at its address.
    SingletonElsewhere(Arc<str>),
    /// A message between managers of one singleton.
    SingletonMessage { name: Arc<str>, message: SingletonMessage },
    /// An event of a singleton's lease.
    Manager { name: Arc<str>, input: ManagerInput },
    /// An instance has ended.
    InstanceEnded { name: Arc<str>, instance_id: u64 },
    /// Hand the singletons over in the shutdown; answer when none of them runs here.
    ExitingPhase(oneshot::Sender<()>),
    /// The last handle was dropped.
    HandlesGone,
    /// Every phase of the shutdown has run.
    Close(ShutdownReason),
}
