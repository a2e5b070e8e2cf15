//! Messages between coordinator, regions and nodes. Wire forms are in `wire.rs`.
//!
//! ```text
//! region  --Register, GetShardHome, ShardStarted, ...-->  coordinator     control lane
//! region  <--RegisterAck, ShardHomes, HandOff, ...------  coordinator     control lane
//! region  <--StaleRoute, FlushEcho--------------------->  region          control lane
//! region  --frames (Stamp + message), Mark------------->  region          data lane of the shard
//! ```
//! Control messages are idempotent and repeated by deadlines; nothing is assumed about the order between lanes. All
//! frames and marks of one shard between two nodes share one lane and one decode worker, so a mark confirms the frames
//! before it.
//!
//! Source: sharding §2.1, §2.2.

use std::fmt;

use greylag_core::{Generation, UniqueAddress};

use crate::fingerprint::{Fingerprint, Mismatch};
use crate::ids::{RegionId, ShardId};

/// Number of a coordinator incarnation, strictly increasing per entity type; 0 means none seen yet.
pub type Epoch = u64;

/// One attempt at a handoff: `epoch * 2^28 + n`, never used twice, so that marks and acks of one attempt never count
/// for another. Source: sharding §2.2 (`FlushMark`).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Attempt(pub u64);

impl Attempt {
    /// The epoch of the coordinator that made the attempt.
    pub fn epoch(self) -> Epoch {
        self.0 >> Generation::SEQ_BITS
    }
}

impl fmt::Debug for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0 >> Generation::SEQ_BITS, self.0 & Generation::MAX_SEQ)
    }
}

/// One coordinator incarnation: its node, and its number in that process.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CoordinatorId {
    /// The node.
    pub node: UniqueAddress,
    /// The singleton instance number on that node.
    pub incarnation: u64,
}

/// The header of every message between regions, without the fields that only the driver reads (fingerprint digest and
/// entity id). Source: sharding §2.1.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Stamp {
    /// The generation of the route that the last sender used.
    pub generation: Generation,
    /// The region the message was submitted to.
    pub origin: RegionId,
    /// The generation under which the message first left its origin.
    pub first: Generation,
    /// How often the message was forwarded; 0 straight from its origin.
    pub hops: u8,
    /// Whether the message was returned by the shard's former owner and never handed to a handler (sharding §2.9).
    pub leftover: bool,
}

impl Stamp {
    /// The stamp of a message that leaves its origin by its first route.
    pub fn straight(origin: RegionId, generation: Generation) -> Self {
        Self { generation, origin, first: generation, hops: 0, leftover: false }
    }
}

/// A marker between the messages on a shard's data lane. Marks bypass queue capacities.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Mark {
    /// `FlushMark`: no older message that `from` sent at `generation` follows.
    Flush {
        /// The generation being handed off.
        generation: Generation,
        /// The attempt.
        attempt: Attempt,
        /// The region whose path is flushed.
        from: RegionId,
    },
    /// A flush mark of attempt 0: buffered and forwarded exactly like a message and answered with
    /// [`PeerMessage::FlushEcho`] by the first `Local` shard it reaches. `stamp.origin` gets the echo.
    Probe {
        /// The asking region's number of the probe.
        nonce: u64,
        /// The header, as of a message; `first` and `leftover` mean nothing.
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

/// The state of a claimed shard. Source: sharding §2.2 (`Register`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ClaimState {
    /// The shard serves.
    Running,
    /// The shard is accepted, and does not serve yet.
    Starting,
    /// A `HandOff` or `DropShard` for the shard was accepted: the claim confirms no home.
    Stopping,
}

/// A region's claim that it hosts a shard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    /// The shard.
    pub shard: ShardId,
    /// The generation.
    pub generation: Generation,
    /// The state of the shard.
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
    /// How the region describes its type.
    pub fingerprint: Fingerprint,
    /// The largest epoch of a coordinator that the region has obeyed.
    pub highest_epoch: Epoch,
    /// All shards that the region hosts, including those that are starting or stopping.
    pub hosted: Vec<Claim>,
}

/// A home, in the form sent to one region.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Home {
    /// The shard.
    pub shard: ShardId,
    /// The region that hosts it.
    pub region: RegionId,
    /// The generation of the allocation.
    pub generation: Generation,
    /// The receiver's own acked attempt in the handoff that ended, if the owner waited for its mark:
    /// its old path is then known to be empty. Source: sharding §2.6.
    pub flushed: Option<Attempt>,
    /// The generation that ended with the handoff before this allocation.
    pub previous: Option<Generation>,
    /// The former owner that still has unhandled messages to send. Source: sharding §2.9.
    pub leftovers_from: Option<RegionId>,
    /// The last attempt that was given up to hand off this home: a region that has closed its route for that attempt,
    /// or an earlier one, opens it again. A home without `given_up` may be a copy from before the attempt.
    pub given_up: Option<Attempt>,
}

