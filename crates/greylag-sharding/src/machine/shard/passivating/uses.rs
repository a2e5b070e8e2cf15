//! How the entities of a shard were used. Source: sharding §6.5.

/// Counts since the shard began.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Uses {
    /// Messages, of those that count as activity, that found their entity in memory.
    pub hits: u64,
    /// Messages that had to start their entity.
    pub misses: u64,
    /// Entities that the passivation strategy asked to stop.
    pub evicted: u64,
}
