//! Settings of a replicator.

pub(crate) mod durable;
pub(crate) mod omissions;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::api::error::StartError;
use crate::api::settings::durable::{DurableSettings, covers};
use crate::api::settings::omissions::{Clause, Omissions};
use crate::messages::message::MAX_ITEMS;

/// Settings of one replicator. The default times suit a production LAN. Source: ddata §8.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplicatorSettings {
    /// The instance's name; peers are the replicators of the same name. Default `ddata`.
    pub name: String,
    /// The roles that a node needs, all of them, to have a replica; only such members are peers. Default none: every
    /// member has a replica. Source: ddata I1.
    pub roles: BTreeSet<String>,
    /// How often a round of anti-entropy with one peer begins. Default 2 s. Source: ddata G10.
    pub gossip_interval: Duration,
    /// How often some peers get the changes they lack. Default a fifth of `gossip_interval`, at least 10 ms. Source:
    /// ddata G3.
    pub delta_propagation_interval: Duration,
    /// How often subscribers are notified. Default 500 ms. Source: ddata R16.
    pub notify_subscribers_interval: Duration,
    /// The most entries in one message; in rounds at most 64, in batches of deltas at most 128. Default 500.
    pub max_delta_elements: usize,
    /// The most bytes in one message, which must fit an ordinary lane. Default 192 KiB.
    pub max_message_bytes: usize,
    /// The size of the fragments of larger messages, which must fit the large lane. Default 1 MiB. Source: ddata G11.
    pub bulk_fragment_bytes: usize,
    /// The greatest size of an entry that updates may produce. Default 64 MiB. Source: ddata E4.
    pub max_entry_bytes: usize,
    /// The greatest full state sent with the deltas; larger ones are left to anti-entropy. Default 64 KiB.
    pub eager_full_state_bytes: usize,
    /// Whether deltas are kept and sent; if not, every change travels as a full state. Default true.
    pub delta_enabled: bool,
    /// A group of deltas with more leaves is sent as a full state, if that is not much larger. Default 1,000. Source:
    /// ddata G4.
    pub max_delta_size: usize,
    /// The most records in the delta log; beyond that lagging peers are left to anti-entropy. Default 100,000.
    pub delta_log_max_entries: usize,
    /// The most bytes in the delta log. Default 64 MiB.
    pub delta_log_max_bytes: usize,
    /// How long to wait before an unacknowledged batch of deltas is resent. Default 2 s. Source: ddata G8.
    pub delta_resend_timeout: Duration,
    /// The most unacknowledged full messages of one round of anti-entropy per direction, and unacknowledged batches of
    /// deltas per peer. Default 8.
    pub sync_window: usize,
    /// How many peers a new node synchronizes with at a time. Default 4. Source: ddata G13.
    pub sync_parallel_peers: usize,
    /// The time after which `Syncing` ends even if not enough peers answered. Default 30 s. Source: ddata G13.
    pub sync_timeout: Duration,
    /// Values with more top-level keys are compared and sent range by range, so that a repair sends only what differs
    /// and a new node gets the value in parts. Default 4,096. Source: ddata G12.
    pub inner_tree_keys: usize,
    /// For how many rounds a difference that an exchange did not end is suppressed. Default 30.
    pub mismatch_suppress_rounds: u32,
    /// The shortest time between two events about a type conflict of one entry. Default 1 min. Source: ddata A5.
    pub type_conflict_log_interval: Duration,
    /// Whether the oldest nodes are asked first. Default false. Source: ddata R10.
    pub prefer_oldest: bool,
    /// The default of `min_cap` of majority levels. Default 0.
    pub majority_min_cap: usize,
    /// The most requests that wait for other replicas. Default 10,000.
    pub max_in_flight: usize,
    /// The most local requests that wait for the replicator. Default 16,384.
    pub mailbox_capacity: usize,
    /// Whether a read pushes its result to replicas that answered with less. Default true.
    pub read_repair_push: bool,
    /// How often removed replicas are pruned and old markers forgotten; `None` for never. Default 120 s. Source: ddata
    /// Z2.
    pub pruning_interval: Option<Duration>,
    /// The longest time that a change takes to reach all replicas while all are healthy. Default 300 s.
    pub max_pruning_dissemination: Duration,
    /// How long markers of removed replicas live beside entries that are not durable, and so for how long late copies
    /// are expected. Default 6 h. Source: ddata Z5, Z9.
    pub pruning_marker_time_to_live: Duration,
    /// How far another member's wall clock may be ahead of the own one. Times of pruning further ahead are refused and
    /// reported: nothing could ever be later than they are. Default 5 min. Source: ddata Z9.
    pub max_clock_skew: Duration,
    /// Entries whose timestamps are numbers of the program and no wall times: ids, or prefixes and `*`. Their
    /// timestamps are never compared with the own clock. Default none. Source: ddata Y6.
    pub custom_clocks: Vec<String>,
    /// Which entries are stored on disk, and how. Default none.
    pub durable: DurableSettings,
    /// The most local requests that wait while durable entries are loaded. Default 10,000. Source: ddata U4.
    pub stash_capacity: usize,
    /// The time after which entries that are not read, updated or deleted are removed without a trace, by pattern: an
    /// id, a prefix followed by `*`, or `*` for all; the most specific pattern counts. For data like a cache's: an
    /// entry that expires on one node while another uses it comes back. A lifetime must be well above the difference of
    /// the nodes' clocks. Default none. Source: ddata E1, E3.
    pub expire_keys_after_inactivity: BTreeMap<String, Duration>,
    /// The time after a deletion at which the tombstone is dropped, so that its id can be used again. A member cut off
    /// for longer brings the entry back. Default `None`, never. Source: ddata R5, Z9.
    pub delete_tombstone_ttl: Option<Duration>,
    /// Entries of so many bytes or more are reported once, and again whenever they have grown by a tenth. Default 10
    /// KiB; `None` for never. Source: ddata E4.
    pub log_data_size_exceeding: Option<usize>,
    /// How long an orderly stop waits for one voter to hold everything. Default 3 s. Source: ddata G15.
    pub shutdown_flush_timeout: Duration,
    /// How long encodings of entries are kept, so that several recipients share one. Default 10 s. Source: ddata R14.
    pub encode_cache_time_to_live: Duration,
    /// The number above which the numbers of this process begin. Only for programs that keep their uids over restarts.
    /// Default `None`: uids are drawn, and numbers begin at 1. Source: ddata I2.
    pub dot_floor: Option<DotFloor>,
    /// For fixed lists only: how long a silent peer counts as reachable. Default 5 s.
    pub unreachable_after: Duration,
    /// Clauses to omit, in simulations.
    #[doc(hidden)]
    pub omissions: Omissions,
}

