//! The counters of a region, as one snapshot.
//!
//! Source: sharding §6.5 (metrics).

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use greylag_core::DeadLetterReason;

use crate::driver::coordinator::coordinated::CoordinatorMetrics;
use crate::driver::metrics::handlers::{Handled, HandlerCounts};
use crate::driver::metrics::histogram::{Histogram, WriteRecorder, Writes};
#[cfg(doc)]
use crate::driver::questions::inspect::Inspector;
use crate::machine::message::ClaimState;
use crate::machine::region::Counters;
use crate::machine::shard::Uses;

/// Counters and gauges of one entity type on one node. Counters run since its region began. Source: sharding §6.5.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RegionMetrics {
    /// Shards that this node has a route to, including its own.
    pub homes: usize,
    /// The shards hosted here.
    pub shards: ShardsByState,
    /// Entities that live on this node or have messages waiting. By state: [`Inspector::region_stats`].
    pub entities: u64,
    /// Counts of the messages that passed through the region's machine, and of those buffered now. Messages that took
    /// the direct way, from a sender to a shard's inbox or to a lane, are not counted.
    pub messages: Counters,
    /// Messages dropped on this node, by reason.
    pub dead_letters: BTreeMap<DeadLetterReason, u64>,
    /// How much of `buffer_size` is taken by messages that wait in the region, from 0 to 100.
    pub buffer_percent: u8,
    /// Messages that wait in the inboxes of the shards hosted here.
    pub inbox_depth: usize,
    /// Counters of the handlers.
    pub handlers: HandlerCounts,
    /// Run times of handlers. Short handlers are measured together, and each counts with their mean.
    pub handler_times: Histogram,
    /// How often entities were found in memory, and how often they were passivated.
    pub passivation: PassivationCounts,
    /// Writes to the store of remembered entities.
    pub remembered: Writes,
    /// Number of shards whose outdated routes were reported to other nodes.
    pub stale_routes: u64,
    /// Counters of the type's coordinator on this node; all zero if it never ran here.
    pub coordinator: CoordinatorMetrics,
}

/// The counters of one region, written by many threads.
#[derive(Default)]
pub(crate) struct Counts {
    pub(crate) handled: Arc<Handled>,
    pub(crate) tally: Arc<EntityTally>,
    pub(crate) remember_writes: Arc<WriteRecorder>,
    /// Number of shards whose outdated routes were reported to other nodes.
    pub(crate) stale_routes: AtomicU64,
    pub(crate) dead_letters: DeadLetters,
}

impl Counts {
    /// The metrics of these counters; the rest is left at its default.
    pub(crate) fn read(&self) -> RegionMetrics {
        RegionMetrics {
            entities: self.tally.entities(),
            dead_letters: self.dead_letters.counts(),
            handlers: self.handled.counts(),
            handler_times: self.handled.times(),
            passivation: self.tally.passivation(),
            remembered: self.remember_writes.writes(),
            stale_routes: self.stale_routes.load(Ordering::Relaxed),
            ..RegionMetrics::default()
        }
    }
}

/// Counters of automatic passivation on this node. Source: sharding §4.10, §6.5.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PassivationCounts {
    /// Messages, of those that count as activity, that found their entity in memory.
    pub hits: u64,
    /// Messages that had to start their entity.
    pub misses: u64,
    /// Entities that were asked to stop because they were idle, or too many.
    pub evicted: u64,
}

impl PassivationCounts {
    /// The share of messages that found their entity in memory, from 0.0 to 1.0; `None` before the first.
    pub fn hit_rate(&self) -> Option<f64> {
        let all = self.hits.saturating_add(self.misses);
        (all > 0).then(|| self.hits as f64 / all as f64)
    }
}

/// [`PassivationCounts`] and the number of entities of all shards of a region.
#[derive(Debug, Default)]
pub(crate) struct EntityTally {
    entities: AtomicU64,
    hits: AtomicU64,
    misses: AtomicU64,
    evicted: AtomicU64,
}

impl EntityTally {
    pub(crate) fn entities(&self) -> u64 {
        self.entities.load(Ordering::Relaxed)
    }

    pub(crate) fn passivation(&self) -> PassivationCounts {
        let count = |of: &AtomicU64| of.load(Ordering::Relaxed);
        PassivationCounts { hits: count(&self.hits), misses: count(&self.misses), evicted: count(&self.evicted) }
    }
}

/// One shard's part of an [`EntityTally`], as last reported. Dropping it subtracts the shard's entities.
pub(crate) struct ShardTally {
    tally: Arc<EntityTally>,
    entities: u64,
    uses: Uses,
}

