//! The counters of the consumers of one entity type on one node.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

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
}

/// The counters at one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DeliverySnapshot {
    /// Attempts handed to entities.
    pub delivered: u64,
    /// Deliveries that entities confirmed.
    pub confirmed: u64,
    /// Messages that came again after they had been processed, and were confirmed unseen.
    pub suppressed: u64,
    /// Attempts that entities gave up.
    pub abandoned: u64,
    /// Messages whose attempts were used up.
    pub poisoned: u64,
    /// Messages that could not be read.
    pub undecodable: u64,
}

impl DeliveryCounters {
    /// The counters now.
    pub fn snapshot(&self) -> DeliverySnapshot {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        DeliverySnapshot {
            delivered: read(&self.0.delivered),
            confirmed: read(&self.0.confirmed),
            suppressed: read(&self.0.suppressed),
            abandoned: read(&self.0.abandoned),
            poisoned: read(&self.0.poisoned),
            undecodable: read(&self.0.undecodable),
        }
    }

    pub(crate) fn delivered(&self) {
        self.0.delivered.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn confirmed(&self) {
        self.0.confirmed.fetch_add(1, Ordering::Relaxed);
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
