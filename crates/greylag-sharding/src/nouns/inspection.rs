//! Inspection results of an entity type: regions, shards, entities. Inspection starts nothing.
//!
//! The coordinator names the regions; each hosting region reports its shards and entities. Every answer may be partial:
//! regions and shards that did not answer in time are listed under `failed`. For tests and monitoring.
//!
//! Source: sharding §6.1.

use std::collections::{BTreeMap, BTreeSet};

use greylag_core::UniqueAddress;

use crate::ids::{EntityId, RegionId, ShardId};

/// Most entities of one page of [`RegionEntities`].
pub const ENTITIES_PER_PAGE: usize = 10_000;

/// Numbers of a shard's entities by state. Source: sharding §4.7.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct EntityCounts {
    /// Live entities that were not asked to stop, including those that are starting.
    pub active: u64,
    /// Live entities that were asked to stop.
    pub passivating: u64,
    /// Remembered entities that have not been started since the shard is here.
    pub remembered_not_started: u64,
    /// Entities that are not live, and will be started: after a backoff, or in their turn.
    pub waiting_restart: u64,
}

impl EntityCounts {
    /// The sum of all states.
    pub fn total(&self) -> u64 {
        let live = self.active.saturating_add(self.passivating);
        live.saturating_add(self.remembered_not_started).saturating_add(self.waiting_restart)
    }

    /// The sums of both counts.
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
    /// Shards that did not answer within `shard_region_query_timeout`: a handler blocks, or the shard waits for its
    /// restart.
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
    /// Nodes whose regions did not answer.
    pub failed_regions: BTreeSet<UniqueAddress>,
    /// Whether no coordinator is known, or it did not answer: then `regions` is empty.
    pub coordinator_missing: bool,
}

/// The nodes with a hosting region.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CurrentRegions {
    /// The full addresses of the nodes.
    pub addresses: BTreeSet<UniqueAddress>,
    /// Whether no coordinator is known, or it did not answer: then `addresses` is empty.
    pub coordinator_missing: bool,
}

/// A position in the entities of a region: behind an entity of a shard, or at the begin of the shard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Position {
    /// The shard.
    pub shard: ShardId,
    /// The entity before the position; `None` at the begin of the shard.
    pub after: Option<EntityId>,
}

/// One page of the live entities of a region (active and passivating), by the names of shards and entities.
///
/// Entities that start or end meanwhile may be missing; a shard whose entities fill more than one page is in each of
/// these.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RegionEntities {
    /// The shards that answered, with at most [`ENTITIES_PER_PAGE`] entities in all.
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
    /// The region to which messages for the entity go; `None` if this node has no route to the shard.
    pub region: Option<RegionId>,
}

/// A question of one node to the region of another one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Inquiry {
    /// Asks for the shards, with counts.
    Stats,
    /// Asks for a page of the entities.
    Entities {
        /// The begin of the page; `None` for the first one.
        from: Option<Position>,
    },
}

/// The answer of a region.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum InspectionResult {
    /// The answer to [`Inquiry::Stats`].
    Stats(RegionStats),
    /// The answer to [`Inquiry::Entities`].
    Entities(RegionEntities),
}

/// A question or an answer between nodes. The asking node chooses the number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum InspectionMessage {
    /// The question.
    Ask {
        /// Repeated in the answer.
        request: u64,
        /// How long the asking node waits, in milliseconds: slower shards count as failed.
        patience_ms: u32,
        /// The question.
        inquiry: Inquiry,
    },
    /// The answer.
    Tell {
        /// The number of the question.
        request: u64,
        /// The result.
        result: InspectionResult,
    },
}
