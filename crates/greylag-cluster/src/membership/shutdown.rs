//! The orderly shutdown: its phases and its reasons.
//!
//! The phases run in their order, the tasks of one phase at the same time. Source: cluster M35.

use std::fmt;

/// A phase of the orderly shutdown. Tasks of a phase start when all of the phase before have ended, failed or timed
/// out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Phase {
    /// Before servers stop to listen.
    BeforeServiceUnbind,
    /// Servers stop to listen.
    ServiceUnbind,
    /// Requests in flight end.
    ServiceRequestsDone,
    /// Servers end.
    ServiceStop,
    /// The last phase in which this node is a full member.
    BeforeClusterShutdown,
    /// Shards are handed over.
    ClusterShardingShutdownRegion,
    /// The node leaves, and waits until all members know.
    ClusterLeave,
    /// Singletons are handed over.
    ClusterExiting,
    /// Replicators flush; then the others are told that this node has exited.
    ClusterExitingDone,
    /// For tasks that must run after the membership has ended.
    ClusterShutdown,
    /// Before the node itself ends.
    BeforeNodeTerminate,
    /// The transport ends.
    NodeTerminate,
}

impl Phase {
    /// All phases, in order.
    pub const ALL: [Self; 12] = [
        Self::BeforeServiceUnbind,
        Self::ServiceUnbind,
        Self::ServiceRequestsDone,
        Self::ServiceStop,
        Self::BeforeClusterShutdown,
        Self::ClusterShardingShutdownRegion,
        Self::ClusterLeave,
        Self::ClusterExiting,
        Self::ClusterExitingDone,
        Self::ClusterShutdown,
        Self::BeforeNodeTerminate,
        Self::NodeTerminate,
    ];

    /// Whether the phase makes sense only for a member that leaves in order; a Down member skips such phases.
    pub fn is_graceful(self) -> bool {
        (Self::ClusterShardingShutdownRegion..=Self::ClusterExitingDone).contains(&self)
    }

    /// Whether a task that fails in this phase makes the exit unclean: a cluster-wide single writer may still run on
    /// this node. Source: cluster M26.
    pub fn decides_clean(self) -> bool {
        matches!(self, Self::ClusterShardingShutdownRegion | Self::ClusterExiting)
    }
}

impl Phase {
    /// The phase's name in the settings.
    pub fn name(self) -> &'static str {
        match self {
            Self::BeforeServiceUnbind => "before_service_unbind",
            Self::ServiceUnbind => "service_unbind",
            Self::ServiceRequestsDone => "service_requests_done",
            Self::ServiceStop => "service_stop",
            Self::BeforeClusterShutdown => "before_cluster_shutdown",
            Self::ClusterShardingShutdownRegion => "cluster_sharding_shutdown_region",
            Self::ClusterLeave => "cluster_leave",
            Self::ClusterExiting => "cluster_exiting",
            Self::ClusterExitingDone => "cluster_exiting_done",
            Self::ClusterShutdown => "cluster_shutdown",
            Self::BeforeNodeTerminate => "before_node_terminate",
            Self::NodeTerminate => "node_terminate",
        }
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Why a node ended. The first reason wins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ShutdownReason {
    /// The program requested the end, or the node was told to leave.
    Left,
    /// The others declared this node dead (cluster M27).
    Downed,
    /// While leaving the node heard no member for so long that the others may have removed it (cluster M26).
    LeaveIsolated,
    /// The cluster refused the join.
    JoinFailed,
    /// No seed node let this node in within `shutdown_after_unsuccessful_join_seed_nodes` (cluster M24).
    JoinUnsuccessful,
    /// The settings do not fit the cluster's (cluster M25a).
    IncompatibleConfig,
    /// This incarnation was removed while it was away.
    Removed,
    /// Another cluster of the same name is bigger, and the settings say that the smaller one ends
    /// (cluster M25b).
    SmallerCluster,
    /// A machine of this node broke one of its own invariants: a bug. The log says which.
    CoreFailed,
    /// The operating system asked the process to end.
    Terminated,
    /// The program dropped the cluster without leaving.
    Stopped,
}

impl ShutdownReason {
    /// The process's exit status: 0 for an orderly end, another number per reason otherwise, so that a supervisor can
    /// tell a node that was downed from one that left. Source: cluster M27.
    pub fn exit_code(self) -> u8 {
        match self {
            Self::Left | Self::Stopped | Self::Terminated => 0,
            Self::JoinFailed => 10,
            Self::JoinUnsuccessful => 11,
            Self::IncompatibleConfig => 12,
            Self::Downed => 20,
            Self::LeaveIsolated => 21,
            Self::Removed => 22,
            Self::SmallerCluster => 23,
            Self::CoreFailed => 70,
        }
    }
}

impl fmt::Display for ShutdownReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Left => "left the cluster",
            Self::Downed => "downed by the cluster",
            Self::LeaveIsolated => "cut off while leaving",
            Self::JoinFailed => "could not join",
            Self::JoinUnsuccessful => "no seed node let it in",
            Self::IncompatibleConfig => "settings differ from the cluster's",
            Self::Removed => "removed from the cluster",
            Self::SmallerCluster => "ended in favour of a bigger cluster of the same name",
            Self::CoreFailed => "broke an invariant of its own",
            Self::Terminated => "told to end by the operating system",
            Self::Stopped => "stopped",
        })
    }
}