impl ShardTally {
    pub(crate) fn new(tally: Arc<EntityTally>) -> Self {
        Self { tally, entities: 0, uses: Uses::default() }
    }

    /// Reports the shard's number of entities, and how they were used since the shard began.
    pub(crate) fn tell(&mut self, entities: usize, uses: Uses) {
        let (tally, entities) = (&self.tally, entities as u64);
        if entities != self.entities {
            tally.entities.fetch_add(entities.wrapping_sub(self.entities), Ordering::Relaxed);
        }
        if uses != self.uses {
            tally.hits.fetch_add(uses.hits - self.uses.hits, Ordering::Relaxed);
            tally.misses.fetch_add(uses.misses - self.uses.misses, Ordering::Relaxed);
            tally.evicted.fetch_add(uses.evicted - self.uses.evicted, Ordering::Relaxed);
        }
        (self.entities, self.uses) = (entities, uses);
    }
}

impl Drop for ShardTally {
    fn drop(&mut self) {
        self.tell(0, self.uses);
    }
}

impl RegionMetrics {
    /// Messages dropped, for whatever reason.
    pub fn dropped(&self) -> u64 {
        self.dead_letters.values().fold(0, |sum, count| sum.saturating_add(*count))
    }
}

/// Hosted shards by state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ShardsByState {
    /// Accepted, and not serving yet or at present.
    pub starting: usize,
    /// Serving.
    pub running: usize,
    /// Told to stop.
    pub stopping: usize,
}

impl FromIterator<ClaimState> for ShardsByState {
    fn from_iter<I: IntoIterator<Item = ClaimState>>(states: I) -> Self {
        let mut shards = Self::default();
        for state in states {
            *match state {
                ClaimState::Starting => &mut shards.starting,
                ClaimState::Running => &mut shards.running,
                ClaimState::Stopping => &mut shards.stopping,
            } += 1;
        }
        shards
    }
}

/// Dead letters reported one by one in a second. Further ones are only counted, to leave room for other events.
const REPORTED_PER_SECOND: u32 = 100;

/// Numbers of dropped messages by reason, and how many were reported in this second.
#[derive(Default)]
pub(crate) struct DeadLetters(Mutex<Counted>);

#[derive(Default)]
struct Counted {
    by_reason: BTreeMap<DeadLetterReason, u64>,
    second: Option<Instant>,
    reported: u32,
}

impl DeadLetters {
    /// Counts a dropped message. Returns whether to report it.
    pub(crate) fn count(&self, now: Instant, reason: DeadLetterReason) -> bool {
        let mut counted = self.lock();
        let count = counted.by_reason.entry(reason).or_default();
        *count = count.saturating_add(1);
        let is_over = |began: Instant| now.saturating_duration_since(began) >= Duration::from_secs(1);
        if counted.second.is_none_or(is_over) {
            counted.second = Some(now);
            counted.reported = 0;
        }
        counted.reported = counted.reported.saturating_add(1);
        counted.reported <= REPORTED_PER_SECOND
    }

    pub(crate) fn counts(&self) -> BTreeMap<DeadLetterReason, u64> {
        self.lock().by_reason.clone()
    }

    fn lock(&self) -> MutexGuard<'_, Counted> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_tell_differences_and_take_their_entities_back() {
        let tally = Arc::<EntityTally>::default();
        let (mut one, mut other) = (ShardTally::new(tally.clone()), ShardTally::new(tally.clone()));
        one.tell(5, Uses { hits: 7, misses: 5, evicted: 0 });
        other.tell(2, Uses { hits: 1, misses: 2, evicted: 0 });
        one.tell(3, Uses { hits: 9, misses: 6, evicted: 3 });
        assert_eq!(tally.entities(), 5);
        let counts = PassivationCounts { hits: 10, misses: 8, evicted: 3 };
        assert_eq!((tally.passivation(), counts.hit_rate()), (counts, Some(10.0 / 18.0)));
        drop(one);
        assert_eq!((tally.entities(), tally.passivation()), (2, counts), "what was counted stays");
        assert_eq!(PassivationCounts::default().hit_rate(), None);
    }

    #[test]
    fn all_dead_letters_are_counted_and_a_hundred_per_second_are_reported() {
        let (letters, now) = (DeadLetters::default(), Instant::now());
        let reported = |at: Instant| (0..1000).filter(|_| letters.count(at, DeadLetterReason::BufferFull)).count();
        assert_eq!(
            (reported(now), reported(now + Duration::from_millis(999)), reported(now + Duration::from_secs(1))),
            (100, 0, 100)
        );
        assert_eq!(letters.counts(), [(DeadLetterReason::BufferFull, 3000)].into());
    }
}
