//! The inputs and effects of a coordinator, and the state that it keeps.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use greylag_core::{Generation, UniqueAddress};

use crate::allocation::View;
use crate::fingerprint::Fingerprint;
use crate::ids::{RegionId, ShardId};
use crate::machine::membership::Members;
use crate::machine::message::{AgreementOutcome, CoordinatorId, Epoch, FromCoordinator, RegionMessage};

/// The durable record of one shard: a home, or its tombstone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredHome {
    /// The owner; of a tombstone, the last owner.
    pub region: RegionId,
    /// Its generation.
    pub generation: Generation,
    /// Whether this is a tombstone: the shard has no home.
    pub deallocated: bool,
    /// The generation that ended before this allocation.
    pub previous: Option<Generation>,
    /// The region that still has unhandled messages for the new home; on a tombstone, for the home that follows.
    pub leftovers_from: Option<RegionId>,
}

impl StoredHome {
    /// Orders records of one shard: the larger generation wins, a tombstone beats its own home. The value is the clock
    /// of the replicated map (sharding §2.15).
    pub fn clock(&self) -> u64 {
        2 * self.generation.as_u64() + u64::from(self.deallocated)
    }
}

/// The last incarnation that wrote with authority.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Meta {
    /// The incarnation's epoch.
    pub epoch: Epoch,
    /// The incarnation.
    pub coordinator: CoordinatorId,
    /// The fingerprint of the type, as the first coordinator described it.
    pub fingerprint: Fingerprint,
}

/// All durable state of a coordinator.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StoredState {
    /// The last incarnation; `None` if the state is fresh (or lost).
    pub meta: Option<Meta>,
    /// Homes and tombstones.
    pub homes: BTreeMap<ShardId, StoredHome>,
    /// Hosting regions that registered and have not ended. Kept in mode persistence only.
    pub regions: BTreeSet<RegionId>,
    /// Whether the registration gate was passed (sharding §2.16). In replicated data a home implies it.
    pub initialized: bool,
    /// Remembered shards, in a journal without homes: all shards that ever had a home.
    pub remembered: BTreeSet<ShardId>,
    /// Whether homes were moved from this journal to replicated data. Source: sharding §4.8.
    pub migrated: bool,
}

/// One durable change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StateEvent {
    /// An incarnation takes over, or confirms in mode persistence that it runs; the write is fenced by every later one.
    EpochStarted(Meta),
    /// The fingerprint of the type that regions have to match from now on. This event and the three that follow are
    /// written in mode persistence only: replicated data has the fingerprint in its `Meta`, and does not need the
    /// others.
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
        /// Its new record.
        home: StoredHome,
    },
}

/// An input to the [`Coordinator`](super::Coordinator): answers of its store and strategy, messages of regions, the
/// membership, and the passing of time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Input {
    /// Answer to [`Effect::Read`], read by a majority.
    Read {
        /// The state.
        state: StoredState,
        /// Unix time in seconds: only a floor of new epochs.
        wall_secs: u64,
        /// The largest epoch that this node has seen in a `Register` or `StaleEpoch`.
        seen_epoch: Epoch,
    },
    /// The state was read and is invalid; reading it again would not help.
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
        /// Whether nothing was written and the same batch may be tried again; otherwise this incarnation is fenced or
        /// the outcome is unknown.
        retryable: bool,
    },
    /// A message of a region, or of a node's sharding layer. A node without that layer is reported as
    /// `NoRegion` when an inquiry finds no recipient.
    FromRegion {
        /// The node at the other end of the link.
        node: UniqueAddress,
        /// Its message.
        message: RegionMessage,
    },
    /// The members changed (also the first input after `new`).
    Membership(Arc<Members>),
    /// How the type's role compares with the claims of other members: this incarnation decides nothing before all
    /// agree.
    Agreement(AgreementOutcome),
    /// Answer to [`Effect::ReadRemembered`].
    RememberedShards(BTreeSet<ShardId>),
    /// Answer to [`Effect::Remember`].
    ShardsRemembered(Vec<ShardId>),
    /// The store of remembered shards has failed; a new incarnation opens it again.
    RememberStopped,
    /// Answer to [`Effect::CallAllocate`]: `None` where the strategy failed.
    Allocated {
        /// As in the effect.
        call: u64,
        /// Shards and the regions chosen.
        homes: Vec<(ShardId, Option<RegionId>)>,
    },
    /// Answer to [`Effect::CallRebalance`]; empty if the strategy failed.
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
    /// The singleton is handed over: stop once the region of this node has finished its shutdown.
    Terminate,
    /// A deadline has come; early and repeated ticks are harmless.
    Tick,
}

/// An order to the driver; effects are executed in the order given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// Read the state by a majority, repeated until it succeeds; answered by [`Input::Read`].
    Read,
    /// Write the events; one batch is under way at a time. Answered by `Committed` or `CommitFailed`.
    Commit {
        /// The batch's number.
        batch: u64,
        /// The events to write.
        events: Vec<StateEvent>,
    },
    /// Read which shards are remembered, repeated until it succeeds; answered by [`Input::RememberedShards`].
    ReadRemembered,
    /// Add shards to the remembered ones, repeated until it succeeds; answered by [`Input::ShardsRemembered`].
    Remember {
        /// The shards.
        shards: Vec<ShardId>,
    },
    /// Control message to a node.
    Send {
        /// Which node.
        to: UniqueAddress,
        /// The message.
        message: FromCoordinator,
    },
    /// Ask the strategy for homes; each shard comes with the region that asked first, if any.
    CallAllocate {
        /// The call's number.
        call: u64,
        /// The shards.
        shards: Vec<(ShardId, Option<RegionId>)>,
        /// The regions to choose from.
        view: View,
    },
    /// Ask the strategy which shards should move.
    CallRebalance {
        /// The regions.
        view: View,
        /// The shards that are moving already.
        in_progress: BTreeSet<ShardId>,
    },
    /// The homes to send exceed one turn: answered by [`Input::Continue`], queued behind the inputs that wait by then.
    Continue,
    /// The incarnation has ended.
    Stop(StopReason),
    /// An event for subscribers.
    Event(CoordinatorEvent),
}

/// Why an incarnation ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StopReason {
    /// The singleton was handed over, and the driver told the incarnation to end.
    HandedOver,
    /// A newer incarnation, or an epoch of unknown origin, was met: start again with backoff.
    Fenced {
        /// The epoch met.
        by: Epoch,
    },
    /// A write's outcome is unknown, or another incarnation writes: start again with backoff.
    CommitFailed,
    /// The stored state cannot be read (details in the log): start again with backoff.
    Unreadable,
    /// The store of remembered shards has failed: start again with backoff.
    RememberStoreStopped,
    /// The epoch has no generation left: start again at once.
    GenerationsUsedUp,
    /// This node is no member any more.
    Downed,
}

/// The phase of a handoff.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HandOffPhase {
    /// Regions have to stop sending.
    AwaitAcks,
    /// The owner has to stop the shard.
    AwaitStopped,
}

/// An event for the coordinator's subscribers. Source: sharding §6.5.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CoordinatorEvent {
    /// The inventory is complete.
    Active {
        /// Its epoch.
        epoch: Epoch,
        /// Shards that have a home.
        shards: usize,
    },
    /// A region's registration was accepted.
    RegionRegistered(RegionId),
    /// A region was refused, since it describes the type differently.
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
    /// A handoff was given up, or goes on past its timeout.
    HandOffTimedOut {
        /// Which shard.
        shard: ShardId,
        /// The phase in which the timeout passed.
        phase: HandOffPhase,
    },
    /// A shard does not stop after twice the timeout.
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
