//! The metrics of a replicator, for operators and their tools. Source: ddata I3.

use std::collections::BTreeMap;
use std::time::Duration;

use greylag_core::UniqueAddress;

use crate::api::level::{ReadLevel, WriteLevel};
use crate::api::stats::Stats;

/// The metrics of a replicator at one moment.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Metrics {
    /// Entries that hold a value.
    pub keys: usize,
    /// Deleted entries.
    pub tombstones: usize,
    /// About how many bytes the encoded values have.
    pub bytes: usize,
    /// Records in the delta log.
    pub log_records: usize,
    /// The number of records that each peer has still to acknowledge.
    pub log_lag: BTreeMap<UniqueAddress, usize>,
    /// Counters of refused items by reason, and of rounds of anti-entropy.
    pub stats: Stats,
    /// Messages sent, by kind.
    pub sent: Traffic,
    /// Messages received and accepted, by kind.
    pub received: Traffic,
    /// Requests that wait for other replicas.
    pub in_flight: usize,
    /// Subscriptions.
    pub subscribers: usize,
    /// Entries of which a peer holds another type.
    pub conflicts: usize,
    /// The unreachable member for which pruning waits.
    pub pruning_blocked_by: Option<UniqueAddress>,
    /// The time from the call to the answer, by level.
    pub latency: BTreeMap<LevelName, Latency>,
    /// The longest time that one input took, while everything else waited.
    pub longest_step: Duration,
}

/// The kind of a level, without its numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LevelName {
    /// This replica only.
    Local,
    /// A number of replicas.
    Count,
    /// More than half of the voters.
    Majority,
    /// More than half of the voters that are neither exiting nor down, and some more.
    MajorityPlus,
    /// All voters that are neither exiting nor down.
    All,
}

impl From<WriteLevel> for LevelName {
    fn from(level: WriteLevel) -> Self {
        match level {
            WriteLevel::Local => Self::Local,
            WriteLevel::To { .. } => Self::Count,
            WriteLevel::Majority { .. } => Self::Majority,
            WriteLevel::MajorityPlus { .. } => Self::MajorityPlus,
            WriteLevel::All { .. } => Self::All,
        }
    }
}

impl From<ReadLevel> for LevelName {
    fn from(level: ReadLevel) -> Self {
        match level {
            ReadLevel::Local => Self::Local,
            ReadLevel::From { .. } => Self::Count,
            ReadLevel::Majority { .. } => Self::Majority,
            ReadLevel::MajorityPlus { .. } => Self::MajorityPlus,
            ReadLevel::All { .. } => Self::All,
        }
    }
}

/// Messages by kind: their number, and about how many bytes they have.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Traffic(BTreeMap<&'static str, (u64, u64)>);

impl Traffic {
    pub(crate) fn count(&mut self, kind: &'static str, bytes: usize) {
        let (messages, sum) = self.0.entry(kind).or_default();
        *messages += 1;
        *sum += bytes as u64;
    }

    /// The number and bytes of messages of a kind, which is the name of a variant of [`crate::Message`].
    pub fn of(&self, kind: &str) -> (u64, u64) {
        self.0.get(kind).copied().unwrap_or_default()
    }

    /// Each kind with its number of messages and their bytes.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64, u64)> + '_ {
        self.0.iter().map(|(kind, (messages, bytes))| (*kind, *messages, *bytes))
    }
}

/// How long requests took, counted by powers of two of a microsecond.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Latency {
    buckets: [u64; 40],
    longest: Duration,
}

impl Default for Latency {
    fn default() -> Self {
        Self { buckets: [0; 40], longest: Duration::ZERO }
    }
}

impl Latency {
    pub(crate) fn observe(&mut self, took: Duration) {
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        let bucket = (u64::BITS - micros.leading_zeros()) as usize;
        self.buckets[bucket.min(self.buckets.len() - 1)] += 1;
        self.longest = self.longest.max(took);
    }

    /// The number of requests.
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// The longest time.
    pub fn longest(&self) -> Duration {
        self.longest
    }

    /// A time that this share of the requests did not exceed, too long by a factor of two at most; zero without
    /// requests.
    pub fn quantile(&self, share: f64) -> Duration {
        let wanted = (self.count() as f64 * share).ceil() as u64;
        let mut seen = 0;
        for (bucket, count) in self.buckets.iter().enumerate() {
            seen += count;
            if seen >= wanted && *count > 0 {
                return Duration::from_micros((1 << bucket) - 1).min(self.longest);
            }
        }
        Duration::ZERO
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// ddata I3: quantiles of request latency are right within a factor of two.
    #[test]
    fn quantiles_are_right_within_a_factor_of_two() {
        let mut latency = Latency::default();
        assert_eq!((latency.count(), latency.quantile(0.99)), (0, Duration::ZERO));
        (1..=99).for_each(|_| latency.observe(Duration::from_micros(100)));
        latency.observe(Duration::from_secs(1));
        let half = latency.quantile(0.5);
        assert!(half >= Duration::from_micros(100) && half < Duration::from_micros(200), "{half:?}");
        assert_eq!((latency.quantile(1.0), latency.longest()), (Duration::from_secs(1), Duration::from_secs(1)));
        latency.observe(Duration::MAX);
        assert_eq!(latency.count(), 101);
    }
}
