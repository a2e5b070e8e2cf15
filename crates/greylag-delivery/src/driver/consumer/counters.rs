//! The counters of the consumers of one entity type on one node.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::machine::consumer_link::ConsumerCounters;

/// Counters of one entity type on this node; clones count together.
#[derive(Debug, Clone, Default)]
pub struct DeliveryCounters(Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    delivered: AtomicU64,
    confirmed: AtomicU64,
    suppressed: AtomicU64,
    abandoned: AtomicU64,
    poisoned: AtomicU64,
    undecodable: AtomicU64,
    duplicates: AtomicU64,
    gaps: AtomicU64,
    dropped: AtomicU64,
    late_confirmations: AtomicU64,
    overdue: AtomicU64,
    links: AtomicU64,
}

/// Totals of all links of one controller: counts since its start, and gauges (overdue deliveries, links).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct LinkTotals {
    pub(crate) counters: ConsumerCounters,
    pub(crate) refused: u64,
    pub(crate) overdue: u64,
    pub(crate) links: u64,
}

/// The counters at one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DeliverySnapshot {
    /// Deliveries handed to entities, redeliveries included.
    pub delivered: u64,
    /// Deliveries that entities confirmed.
    pub confirmed: u64,
    /// Duplicates of processed messages, confirmed without being handed to the entity.
    pub suppressed: u64,
    /// Deliveries that entities gave up: dropped unconfirmed, or refused with a pause.
    pub abandoned: u64,
    /// Messages whose last permitted attempt failed.
    pub poisoned: u64,
    /// Messages that could not be decoded.
    pub undecodable: u64,
    /// Frames that arrived more than once.
    pub duplicates: u64,
    /// Gaps in the arriving frames; for each, the producer was asked to resend.
    pub gaps: u64,
    /// Frames dropped: beyond the window, of displaced senders, with invalid numbers, or without a link to take them
    /// (too many producers, or too many frames before the entity's start).
    pub dropped: u64,
    /// Confirmations that came twice, or after their link had ended.
    pub late_confirmations: u64,
    /// Deliveries unconfirmed for longer than `consumer.confirm_warn_after`, at present.
    pub overdue: u64,
    /// Links to producers, at present.
    pub links: u64,
}

impl DeliverySnapshot {
    /// The sum of both snapshots, field by field.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            delivered: self.delivered + other.delivered,
            confirmed: self.confirmed + other.confirmed,
            suppressed: self.suppressed + other.suppressed,
            abandoned: self.abandoned + other.abandoned,
            poisoned: self.poisoned + other.poisoned,
            undecodable: self.undecodable + other.undecodable,
            duplicates: self.duplicates + other.duplicates,
            gaps: self.gaps + other.gaps,
            dropped: self.dropped + other.dropped,
            late_confirmations: self.late_confirmations + other.late_confirmations,
            overdue: self.overdue + other.overdue,
            links: self.links + other.links,
        }
    }
}

impl DeliveryCounters {
    /// The present values of the counters.
    pub fn snapshot(&self) -> DeliverySnapshot {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        DeliverySnapshot {
            delivered: read(&self.0.delivered),
            confirmed: read(&self.0.confirmed),
            suppressed: read(&self.0.suppressed),
            abandoned: read(&self.0.abandoned),
            poisoned: read(&self.0.poisoned),
            undecodable: read(&self.0.undecodable),
            duplicates: read(&self.0.duplicates),
            gaps: read(&self.0.gaps),
            dropped: read(&self.0.dropped),
            late_confirmations: read(&self.0.late_confirmations),
            overdue: read(&self.0.overdue),
            links: read(&self.0.links),
        }
    }

    pub(crate) fn delivered(&self) {
        self.0.delivered.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn confirmed(&self, count: u64) {
        self.0.confirmed.fetch_add(count, Ordering::Relaxed);
    }

    /// Adds the difference between two totals of one controller's links.
    pub(crate) fn links(&self, before: &LinkTotals, after: &LinkTotals) {
        // Adds modulo 2^64, so that gauges (overdue deliveries, links) may also fall.
        let change = |count: &AtomicU64, before: u64, after: u64| {
            if before != after {
                count.fetch_add(after.wrapping_sub(before), Ordering::Relaxed);
            }
        };
        let dropped = |of: &LinkTotals| of.counters.beyond_window + of.counters.unexpected + of.refused;
        change(&self.0.duplicates, before.counters.duplicates, after.counters.duplicates);
        change(&self.0.gaps, before.counters.gaps, after.counters.gaps);
        change(&self.0.dropped, dropped(before), dropped(after));
        change(&self.0.late_confirmations, before.counters.late_confirmations, after.counters.late_confirmations);
        change(&self.0.overdue, before.overdue, after.overdue);
        change(&self.0.links, before.links, after.links);
    }

    pub(crate) fn suppressed(&self) {
        self.0.suppressed.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn abandoned(&self) {
        self.0.abandoned.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn poisoned(&self) {
        self.0.poisoned.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn undecodable(&self) {
        self.0.undecodable.fetch_add(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn snapshots_add_up_field_by_field() {
        let numbered = |by: u64| DeliverySnapshot {
            delivered: 3 * by,
            confirmed: 4 * by,
            suppressed: 5 * by,
            abandoned: 6 * by,
            poisoned: 7 * by,
            undecodable: 8 * by,
            duplicates: 9 * by,
            gaps: 10 * by,
            dropped: 11 * by,
            late_confirmations: 12 * by,
            overdue: 13 * by,
            links: 14 * by,
        };
        assert_eq!(numbered(1).plus(numbered(2)), numbered(3));
    }
}
