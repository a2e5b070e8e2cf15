//! What a replica holds: entries with their types and times, the sums that peers compare, and who follows which entry.

pub(crate) mod entries;
pub(crate) mod envelope;
pub(crate) mod expiry;
pub(crate) mod subscriptions;
pub(crate) mod tree;
pub(crate) mod types;
