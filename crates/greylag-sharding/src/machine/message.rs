//! What coordinator, regions and nodes say to each other. Wire forms are in `wire.rs`.
//!
//! ```text
//! region  --Register, GetShardHome, ShardStarted, ...-->  coordinator     control lane
//! region  <--RegisterAck, ShardHomes, HandOff, ...------  coordinator     control lane
//! region  <--StaleRoute, FlushEcho--------------------->  region          control lane
//! region  --frames (Stamp + message), Mark------------->  region          data lane of the shard
//! ```
//! Control messages are idempotent and repeated by deadlines; nothing is assumed about the order
//! between lanes. All frames and marks of one shard between two nodes share one lane and one decode
//! worker, so a mark says something about the frames before it.
//!
//! Source: sharding §2.1, §2.2.

use std::fmt;

use greylag_core::{Generation, UniqueAddress};

use crate::fingerprint::{Fingerprint, Mismatch};
use crate::ids::{RegionId, ShardId};

/// Number of a coordinator incarnation, strictly increasing per entity type; 0 means none seen yet.
pub type Epoch = u64;

/// One try at a handoff: `epoch * 2^28 + n`, never used twice, so that marks and acks of one try
/// never count for another. Source: sharding §2.2 (`FlushMark`).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Attempt(pub u64);

impl Attempt {
    /// The epoch of the coordinator whose try it is.
    pub fn epoch(self) -> Epoch {
        self.0 >> Generation::SEQ_BITS
    }
}

impl fmt::Debug for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0 >> Generation::SEQ_BITS, self.0 & Generation::MAX_SEQ)
    }
}

/// One coordinator incarnation: the node it runs on, and which one of that process it is.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CoordinatorId {
    /// The node.
    pub node: UniqueAddress,
    /// The singleton instance number on that node.
    pub incarnation: u64,
}

/// The header of every message between regions, less what only the driver reads (fingerprint digest
/// and entity id). Source: sharding §2.1.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Stamp {
    /// The generation of the route the last sender took.
    pub generation: Generation,
    /// The region the message was submitted to.
    pub origin: RegionId,
    /// The generation under which it first left its origin.
    pub first: Generation,
    /// How often it was forwarded; 0 straight from its origin.
    pub hops: u8,
    /// Returned by the shard's former owner and never handed to a handler (sharding §2.9).
    pub leftover: bool,
}

impl Stamp {
    /// Of what leaves the region it was submitted to by its first route.
    pub fn straight(origin: RegionId, generation: Generation) -> Self {
        Self { generation, origin, first: generation, hops: 0, leftover: false }
    }
}

/// What travels between the messages on a shard's data lane. Marks bypass queue capacities.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Mark {
    /// `FlushMark`: nothing older that `from` sent at `generation` follows.
    Flush {
        /// The generation being handed off.
        generation: Generation,
        /// Which try.
        attempt: Attempt,
        /// The region whose path is flushed.
        from: RegionId,
    },
    /// A flush mark of attempt 0: buffered and forwarded exactly like a message and answered with
    /// [`PeerMessage::FlushEcho`] by the first `Local` shard it reaches. `stamp.origin` asks.
    Probe {
        /// The asker's number for it.
        nonce: u64,
        /// As of a message; `first` and `leftover` mean nothing.
        stamp: Stamp,
    },
    /// `LeftoverMark`: no leftover of `from` follows for the home `generation`.
    Leftover {
        /// The generation of the new home.
        generation: Generation,
        /// The former owner.
        from: RegionId,
    },
}

/// How far a claimed shard is. Source: sharding §2.2 (`Register`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ClaimState {
    /// Serves.
    Running,
    /// Accepted, not yet serving.
    Starting,
    /// A `HandOff` or `DropShard` for it was accepted; no confirming claim.
    Stopping,
}

/// A region says that it hosts a shard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    /// The shard.
    pub shard: ShardId,
    /// Under which generation.
    pub generation: Generation,
    /// How far it is.
    pub state: ClaimState,
}

/// `Register` and `RegisterProxy`. Source: sharding §2.3.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Register {
    /// The region that registers.
    pub region: RegionId,
    /// A proxy routes but never hosts: it is never allocated to and never counted.
    pub proxy: bool,
    /// Grows with every `Register` of this region; acks name it.
    pub serial: u64,
    /// What the region understands its type to be.
    pub fingerprint: Fingerprint,
    /// The largest coordinator epoch it has taken anything from.
    pub highest_epoch: Epoch,
    /// All shards that it hosts, also those that are starting or stopping.
    pub hosted: Vec<Claim>,
}

