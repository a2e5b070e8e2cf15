//! Counters of a replicator, for operators and tests.

/// Counters of what was dropped or refused, by reason. Source: ddata C8.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stats {
    /// Messages of processes that are not, or no longer, replicas.
    pub from_strangers: u64,
    /// Entries whose type differs from the one here.
    pub type_mismatches: u64,
    /// Entries of a type that is unknown here.
    pub unknown_types: u64,
    /// Messages that could not be decoded.
    pub malformed: u64,
    /// Entries that could not be read or joined.
    pub undecodable: u64,
    /// Entries larger than any that updates could have produced.
    pub too_large: u64,
    /// Writes whose timestamp was far ahead of the own wall clock. They were accepted.
    pub clocks_ahead: u64,
    /// Copies that named numbers of this replica which it never drew. They were accepted.
    pub reused_ids: u64,
    /// Deltas refused for a gap before them.
    pub gaps: u64,
    /// Answers to requests that are over.
    pub late_replies: u64,
    /// Messages that the transport refused, and messages of a first exchange whose store failed.
    pub unsent: u64,
    /// Messages lost because too many waited here; counted by the driver only.
    pub overrun: u64,
    /// Batches of deltas sent.
    pub batches_sent: u64,
    /// Rounds of anti-entropy that began here.
    pub rounds_opened: u64,
    /// Rounds that found a difference and exchanged all of it.
    pub rounds_completed: u64,
    /// Full states sent, for any reason.
    pub full_states_sent: u64,
    /// Entries put under the name of this replica.
    pub performed: u64,
    /// Entries performed again because more data of the removed replica had turned up.
    pub performed_again: u64,
    /// Markers forgotten.
    pub markers_forgotten: u64,
    /// Large values that differed from a peer's and got the missing ranges.
    pub repaired_in_parts: u64,
    /// Transfers in fragments or parts that were given up: what came was malformed, or nothing more came.
    pub transfers_aborted: u64,
    /// Requests to the store.
    pub stores: u64,
    /// Failed requests to the store.
    pub store_errors: u64,
    /// Messages that could not be accepted yet: durable entries were being loaded, or a current member had not yet
    /// judged them.
    pub not_ready: u64,
    /// Messages with times of pruning or use further ahead than clocks may differ. The times were replaced, or the
    /// items refused.
    pub implausible_times: u64,
    /// Entries and tombstones removed because they had expired.
    pub expired: u64,
    /// Entries and tombstones ignored because they had expired when they arrived.
    pub arrived_expired: u64,
}
