//! The inputs and effects of a coordinator, and the state that it keeps.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use greylag_core::{Generation, UniqueAddress};

use crate::allocation::View;
use crate::fingerprint::Fingerprint;
use crate::ids::{RegionId, ShardId};
use crate::machine::membership::Members;
use crate::machine::message::{CoordinatorId, Epoch, FromCoordinator, RegionMessage, Standing};

/// The durable record of one shard: a home, or the tombstone of one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredHome {
    /// The owner, or the last one.
    pub region: RegionId,
    /// Its generation.
    pub generation: Generation,
    /// A tombstone: the shard has no home.
    pub deallocated: bool,
    /// The generation that ended before this allocation.
    pub previous: Option<Generation>,
    /// The region that still has unhandled messages for the new home; on a tombstone, for the home that follows.
    pub leftovers_from: Option<RegionId>,
}

impl StoredHome {
    /// Orders records of one shard: the larger generation wins, a tombstone beats its own home.
    /// It is the clock of the replicated map (sharding §2.15).
    pub fn clock(&self) -> u64 {
        2 * self.generation.as_u64() + u64::from(self.deallocated)
    }
}

/// The incarnation that wrote last with authority.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Meta {
    /// The incarnation's epoch.
    pub epoch: Epoch,
    /// The incarnation.
    pub coordinator: CoordinatorId,
    /// What the first coordinator understood the type to be.
    pub fingerprint: Fingerprint,
}

/// All that is durable.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StoredState {
    /// The last incarnation; `None` if the state is fresh (or lost).
    pub meta: Option<Meta>,
    /// Homes and tombstones.
    pub homes: BTreeMap<ShardId, StoredHome>,
    /// Hosting regions that registered and have not ended. Kept in mode persistence only.
    pub regions: BTreeSet<RegionId>,
    /// The registration gate was passed once (sharding §2.16). Replicated data says so by having a home.
    pub initialized: bool,
    /// Shards whose entities are remembered, in a journal that does not keep homes: all that ever had one.
    pub remembered: BTreeSet<ShardId>,
    /// Homes are not kept in this journal any more, but as replicated data. Source: sharding §4.8.
    pub migrated: bool,
}

/// One durable change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StateEvent {
    /// An incarnation takes over, or in mode persistence, is still there; the write is fenced by every later one.
    EpochStarted(Meta),
    /// The fingerprint of the type that regions have to match from now on. This event and the three that follow are written in mode
    /// persistence only: replicated data has the fingerprint in its `Meta`, and no need of the others.
    FingerprintRecorded(Fingerprint),
    /// The registration gate was passed.
    Initialized,
    /// A hosting region may be given shards from now on.
    RegionRegistered(RegionId),
    /// A region is proven to be gone; its homes were ended before.
    RegionTerminated(RegionId),
    /// `ShardHomeAllocated` or, with `deallocated`, `ShardHomeDeallocated`.
    Home {
        /// Which shard.
        shard: ShardId,
        /// Its record from now on.
        home: StoredHome,
    },
}

/// An input to the [`Coordinator`](super::Coordinator): answers of its store and strategy, messages of regions, the
/// membership, and that time passed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Input {
    /// Answer to [`Effect::Read`], by a majority.
    Read {
        /// What was read.
        state: StoredState,
        /// Unix time in seconds: a floor of new epochs and nothing else.
        wall_secs: u64,
        /// The largest epoch that this node has seen in a `Register` or `StaleEpoch`.
        seen_epoch: Epoch,
    },
    /// The state was read and makes no sense; reading it again would not help.
    Unreadable,
    /// The batch is durable, and no newer incarnation has been seen since it was written.
    Committed {
        /// As in [`Effect::Commit`].
        batch: u64,
    },
    /// The batch is not durable.
    CommitFailed {
        /// As in [`Effect::Commit`].
        batch: u64,
        /// Nothing was written and the same batch may be tried again; else this incarnation is fenced
        /// or does not know.
        retryable: bool,
    },
    /// A message of a region, or of a node's sharding layer. A node without that layer is reported as
    /// `NoRegion` when an inquiry finds no recipient.
    FromRegion {
        /// The node at the other end of the link.
        node: UniqueAddress,
        /// What it says.
        message: RegionMessage,
    },
    /// The members changed (also the first input after `new`).
    Membership(Arc<Members>),
    /// How the type stands beside what other members mean by it: this incarnation decides nothing before all agree.
    Standing(Standing),
    /// Answer to [`Effect::ReadRemembered`].
    RememberedShards(BTreeSet<ShardId>),
    /// Answer to [`Effect::Remember`].
    ShardsRemembered(Vec<ShardId>),
    /// The store of remembered shards cannot go on; a new incarnation opens another one.
    RememberStopped,
    /// Answer to [`Effect::CallAllocate`]: `None` where the strategy failed.
    Allocated {
        /// As in the effect.
        call: u64,
        /// Shards and the regions chosen.
        homes: Vec<(ShardId, Option<RegionId>)>,
    },
    /// Answer to [`Effect::CallRebalance`]; nothing if the strategy failed.
    Rebalance {
        /// The shards that should move.
        shards: BTreeSet<ShardId>,
    },
    /// This node cannot trust its own view (cluster F9).
    SelfSuspect,
    /// This node can trust its view again.
    SelfTrusted,
    /// This node is no member any more.
    SelfDowned,
    /// Answer to [`Effect::Continue`]: other inputs have had their turn.
    Continue,
    /// The singleton is handed over: stop, once a local region that shuts down is gone.
    Terminate,
    /// A deadline has come; early and repeated ticks are harmless.
    Tick,
}

