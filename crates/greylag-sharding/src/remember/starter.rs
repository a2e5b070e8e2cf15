//! Starts the remembered entities of a region's shards again, with one limit for all of them.
//!
//! Shards queue in the order in which they were loaded. Each start is a request through the region, so that an entity
//! whose id maps to another shard by now starts there; a request that is not acked is repeated. Once all entities of a
//! shard are acked, the entities that another shard acked are removed from the old shard's store.
//!
//! ```text
//! Loaded(shard, ids) --> Start(id)* --Acked(own shard)--> done
//!                                   --Acked(another one)--> ... all acked: Moved(ids)
//! ```
//! Source: sharding §4.9.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use greylag_core::Generation;

use crate::ids::{EntityId, ShardId};
use crate::settings::{EntityRecovery, RememberSettings};

/// Most requests under way without a rate limit: other work has its turn between the acks.
const MOST_UNDER_WAY: usize = 1_000;

/// An input to the [`Starter`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Input {
    /// A shard has begun, with these remembered entities.
    Loaded { shard: ShardId, generation: Generation, ids: Vec<EntityId> },
    /// An entity runs in a shard, or that shard will start it. `of`: the shard whose store has the entity.
    Acked { of: ShardId, id: EntityId, by: ShardId },
    /// A shard has ended: its entities are not started by this region any more.
    Ended { shard: ShardId, generation: Generation },
    /// A deadline has come.
    Tick,
}

/// An order to the driver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Effect {
    /// Ask the region to start an entity.
    Start { of: ShardId, id: EntityId },
    /// Tell a shard that these of its entities live in other shards.
    Moved { shard: ShardId, generation: Generation, ids: Vec<EntityId> },
}

/// A shard whose entities are being started.
#[derive(Debug)]
struct Shard {
    generation: Generation,
    /// Entities not requested yet.
    left: VecDeque<EntityId>,
    /// Requested entities, and when each request is repeated.
    unacked: BTreeMap<EntityId, Instant>,
    moved: Vec<EntityId>,
}

/// See the module's description.
#[derive(Debug)]
pub(crate) struct Starter {
    retry_interval: Duration,
    /// Number of starts per lot, and the time between two lots; `None`: no limit.
    rate: Option<(u32, Duration)>,
    shards: BTreeMap<ShardId, Shard>,
    /// Shards with entities that were not requested yet, in the order of loading.
    queue: VecDeque<ShardId>,
    /// All unacked requests, by the time of their repetition.
    retries: BTreeSet<(Instant, ShardId, EntityId)>,
    /// The earliest time of the next lot.
    next_lot_at: Option<Instant>,
}

impl Starter {
    pub(crate) fn new(settings: &RememberSettings, retry_interval: Duration) -> Self {
        let rate = match settings.recovery {
            EntityRecovery::All => None,
            EntityRecovery::Constant => Some((settings.number_of_entities.get(), settings.frequency)),
        };
        Self {
            retry_interval,
            rate,
            shards: BTreeMap::new(),
            queue: VecDeque::new(),
            retries: BTreeSet::new(),
            next_lot_at: None,
        }
    }

    /// Takes one input.
    pub(crate) fn handle(&mut self, now: Instant, input: Input, out: &mut Vec<Effect>) {
        match input {
            Input::Loaded { shard, generation, ids } => self.on_loaded(shard, generation, ids),
            Input::Acked { of, id, by } => self.on_acked(&of, id, &by, out),
            Input::Ended { shard, generation } => self.on_ended(&shard, generation),
            Input::Tick => self.retry(now, out),
        }
        self.start_more(now, out);
        self.check_invariants();
    }

    /// Source: sharding §4.9.
    fn check_invariants(&self) {
        if !cfg!(debug_assertions) {
            return;
        }
        let unacked: usize = self.shards.values().map(|shard| shard.unacked.len()).sum();
        assert_eq!(self.retries.len(), unacked, "each request that was not acked is repeated");
        assert!(self.rate.is_some() || unacked <= MOST_UNDER_WAY, "the requests under way are bounded");
        assert!(self.queue.is_empty() || self.next_deadline().is_some(), "entities that wait are started later");
        if self.shards.len() <= 32 {
            let waiting: BTreeSet<_> = self.queue.iter().collect();
            assert_eq!(waiting.len(), self.queue.len(), "a shard queues once");
            for (id, shard) in &self.shards {
                assert_eq!(
                    waiting.contains(id),
                    !shard.left.is_empty(),
                    "{id:?} queues while it has entities to start"
                );
                assert!(!shard.left.is_empty() || !shard.unacked.is_empty(), "{id:?} is done once all are acked");
            }
        }
    }