/// The greatest time in settings: times are added to clocks, which do not reach as far as a `Duration`.
const LONGEST: Duration = Duration::from_secs(100 * 365 * 24 * 3_600);

/// A number that no former process with the same uid has drawn. Source: ddata I2.
///
/// It must only ever grow: if a number was drawn twice, two leaves would have one name, and one of them would vanish.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct DotFloor(pub u64);

impl DotFloor {
    /// A floor from the wall clock in milliseconds since 1970. It is valid as long as the clock never goes back between
    /// two starts, and no process draws more than a million numbers in a millisecond.
    pub fn from_wall_ms(wall_ms: i64) -> Self {
        Self(u64::try_from(wall_ms).unwrap_or(0).saturating_mul(1 << 20))
    }
}

impl Default for ReplicatorSettings {
    fn default() -> Self {
        Self {
            name: "ddata".into(),
            roles: BTreeSet::new(),
            gossip_interval: Duration::from_secs(2),
            delta_propagation_interval: Duration::from_millis(400),
            notify_subscribers_interval: Duration::from_millis(500),
            max_delta_elements: 500,
            max_message_bytes: 192 * 1024,
            bulk_fragment_bytes: 1024 * 1024,
            max_entry_bytes: 64 * 1024 * 1024,
            eager_full_state_bytes: 64 * 1024,
            delta_enabled: true,
            max_delta_size: 1_000,
            delta_log_max_entries: 100_000,
            delta_log_max_bytes: 64 * 1024 * 1024,
            delta_resend_timeout: Duration::from_secs(2),
            sync_window: 8,
            sync_parallel_peers: 4,
            sync_timeout: Duration::from_secs(30),
            inner_tree_keys: 4_096,
            mismatch_suppress_rounds: 30,
            type_conflict_log_interval: Duration::from_secs(60),
            prefer_oldest: false,
            majority_min_cap: 0,
            max_in_flight: 10_000,
            mailbox_capacity: 16_384,
            read_repair_push: true,
            pruning_interval: Some(Duration::from_secs(120)),
            max_pruning_dissemination: Duration::from_secs(300),
            pruning_marker_time_to_live: Duration::from_secs(6 * 3_600),
            max_clock_skew: Duration::from_secs(300),
            custom_clocks: Vec::new(),
            durable: DurableSettings::default(),
            stash_capacity: 10_000,
            expire_keys_after_inactivity: BTreeMap::new(),
            delete_tombstone_ttl: None,
            log_data_size_exceeding: Some(10 * 1024),
            shutdown_flush_timeout: Duration::from_secs(3),
            encode_cache_time_to_live: Duration::from_secs(10),
            dot_floor: None,
            unreachable_after: Duration::from_secs(5),
            omissions: Omissions::default(),
        }
    }
}

