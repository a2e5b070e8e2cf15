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

use super::protocol::Effect;
use super::{Coordinator, CoordinatorState};
use crate::ids::{RegionId, ShardId};
use crate::machine::message::CoordinatorMessage;
use crate::timetable::Timetable;

/// Most requests kept at a time. Further requests are ignored, as their region repeats them.
const MAX_REQUESTS: usize = 1024;

/// A request: the region that asks, and the region's number for it.
type Key = (RegionId, u64);

/// The shards of one request.
#[derive(Debug, Default)]
struct Request {
    waiting: BTreeSet<ShardId>,
    stopped: BTreeSet<ShardId>,
}

/// See the module's description.
#[derive(Debug, Default)]
pub(super) struct Stops {
    requests: BTreeMap<Key, Request>,
    /// The requests that wait for each shard.
    by_shard: BTreeMap<ShardId, BTreeSet<Key>>,
    /// Awaited shards that may have stopped, or could be stopped now.
    fresh: BTreeSet<ShardId>,
    ends: Timetable<Key>,
}

impl Stops {
    /// Takes a request, to be forgotten at `end`. Returns the shards that have stopped for it already.
    fn take(&mut self, key: &Key, shards: Vec<ShardId>, end: Instant) -> Vec<ShardId> {
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
    pub(super) fn mark_fresh(&mut self, shard: &ShardId) {
        if self.by_shard.contains_key(shard) {
            self.fresh.insert(shard.clone());
        }
    }

    /// Notes that the shard has stopped; returns the requests that waited for it.
    fn stopped(&mut self, shard: &ShardId) -> BTreeSet<Key> {
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
    pub(super) fn forget(&mut self, region: &RegionId) {
        let keys: Vec<_> = self.requests.keys().filter(|(asker, _)| asker == region).cloned().collect();
        keys.iter().for_each(|key| self.end(key));
    }

    /// When the next request is forgotten.
    pub(super) fn next(&self) -> Option<Instant> {
        self.ends.next()
    }

    /// Forgets the requests whose timeout has passed.
    pub(super) fn end_due(&mut self, now: Instant) {
        self.ends.due(now).iter().for_each(|key| self.end(key));
    }
}

impl Coordinator {
    pub(super) fn on_stop_shards(
        &mut self,
        now: Instant,
        region: &RegionId,
        request: u64,
        shards: Vec<ShardId>,
        out: &mut Vec<Effect>,
    ) {
        // Keep nothing for later: the region repeats the request until it is answered.
        let is_refused = self.registry.get(region).is_none_or(|entry| entry.refused);
        if self.state != CoordinatorState::Active || is_refused {
            return;
        }
        if self.epoch_state.fingerprint.remember_entities {
            return self.send(region, CoordinatorMessage::StopShardsRefused { request }, out);
        }
        let end = now + self.config.settings.handoff_timeout;
        let shards = self.stops.take(&(region.clone(), request), shards, end);
        if !shards.is_empty() {
            self.send(region, CoordinatorMessage::ShardsStopped { request, shards }, out);
        }
    }

    /// Begins the requested handoffs, and tells regions which shards have stopped.
    pub(super) fn settle_stops(&mut self, now: Instant, out: &mut Vec<Effect>) {
        let mut stopped: BTreeMap<Key, Vec<ShardId>> = BTreeMap::new();
        for shard in std::mem::take(&mut self.stops.fresh) {
            if self.is_unallocated(&shard) {
                for key in self.stops.stopped(&shard) {
                    stopped.entry(key).or_default().push(shard.clone());
                }
                continue;
            }
            // A shard whose decision is not durable yet becomes fresh again once it is.
            self.begin_handoff(now, &shard, out);
            self.handoffs.only_stop(&shard);
        }
        for ((region, request), shards) in stopped {
            self.send(&region, CoordinatorMessage::ShardsStopped { request, shards }, out);
        }
    }

    pub(super) fn on_get_current_regions(&self, region: &RegionId, request: u64, out: &mut Vec<Effect>) {
        if self.state == CoordinatorState::Active {
            let regions = self.hosting_regions().cloned().collect();
            self.send(region, CoordinatorMessage::CurrentRegions { request, regions }, out);
        }
    }
}
