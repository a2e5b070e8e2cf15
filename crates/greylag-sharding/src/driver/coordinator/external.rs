//! The strategy that puts shards on the nodes that the program names.
//!
//! The strategy reads its own node's copy of the desired locations, since a decision must not wait for other nodes: a
//! location that arrives later is obeyed by a move, in one of the next rounds.
//!
//! Source: sharding §3 "External", scenarios 37 and 38.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::OnceLock;

use async_trait::async_trait;

use crate::allocation::{AllocationFailed, External, View};
use crate::driver::coordinator::desired::{DesiredLocations, Locations, parsed};
use crate::driver::coordinator::strategy::{AllocationStrategy, StrategySetup};
use crate::ids::{RegionId, ShardId};

/// Reads the desired locations known to this node.
#[async_trait]
trait KnownLocations: Send + Sync {
    /// The locations; `None` if there is no answer in time.
    async fn read(&self) -> Option<Locations>;
}

#[async_trait]
impl KnownLocations for DesiredLocations {
    async fn read(&self) -> Option<Locations> {
        self.known_here().await
    }
}

/// Puts shards on the nodes that the program names by [`ExternalShards`](crate::ExternalShards). Set the strategy where
/// the type is defined, on every node that may run the type's coordinator:
///
/// ```
/// use greylag_sharding::ExternalAllocation;
/// # use greylag_sharding::{Ctx, Entity, EntityKey, EntityType, Failure};
/// # struct Cart;
/// # impl Entity for Cart {
/// #     type Message = ();
/// #     fn receive(&mut self, (): (), _: &mut Ctx<'_, ()>) -> Result<(), Failure> { Ok(()) }
/// # }
/// # const CART: EntityKey<()> = EntityKey::new("Cart");
/// let carts = EntityType::new(CART, |_| Ok(Cart)).allocation(ExternalAllocation::default());
/// ```
///
/// A shard without a desired location, or whose desired node has no region, goes to the region that asked for the
/// shard, and moves when the node has come. A desired location that cannot be read within
/// `external_shard_allocation_strategy.client_timeout` counts as none. Source: sharding §3.
#[derive(Default)]
pub struct ExternalAllocation {
    /// Set when the type is set up.
    known: OnceLock<Box<dyn KnownLocations>>,
}

impl ExternalAllocation {
    async fn known(&self) -> Option<Locations> {
        self.known.get()?.read().await
    }
}

impl fmt::Debug for ExternalAllocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExternalAllocation").field("set_up", &self.known.get().is_some()).finish()
    }
}

#[async_trait]
impl AllocationStrategy for ExternalAllocation {
    fn set_up(&self, setup: &StrategySetup<'_>) -> Result<(), AllocationFailed> {
        let desired = setup.desired_locations()?;
        self.known.get_or_init(|| Box::new(desired));
        Ok(())
    }

    async fn allocate(
        &self,
        shard: &ShardId,
        requester: Option<&RegionId>,
        view: &View,
    ) -> Result<RegionId, AllocationFailed> {
        let known = self.known().await;
        let desired = known.as_ref().and_then(|known| known.get(shard.as_str())).and_then(|node| node.parse().ok());
        External::allocate(view, requester, desired.as_ref())
            .ok_or_else(|| AllocationFailed("no region can host".into()))
    }

    async fn rebalance(
        &self,
        view: &View,
        in_progress: &BTreeSet<ShardId>,
    ) -> Result<BTreeSet<ShardId>, AllocationFailed> {
        let desired = self.known().await.map(|known| parsed(&known)).unwrap_or_default();
        Ok(External::moves(view, in_progress, &desired))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::allocation::{RegionView, ShardList};
    use crate::machine::membership::MemberPhase;

    /// A replicator that does not answer while the strategy waits.
    struct Silent;

    #[async_trait]
    impl KnownLocations for Silent {
        async fn read(&self) -> Option<Locations> {
            tokio::time::timeout(Duration::from_secs(5), std::future::pending()).await.ok()
        }
    }

    fn region(n: u64) -> RegionId {
        RegionId { node: format!("n{n}:1#{n}").parse().unwrap(), incarnation: 1 }
    }

    fn view() -> View {
        let of = |n: u64, shards: &[u32]| RegionView {
            region: region(n),
            shards: shards.iter().copied().map(ShardId::from_index).collect::<ShardList>(),
            phase: MemberPhase::Up,
            reachable: true,
            app_version: greylag_cluster::AppVersion::default(),
        };
        View { regions: vec![of(1, &[1, 2]), of(2, &[]), of(3, &[3])], unsettled: false }
    }

    /// Scenario sharding 38: after a query that times out, shards go to their requesters, and stay where they are.
    #[tokio::test(start_paused = true)]
    async fn scenario_38_a_query_without_an_answer_counts_as_no_desired_location() {
        let strategy = ExternalAllocation::default();
        assert!(strategy.known.set(Box::new(Silent)).is_ok());
        let view = view();
        for n in 1..=3 {
            let home = strategy.allocate(&ShardId::from_index(7), Some(&region(n)), &view).await;
            assert_eq!(home, Ok(region(n)), "the requester");
        }
        assert_eq!(strategy.rebalance(&view, &BTreeSet::new()).await, Ok(BTreeSet::new()));
    }
}