impl ReplicatorSettings {
    /// Short intervals, for tests on one machine.
    pub fn test() -> Self {
        Self {
            gossip_interval: Duration::from_millis(200),
            delta_propagation_interval: Duration::from_millis(20),
            notify_subscribers_interval: Duration::from_millis(20),
            delta_resend_timeout: Duration::from_millis(200),
            sync_timeout: Duration::from_secs(3),
            shutdown_flush_timeout: Duration::from_millis(500),
            unreachable_after: Duration::from_secs(1),
            ..Self::default()
        }
    }

    pub(crate) fn omits(&self, clause: Clause) -> bool {
        self.omissions.has(clause)
    }

    /// How long markers beside this entry live.
    pub(crate) fn marker_life(&self, key: &str) -> Duration {
        if self.durable.covers(key) {
            self.durable.pruning_marker_time_to_live
        } else {
            self.pruning_marker_time_to_live
        }
    }

    /// Whether the timestamps in this entry are wall times. Source: ddata Y6.
    pub(crate) fn has_wall_clock(&self, key: &str) -> bool {
        !self.custom_clocks.iter().any(|pattern| covers(pattern, key))
    }

    /// The longest time that any marker lives.
    pub(crate) fn longest_marker_life(&self) -> Duration {
        self.pruning_marker_time_to_live.max(self.durable.pruning_marker_time_to_live)
    }

