//! Reports of a region to its users: events, answers to requests, counters.

use std::collections::BTreeSet;
use std::fmt;

use greylag_core::{Generation, UniqueAddress};

use crate::fingerprint::Mismatch;
use crate::ids::{RegionId, ShardId};
use crate::machine::message::Epoch;

/// A user's request to the coordinator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    /// To stop these shards, and to allocate them again only when a home is asked for. Source: sharding §2.11.
    StopShards(BTreeSet<ShardId>),
    /// Which hosting regions are registered. Source: sharding §6.1.
    CurrentRegions,
}

/// The outcome of a request, or of a part of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// No entity of these shards lives any more. Further answers may follow.
    ShardsStopped(Vec<ShardId>),
    /// The regions, without proxies.
    CurrentRegions(Vec<RegionId>),
    /// The last answer.
    Ended(RequestEnd),
}

/// Why no further answer to a request follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestEnd {
    /// Everything was answered.
    Complete,
    /// The timeout passed first.
    TimedOut,
    /// No coordinator is known.
    NoCoordinator,
    /// The type remembers its entities, so its shards are not stopped.
    NotAllowedWithRememberEntities,
    /// Nodes disagree about the type, and this region is refused.
    Refused,
    /// The region has stopped, or stops without handing its shards over.
    RegionStopped,
}

/// An event for the region's subscribers. Source: sharding §6.5.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RegionEvent {
    /// A coordinator has taken the registration.
    Registered {
        /// The coordinator's node.
        coordinator: UniqueAddress,
        /// Its epoch.
        epoch: Epoch,
    },
    /// The coordinator refused this region, or another member's role stays: nodes disagree about the type. Every send
    /// fails until the disagreement is resolved.
    Refused(Mismatch),
    /// A member hosts the type under another role, and both were active before they met, as after a partition that has
    /// healed: an entity may live on both sides until an operator ends one of them.
    Disputed(Mismatch),
    /// The shard has a home other than the last one known here.
    ShardMoved {
        /// Which shard.
        shard: ShardId,
        /// The last home that this region had a route to.
        from: RegionId,
        /// The new home.
        to: RegionId,
    },
    /// The node of a region that hosted shards is gone.
    ShardRegionDown {
        /// Which region.
        region: RegionId,
    },
    /// The coordinator named another owner while this region hosted the shard: the shard was killed here.
    OwnershipConflict {
        /// Which shard.
        shard: ShardId,
        /// The generation that lost.
        generation: Generation,
    },
    /// A proxy was told to host a shard, and did not.
    HostShardOnProxy {
        /// Which shard.
        shard: ShardId,
    },
    /// The journal's generations are ahead of the coordinator's (sharding §4.6).
    GenerationBehind {
        /// The generation in the journal.
        stored: Generation,
        /// The shard's own generation.
        own: Generation,
    },
    /// The buffer is full, and the first message was dropped as `BufferFull`. It is told again once a tenth of the buffer was
    /// free meanwhile; the drops in between are only counted.
    BufferFull {
        /// How many messages wait.
        buffered: u64,
    },
    /// The buffer's fill level crossed a tenth of its size.
    BufferFill {
        /// Fill level so far, in per cent.
        percent: u8,
    },
    /// No member has had the hosting role for `no_host_timeout`; messages that wait as long are dead letters `NoHost`.
    NoHost {
        /// The role.
        role: String,
    },
    /// A member with the hosting role has come.
    HostFound,
    /// Registration has been tried at least five times while messages wait.
    StillUnregistered {
        /// Messages waiting.
        buffered: usize,
        /// The nodes tried; none if no member may run the coordinator.
        candidates: Vec<UniqueAddress>,
        /// What stands in the way, as far as this node can tell.
        obstacle: Obstacle,
    },
}

/// Why no coordinator may have registered a region. Source: sharding §2.3.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Obstacle {
    /// This node is no member.
    NotJoined,
    /// No member may run the coordinator: sharding is not started with the right roles anywhere.
    NoCandidate,
    /// Every node that may run the coordinator is unreachable.
    Unreachable,
    /// A node that may run the coordinator is reachable and does not answer: the entity type may not be set up there.
    Silent,
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotJoined => "this node is no member of a cluster; it has to join",
            Self::NoCandidate => "no member may run the coordinator; start sharding with the right role on some node",
            Self::Unreachable => "the coordinator's node is unreachable",
            Self::Silent => "the coordinator's node is reachable and does not answer; set the entity type up there",
        })
    }
}

/// Counts of the messages that passed through the machine; the driver adds the messages that bypassed it.
///
/// `submitted = delivered + forwarded + dead_lettered + buffered` at every moment. Messages that a shard or
/// the transport gave back count as submitted again. Source: sharding I3.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Tokens taken in.
    pub submitted: u64,
    /// Handed to a local shard.
    pub delivered: u64,
    /// Enqueued for another region.
    pub forwarded: u64,
    /// Dropped with a reason.
    pub dead_lettered: u64,
    /// Waiting now.
    pub buffered: u64,
}