/// A home, as told to one region.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Home {
    /// The shard.
    pub shard: ShardId,
    /// The region that hosts it.
    pub region: RegionId,
    /// Since which decision.
    pub generation: Generation,
    /// The receiver's own acked attempt in the handoff that ended, if the owner waited for its mark:
    /// its old path is then known to be empty. Source: sharding §2.6.
    pub flushed: Option<Attempt>,
    /// The generation that ended with the handoff before this allocation.
    pub previous: Option<Generation>,
    /// The former owner that still has unhandled messages to send. Source: sharding §2.9.
    pub leftovers_from: Option<RegionId>,
    /// The last try to hand this home off that was given up: a region that has closed its route for that try, or for an
    /// earlier one, opens it again. A home that is told without it may be a copy from before the try.
    pub given_up: Option<Attempt>,
}

impl Home {
    /// A home that follows no other.
    pub fn new(shard: ShardId, region: RegionId, generation: Generation) -> Self {
        Self { shard, region, generation, flushed: None, previous: None, leftovers_from: None, given_up: None }
    }
}

/// From a region to the coordinator (or to those that may be it).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RegionMessage {
    /// Registers, or registers again with the shards hosted now.
    Register(Register),
    /// Where are these shards?
    GetShardHome {
        /// The region that asks.
        region: RegionId,
        /// The shards.
        shards: Vec<ShardId>,
    },
    /// Ownership is accepted and the shards are starting.
    ShardStarted {
        /// The owner.
        region: RegionId,
        /// Shards and generations.
        shards: Vec<(ShardId, Generation)>,
    },
    /// Answer to `BeginHandOff`.
    BeginHandOffAck {
        /// The region that acks.
        region: RegionId,
        /// The shard.
        shard: ShardId,
        /// The generation being handed off.
        generation: Generation,
        /// Which try.
        attempt: Attempt,
        /// A flush mark was sent to the owner.
        flushed: bool,
    },
    /// No entity of a generation up to this one exists or will exist in this region.
    ShardStopped {
        /// The former owner.
        region: RegionId,
        /// The shard.
        shard: ShardId,
        /// The generation that ended.
        generation: Generation,
        /// Unhandled messages wait here for the new home.
        leftovers: bool,
    },
    /// Hand off everything that this region hosts.
    GracefulShutdownReq {
        /// The region that leaves.
        region: RegionId,
    },
    /// The region is gone: proof of absence for all its shards.
    RegionStopped {
        /// The region that is gone.
        region: RegionId,
    },
    /// The coordinator addressed is fenced by a newer one.
    StaleEpoch {
        /// The region that says so.
        region: RegionId,
        /// The largest epoch it has seen.
        epoch: Epoch,
    },
    /// Answer of a node without a hosting region of the type to `RegionInquiry`.
    NoRegion {
        /// The epoch of the inquiry.
        epoch: Epoch,
    },
    /// Stop these shards, and give them no new home before one is asked for.
    StopShards {
        /// The region that asks.
        region: RegionId,
        /// Its number for the request; a repetition has the same one.
        request: u64,
        /// The shards.
        shards: Vec<ShardId>,
    },
    /// Which regions that host are registered?
    GetCurrentRegions {
        /// The region that asks.
        region: RegionId,
        /// Its number for the request; a repetition has the same one.
        request: u64,
    },
}

impl RegionMessage {
    /// The region that speaks; `None` for a node that has none.
    pub fn region(&self) -> Option<&RegionId> {
        match self {
            Self::Register(register) => Some(&register.region),
            Self::GetShardHome { region, .. }
            | Self::ShardStarted { region, .. }
            | Self::BeginHandOffAck { region, .. }
            | Self::ShardStopped { region, .. }
            | Self::GracefulShutdownReq { region }
            | Self::RegionStopped { region }
            | Self::StaleEpoch { region, .. }
            | Self::StopShards { region, .. }
            | Self::GetCurrentRegions { region, .. } => Some(region),
            Self::NoRegion { .. } => None,
        }
    }
}