    /// The settings under another name.
    #[must_use]
    pub fn named(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// Checks every setting, and settings that depend on each other.
    ///
    /// # Errors
    /// [`StartError::Settings`], which names the values.
    pub fn validate(&self) -> Result<(), StartError> {
        let times = [
            ("gossip_interval", self.gossip_interval),
            ("delta_propagation_interval", self.delta_propagation_interval),
            ("notify_subscribers_interval", self.notify_subscribers_interval),
            ("delta_resend_timeout", self.delta_resend_timeout),
            ("sync_timeout", self.sync_timeout),
            ("unreachable_after", self.unreachable_after),
            ("type_conflict_log_interval", self.type_conflict_log_interval),
            ("encode_cache_time_to_live", self.encode_cache_time_to_live),
            ("shutdown_flush_timeout", self.shutdown_flush_timeout),
            ("pruning_interval", self.pruning_interval.unwrap_or(LONGEST)),
        ];
        if let Some((name, _)) = times.iter().find(|(_, time)| time.is_zero()) {
            return Err(StartError::Settings(format!("{name} must be above zero")));
        }
        let further = [
            ("max_pruning_dissemination", self.max_pruning_dissemination),
            ("max_clock_skew", self.max_clock_skew),
            ("durable.load_retry_window", self.durable.load_retry_window),
            ("durable.write_behind_interval", self.durable.write_behind_interval.unwrap_or_default()),
        ];
        if let Some((name, time)) = times.iter().chain(&further).find(|(_, time)| *time > LONGEST) {
            return Err(StartError::Settings(format!("{name} is {time:?}, it must not be above {LONGEST:?}")));
        }
        let counts = [
            ("max_delta_elements", self.max_delta_elements),
            ("bulk_fragment_bytes", self.bulk_fragment_bytes),
            ("sync_window", self.sync_window),
            ("sync_parallel_peers", self.sync_parallel_peers),
            ("mailbox_capacity", self.mailbox_capacity),
            ("max_in_flight", self.max_in_flight),
            ("delta_log_max_entries", self.delta_log_max_entries),
        ];
        if let Some((name, _)) = counts.iter().find(|(_, count)| *count == 0) {
            return Err(StartError::Settings(format!("{name} must be above zero")));
        }
        if self.max_delta_elements > MAX_ITEMS {
            return Err(StartError::Settings(format!(
                "max_delta_elements is {}, a message holds at most {}",
                self.max_delta_elements, MAX_ITEMS
            )));
        }
        if self.max_message_bytes < 4 * 1024 {
            let text = format!("max_message_bytes is {}, it must be at least 4096", self.max_message_bytes);
            return Err(StartError::Settings(text));
        }
        if self.max_entry_bytes < self.max_message_bytes {
            return Err(StartError::Settings(format!(
                "max_entry_bytes is {}, it must not be below max_message_bytes, which is {}",
                self.max_entry_bytes, self.max_message_bytes
            )));
        }
        if self.pruning_marker_time_to_live <= self.max_pruning_dissemination {
            return Err(StartError::Settings(format!(
                "pruning_marker_time_to_live is {:?}, it must be above max_pruning_dissemination, which is {:?}",
                self.pruning_marker_time_to_live, self.max_pruning_dissemination
            )));
        }
        if self.custom_clocks.iter().any(String::is_empty) {
            return Err(StartError::Settings("custom_clocks holds an empty pattern; '*' means every key".into()));
        }
        self.durable.validate(self.max_pruning_dissemination)?;
        self.validate_expiry()?;
        if self.name.is_empty() || self.name.contains('/') {
            return Err(StartError::Settings(format!("name is {:?}, it must be non-empty and without '/'", self.name)));
        }
        Ok(())
    }
}

impl ReplicatorSettings {
    fn validate_expiry(&self) -> Result<(), StartError> {
        if self.expire_keys_after_inactivity.contains_key("") {
            let text = "expire_keys_after_inactivity has an empty pattern; write '*' for all entries";
            return Err(StartError::Settings(text.into()));
        }
        if let Some((pattern, _)) = self.expire_keys_after_inactivity.iter().find(|(_, after)| after.is_zero()) {
            let text = format!("expire_keys_after_inactivity of {pattern:?} must be above zero");
            return Err(StartError::Settings(text));
        }
        match self.delete_tombstone_ttl.filter(|ttl| *ttl <= self.max_pruning_dissemination) {
            None => Ok(()),
            Some(ttl) => Err(StartError::Settings(format!(
                "delete_tombstone_ttl is {ttl:?}, it must be above max_pruning_dissemination, which is {:?}",
                self.max_pruning_dissemination
            ))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// ddata K2: a floor from the clock leaves a million numbers to each millisecond, and never wraps around.
    #[test]
    fn a_floor_from_the_clock_grows_with_it() {
        let floors = [-5, 0, 1, 1_700_000_000_000, i64::MAX].map(DotFloor::from_wall_ms);
        let expected = [0, 0, 1 << 20, 1_700_000_000_000 << 20, u64::MAX].map(DotFloor);
        assert_eq!(floors, expected);
    }

    #[test]
    fn settings_that_exclude_each_other_are_named() {
        assert_eq!(ReplicatorSettings::default().validate(), Ok(()));
        assert_eq!(ReplicatorSettings::test().validate(), Ok(()));
        let settings = ReplicatorSettings { max_entry_bytes: 5_000, ..ReplicatorSettings::default() };
        let error = settings.validate().unwrap_err().to_string();
        assert!(error.contains("max_entry_bytes is 5000") && error.contains("max_message_bytes"), "{error}");
        let settings = ReplicatorSettings { sync_timeout: Duration::MAX, ..ReplicatorSettings::default() };
        let error = settings.validate().unwrap_err().to_string();
        assert!(error.contains("sync_timeout is 18446744073709551615.999999999s"), "{error}");
        let lifetime = Duration::from_secs(300);
        let settings = ReplicatorSettings { pruning_marker_time_to_live: lifetime, ..ReplicatorSettings::default() };
        let error = settings.validate().unwrap_err().to_string();
        assert!(error.contains("pruning_marker_time_to_live is 300s") && error.contains("max_pruning"), "{error}");
        let settings = ReplicatorSettings { delete_tombstone_ttl: Some(lifetime), ..ReplicatorSettings::default() };
        let error = settings.validate().unwrap_err().to_string();
        assert!(error.contains("delete_tombstone_ttl is 300s") && error.contains("max_pruning"), "{error}");
        for (pattern, after) in [("", 1), ("cart-*", 0)] {
            let expiring = [(pattern.to_owned(), Duration::from_secs(after))].into();
            let settings =
                ReplicatorSettings { expire_keys_after_inactivity: expiring, ..ReplicatorSettings::default() };
            let error = settings.validate().unwrap_err().to_string();
            assert!(error.contains("expire_keys_after_inactivity"), "{error}");
        }
    }
}
