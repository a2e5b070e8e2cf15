//! Settings of coordinators that keep their state in a journal (`state_store_mode = "persistence"`).
//!
//! Source: sharding §2.13, §2.14, §7.

use std::num::{NonZeroU32, NonZeroU64};
use std::time::Duration;

/// How coordinators use the journal and its snapshots; without effect if homes are replicated data.
///
/// Keys: `sharding.*`. Source: sharding §2.14.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StateJournalSettings {
    /// The journal, by the name of a plugin among the node's stores. Default: the node's own (`""`).
    /// Key: `journal_plugin_id`.
    pub journal_plugin_id: String,
    /// The snapshot store, likewise. Default: the node's own (`""`). Key: `snapshot_plugin_id`.
    pub snapshot_plugin_id: String,
    /// Events between two snapshots. More: longer recoveries. Fewer: more writes. Default 1000.
    /// Key: `snapshot_every`.
    pub snapshot_every: NonZeroU64,
    /// How many snapshots, and snapshot intervals of events, are kept behind a new snapshot. Default 2.
    /// Key: `keep_n_snapshots`.
    pub keep_n_snapshots: NonZeroU32,
    /// Whether a contradictory history stops the coordinator, instead of being repaired with a warning. Default false.
    /// Key: `strict_recovery`.
    pub strict_recovery: bool,
    /// How long a new coordinator waits for recorded regions before it decides without them. Longer: fewer messages
    /// wait for a region that is late. Default 2 s. Key: `recovery_timeout`.
    pub recovery_timeout: Duration,
}

impl Default for StateJournalSettings {
    fn default() -> Self {
        Self {
            journal_plugin_id: String::new(),
            snapshot_plugin_id: String::new(),
            snapshot_every: NonZeroU64::new(1000).expect("not zero"),
            keep_n_snapshots: NonZeroU32::new(2).expect("not zero"),
            strict_recovery: false,
            recovery_timeout: Duration::from_secs(2),
        }
    }
}
