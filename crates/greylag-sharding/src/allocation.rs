//! Which region gets a shard, and which shards should move.
//!
//! A strategy sees a [`View`] and names regions or shards; the coordinator checks its answer. This module holds what
//! strategies share: the view, the order of suitability, and whether it is a good time to move shards. Each strategy is
//! a value that decides without waiting; strategies that first have to ask another service do so in the driver.
//!
//! | strategy | a shard goes to | shards move |
//! |---|---|---|
//! | [`LeastShard`], the default | the region with the fewest | until all regions have as many, give or take one |
//! | [`ClassicalLeastShard`] | the region with the fewest | while the difference exceeds a threshold |
//! | [`ConsistentHashing`] | the node that a hash draws | when nodes come and go, to the node drawn |
//! | [`ExternalAllocation`](crate::ExternalAllocation) | the node named by the program | when the named node changes |
//!
//! Source: sharding §3.

mod classical;
mod consistent_hashing;
mod external;
mod least_shard;
#[cfg(test)]
mod tests;

use std::cmp::Reverse;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use greylag_cluster::AppVersion;
use greylag_core::NodeAddress;

use crate::ids::{RegionId, ShardId};
use crate::machine::membership::MemberPhase;

pub use classical::ClassicalLeastShard;
pub use consistent_hashing::ConsistentHashing;
pub use external::External;
pub use least_shard::LeastShard;

/// The regions that can host, as a strategy sees them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct View {
    /// The regions, in the order of their ids.
    pub regions: Vec<RegionView>,
    /// Whether a member is unreachable, or joins: no time to move shards.
    pub unsettled: bool,
}

/// One region of a view.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RegionView {
    /// The region's id.
    pub region: RegionId,
    /// The shards of the region, in the order of allocation; allocations under way count.
    pub shards: ShardList,
    /// Status of its member.
    pub phase: MemberPhase,
    /// Whether its member is reachable.
    pub reachable: bool,
    /// Version of the application on its member.
    pub app_version: AppVersion,
}

/// Shards in the order of their allocation, shared between the views of which they are a part: a view of 100,000 shards
/// costs no copy of them. Changing a list copies it if another view shares it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ShardList(Arc<Vec<ShardId>>);

impl FromIterator<ShardId> for ShardList {
    fn from_iter<I: IntoIterator<Item = ShardId>>(shards: I) -> Self {
        Self(Arc::new(shards.into_iter().collect()))
    }
}

impl<'a> IntoIterator for &'a ShardList {
    type Item = &'a ShardId;
    type IntoIter = std::slice::Iter<'a, ShardId>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.iter()
    }
}

impl Deref for ShardList {
    type Target = Vec<ShardId>;

    fn deref(&self) -> &Vec<ShardId> {
        &self.0
    }
}

impl DerefMut for ShardList {
    fn deref_mut(&mut self) -> &mut Vec<ShardId> {
        Arc::make_mut(&mut self.0)
    }
}

impl View {
    /// Counts a shard as allocated, so that the next choice of the same batch sees it.
    pub fn place(&mut self, region: &RegionId, shard: &ShardId) {
        if let Some(view) = self.regions.iter_mut().find(|view| view.region == *region) {
            view.shards.push(shard.clone());
        }
    }

    /// The first region in the order of suitability: a region that stays before one that leaves, then a reachable one,
    /// the highest version, the fewest shards, the lowest address.
    ///
    /// One pass over the regions; their shards are counted, not read. `None` without a region.
    pub fn most_suitable(&self) -> Option<&RegionView> {
        self.regions.iter().min_by_key(|region| region.suitability())
    }

    /// The regions that the coordinator lets a strategy choose from: of the regions that stay, the reachable ones;
    /// either condition is dropped if it would leave no region.
    ///
    /// The view for moves holds the other regions too. A strategy that moves shards to a region of its choice must
    /// choose among these, or the shards come back in every round. Source: sharding §2.12.
    pub fn candidates(&self) -> Vec<&RegionView> {
        let all_leave = self.regions.iter().all(RegionView::is_leaving);
        let staying = self.regions.iter().filter(|region| all_leave || !region.is_leaving());
        let none_reachable = !staying.clone().any(|region| region.reachable);
        staying.filter(|region| none_reachable || region.reachable).collect()
    }

    /// Whether shards may be moved now: there are regions, all of one version, and no member joins or is unreachable.
    /// At another time the same shards would be moved again soon after, or would wait for an unreachable node.
    pub fn is_good_time(&self) -> bool {
        let same_version = self.regions.windows(2).all(|pair| pair[0].app_version == pair[1].app_version);
        let all_reachable = self.regions.iter().all(|region| region.reachable);
        !self.regions.is_empty() && !self.unsettled && same_version && all_reachable
    }
}

impl RegionView {
    /// The address of the region's process; a restarted process keeps the address.
    pub fn address(&self) -> &NodeAddress {
        self.region.node.address()
    }

    /// Whether its member is leaving the cluster.
    pub fn is_leaving(&self) -> bool {
        matches!(self.phase, MemberPhase::Leaving | MemberPhase::Exiting | MemberPhase::Down)
    }

    /// Key of the order of suitability; smaller is better. See [`View::most_suitable`].
    fn suitability(&self) -> (bool, bool, Reverse<&AppVersion>, usize, &RegionId) {
        (self.is_leaving(), !self.reachable, Reverse(&self.app_version), self.shards.len(), &self.region)
    }
}

/// A strategy gave no answer; the request is dropped and will be repeated.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("allocation strategy failed: {0}")]
pub struct AllocationFailed(pub String);
