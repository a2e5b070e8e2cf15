//! What a copy counts, and what it compares of a history besides the events.

use crate::contract::head::Head;
use crate::contract::records::event::Timestamp;

/// Numbers of records, present or copied.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Ids with any record.
    pub ids: u64,
    /// Events, without those deleted.
    pub events: u64,
    /// Snapshots.
    pub snapshots: u64,
    /// Durable states, tombstones included.
    pub states: u64,
}

/// The facts about a history besides its events.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct HistoryFacts {
    pub(super) head: Head,
    pub(super) last_append: Timestamp,
}
