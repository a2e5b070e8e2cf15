//! Settings of the built-in allocation strategies.
//!
//! Limits are numbers of shards, and hold for one entity type. Source: sharding §3, §7.

use std::num::NonZeroUsize;
use std::time::Duration;

/// Limits of the least-shard allocation strategy; both hold, but one shard may always move.
///
/// Keys: `sharding.least_shard_allocation_strategy.*`. Source: sharding §3.
#[derive(Debug, Clone, PartialEq)]
pub struct LeastShardSettings {
    /// Most shards moved in one round. More: balanced sooner. Fewer: fewer interruptions at a time. 0 selects the
    /// classical algorithm ([`ClassicalLeastShardSettings`]). Default 20. Key: `rebalance_absolute_limit`.
    pub rebalance_absolute_limit: usize,
    /// Most shards moved in one round, as a fraction of all shards with a home; from 0 to 1. Default 0.1. Key:
    /// `rebalance_relative_limit`.
    pub rebalance_relative_limit: f64,
}

impl LeastShardSettings {
    /// Whether these settings select the classical algorithm.
    pub fn is_classical(&self) -> bool {
        self.rebalance_absolute_limit == 0
    }
}

impl Default for LeastShardSettings {
    fn default() -> Self {
        Self { rebalance_absolute_limit: 20, rebalance_relative_limit: 0.1 }
    }
}

/// Limits of the classical least-shard algorithm, used if `rebalance_absolute_limit` is 0.
///
/// Keys: `sharding.least_shard_allocation_strategy.*`. Source: sharding §3.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClassicalLeastShardSettings {
    /// Difference between the most and the fewest shards of a region that must be exceeded before shards move, and the
    /// most that move in one round. Larger: moves more at a time, and stops at a larger difference. Default 10. Key:
    /// `rebalance_threshold`.
    pub threshold: NonZeroUsize,
    /// Most shards that move at the same time, over all rounds. Default 3.
    /// Key: `max_simultaneous_rebalance`.
    pub max_simultaneous: NonZeroUsize,
}

impl Default for ClassicalLeastShardSettings {
    fn default() -> Self {
        const THRESHOLD: NonZeroUsize = NonZeroUsize::new(10).expect("10 is not 0");
        const MAX_SIMULTANEOUS: NonZeroUsize = NonZeroUsize::new(3).expect("3 is not 0");
        Self { threshold: THRESHOLD, max_simultaneous: MAX_SIMULTANEOUS }
    }
}

/// Limits of the consistent-hashing allocation strategy. Set by the program, no key. Source: sharding §3.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ConsistentHashingSettings {
    /// Most shards moved in one round; `None` moves all that are out of place at once.
    /// `NonZeroUsize::new(n)` reads 0 as no limit. Default: no limit.
    pub rebalance_limit: Option<NonZeroUsize>,
}

/// Settings of the external allocation strategy and its client.
///
/// Keys: `sharding.external_shard_allocation_strategy.*`. Source: sharding §3.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExternalSettings {
    /// Longest wait for one read or one write of the desired locations. The client then fails with
    /// a timeout; the strategy goes on as if no location were desired. Default 5 s.
    /// Key: `client_timeout`.
    pub client_timeout: Duration,
}

impl Default for ExternalSettings {
    fn default() -> Self {
        Self { client_timeout: Duration::from_secs(5) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_those_of_the_specification() {
        let least = LeastShardSettings::default();
        assert_eq!((least.rebalance_absolute_limit, least.rebalance_relative_limit), (20, 0.1));
        assert!(!least.is_classical());
        assert!(LeastShardSettings { rebalance_absolute_limit: 0, ..least }.is_classical());
        let classical = ClassicalLeastShardSettings::default();
        assert_eq!((classical.threshold.get(), classical.max_simultaneous.get()), (10, 3));
        assert_eq!(ConsistentHashingSettings::default().rebalance_limit, None);
        assert_eq!(ExternalSettings::default().client_timeout, Duration::from_secs(5));
    }
}
