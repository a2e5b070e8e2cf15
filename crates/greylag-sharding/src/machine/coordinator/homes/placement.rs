//! The shards of each region, by the decisions so far: durable homes and decisions under way.
//!
//! A strategy gets all of them at every call. So the lists are updated as decisions are made, and shared with the views
//! in use: the cost of a call grows with the regions and not with the shards.
//!
//! Source: sharding §3 (`View`), §10, scenario 106.

use std::collections::BTreeMap;

use greylag_core::Generation;

use crate::allocation::ShardList;
use crate::ids::{RegionId, ShardId};

/// See the module's description.
#[derive(Debug, Default)]
pub(in crate::machine::coordinator) struct Placement(BTreeMap<RegionId, Hosted>);

/// The shards of one region, and the generation of each, both in the order of generations: the order of allocation.
#[derive(Debug, Default)]
struct Hosted {
    shards: ShardList,
    generations: Vec<Generation>,
}

impl Placement {
    /// Adds a shard to a region.
    pub(in crate::machine::coordinator) fn add(&mut self, region: &RegionId, shard: &ShardId, generation: Generation) {
        let hosted = self.0.entry(region.clone()).or_default();
        let at = hosted.generations.partition_point(|known| *known < generation);
        hosted.generations.insert(at, generation);
        hosted.shards.insert(at, shard.clone());
    }

    /// Removes a shard from a region.
    pub(in crate::machine::coordinator) fn remove(
        &mut self,
        region: &RegionId,
        shard: &ShardId,
        generation: Generation,
    ) {
        let Some(hosted) = self.0.get_mut(region) else { return };
        let first = hosted.generations.partition_point(|known| *known < generation);
        // Generations of one type should differ, but after a loss of state claims may share one.
        let found = hosted.shards[first..].iter().position(|known| known == shard);
        if let Some(at) = found.map(|found| first + found) {
            hosted.generations.remove(at);
            hosted.shards.remove(at);
        }
        if hosted.generations.is_empty() {
            self.0.remove(region);
        }
    }

    /// The shards that the region hosts, in the order of allocation.
    pub(in crate::machine::coordinator) fn of(&self, region: &RegionId) -> ShardList {
        self.0.get(region).map(|hosted| hosted.shards.clone()).unwrap_or_default()
    }

    /// In debug builds: the shards with their regions and generations.
    pub(in crate::machine::coordinator) fn all(&self) -> impl Iterator<Item = (&ShardId, &RegionId, Generation)> {
        self.0.iter().flat_map(|(region, hosted)| {
            debug_assert!(!hosted.generations.is_empty(), "{region:?} has a shard");
            debug_assert!(hosted.generations.is_sorted(), "{region:?}: shards stand in the order of allocation");
            debug_assert_eq!(hosted.generations.len(), hosted.shards.len(), "{region:?}: each shard has a generation");
            hosted.shards.iter().zip(&hosted.generations).map(move |(shard, generation)| (shard, region, *generation))
        })
    }

    /// The regions that have shards.
    pub(in crate::machine::coordinator) fn regions(&self) -> impl Iterator<Item = &RegionId> {
        self.0.keys()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn generation(seq: u64) -> Generation {
        Generation::new(1, seq).unwrap()
    }

    fn region(n: u64) -> RegionId {
        RegionId { node: format!("n{n}:1#{n}").parse().unwrap(), incarnation: 1 }
    }

    #[test]
    fn shards_stand_in_the_order_of_their_generations_and_leave() {
        let mut placement = Placement::default();
        let shard = ShardId::from_index;
        for (index, seq) in [(7, 1), (3, 5), (9, 3), (4, 3)] {
            placement.add(&region(1), &shard(index), generation(seq));
        }
        let out = placement.of(&region(1));
        assert_eq!(*out, [7, 4, 9, 3].map(shard));
        placement.remove(&region(1), &shard(9), generation(3));
        placement.remove(&region(1), &shard(8), generation(3));
        placement.remove(&region(2), &shard(7), generation(1));
        assert_eq!(*placement.of(&region(1)), [7, 4, 3].map(shard));
        assert_eq!(out.len(), 4, "a view that is out keeps what it showed");
        for (index, seq) in [(7, 1), (3, 5), (4, 3)] {
            placement.remove(&region(1), &shard(index), generation(seq));
        }
        assert_eq!(placement.regions().count(), 0);
        assert!(placement.of(&region(1)).is_empty());
    }
}
