//! The shards that need a home: which regions wait for them, and the question to the strategy.
//!
//! A shard is looked at when something about it changed (*fresh*), not at every input: while 100,000 homes are being
//! committed, a request more costs what the first one did. Source: sharding §2.7, scenario 106.

use std::collections::{BTreeMap, BTreeSet};

use crate::ids::{RegionId, ShardId};

/// Answers of the strategy that may be unusable before a request is dropped.
const STRATEGY_TRIES: u32 = 3;

/// See the module's description.
#[derive(Debug, Default)]
pub(super) struct Requests {
    /// By shard, the regions that wait for its home.
    waiting: BTreeMap<ShardId, BTreeSet<RegionId>>,
    /// Shards to be allocated although no region asks: they came out of a handoff.
    eager: BTreeSet<ShardId>,
    /// Of both, those that may have to be given a home now.
    fresh: BTreeSet<ShardId>,
    /// Asked of the strategy, under the number of the call.
    asked: Option<(u64, BTreeSet<ShardId>)>,
    calls: u64,
    failures: BTreeMap<ShardId, u32>,
}

impl Requests {
    /// A region waits for a shard's home.
    pub(super) fn ask(&mut self, region: &RegionId, shard: ShardId) {
        self.fresh.insert(shard.clone());
        self.waiting.entry(shard).or_default().insert(region.clone());
    }

    /// The shard gets a home whether or not a region asks.
    pub(super) fn make_eager(&mut self, shard: &ShardId) {
        self.eager.insert(shard.clone());
        self.fresh.insert(shard.clone());
    }

    /// Something about the shard has changed: it may need a home now.
    pub(super) fn look_again(&mut self, shard: &ShardId) {
        if self.waiting.contains_key(shard) || self.eager.contains(shard) {
            self.fresh.insert(shard.clone());
        }
    }

    /// A region is gone: it waits for nothing.
    pub(super) fn forget(&mut self, region: &RegionId) {
        self.waiting.retain(|_, waiting| {
            waiting.remove(region);
            !waiting.is_empty()
        });
    }

    /// The shards for which regions wait.
    pub(super) fn awaited(&self) -> impl Iterator<Item = &ShardId> {
        self.waiting.keys()
    }

    /// The regions that wait for the shard; they are answered now.
    pub(super) fn answer(&mut self, shard: &ShardId) -> BTreeSet<RegionId> {
        self.waiting.remove(shard).unwrap_or_default()
    }

    /// Whether the strategy could be asked for something.
    pub(super) fn is_call_due(&self) -> bool {
        self.asked.is_none() && !self.fresh.is_empty()
    }

    /// Those of the fresh shards that are wanted, and that a region or the coordinator itself waits for.
    pub(super) fn wanted(&self, is_wanted: impl Fn(&ShardId) -> bool) -> Vec<ShardId> {
        let needs = |shard: &&ShardId| self.waiting.contains_key(*shard) || self.eager.contains(*shard);
        self.fresh.iter().filter(needs).filter(|shard| is_wanted(shard)).cloned().collect()
    }

    /// Begins a call of the strategy for those of the fresh shards that are wanted: its number, and each shard with the
    /// region that asked first.
    pub(super) fn begin_call(
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

    /// The strategy has answered: the shards that it was asked for. `None` for another call.
    pub(super) fn end_call(&mut self, call: u64) -> Option<BTreeSet<ShardId>> {
        self.asked.take_if(|(number, _)| *number == call).map(|(_, asked)| asked)
    }

    /// The shard has a home by what is decided.
    pub(super) fn decided(&mut self, shard: &ShardId) {
        self.eager.remove(shard);
        self.failures.remove(shard);
    }

    /// The strategy gave no usable answer. Answers whether the request is dropped now.
    pub(super) fn fail(&mut self, shard: &ShardId) -> bool {
        let failures = self.failures.entry(shard.clone()).or_default();
        *failures += 1;
        if *failures < STRATEGY_TRIES {
            self.look_again(shard);
            return false;
        }
        self.failures.remove(shard);
        self.waiting.remove(shard);
        self.eager.remove(shard);
        true
    }
}
