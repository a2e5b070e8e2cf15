//! The shards that need a home: the regions that wait for them, and the call of the strategy.
//!
//! A shard is checked when something about it changed (*fresh*), not at every input: while 100,000 homes are being
//! committed, each further request costs what the first one did. Source: sharding §2.7, scenario 106.

use std::collections::{BTreeMap, BTreeSet};

use super::checked::CHECKED;
use crate::ids::{RegionId, ShardId};

/// Unusable answers of the strategy before a request is dropped.
const STRATEGY_TRIES: u32 = 3;

/// See the module's description.
#[derive(Debug, Default)]
pub(in crate::machine::coordinator) struct Requests {
    /// The regions that wait for the home of each shard.
    waiting: BTreeMap<ShardId, BTreeSet<RegionId>>,
    /// Shards to be allocated although no region asks: they come out of a handoff, or are remembered.
    eager: BTreeSet<ShardId>,
    /// Shards of `waiting` and `eager` that may need a home now.
    fresh: BTreeSet<ShardId>,
    /// The shards of the strategy call under way, with the number of the call.
    asked: Option<(u64, BTreeSet<ShardId>)>,
    calls: u64,
    failures: BTreeMap<ShardId, u32>,
}

impl Requests {
    /// Adds a region that waits for a shard's home.
    pub(in crate::machine::coordinator) fn ask(&mut self, region: &RegionId, shard: ShardId) {
        self.fresh.insert(shard.clone());
        self.waiting.entry(shard).or_default().insert(region.clone());
    }

    /// Makes the shard get a home whether or not a region asks.
    pub(in crate::machine::coordinator) fn make_eager(&mut self, shard: &ShardId) {
        self.eager.insert(shard.clone());
        self.fresh.insert(shard.clone());
    }

    /// Marks the shard as fresh: something has changed, and it may need a home now.
    pub(in crate::machine::coordinator) fn mark_fresh(&mut self, shard: &ShardId) {
        if self.waiting.contains_key(shard) || self.eager.contains(shard) {
            self.fresh.insert(shard.clone());
        }
    }

    /// Removes a region that is gone.
    pub(in crate::machine::coordinator) fn forget(&mut self, region: &RegionId) {
        self.waiting.retain(|_, waiting| {
            waiting.remove(region);
            !waiting.is_empty()
        });
    }

    /// Source: sharding §2.7.
    pub(in crate::machine::coordinator) fn check_invariants(&self) {
        if cfg!(debug_assertions) && self.waiting.len() <= CHECKED {
            assert!(self.waiting.values().all(|regions| !regions.is_empty()), "a shard is awaited by a region");
            let is_dropped = |failures: &u32| *failures >= STRATEGY_TRIES;
            assert!(!self.failures.values().any(is_dropped), "a request that failed too often is dropped");
        }
        let newest = self.asked.as_ref().is_none_or(|(call, _)| *call == self.calls);
        debug_assert!(newest, "one call is under way at a time");
    }

    /// The regions that wait for homes, as often as they do.
    pub(in crate::machine::coordinator) fn askers(&self) -> impl Iterator<Item = &RegionId> {
        self.waiting.values().flatten()
    }

    /// The shards for which regions wait.
    pub(in crate::machine::coordinator) fn awaited(&self) -> impl Iterator<Item = &ShardId> {
        self.waiting.keys()
    }

    /// Takes out the regions that wait for the shard, to be answered now.
    pub(in crate::machine::coordinator) fn answer(&mut self, shard: &ShardId) -> BTreeSet<RegionId> {
        self.waiting.remove(shard).unwrap_or_default()
    }

    /// Whether a call could be made for fresh shards.
    pub(in crate::machine::coordinator) fn is_call_due(&self) -> bool {
        self.asked.is_none() && !self.fresh.is_empty()
    }

    /// The fresh shards that `is_wanted` selects, and that a region or the coordinator itself waits for.
    pub(in crate::machine::coordinator) fn wanted(&self, is_wanted: impl Fn(&ShardId) -> bool) -> Vec<ShardId> {
        let needs = |shard: &&ShardId| self.waiting.contains_key(*shard) || self.eager.contains(*shard);
        self.fresh.iter().filter(needs).filter(|shard| is_wanted(shard)).cloned().collect()
    }

    /// Begins a call of the strategy for the wanted fresh shards: returns its number, and each shard with the region
    /// that asked first.
    pub(in crate::machine::coordinator) fn begin_call(
        &mut self,
        is_wanted: impl Fn(&ShardId) -> bool,
    ) -> Option<(u64, Vec<(ShardId, Option<RegionId>)>)> {
        let fresh = std::mem::take(&mut self.fresh);
        let needs = |shard: &ShardId| self.waiting.contains_key(shard) || self.eager.contains(shard);
        let wanted: BTreeSet<_> = fresh.into_iter().filter(|shard| needs(shard) && is_wanted(shard)).collect();
        if wanted.is_empty() {
            return None;
        }
        self.calls += 1;
        let asker = |shard: &ShardId| self.waiting.get(shard).and_then(|waiting| waiting.first().cloned());
        let shards = wanted.iter().map(|shard| (shard.clone(), asker(shard))).collect();
        self.asked = Some((self.calls, wanted));
        Some((self.calls, shards))
    }

    /// Ends the answered call and returns its shards. `None` if it is not the call under way.
    pub(in crate::machine::coordinator) fn end_call(&mut self, call: u64) -> Option<BTreeSet<ShardId>> {
        self.asked.take_if(|(number, _)| *number == call).map(|(_, asked)| asked)
    }

    /// Notes that a home of the shard is decided.
    pub(in crate::machine::coordinator) fn decided(&mut self, shard: &ShardId) {
        self.eager.remove(shard);
        self.failures.remove(shard);
    }

    /// Counts an unusable answer of the strategy. Returns whether the request is dropped now.
    pub(in crate::machine::coordinator) fn fail(&mut self, shard: &ShardId) -> bool {
        let failures = self.failures.entry(shard.clone()).or_default();
        *failures += 1;
        if *failures < STRATEGY_TRIES {
            self.mark_fresh(shard);
            return false;
        }
        self.failures.remove(shard);
        self.waiting.remove(shard);
        self.eager.remove(shard);
        true
    }
}
