//! The inputs and effects of the membership machine.
//!
//! Local facts and wire messages are different inputs, so no process on the network can forge a fact such as "the host
//! refused". Source: cluster C2, C3.

use std::sync::Arc;
use std::time::Instant;

use greylag_core::{DeadLetterReason, NodeAddress, UniqueAddress};
use greylag_transport::{Destination, DialFailure, QuarantineReason, RejectCode};

use crate::error::JoinError;
use crate::membership::app_version::AppVersion;
use crate::membership::event::ClusterEvent;
use crate::membership::members::Members;
use crate::membership::message::Message;
use crate::membership::shutdown::ShutdownReason;
use crate::membership::view::MembershipView;
use crate::singleton::lease_outcome::LeaseOutcome;

/// A request of a user, or of the driver's shutdown, to the membership.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// Join the cluster of one of these; the first may form one.
    JoinSeeds(Vec<NodeAddress>),
    /// Ask this member to leave.
    Leave(UniqueAddress),
    /// Declare this member dead.
    Down(UniqueAddress),
    /// Prepare the shutdown of the whole cluster (cluster M30).
    PrepareForFullShutdown,
    /// Let joins wait until the application's version is set (cluster M31).
    AwaitAppVersion,
    /// The application's version. Only before this node has joined.
    SetAppVersion(AppVersion),
    /// A setting of another layer that must be the same on all nodes that know the key (cluster M25a).
    RegisterJoinKey {
        /// The key with its section, as in `sharding.number_of_shards`.
        key: String,
        /// The value as text.
        value: String,
    },
    /// The orderly shutdown has passed the phase in which this node leaves: this node accuses no peer
    /// any more (cluster F10).
    LeavePhasePassed,
    /// Give up joining, because this process ends. Without effect on a member.
    AbandonJoin,
    /// Everything that this node had to hand over was handed over; `clean` if none of it can still run.
    ExitingTasksDone {
        /// Whether no handed-over work can still run here. Source: cluster M26.
        clean: bool,
    },
    /// End now, without leaving.
    Stop(ShutdownReason),
}

/// An input to the membership machine: messages of other nodes, events of the transport and the failure detector, and
/// commands of the user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Input {
    /// Time has passed: handle the deadlines that are due.
    Tick,
    /// A message, whose sender the transport has verified.
    Message {
        /// The process.
        from: UniqueAddress,
        /// The message.
        message: Message,
        /// When it reached this process; old gossip is dropped (cluster M14).
        received_at: Instant,
    },
    /// A process said Hello, or answered ours.
    PeerHandshake {
        /// The process; it runs at its address.
        peer: UniqueAddress,
        /// The cluster that it belongs to, if it is a member of one (cluster M24, M25b).
        cluster_id: Option<u128>,
    },
    /// A node refused our Hello: for good, or until a member that holds our address is removed.
    HelloRefused {
        /// The address that was called.
        address: NodeAddress,
        /// Why the node refused.
        code: RejectCode,
        /// With [`RejectCode::NotReady`]: the member that holds our address there (cluster T15).
        holder: Option<UniqueAddress>,
        /// Both sides' values, for people.
        detail: String,
    },
    /// A dial of ours reached no node. Only for reports about seed nodes to people.
    Unreached {
        /// The address that was called.
        address: NodeAddress,
        /// Why the dial failed.
        failure: DialFailure,
    },
    /// A dial of ours was answered: this process listens at its address. It has replaced any member at
    /// the same address on the host that it names (cluster S20 a).
    DialOther {
        /// The process that answered.
        peer: UniqueAddress,
        /// The host that the answer named.
        host_id: Option<Arc<str>>,
    },
    /// The transport heard a process at the address of a member that it cannot have replaced, and learned nothing from
    /// it (cluster T15).
    AddressHeld {
        /// The member.
        holder: UniqueAddress,
        /// The process.
        claimant: UniqueAddress,
    },
    /// The transport of this node quarantined a process (cluster F11).
    PeerQuarantined {
        /// The process.
        peer: UniqueAddress,
        /// The reason of the quarantine.
        reason: QuarantineReason,
        /// Whether the process left in order.
        harmless: bool,
    },
    /// The control stream to this process broke.
    LinkLost(UniqueAddress),
    /// A proof dial was refused in a way that proves the death (cluster S20).
    DialRefused(UniqueAddress),
    /// A proof dial was accepted.
    DialAnswered(UniqueAddress),
    /// A proof dial ended in any other way, or its refusal would not have counted.
    DialFailed(UniqueAddress),
    /// A witness reports the death of this process.
    DeathWitnessed(UniqueAddress),
    /// Another node has quarantined this one.
    ThisNodeQuarantined {
        /// The node that quarantined this one.
        by: UniqueAddress,
        /// The reason of the quarantine.
        reason: QuarantineReason,
    },
    /// The outcome of `AcquireLease`.
    LeaseResult(LeaseOutcome),
    /// The resolver's lease was held, and is lost.
    LeaseLost,
    /// A command of a user.
    Command(Command),
    /// The wall clock, in ms since 1970; only for the age of tombstones.
    WallClock(u64),
}

