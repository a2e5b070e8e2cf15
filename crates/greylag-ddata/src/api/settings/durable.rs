//! Settings of durable entries: which are stored, and what happens with bad records and stale stores.

use std::time::Duration;

use crate::api::error::StartError;

/// Settings of durable entries. Source: ddata §8.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DurableSettings {
    /// The stored entries: ids, or prefixes and `*`; `*` alone is every entry. Default none. Source: ddata U1.
    pub keys: Vec<String>,
    /// With `None` a change is flushed before it is acknowledged. With a duration changes are acknowledged at once, and
    /// the last state of each changed entry is written every so often; a crash loses at most that much of the local
    /// history, which peers usually have. Default `None`. Source: ddata U3.
    pub write_behind_interval: Option<Duration>,
    /// How long markers of removed replicas beside durable entries live, and so how long a node with a store may be
    /// down. Default 10 days. Source: ddata Z5, Z9.
    pub pruning_marker_time_to_live: Duration,
    /// How often loading is retried before the replicator stops. Default 3. Source: ddata U5.
    pub load_retries: u32,
    /// The time over which the retries are spread, with growing pauses. Default 30 s.
    pub load_retry_window: Duration,
    /// What to do about a stored record that cannot be read. Default [`OnBadRecord::Stop`].
    pub on_bad_record: OnBadRecord,
    /// What to do about a store that is older than what peers have forgotten. Default [`StaleStore::Refuse`].
    pub stale_store: StaleStore,
}

/// What to do about a stored record that is damaged, or of a type that is unknown here. Source: ddata U5.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnBadRecord {
    /// The replicator stops; an operator should look at the store.
    #[default]
    Stop,
    /// A damaged record is moved aside in the store and never deleted; a record of an unknown type is left where it is.
    /// The replicator starts without these entries, and peers supply the data.
    Quarantine,
}

/// What to do about a store that was out of touch for so long that it may still hold what peers have forgotten. Merging
/// it could count updates of removed replicas twice and bring back deleted data. Source: ddata Z9.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum StaleStore {
    /// The replicator stops before it exchanges anything.
    #[default]
    Refuse,
    /// The loaded entries are dropped, here and in the store; peers supply their state. A store that has lost its end
    /// is renamed (ddata U5).
    Discard,
    /// The loaded entries are merged although the store is too old.
    Force,
}

/// Whether a pattern matches an id. Only a `*` at the end is a wildcard.
pub(crate) fn covers(pattern: &str, id: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(prefix) => id.starts_with(prefix),
        None => pattern == id,
    }
}

impl Default for DurableSettings {
    fn default() -> Self {
        Self {
            keys: Vec::new(),
            write_behind_interval: None,
            pruning_marker_time_to_live: Duration::from_secs(10 * 24 * 3_600),
            load_retries: 3,
            load_retry_window: Duration::from_secs(30),
            on_bad_record: OnBadRecord::Stop,
            stale_store: StaleStore::Refuse,
        }
    }
}

impl DurableSettings {
    /// Settings that make these entries durable; everything else has its default.
    pub fn of(keys: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self { keys: keys.into_iter().map(Into::into).collect(), ..Self::default() }
    }

    /// Whether an entry with this id is stored. Only a `*` at the end of a pattern is a wildcard. Source: ddata U1.
    pub fn covers(&self, id: &str) -> bool {
        self.keys.iter().any(|pattern| covers(pattern, id))
    }

    /// Whether anything is stored at all.
    pub fn is_used(&self) -> bool {
        !self.keys.is_empty()
    }

    /// The pause before the `retry`th retry of loading, counted from 1; each pause is twice the one before.
    pub(crate) fn load_backoff(&self, retry: u32) -> Duration {
        let parts = 2_u64.saturating_pow(self.load_retries.min(32)) - 1;
        let part = 2_u64.saturating_pow(retry.clamp(1, 32) - 1);
        self.load_retry_window.mul_f64(part as f64 / parts.max(1) as f64)
    }

    pub(crate) fn validate(&self, max_pruning_dissemination: Duration) -> Result<(), StartError> {
        if self.write_behind_interval.is_some_and(|interval| interval.is_zero()) {
            return Err(StartError::Settings("durable.write_behind_interval must be above zero".into()));
        }
        if self.keys.iter().any(String::is_empty) {
            return Err(StartError::Settings("durable.keys holds an empty pattern; '*' means every key".into()));
        }
        if self.pruning_marker_time_to_live <= max_pruning_dissemination {
            return Err(StartError::Settings(format!(
                "durable.pruning_marker_time_to_live is {:?}, it must be above max_pruning_dissemination, which is {:?}",
                self.pruning_marker_time_to_live, max_pruning_dissemination
            )));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// ddata U1: exact ids, prefixes, everything; a star inside is an ordinary letter.
    #[test]
    fn patterns_are_ids_prefixes_or_all() {
        let durable = DurableSettings::of(["cart", "shard-*", "a*b"]);
        let covered = ["cart", "shard-", "shard-7", "a*b"];
        assert!(covered.iter().all(|id| durable.covers(id)));
        assert!(!["cart-7", "shard", "axb", "a*bc"].iter().any(|id| durable.covers(id)));
        assert!(DurableSettings::of(["*"]).covers("anything"));
        assert!(!DurableSettings::default().covers("anything"));
    }

    /// ddata U5: the retries fill the window, with growing pauses.
    #[test]
    fn pauses_between_loads_double() {
        let durable = DurableSettings { load_retry_window: Duration::from_secs(7), ..DurableSettings::default() };
        let pauses: Vec<u64> = (1..=3).map(|retry| durable.load_backoff(retry).as_secs()).collect();
        assert_eq!(pauses, [1, 2, 4]);
    }
}
