//! The trait of all allocation strategies.
//!
//! Built-in strategies decide without waiting; a strategy of the program may have to ask a database, so the trait is
//! asynchronous.
//!
//! Source: sharding §3.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;

use crate::allocation::{AllocationFailed, ClassicalLeastShard, ConsistentHashing, LeastShard, View};
use crate::driver::coordinator::desired::DesiredLocations;
use crate::ids::{EntityTypeName, RegionId, ShardId};
use crate::settings::ShardingSettings;

/// Access for a strategy while its type is set up. See [`AllocationStrategy::set_up`].
pub struct StrategySetup<'a> {
    pub(in crate::driver) name: &'a EntityTypeName,
    pub(in crate::driver) number_of_shards: u32,
    pub(in crate::driver) desired: &'a dyn Fn() -> Result<DesiredLocations, AllocationFailed>,
}

impl StrategySetup<'_> {
    /// The entity type's name.
    pub fn entity_type(&self) -> &EntityTypeName {
        self.name
    }

    /// Number of shards of the type; 0 if its extractor names them freely.
    pub fn number_of_shards(&self) -> u32 {
        self.number_of_shards
    }

    /// The program's desired locations of the type's shards. Every node that may run the type's coordinator keeps them
    /// from now on.
    pub(in crate::driver) fn desired_locations(&self) -> Result<DesiredLocations, AllocationFailed> {
        (self.desired)()
    }
}

impl fmt::Debug for StrategySetup<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StrategySetup").field("entity_type", self.name).finish_non_exhaustive()
    }
}

/// Decides homes. Called on the coordinator's node only; one instance per type.
#[async_trait]
pub trait AllocationStrategy: Send + Sync + 'static {
    /// Called when the type is set up on a node that may run its coordinator, perhaps repeatedly with the same setup.
    /// Default: does nothing.
    ///
    /// # Errors
    /// [`AllocationFailed`]: the type is not set up.
    fn set_up(&self, setup: &StrategySetup<'_>) -> Result<(), AllocationFailed> {
        let _ = setup;
        Ok(())
    }

    /// Called once for each coordinator incarnation on this node, before any other call.
    /// Default: does nothing.
    fn start(&self) {}

    /// Chooses a region of `view` for a shard that `requester` asked for (`None` after a handoff).
    ///
    /// # Errors
    /// [`AllocationFailed`]; a region outside of the view counts as a failure too.
    async fn allocate(
        &self,
        shard: &ShardId,
        requester: Option<&RegionId>,
        view: &View,
    ) -> Result<RegionId, AllocationFailed>;

    /// Names shards that should leave their regions; the shards `in_progress` are moving already.
    ///
    /// # Errors
    /// [`AllocationFailed`]: nothing moves this time.
    async fn rebalance(
        &self,
        view: &View,
        in_progress: &BTreeSet<ShardId>,
    ) -> Result<BTreeSet<ShardId>, AllocationFailed>;
}

/// The strategy of a type without its own: least-shard, by the algorithm that the settings select.
pub(crate) fn default_strategy(settings: &ShardingSettings) -> Arc<dyn AllocationStrategy> {
    if settings.least_shard.is_classical() {
        Arc::new(ClassicalLeastShard::new(settings.classical_least_shard.clone()))
    } else {
        Arc::new(LeastShard::new(settings.least_shard.clone()))
    }
}

fn chosen(region: Option<RegionId>) -> Result<RegionId, AllocationFailed> {
    region.ok_or_else(|| AllocationFailed("no region can host".into()))
}

#[async_trait]
impl AllocationStrategy for LeastShard {
    async fn allocate(&self, _: &ShardId, _: Option<&RegionId>, view: &View) -> Result<RegionId, AllocationFailed> {
        chosen(self.choose(view))
    }

    async fn rebalance(
        &self,
        view: &View,
        in_progress: &BTreeSet<ShardId>,
    ) -> Result<BTreeSet<ShardId>, AllocationFailed> {
        Ok(self.moves(view, in_progress))
    }
}

#[async_trait]
impl AllocationStrategy for ClassicalLeastShard {
    async fn allocate(&self, _: &ShardId, _: Option<&RegionId>, view: &View) -> Result<RegionId, AllocationFailed> {
        chosen(self.choose(view))
    }

    async fn rebalance(
        &self,
        view: &View,
        in_progress: &BTreeSet<ShardId>,
    ) -> Result<BTreeSet<ShardId>, AllocationFailed> {
        Ok(self.moves(view, in_progress))
    }
}

#[async_trait]
impl AllocationStrategy for ConsistentHashing {
    async fn allocate(&self, shard: &ShardId, _: Option<&RegionId>, view: &View) -> Result<RegionId, AllocationFailed> {
        chosen(self.choose(shard, view))
    }

    async fn rebalance(
        &self,
        view: &View,
        in_progress: &BTreeSet<ShardId>,
    ) -> Result<BTreeSet<ShardId>, AllocationFailed> {
        Ok(self.moves(view, in_progress))
    }
}
