//! How homes are decided: the trait for strategies that have to ask another service.
//!
//! The decisions of the default strategy are pure and live in [`crate::allocation`]; a strategy of
//! one's own may wait for a database, so the trait is asynchronous and lives with the drivers.
//!
//! Source: sharding §3.

use std::collections::BTreeSet;

use async_trait::async_trait;

use crate::allocation::{AllocationFailed, LeastShard, View};
use crate::ids::{RegionId, ShardId};

/// Decides homes. Called on the coordinator's node only; one instance per type.
#[async_trait]
pub trait AllocationStrategy: Send + Sync + 'static {
    /// Chooses a region of `view` for a shard that `requester` asked for (`None` after a handoff).
    ///
    /// # Errors
    /// [`AllocationFailed`]; so counts a region outside of the view.
    async fn allocate(
        &self,
        shard: &ShardId,
        requester: Option<&RegionId>,
        view: &View,
    ) -> Result<RegionId, AllocationFailed>;

    /// Names shards that should leave their regions; `in_progress` are moving already.
    ///
    /// # Errors
    /// [`AllocationFailed`]: nothing moves this time.
    async fn rebalance(
        &self,
        view: &View,
        in_progress: &BTreeSet<ShardId>,
    ) -> Result<BTreeSet<ShardId>, AllocationFailed>;
}

#[async_trait]
impl AllocationStrategy for LeastShard {
    async fn allocate(&self, _: &ShardId, _: Option<&RegionId>, view: &View) -> Result<RegionId, AllocationFailed> {
        self.choose(view).ok_or_else(|| AllocationFailed("no region can host".into()))
    }

    async fn rebalance(
        &self,
        view: &View,
        in_progress: &BTreeSet<ShardId>,
    ) -> Result<BTreeSet<ShardId>, AllocationFailed> {
        Ok(self.moves(view, in_progress))
    }
}