/// From a coordinator to a region or, where a region is not known, to a node's sharding layer.
/// Every one carries the `epoch` in [`FromCoordinator`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CoordinatorMessage {
    /// Registration is taken.
    RegisterAck {
        /// Serial of the `Register` it answers.
        serial: u64,
    },
    /// Registration is refused: the region understands the type differently.
    RegisterRefused {
        /// Serial of the `Register` it answers.
        serial: u64,
        /// In what they differ.
        mismatch: Mismatch,
    },
    /// Does a hosting region of the type run there? It registers at once, or the node answers
    /// `NoRegion`. Changes nothing and raises no highest epoch.
    RegionInquiry,
    /// Homes: answers, pushes after a move, the table after registration.
    ShardHomes(Vec<Home>),
    /// Start these shards, or keep them; every `region` is the receiver.
    HostShard(Vec<Home>),
    /// Forget the home, buffer, flush your path to the owner.
    BeginHandOff {
        /// The shard.
        shard: ShardId,
        /// The generation being handed off.
        generation: Generation,
        /// Which try.
        attempt: Attempt,
        /// The region that owns the shard.
        owner: RegionId,
    },
    /// Stop the shard after the marks of `flush_from` have come.
    HandOff {
        /// The shard.
        shard: ShardId,
        /// The generation that ends.
        generation: Generation,
        /// Which try.
        attempt: Attempt,
        /// The regions that sent a mark.
        flush_from: Vec<RegionId>,
    },
    /// Kill the shard without stop messages: its claim lost. Its unprocessed messages are kept.
    DropShard {
        /// The shard.
        shard: ShardId,
        /// The generation that lost.
        generation: Generation,
    },
    /// No other region can host: stop your shards with their stop messages, then yourself.
    StopHere,
    /// Answer to `RegionStopped`.
    RegionStoppedAck,
    /// No entity of these shards lives: answers `StopShards`, in as many messages as it takes.
    ShardsStopped {
        /// As in the request.
        request: u64,
        /// Those of its shards that have stopped, or have no home.
        shards: Vec<ShardId>,
    },
    /// The type remembers its entities, so that its shards are not stopped.
    StopShardsRefused {
        /// As in the request.
        request: u64,
    },
    /// Answer to `GetCurrentRegions`.
    CurrentRegions {
        /// As in the request.
        request: u64,
        /// The registered regions, without proxies.
        regions: Vec<RegionId>,
    },
}

/// A coordinator's message with its authority.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FromCoordinator {
    /// Which incarnation speaks.
    pub coordinator: CoordinatorId,
    /// Its epoch.
    pub epoch: Epoch,
    /// The region it is for; `None` is whatever the node has of the type (inquiries).
    pub to: Option<RegionId>,
    /// What it says.
    pub message: CoordinatorMessage,
}

/// What a node means by an entity type, and how far it is with it. Source: sharding §1.5, point 4.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TypeClaim {
    /// What it means.
    pub fingerprint: Fingerprint,
    /// A coordinator there may decide, or has sent it a home.
    pub active: bool,
    /// It has given way to a third node, so it is in no one's way.
    pub refused: bool,
}

/// How a node's understanding of a type stands beside that of the other members. Source: sharding §1.5, point 4.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Standing {
    /// Not every reachable member has answered.
    Asking,
    /// All mean the same, or gave way.
    Agreed,
    /// Another side stays: nothing of the type may be decided or hosted here.
    Refused(Mismatch),
}

/// From a region to another one, on the control lane.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PeerMessage {
    /// This is what the type is here. Is it the same there?
    AnnounceType {
        /// Comes back with the answer.
        round: u64,
        /// What the asker means.
        claim: TypeClaim,
    },
    /// The same, or the type is not run here.
    TypeOk {
        /// Of the question.
        round: u64,
    },
    /// It is something else here.
    TypeConflict {
        /// Of the question.
        round: u64,
        /// What it is.
        claim: TypeClaim,
    },
    /// Your cached home is older than this generation; from the node of that very home, with its own generation: the
    /// region that you send to has stopped.
    StaleRoute(Vec<(ShardId, Generation)>),
    /// A probe has reached the end of the old path.
    FlushEcho {
        /// The shard.
        shard: ShardId,
        /// The nonce of the probe.
        nonce: u64,
        /// The region that sent the probe.
        to: RegionId,
    },
}
