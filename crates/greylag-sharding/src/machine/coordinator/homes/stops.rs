//! Stopping shards at a region's request, and telling the region which of them have stopped.
//!
//! ```text
//! StopShards(request, shards) --> handoff of each shard that has a home --ShardStopped--> ShardsStopped(request, shards)
//! ```
//! A stopped shard gets no new home before a region asks for one. A request is repeated until it is answered, and its
//! number tells a repetition from a new request: a shard that has stopped for it is not stopped a second time. The
//! coordinator forgets a request after `handoff_timeout`. Source: sharding §2.11.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use super::checked::CHECKED;
use crate::ids::{RegionId, ShardId};
use crate::timetable::Timetable;

/// Most requests kept at a time. Further requests are ignored, as their region repeats them.
const MAX_REQUESTS: usize = 1024;

/// A request: the region that asks, and the region's number for it.
pub(in crate::machine::coordinator) type Key = (RegionId, u64);

/// The shards of one request.
#[derive(Debug, Default)]
struct Request {
    waiting: BTreeSet<ShardId>,
    stopped: BTreeSet<ShardId>,
}

/// See the module's description.
#[derive(Debug, Default)]
pub(in crate::machine::coordinator) struct Stops {
    requests: BTreeMap<Key, Request>,
    /// The requests that wait for each shard.
    by_shard: BTreeMap<ShardId, BTreeSet<Key>>,
    /// Awaited shards that may have stopped, or could be stopped now.
    fresh: BTreeSet<ShardId>,
    ends: Timetable<Key>,
}

impl Stops {
    /// Takes a request, to be forgotten at `end`. Returns the shards that have stopped for it already.
    pub(in crate::machine::coordinator) fn take(
        &mut self,
        key: &Key,
        shards: Vec<ShardId>,
        end: Instant,
    ) -> Vec<ShardId> {
        if let Some(known) = self.requests.get(key) {
            // Try handoffs again that were given up since.
            self.fresh.extend(known.waiting.iter().cloned());
            return known.stopped.iter().cloned().collect();
        }
        if self.requests.len() < MAX_REQUESTS {
            let waiting: BTreeSet<_> = shards.into_iter().collect();
            for shard in &waiting {
                self.by_shard.entry(shard.clone()).or_default().insert(key.clone());
            }
            self.fresh.extend(waiting.iter().cloned());
            self.requests.insert(key.clone(), Request { waiting, ..Request::default() });
            self.ends.set(key, end);
        }
        Vec::new()
    }

    /// Marks the shard as fresh: something about it has changed.
    pub(in crate::machine::coordinator) fn mark_fresh(&mut self, shard: &ShardId) {
        if self.by_shard.contains_key(shard) {
            self.fresh.insert(shard.clone());
        }
    }

    /// Takes out the shards that may have stopped, or could be stopped now.
    pub(in crate::machine::coordinator) fn take_fresh(&mut self) -> BTreeSet<ShardId> {
        std::mem::take(&mut self.fresh)
    }

    /// Notes that the shard has stopped; returns the requests that waited for it.
    pub(in crate::machine::coordinator) fn stopped(&mut self, shard: &ShardId) -> BTreeSet<Key> {
        let keys = self.by_shard.remove(shard).unwrap_or_default();
        for key in &keys {
            if let Some(request) = self.requests.get_mut(key) {
                request.waiting.remove(shard);
                request.stopped.insert(shard.clone());
            }
        }
        keys
    }

    fn end(&mut self, key: &Key) {
        self.ends.remove(key);
        for shard in self.requests.remove(key).unwrap_or_default().waiting {
            let keys = self.by_shard.get_mut(&shard);
            if keys.is_some_and(|keys| keys.remove(key) && keys.is_empty()) {
                self.by_shard.remove(&shard);
                self.fresh.remove(&shard);
            }
        }
    }

    /// Removes the requests of a region that is gone.
    pub(in crate::machine::coordinator) fn forget(&mut self, region: &RegionId) {
        let keys: Vec<_> = self.requests.keys().filter(|(asker, _)| asker == region).cloned().collect();
        keys.iter().for_each(|key| self.end(key));
    }

    /// Source: sharding §2.11.
    pub(in crate::machine::coordinator) fn check_invariants(&self) {
        if !cfg!(debug_assertions) {
            return;
        }
        assert!(self.requests.len() <= MAX_REQUESTS, "the requests are bounded");
        if self.requests.len() > CHECKED || self.by_shard.len() > CHECKED {
            return;
        }
        assert_eq!(self.ends.len(), self.requests.len(), "each request is forgotten in the end");
        for (key, request) in &self.requests {
            assert!(self.ends.get(key).is_some(), "each request is forgotten in the end");
            let knows = |shard: &ShardId| self.by_shard.get(shard).is_some_and(|keys| keys.contains(key));
            assert!(request.waiting.iter().all(knows), "a shard knows the requests that wait for it");
        }
        let waiting: usize = self.requests.values().map(|request| request.waiting.len()).sum();
        let known: usize = self.by_shard.values().map(BTreeSet::len).sum();
        assert_eq!(known, waiting, "a shard knows only requests that wait for it");
        assert!(self.fresh.iter().all(|shard| self.by_shard.contains_key(shard)), "only awaited shards are looked at");
    }

    /// The regions that ask, as often as they do.
    pub(in crate::machine::coordinator) fn askers(&self) -> impl Iterator<Item = &RegionId> {
        self.requests.keys().map(|(region, _)| region)
    }

    /// When the next request is forgotten.
    pub(in crate::machine::coordinator) fn next(&self) -> Option<Instant> {
        self.ends.next()
    }

    /// Forgets the requests whose timeout has passed.
    pub(in crate::machine::coordinator) fn end_due(&mut self, now: Instant) {
        self.ends.due(now).iter().for_each(|key| self.end(key));
    }
}
