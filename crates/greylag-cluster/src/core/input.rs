//! The inputs and effects of the membership machine.
//!
//! Local facts and wire messages are different inputs, so no process on the network can forge "the
//! host refused". Source: cluster C2, C3.

use std::sync::Arc;
use std::time::Instant;

use greylag_core::{DeadLetterReason, NodeAddress, UniqueAddress};
use greylag_transport::{Destination, DialFailure, QuarantineReason, RejectCode};

use crate::app_version::AppVersion;
use crate::error::JoinError;
use crate::event::ClusterEvent;
use crate::members::Members;
use crate::message::Message;
use crate::shutdown::ShutdownReason;
use crate::singleton::lease::LeaseOutcome;
use crate::view::MembershipView;

/// What a user, or the driver's shutdown, asks of the membership.
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
    /// The application's version will be told later; joins wait for it (cluster M31).
    AwaitAppVersion,
    /// The application's version. Only before this node has joined.
    SetAppVersion(AppVersion),
    /// A setting of another layer that must be the same on all nodes that know the key (cluster M25a).
    RegisterJoinKey {
        /// With the section, as in `sharding.number_of_shards`.
        key: String,
        /// As text.
        value: String,
    },
    /// The orderly shutdown has passed the phase in which this node leaves: this node accuses no peer
    /// any more (cluster F10).
    LeavePhasePassed,
    /// This process ends: it must not become a member any more. Nothing for one that is.
    AbandonJoin,
    /// Everything that this node had to hand over was; `clean` if nothing of it can still run.
    ExitingTasksDone {
        /// Source: cluster M26.
        clean: bool,
    },
    /// End now, without leaving.
    Stop(ShutdownReason),
}

/// An input to the membership machine: messages of other nodes, news of the transport and the failure detector, and
/// commands of the user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Input {
    /// A deadline may have come.
    Tick,
    /// A message from a process that is known to be its origin.
    Message {
        /// The process.
        from: UniqueAddress,
        /// What it says.
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
        /// Who was called.
        address: NodeAddress,
        /// Why it refused.
        code: RejectCode,
        /// With [`RejectCode::NotReady`]: the member that holds our address there (cluster T15).
        holder: Option<UniqueAddress>,
        /// Both sides' values, for people.
        detail: String,
    },
    /// A dial of ours reached no node. Only told to people, of seed nodes.
    Unreached {
        /// Who was called.
        address: NodeAddress,
        /// What came of it.
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
    /// The transport heard a process at the address of a member that it cannot have replaced, and has
    /// believed it nothing (cluster T15).
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
        /// Why.
        reason: QuarantineReason,
        /// The process left in order.
        harmless: bool,
    },
    /// The control stream to this process broke.
    LinkLost(UniqueAddress),
    /// A dial that counts was refused.
    DialRefused(UniqueAddress),
    /// A dial was accepted.
    DialAnswered(UniqueAddress),
    /// A dial ended in any other way, or would not have counted.
    DialFailed(UniqueAddress),
    /// A witness says that this process is gone.
    DeathWitnessed(UniqueAddress),
    /// Another node has quarantined this one.
    ThisNodeQuarantined {
        /// The node that did.
        by: UniqueAddress,
        /// Why.
        reason: QuarantineReason,
    },
    /// What became of `AcquireLease`.
    LeaseResult(LeaseOutcome),
    /// The lease of the resolver was held, and is lost.
    LeaseLost,
    /// A command of a user.
    Command(Command),
    /// The wall clock, in ms since 1970; only for the age of tombstones.
    WallClock(u64),
}

/// How much a log line matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogLevel {
    /// Part of normal life.
    Info,
    /// An operator should look.
    Warn,
    /// The cluster is in danger.
    Error,
}

/// Whether a node may run the code of users, as its tick found it. Source: cluster F9.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// No other node can have started what runs here.
    Trusted,
    /// This node is suspect to itself, or was declared dead.
    Held,
    /// This node is no member any more.
    Ended,
}

/// What the driver is asked to do, in this order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// Publish that the tick ran, and what it found. This is the first of all effects: tasks that wake
    /// together with this process run no code of users before it (cluster F9).
    Ticked {
        /// When.
        at: Instant,
        /// What it found.
        standing: Standing,
    },
    /// Send a message.
    Send {
        /// To this process, or to whichever process runs at the address.
        to: Destination,
        /// What to say.
        message: Message,
    },
    /// Replace the view that this node shows; the events that led to it follow.
    View(Arc<MembershipView>),
    /// Tell subscribers.
    Publish(ClusterEvent),
    /// Name this cluster in Hellos from now on.
    ClusterId(u128),
    /// Never talk to this process again.
    Quarantine {
        /// The process.
        peer: UniqueAddress,
        /// The process left in order and need not be told.
        harmless: bool,
    },
    /// Ask for the lease of the resolver; `LeaseResult` follows.
    AcquireLease,
    /// Give the lease of the resolver back.
    ReleaseLease,
    /// Try one connection to this process, and say how it ended.
    Dial(UniqueAddress),
    /// Dial this address anew, with a Hello; `DialOther` says who answers (cluster M10, M25).
    AskWho(NodeAddress),
    /// These members hold their addresses; the transport refuses other processes there (cluster T15).
    /// [`ClusterSettings::holders`](crate::ClusterSettings::holders) says it in the transport's words.
    Holders(Members),
    /// This node is a member now.
    Joined,
    /// This node could not join.
    JoinFailed(JoinError),
    /// This node is Exiting: hand over, then say `ExitingTasksDone`.
    StartExitingTasks,
    /// This node has ended. Nothing follows.
    Shutdown(ShutdownReason),
    /// Count a dropped message, whose sender may not say such a thing.
    Dropped {
        /// The process that sent it.
        from: UniqueAddress,
        /// What is wrong with it.
        reason: DeadLetterReason,
    },
    /// Write to the log.
    Log(LogLevel, String),
}
