//! What members and joiners say to each other. Who says it is a property of the stream it came on.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use greylag_core::{NodeAddress, UniqueAddress};

use crate::app_version::AppVersion;
use crate::error::JoinRejection;
use crate::gossip::Gossip;
use crate::shared::Shared;
use crate::version::VectorVersion;

/// The version of this protocol. Members of one cluster speak the same major version.
pub const PROTOCOL: u32 = 1;

/// Settings that must fit between members, as text by key. Source: cluster M25a.
pub type CheckedConfig = BTreeMap<String, String>;

/// A cluster as it names itself to others: which one, and how many members it has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Island {
    /// Drawn when it was formed.
    pub cluster_id: u128,
    /// Its members, of any status.
    pub size: u32,
}

impl Island {
    /// Whether this one ends when only one of the two may live: it is smaller, or as big and has
    /// the higher id. Source: cluster M25b.
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
    /// Are you a member, and do our settings fit?
    InitJoin {
        /// The address that the joiner dialled.
        to: NodeAddress,
        /// The joiner's protocol.
        protocol: u32,
        /// The joiner's settings.
        config: CheckedConfig,
    },
    /// I am; join through me.
    InitJoinAck {
        /// The cluster.
        cluster_id: u128,
        /// The member's settings.
        config: CheckedConfig,
    },
    /// I am not.
    InitJoinNack,
    /// Let me in.
    Join {
        /// What the joiner is for.
        roles: Vec<String>,
        /// The version of its application.
        app_version: AppVersion,
        /// Its protocol.
        protocol: u32,
        /// The cluster that its first seed belongs to; 0 if it does not know.
        cluster_id: u128,
        /// Where it runs; `default` for now.
        data_center: Arc<str>,
        /// Its host: kernel boot id and network namespace, where they can be known.
        host_id: Option<Arc<str>>,
    },
    /// Ask again: a member holds your address, and it is asked there who runs.
    JoinDeferred {
        /// After so long.
        retry_after: Duration,
    },
    /// You are not let in.
    JoinRejected {
        /// Why.
        reason: JoinRejection,
    },
    /// You are in; this is the state.
    Welcome {
        /// The joiner.
        to: UniqueAddress,
        /// The state, with the joiner in it.
        gossip: Arc<Gossip>,
    },
    /// The whole state.
    GossipEnvelope {
        /// For this incarnation only.
        to: UniqueAddress,
        /// The state.
        gossip: Arc<Gossip>,
        /// The sender may have been removed without knowing it (cluster F9).
        suspect: bool,
    },
    /// Which state the sender has; enough where both have the same.
    GossipStatus {
        /// For this incarnation only.
        to: UniqueAddress,
        /// The version of its state.
        version: Shared<VectorVersion>,
        /// A digest of who has seen it.
        seen_digest: u64,
        /// As in `GossipEnvelope`.
        suspect: bool,
    },
    /// The sender has handed over and ends.
    ExitingConfirmed {
        /// Nothing of it can still be running.
        clean: bool,
    },
    /// Do you belong to my cluster?
    IslandProbe {
        /// The asker's cluster.
        asked: Island,
        /// Known only to the asker.
        nonce: u64,
    },
    /// I belong to this one.
    IslandProbeAnswer {
        /// From the question.
        asked: Island,
        /// The answerer's cluster.
        own: Island,
        /// From the question.
        nonce: u64,
    },
    /// Are you there?
    Heartbeat {
        /// For this incarnation only.
        to: UniqueAddress,
        /// Its number.
        seq: u64,
    },
    /// Yes.
    HeartbeatRsp {
        /// For this incarnation only.
        to: UniqueAddress,
        /// The number asked with.
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
    /// Whether a process that is no member may say this. Joining, asking who is there and asking for a sign of
    /// life come before membership; what remains is between members. Source: cluster T17, F1.
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

impl Message {
    /// The message as it travels; its manifest travels beside it.
    pub fn to_bytes(&self) -> bytes::Bytes {
        crate::wire::encode(self)
    }

    /// Reads [`Message::to_bytes`] again, by its [`Message::manifest`].
    ///
    /// # Errors
    /// The manifest is unknown, or the bytes are none of such a message.
    pub fn from_bytes(manifest: &str, bytes: bytes::Bytes) -> Result<Self, greylag_core::DecodeError> {
        crate::wire::decode(manifest, bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// cluster M25b: of two clusters just one yields, and none to itself.
    #[test]
    fn of_two_clusters_just_one_yields() {
        let island = |cluster_id, size| Island { cluster_id, size };
        for (ends, stays) in [(island(1, 2), island(9, 3)), (island(9, 3), island(1, 3))] {
            assert!(ends.yields_to(stays) && !stays.yields_to(ends), "{ends:?} {stays:?}");
        }
        assert!(!island(1, 2).yields_to(island(1, 2)));
    }
}