/// The importance of a log line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogLevel {
    /// Part of normal life.
    Info,
    /// An operator should look.
    Warn,
    /// The cluster is in danger.
    Error,
}

/// Whether a node may run user code, as its tick found. Source: cluster F9.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// No other node can have started the singletons and shards that run here.
    Trusted,
    /// This node distrusts itself after a pause, or was declared dead.
    Held,
    /// This node is no member any more.
    Ended,
}

/// An effect that the driver carries out, in the order of the list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// Publish that the tick ran, and its finding. This is the first of all effects: tasks that wake together with this
    /// process run no user code before it (cluster F9).
    Ticked {
        /// The time of the tick.
        at: Instant,
        /// The node's standing at the tick.
        standing: Standing,
    },
    /// Send a message.
    Send {
        /// The process, or the address whose present process gets the message.
        to: Destination,
        /// The message.
        message: Message,
    },
    /// Replace the view that this node shows; the events that led to it follow.
    View(Arc<MembershipView>),
    /// Publish this event to subscribers.
    Publish(ClusterEvent),
    /// Name this cluster in Hellos from now on.
    ClusterId(u128),
    /// Never talk to this process again.
    Quarantine {
        /// The process.
        peer: UniqueAddress,
        /// Whether the process left in order and need not be told.
        harmless: bool,
    },
    /// Acquire the lease of the resolver; answer by `LeaseResult`.
    AcquireLease,
    /// Release the lease of the resolver.
    ReleaseLease,
    /// Try one connection to this process; answer by `DialRefused`, `DialAnswered` or `DialFailed`.
    Dial(UniqueAddress),
    /// Dial this address anew, with a Hello; `DialOther` names the process that answers (cluster M10, M25).
    AskWho(NodeAddress),
    /// These members hold their addresses; the transport refuses other processes there (cluster T15).
    /// [`ClusterSettings::holders`](crate::ClusterSettings::holders) converts them for the transport.
    Holders(Members),
    /// This node is a member now.
    Joined,
    /// This node could not join.
    JoinFailed(JoinError),
    /// Asks the driver to hand over the duties of this Exiting node, and to answer with `ExitingTasksDone`.
    StartExitingTasks,
    /// Tells the driver that the membership of this node has ended; no effect follows this one.
    Shutdown(ShutdownReason),
    /// Count a message that was dropped because its sender may not send it.
    Dropped {
        /// The process that sent it.
        from: UniqueAddress,
        /// Why it was dropped.
        reason: DeadLetterReason,
    },
    /// Write to the log.
    Log(LogLevel, String),
}

impl Effect {
    /// The sending of a message to a process.
    pub(super) fn send(to: UniqueAddress, message: Message) -> Self {
        Self::Send { to: to.into(), message }
    }
}
