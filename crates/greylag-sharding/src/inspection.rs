//! What can be seen of an entity type from outside: regions, shards, entities. Nothing is started by looking.
//!
//! Regions are named by their coordinator, shards and entities are told by the region that hosts them. Every answer is partial
//! rather than none: what did not answer in time stands under `failed`. For tests and monitoring.
//!
//! Source: sharding §6.1.

use std::collections::{BTreeMap, BTreeSet};

use greylag_core::UniqueAddress;

use crate::ids::{EntityId, RegionId, ShardId};

/// Entities of one page of [`RegionEntities`], at most.
pub const ENTITIES_PER_PAGE: usize = 10_000;

/// How many entities of a shard there are, by their state. Source: sharding §4.7.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct EntityCounts {
    /// Live, and not asked to stop; those that are starting too.
    pub active: u64,
    /// Live, and asked to stop.
    pub passivating: u64,
    /// Remembered, and not started since the shard is here.
    pub remembered_not_started: u64,
    /// Not live, and to be started: after a backoff, or in their turn.
    pub waiting_restart: u64,
}

impl EntityCounts {
    /// All of them.
    pub fn total(&self) -> u64 {
        let live = self.active.saturating_add(self.passivating);
        live.saturating_add(self.remembered_not_started).saturating_add(self.waiting_restart)
    }

    /// Both together.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            active: self.active.saturating_add(other.active),
            passivating: self.passivating.saturating_add(other.passivating),
            remembered_not_started: self.remembered_not_started.saturating_add(other.remembered_not_started),
            waiting_restart: self.waiting_restart.saturating_add(other.waiting_restart),
        }
    }
}

/// The shards of one region, each with its entities by state.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RegionStats {
    /// The shards that answered.
    pub shards: BTreeMap<ShardId, EntityCounts>,
    /// Shards that did not, within `shard_region_query_timeout`: a handler blocks, or the shard waits for its restart.
    pub failed: BTreeSet<ShardId>,
}

impl RegionStats {
    /// The entities of all shards that answered.
    pub fn entities(&self) -> EntityCounts {
        self.shards.values().copied().fold(EntityCounts::default(), EntityCounts::and)
    }
}

/// All regions of a type with their shards, as far as they answered.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClusterStats {
    /// The regions that answered, by the full addresses of their nodes.
    pub regions: BTreeMap<UniqueAddress, RegionStats>,
    /// Nodes whose regions did not.
    pub failed_regions: BTreeSet<UniqueAddress>,
    /// No coordinator is known that could name the regions, or it did not answer: so there are none here.
    pub coordinator_missing: bool,
}

/// The nodes with a region that hosts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CurrentRegions {
    /// The full addresses of the nodes.
    pub addresses: BTreeSet<UniqueAddress>,
    /// No coordinator is known, or it did not answer: so there are none here.
    pub coordinator_missing: bool,
}

/// A place in the entities of a region: behind an entity of a shard, or at the begin of the shard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Position {
    /// In which shard.
    pub shard: ShardId,
    /// Behind which entity.
    pub after: Option<EntityId>,
}

/// One page of the live entities of a region (active and passivating), by the names of shards and entities.
///
/// Entities that start or end meanwhile may be missing, and a shard whose entities fill more than one page stands in each.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RegionEntities {
    /// The shards that answered, with [`ENTITIES_PER_PAGE`] entities in all, at most.
    pub shards: BTreeMap<ShardId, BTreeSet<EntityId>>,
    /// Shards that did not answer within `shard_region_query_timeout`.
    pub failed: BTreeSet<ShardId>,
    /// Where the next page begins; `None` for the last one.
    pub next: Option<Position>,
}

/// Where an entity belongs, as far as this node knows without asking.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EntityLocation {
    /// Its shard.
    pub shard: ShardId,
    /// The region that messages to it go to; `None` if this node has no route to the shard.
    pub region: Option<RegionId>,
}

/// What one node asks the region of another one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Inquiry {
    /// Its shards, with counts.
    Stats,
    /// A page of its entities.
    Entities {
        /// Where it begins; `None` for the first one.
        from: Option<Position>,
    },
}

/// What a region answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Finding {
    /// To [`Inquiry::Stats`].
    Stats(RegionStats),
    /// To [`Inquiry::Entities`].
    Entities(RegionEntities),
}

/// A question or an answer between nodes. The number is the asker's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum InspectionMessage {
    /// The question.
    Ask {
        /// Comes back with the answer.
        request: u64,
        /// How long the asker waits, in milliseconds: shards that are slower have failed by then.
        patience_ms: u32,
        /// What is asked.
        inquiry: Inquiry,
    },
    /// The answer.
    Tell {
        /// Of the question.
        request: u64,
        /// What was found.
        finding: Finding,
    },
}