    /// When a `Tick` next has work to do.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        let retry = self.retries.first().map(|(at, _, _)| *at);
        let lot = self.next_lot_at.filter(|_| !self.queue.is_empty());
        [retry, lot].into_iter().flatten().min()
    }

    fn on_loaded(&mut self, shard: ShardId, generation: Generation, ids: Vec<EntityId>) {
        self.forget(&shard);
        if ids.is_empty() {
            return;
        }
        self.queue.push_back(shard.clone());
        let left = ids.into();
        self.shards.insert(shard, Shard { generation, left, unacked: BTreeMap::new(), moved: Vec::new() });
    }

    fn on_acked(&mut self, of: &ShardId, id: EntityId, by: &ShardId, out: &mut Vec<Effect>) {
        let Some(shard) = self.shards.get_mut(of) else { return };
        // Ignore a repeated ack, and an ack for a shard that has begun anew.
        let Some(retry_at) = shard.unacked.remove(&id) else { return };
        self.retries.remove(&(retry_at, of.clone(), id.clone()));
        if by != of {
            shard.moved.push(id);
        }
        if shard.left.is_empty() && shard.unacked.is_empty() {
            let Shard { generation, moved, .. } = self.shards.remove(of).expect("found above");
            if !moved.is_empty() {
                out.push(Effect::Moved { shard: of.clone(), generation, ids: moved });
            }
        }
    }

    fn on_ended(&mut self, shard: &ShardId, generation: Generation) {
        if self.shards.get(shard).is_some_and(|known| known.generation == generation) {
            self.forget(shard);
        }
    }

    fn forget(&mut self, shard: &ShardId) {
        if let Some(known) = self.shards.remove(shard) {
            self.queue.retain(|queued| queued != shard);
            for (id, at) in known.unacked {
                self.retries.remove(&(at, shard.clone(), id));
            }
        }
    }

    /// Repeats requests that were not acked in time.
    fn retry(&mut self, now: Instant, out: &mut Vec<Effect>) {
        while let Some((at, of, id)) = self.retries.first().cloned()
            && at <= now
        {
            self.retries.pop_first();
            self.ask(now, &of, id, out);
        }
    }

    fn ask(&mut self, now: Instant, of: &ShardId, id: EntityId, out: &mut Vec<Effect>) {
        let Some(shard) = self.shards.get_mut(of) else { return };
        let retry_at = now + self.retry_interval;
        shard.unacked.insert(id.clone(), retry_at);
        self.retries.insert((retry_at, of.clone(), id.clone()));
        out.push(Effect::Start { of: of.clone(), id });
    }

    /// Requests as many starts as are allowed now.
    fn start_more(&mut self, now: Instant, out: &mut Vec<Effect>) {
        let mut may_start = match self.rate {
            None => MOST_UNDER_WAY.saturating_sub(self.retries.len()),
            Some(_) if self.next_lot_at.is_some_and(|at| now < at) => 0,
            Some((number, _)) => number as usize,
        };
        let before = out.len();
        while may_start > 0
            && let Some(of) = self.queue.front().cloned()
        {
            match self.shards.get_mut(&of).and_then(|shard| shard.left.pop_front()) {
                Some(id) => {
                    self.ask(now, &of, id, out);
                    may_start -= 1;
                }
                None => drop(self.queue.pop_front()),
            }
            if self.shards.get(&of).is_none_or(|shard| shard.left.is_empty()) {
                self.queue.retain(|queued| *queued != of);
            }
        }
        if let Some((_, frequency)) = self.rate
            && out.len() > before
        {
            self.next_lot_at = Some(now + frequency);
        }
    }
}

#[cfg(test)]
mod tests;
