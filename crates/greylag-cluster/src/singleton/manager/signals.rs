//! The inputs, effects and states of the singleton manager.
//!
//! Source: cluster §5.

use std::sync::Arc;

use crate::membership::view::MembershipView;
use crate::singleton::SingletonMessage;
use crate::singleton::lease_outcome::LeaseOutcome;

/// An input to the [`SingletonManager`](crate::SingletonManager) of one node: the membership, messages of other managers,
/// and events of the instance and of the lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ManagerInput {
    /// The membership, whenever it changed. The first view is the present state.
    View(Arc<MembershipView>),
    /// A manager of the same singleton sent a message.
    Message(SingletonMessage),
    /// The instance has ended, asked or not.
    InstanceEnded,
    /// This node's shutdown has reached the phase in which singletons are handed over.
    ExitingPhase,
    /// This node was declared dead, or ends.
    SelfDowned,
    /// This process stood still; the manager starts no instance for a while (cluster F9).
    LocalPause,
    /// The outcome of `AcquireLease`. Each is answered once.
    LeaseResult(LeaseOutcome),
    /// `ReleaseLease` has ended, well or not. Each is answered once.
    LeaseReleased,
    /// The lease was held, and is lost.
    LeaseLost,
    /// Time has passed: handle the deadlines that are due.
    Tick,
}

/// An effect that the driver carries out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ManagerEffect {
    /// Send to the process that runs at the address of `message.to`, whichever incarnation it is.
    Send(SingletonMessage),
    /// Start the instance.
    StartInstance {
        /// The age of this node, for fencing.
        up_number: u32,
    },
    /// Tell the instance to end; answer by `InstanceEnded` when it has.
    StopInstance,
    /// Hand no message to the instance any more, not even waiting ones: another node may start its own before this one
    /// has ended.
    CloseMailbox,
    /// Acquire the lease; answer by `LeaseResult`.
    AcquireLease,
    /// Release the lease, whether it is held or not; answer by `LeaseReleased`.
    ReleaseLease,
    /// Report that this singleton no longer keeps the node from exiting.
    ExitingDone,
    /// Report that a hand-over makes no progress.
    Stuck,
}

/// The state of the manager. Source: the table of cluster §5.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ManagerState {
    /// The manager waits until its node is Up: only Up nodes can be the oldest.
    Start,
    /// Another node is the oldest.
    Younger,
    /// The manager's node is the oldest, and the manager waits until every predecessor has handed over or is gone.
    BecomingOldest,
    /// All predecessors are settled; the lease is missing.
    AcquiringLease,
    /// This node runs the instance, or the instance ended by itself here.
    Oldest,
    /// Another node is the oldest now; the instance still runs here.
    WasOldest,
    /// The instance ends, so that a claimant can start its own.
    HandingOver,
    /// The instance ends without hand-over.
    Stopping,
    /// No instance starts here any more.
    End,
}
