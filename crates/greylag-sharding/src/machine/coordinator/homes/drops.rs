//! Claims that lost: `DropShard` is repeated to a region until it answers that nothing of the shard lives there.
//!
//! Until then the shard is given to no region. Source: sharding §2.2 (`DropShard`), §2.13.

use std::collections::BTreeMap;
use std::time::Instant;

use greylag_core::Generation;

use super::checked::CHECKED;
use crate::ids::{RegionId, ShardId};
use crate::timetable::Timetable;

/// See the module's description.
#[derive(Debug, Default)]
pub(in crate::machine::coordinator) struct Drops {
    by_shard: BTreeMap<ShardId, BTreeMap<RegionId, Generation>>,
    due: Timetable<(ShardId, RegionId)>,
}

impl Drops {
    /// Notes that the region was told to drop its claim; `again` is the time of the repetition.
    pub(in crate::machine::coordinator) fn add(
        &mut self,
        shard: &ShardId,
        region: &RegionId,
        generation: Generation,
        again: Instant,
    ) {
        self.by_shard.entry(shard.clone()).or_default().insert(region.clone(), generation);
        self.due.set(&(shard.clone(), region.clone()), again);
    }

    /// Notes that nothing of the shard up to that generation lives in the region. Returns whether that ends a drop.
    pub(in crate::machine::coordinator) fn stopped(
        &mut self,
        shard: &ShardId,
        region: &RegionId,
        generation: Generation,
    ) -> bool {
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

    /// Forgets a region that is gone, and its claims. Returns their shards.
    pub(in crate::machine::coordinator) fn forget(&mut self, region: &RegionId) -> Vec<ShardId> {
        let told = self.by_shard.iter().filter(|(_, regions)| regions.contains_key(region));
        let shards: Vec<_> = told.map(|(shard, _)| shard.clone()).collect();
        shards.iter().for_each(|shard| self.end(shard, region));
        shards
    }

    /// Whether a region was told to drop the shard, and has not answered.
    pub(in crate::machine::coordinator) fn waits_for(&self, shard: &ShardId) -> bool {
        self.by_shard.contains_key(shard)
    }

    /// Whether the region was told to drop any shard, and has not answered.
    pub(in crate::machine::coordinator) fn waits_for_region(&self, region: &RegionId) -> bool {
        self.by_shard.values().any(|regions| regions.contains_key(region))
    }

    /// Source: sharding §2.13.
    pub(in crate::machine::coordinator) fn check_invariants(&self) {
        if cfg!(debug_assertions) && self.by_shard.len() <= CHECKED {
            let told: usize = self.by_shard.values().map(BTreeMap::len).sum();
            assert_eq!(self.due.len(), told, "each order to drop is repeated until it is answered");
            assert!(self.by_shard.values().all(|regions| !regions.is_empty()), "a shard waits for a region");
        }
    }

    /// When the next order is repeated.
    pub(in crate::machine::coordinator) fn next(&self) -> Option<Instant> {
        self.due.next()
    }

    /// The orders to repeat now; they are due next at `again`.
    pub(in crate::machine::coordinator) fn repeat(
        &mut self,
        now: Instant,
        again: Instant,
    ) -> Vec<(ShardId, RegionId, Generation)> {
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