/// What the driver is asked to do, in this order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// Read the state by a majority, again until it succeeds; answered by [`Input::Read`].
    Read,
    /// Write the events; one batch is under way at a time. Answered by `Committed` or `CommitFailed`.
    Commit {
        /// The batch's number.
        batch: u64,
        /// What to write.
        events: Vec<StateEvent>,
    },
    /// Read which shards are remembered, again until it succeeds; answered by [`Input::RememberedShards`].
    ReadRemembered,
    /// Add shards to those that are remembered, again until it succeeds; answered by [`Input::ShardsRemembered`].
    Remember {
        /// Which ones.
        shards: Vec<ShardId>,
    },
    /// Control message to a node.
    Send {
        /// Which node.
        to: UniqueAddress,
        /// The message.
        message: FromCoordinator,
    },
    /// Ask the strategy, with every shard's requester if there is one.
    CallAllocate {
        /// The call's number.
        call: u64,
        /// The shards.
        shards: Vec<(ShardId, Option<RegionId>)>,
        /// What it may choose from.
        view: View,
    },
    /// Ask the strategy what should move.
    CallRebalance {
        /// The regions.
        view: View,
        /// What is moving already.
        in_progress: BTreeSet<ShardId>,
    },
    /// There is more to tell than fits one turn: answered by [`Input::Continue`], behind the inputs that wait by then.
    Continue,
    /// The incarnation is over.
    Stop(StopReason),
    /// Something that subscribers may want to know.
    Event(CoordinatorEvent),
}

/// Why an incarnation ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StopReason {
    /// The singleton was handed over, and the driver told the incarnation to end.
    HandedOver,
    /// A newer incarnation, or an epoch that it cannot account for, was met: start again with backoff.
    Fenced {
        /// The epoch met.
        by: Epoch,
    },
    /// A write's outcome is unknown, or another incarnation writes: start again with backoff.
    CommitFailed,
    /// What is stored cannot be read, as the log says: start again with backoff.
    Unreadable,
    /// The store of remembered shards cannot go on: start again with backoff.
    RememberStoreStopped,
    /// Its decisions are numbered to the end: start again at once.
    GenerationsUsedUp,
    /// This node is no member any more.
    Downed,
}

/// Where a handoff is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HandOffPhase {
    /// Regions have to stop sending.
    AwaitAcks,
    /// The owner has to stop the shard.
    AwaitStopped,
}

/// What a coordinator tells its subscribers. Source: sharding §6.5.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CoordinatorEvent {
    /// The inventory is complete.
    Active {
        /// Its epoch.
        epoch: Epoch,
        /// Shards that have a home.
        shards: usize,
    },
    /// A region was taken.
    RegionRegistered(RegionId),
    /// A region understands the type differently.
    RegionRefused(RegionId),
    /// A shard was given a home.
    ShardAllocated {
        /// Which shard.
        shard: ShardId,
        /// The region that gets it.
        region: RegionId,
        /// The generation.
        generation: Generation,
    },
    /// Shards start to move.
    RebalanceStarted(BTreeSet<ShardId>),
    /// A handoff was given up, or goes on past its time.
    HandOffTimedOut {
        /// Which shard.
        shard: ShardId,
        /// Where it was.
        phase: HandOffPhase,
    },
    /// A shard does not stop.
    HandOffStuck {
        /// Which shard.
        shard: ShardId,
        /// The region that has it.
        owner: RegionId,
    },
    /// The strategy gave no usable answer.
    AllocationFailed {
        /// For which shard.
        shard: ShardId,
    },
}
