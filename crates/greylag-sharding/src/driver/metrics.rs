//! What a region counts, as one snapshot.
//!
//! Source: sharding §6.5 (metrics).

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use greylag_core::DeadLetterReason;

use super::handlers::HandlerCounts;
use crate::machine::message::ClaimState;
use crate::machine::region::Counters;

/// Counters and gauges of one entity type on one node. Counters run since its region began. Source: sharding §6.5.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RegionMetrics {
    /// Shards that this node has a route to, its own among them.
    pub homes: usize,
    /// The shards hosted here.
    pub shards: ShardsByState,
    /// What became of the messages that passed through the region's machine, and how many it buffers now. What took the
    /// direct way, from a sender to a shard's inbox or to a lane, is not among them.
    pub messages: Counters,
    /// Messages dropped on this node, by reason.
    pub dead_letters: BTreeMap<DeadLetterReason, u64>,
    /// Messages that wait in the inboxes of the shards hosted here.
    pub inbox_depth: usize,
    /// What handlers did.
    pub handlers: HandlerCounts,
}

impl RegionMetrics {
    /// Messages dropped, for whatever reason.
    pub fn dropped(&self) -> u64 {
        self.dead_letters.values().fold(0, |sum, count| sum.saturating_add(*count))
    }
}

/// Hosted shards by how far they are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ShardsByState {
    /// Accepted, and not serving yet, or again.
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

/// Messages whose end is told one by one in a second. The rest is counted: subscribers have other events to hear.
const TOLD_IN_A_SECOND: u32 = 100;

/// How many messages were dropped, by reason, and how many were told in this second.
#[derive(Default)]
pub(crate) struct DeadLetters(Mutex<Counted>);

#[derive(Default)]
struct Counted {
    by_reason: BTreeMap<DeadLetterReason, u64>,
    second: Option<Instant>,
    told: u32,
}

impl DeadLetters {
    /// Answers whether this one is to be told of.
    pub(crate) fn count(&self, now: Instant, reason: DeadLetterReason) -> bool {
        let mut counted = self.lock();
        let count = counted.by_reason.entry(reason).or_default();
        *count = count.saturating_add(1);
        let is_over = |began: Instant| now.saturating_duration_since(began) >= Duration::from_secs(1);
        if counted.second.is_none_or(is_over) {
            counted.second = Some(now);
            counted.told = 0;
        }
        counted.told = counted.told.saturating_add(1);
        counted.told <= TOLD_IN_A_SECOND
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
    fn all_are_counted_and_a_hundred_in_a_second_are_told() {
        let (letters, now) = (DeadLetters::default(), Instant::now());
        let told = |at: Instant| (0..1000).filter(|_| letters.count(at, DeadLetterReason::BufferFull)).count();
        assert_eq!(
            (told(now), told(now + Duration::from_millis(999)), told(now + Duration::from_secs(1))),
            (100, 0, 100)
        );
        assert_eq!(letters.counts(), [(DeadLetterReason::BufferFull, 3000)].into());
    }
}