impl Home {
    /// A home without a predecessor.
    pub fn new(shard: ShardId, region: RegionId, generation: Generation) -> Self {
        Self { shard, region, generation, flushed: None, previous: None, leftovers_from: None, given_up: None }
    }
}

/// From a region to the coordinator (or to nodes that may run it).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RegionMessage {
    /// Registers, or registers again with the shards hosted now.
    Register(Register),
    /// Asks for the homes of these shards.
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
        /// The attempt.
        attempt: Attempt,
        /// Whether a flush mark was sent to the owner.
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
        /// Whether unhandled messages wait here for the new home.
        leftovers: bool,
    },
    /// Asks to hand off everything that this region hosts.
    GracefulShutdownReq {
        /// The region that leaves.
        region: RegionId,
    },
    /// The region is gone: proof of absence for all its shards.
    RegionStopped {
        /// The region that is gone.
        region: RegionId,
    },
    /// The addressed coordinator is fenced by a newer one.
    StaleEpoch {
        /// The region that reports this.
        region: RegionId,
        /// The largest epoch that the region has seen.
        epoch: Epoch,
    },
    /// Answer of a node without a hosting region of the type to `RegionInquiry`.
    NoRegion {
        /// The epoch of the inquiry.
        epoch: Epoch,
    },
    /// Asks to stop these shards, and to give them no new home before one is asked for.
    StopShards {
        /// The region that asks.
        region: RegionId,
        /// The region's number for the request; a repetition has the same number.
        request: u64,
        /// The shards.
        shards: Vec<ShardId>,
    },
    /// Asks which hosting regions are registered.
    GetCurrentRegions {
        /// The region that asks.
        region: RegionId,
        /// The region's number for the request; a repetition has the same number.
        request: u64,
    },
}

impl RegionMessage {
    /// The region that sends the message; `None` for a node that has none.
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

/// From a coordinator to a region or, where no region is known, to a node's sharding layer. Every message carries the
/// `epoch` in [`FromCoordinator`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CoordinatorMessage {
    /// The registration is accepted.
    RegisterAck {
        /// Serial of the answered `Register`.
        serial: u64,
    },
    /// The registration is refused: the region describes the type differently.
    RegisterRefused {
        /// Serial of the answered `Register`.
        serial: u64,
        /// The difference.
        mismatch: Mismatch,
    },
    /// Asks whether a hosting region of the type runs on the node. The region registers at once, or the node answers
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
        /// The attempt.
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
        /// The attempt.
        attempt: Attempt,
        /// The regions that sent a mark.
        flush_from: Vec<RegionId>,
    },
    /// Kill the shard without stop messages, since its claim lost. Its unprocessed messages are kept.
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
        /// The requested shards that have stopped, or have no home.
        shards: Vec<ShardId>,
    },
    /// The type remembers its entities, so its shards are not stopped.
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

/// A coordinator's message with the proof of its authority.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FromCoordinator {
    /// The incarnation that sends the message.
    pub coordinator: CoordinatorId,
    /// Its epoch.
    pub epoch: Epoch,
    /// The addressed region; `None` for any region of the type on the node (inquiries).
    pub to: Option<RegionId>,
    /// The message.
    pub message: CoordinatorMessage,
}

/// A node's claim about an entity type: its fingerprint, and its state. Source: sharding §1.5, point 4.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TypeClaim {
    /// How the node describes the type.
    pub fingerprint: Fingerprint,
    /// Whether a coordinator on the node may decide, or a coordinator has sent the node a home.
    pub active: bool,
    /// Whether the node is refused in favour of a third node: then it refuses no other node.
    pub refused: bool,
}

/// The outcome of comparing a node's role for a type with the other members' claims. Source: sharding §1.5, point 4.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AgreementOutcome {
    /// Not every reachable member has answered.
    Asking,
    /// All members have the same role for the type, or are refused.
    Agreed,
    /// Another side stays: nothing of the type may be decided or hosted here.
    Refused(Mismatch),
}

/// From a region to another one, on the control lane.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PeerMessage {
    /// Asks whether the type is the same on the receiver.
    AnnounceType {
        /// Repeated in the answer.
        round: u64,
        /// The asking node's claim.
        claim: TypeClaim,
    },
    /// The type is the same, or does not run here.
    TypeOk {
        /// The round of the question.
        round: u64,
    },
    /// The type differs here.
    TypeConflict {
        /// The round of the question.
        round: u64,
        /// The answering node's claim.
        claim: TypeClaim,
    },
    /// The receiver's cached home is older than this generation. With the home's own generation, from the home's node:
    /// the region has stopped.
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
