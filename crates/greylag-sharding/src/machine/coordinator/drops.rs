//! Claims that lost: regions that are told to drop a shard, again until they say that nothing of it lives there.
//!
//! Until then the shard is given to no region. Source: sharding §2.2 (`DropShard`), §2.13.

use std::collections::BTreeMap;
use std::time::Instant;

use greylag_core::Generation;

use crate::ids::{RegionId, ShardId};
use crate::timetable::Timetable;

/// See the module's description.
#[derive(Debug, Default)]
pub(super) struct Drops {
    by_shard: BTreeMap<ShardId, BTreeMap<RegionId, Generation>>,
    due: Timetable<(ShardId, RegionId)>,
}

impl Drops {
    /// The region is told to drop its claim, and again at that time.
    pub(super) fn add(&mut self, shard: &ShardId, region: &RegionId, generation: Generation, again: Instant) {
        self.by_shard.entry(shard.clone()).or_default().insert(region.clone(), generation);
        self.due.set(&(shard.clone(), region.clone()), again);
    }

    /// The region has nothing of the shard up to that generation. Answers whether that ends a drop.
    pub(super) fn stopped(&mut self, shard: &ShardId, region: &RegionId, generation: Generation) -> bool {
        let Some(regions) = self.by_shard.get_mut(shard) else { return false };
        if regions.get(region).is_none_or(|dropped| *dropped > generation) {
            return false;
        }
        self.end(shard, region);
        true
    }

    fn end(&mut self, shard: &ShardId, region: &RegionId) {
        self.due.remove(&(shard.clone(), region.clone()));
        if let Some(regions) = self.by_shard.get_mut(shard) {
            regions.remove(region);
            if regions.is_empty() {
                self.by_shard.remove(shard);
            }
        }
    }

    /// The region is gone, and its claims with it. Answers their shards.
    pub(super) fn forget(&mut self, region: &RegionId) -> Vec<ShardId> {
        let told = self.by_shard.iter().filter(|(_, regions)| regions.contains_key(region));
        let shards: Vec<_> = told.map(|(shard, _)| shard.clone()).collect();
        shards.iter().for_each(|shard| self.end(shard, region));
        shards
    }

    /// Whether a region was told to drop the shard, and has not answered.
    pub(super) fn waits_for(&self, shard: &ShardId) -> bool {
        self.by_shard.contains_key(shard)
    }

    /// Whether the region was told to drop something, and has not answered.
    pub(super) fn waits_for_region(&self, region: &RegionId) -> bool {
        self.by_shard.values().any(|regions| regions.contains_key(region))
    }

    /// When something is said again.
    pub(super) fn next(&self) -> Option<Instant> {
        self.due.next()
    }

    /// What is to be said again now; it is due next at `again`.
    pub(super) fn repeat(&mut self, now: Instant, again: Instant) -> Vec<(ShardId, RegionId, Generation)> {
        let due = self.due.due(now);
        due.iter().for_each(|key| self.due.set(key, again));
        let generation = |shard: &ShardId, region: &RegionId| self.by_shard.get(shard)?.get(region).copied();
        due.into_iter()
            .filter_map(|(shard, region)| {
                let generation = generation(&shard, &region)?;
                Some((shard, region, generation))
            })
            .collect()
    }
}
