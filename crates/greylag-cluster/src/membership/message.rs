//! The messages between members and joiners. The sender of a message is the peer of the stream that it came on.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use greylag_core::{NodeAddress, UniqueAddress};

use crate::error::JoinRejection;
use crate::gossip::shared::Shared;
use crate::gossip::state::Gossip;
use crate::gossip::version::VectorVersion;
use crate::membership::app_version::AppVersion;

/// The version of this protocol. Members of one cluster speak the same major version.
pub const PROTOCOL: u32 = 1;

/// Settings that must be equal between members, as text by key. Source: cluster M25a.
pub type CheckedConfig = BTreeMap<String, String>;

/// A cluster's description of itself to others: its id and its size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Island {
    /// The id drawn when the cluster was formed.
    pub cluster_id: u128,
    /// The number of its members, of any status.
    pub size: u32,
}

impl Island {
    /// Whether this cluster ends when only one of the two may continue: it is smaller, or of equal size with the higher
    /// id. Source: cluster M25b.
    pub fn yields_to(self, other: Self) -> bool {
        (self.size, std::cmp::Reverse(self.cluster_id)) < (other.size, std::cmp::Reverse(other.cluster_id))
    }
}

/// A message of the membership protocol.
///
/// ```text
/// joiner --InitJoin--> seed --InitJoinAck--> joiner --Join--> seed --Welcome--> joiner
///                      (InitJoinNack: not a member either)   (JoinDeferred, JoinRejected)
/// member --GossipEnvelope / GossipStatus--> member
/// leaver --ExitingConfirmed--> the next leaders
/// leader --IslandProbe{nonce}--> every seed --IslandProbeAnswer{nonce}--> leader
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Message {
    /// Asks whether the receiver is a member, and whether the settings are equal.
    InitJoin {
        /// The address that the joiner dialled.
        to: NodeAddress,
        /// The joiner's protocol.
        protocol: u32,
        /// The joiner's settings.
        config: CheckedConfig,
    },
    /// Answers that the sender is a member through which the joiner may join.
    InitJoinAck {
        /// The cluster.
        cluster_id: u128,
        /// The member's settings.
        config: CheckedConfig,
    },
    /// Answers that the sender is no member.
    InitJoinNack,
    /// Asks to be let in.
    Join {
        /// The joiner's roles.
        roles: Vec<String>,
        /// The version of its application.
        app_version: AppVersion,
        /// Its protocol.
        protocol: u32,
        /// The cluster that its first seed belongs to; 0 if not known.
        cluster_id: u128,
        /// The joiner's data centre; `default` for now.
        data_center: Arc<str>,
        /// The joiner's host: kernel boot id and network namespace, if the system tells them.
        host_id: Option<Arc<str>>,
    },
    /// Asks the joiner to ask again: a member holds the joiner's address, which is dialled to learn which process runs
    /// there.
    JoinDeferred {
        /// How long to wait before asking again.
        retry_after: Duration,
    },
    /// Refuses to let the joiner in.
    JoinRejected {
        /// Why it is refused.
        reason: JoinRejection,
    },
    /// Lets the joiner in, with the state.
    Welcome {
        /// The joiner.
        to: UniqueAddress,
        /// The state, with the joiner in it.
        gossip: Arc<Gossip>,
    },
    /// The whole state.
    GossipEnvelope {
        /// The only incarnation that may take the message.
        to: UniqueAddress,
        /// The state.
        gossip: Arc<Gossip>,
        /// Whether the sender may have been removed without knowing it (cluster F9).
        suspect: bool,
    },
    /// The version of the sender's state; enough if both have the same state.
    GossipStatus {
        /// The only incarnation that may take the message.
        to: UniqueAddress,
        /// The version of the sender's state.
        version: Shared<VectorVersion>,
        /// A digest of the members that have seen the state.
        seen_digest: u64,
        /// Whether the sender may have been removed without knowing it (cluster F9).
        suspect: bool,
    },
    /// The sender has handed over and ends.
    ExitingConfirmed {
        /// Whether nothing of the sender can still be running.
        clean: bool,
    },
    /// Asks which cluster the receiver belongs to.
    IslandProbe {
        /// The asker's cluster.
        asked: Island,
        /// A number known only to the asker.
        nonce: u64,
    },
    /// Answers with the sender's cluster.
    IslandProbeAnswer {
        /// The asker's cluster, from the question.
        asked: Island,
        /// The answerer's cluster.
        own: Island,
        /// The number from the question.
        nonce: u64,
    },
    /// Asks for a sign of life.
    Heartbeat {
        /// The only incarnation that may take the message.
        to: UniqueAddress,
        /// The number of the heartbeat.
        seq: u64,
    },
    /// Answers a heartbeat.
    HeartbeatRsp {
        /// The only incarnation that may take the message.
        to: UniqueAddress,
        /// The number of the heartbeat that is answered.
        seq: u64,
    },
}

impl Message {
    /// The message's stable name on the wire.
    pub fn manifest(&self) -> &'static str {
        match self {
            Self::InitJoin { .. } => "cluster.init-join",
            Self::InitJoinAck { .. } => "cluster.init-join-ack",
            Self::InitJoinNack => "cluster.init-join-nack",
            Self::Join { .. } => "cluster.join",
            Self::JoinDeferred { .. } => "cluster.join-deferred",
            Self::JoinRejected { .. } => "cluster.join-rejected",
            Self::Welcome { .. } => "cluster.welcome",
            Self::GossipEnvelope { .. } => "cluster.gossip",
            Self::GossipStatus { .. } => "cluster.gossip-status",
            Self::ExitingConfirmed { .. } => "cluster.exiting-confirmed",
            Self::IslandProbe { .. } => "cluster.island-probe",
            Self::IslandProbeAnswer { .. } => "cluster.island-probe-answer",
            Self::Heartbeat { .. } => "cluster.heartbeat",
            Self::HeartbeatRsp { .. } => "cluster.heartbeat-rsp",
        }
    }
}

impl Message {
    /// Whether a process that is no member may send this message. Joining, island probes and heartbeats precede
    /// membership; all others are between members. Source: cluster T17, F1.
    pub fn is_for_strangers(&self) -> bool {
        !matches!(
            self,
            Self::GossipEnvelope { .. }
                | Self::GossipStatus { .. }
                | Self::ExitingConfirmed { .. }
                | Self::HeartbeatRsp { .. }
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// cluster M25b: of two clusters exactly one yields, and none to itself.
    #[test]
    fn exactly_one_of_two_clusters_yields() {
        let island = |cluster_id, size| Island { cluster_id, size };
        for (ends, stays) in [(island(1, 2), island(9, 3)), (island(9, 3), island(1, 3))] {
            assert!(ends.yields_to(stays) && !stays.yields_to(ends), "{ends:?} {stays:?}");
        }
        assert!(!island(1, 2).yields_to(island(1, 2)));
    }
}
