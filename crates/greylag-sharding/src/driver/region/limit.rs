//! The limit of active entities of a region, and each shard's part of the limit.
//!
//! Source: sharding §4.10.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::passivation::Passivation;

/// See the module's description.
pub(crate) struct EntityLimit {
    passivation: Passivation,
    /// The present limit; without meaning for a type that has none.
    limit: AtomicUsize,
    /// Whether the region's task was asked to divide the limit anew.
    is_changing: AtomicBool,
}

impl EntityLimit {
    pub(crate) fn new(passivation: Passivation) -> Self {
        let limit = AtomicUsize::new(passivation.active_entity_limit().unwrap_or(usize::MAX));
        Self { passivation, limit, is_changing: AtomicBool::new(false) }
    }

    /// The automatic passivation of the type's shards.
    pub(crate) fn passivation(&self) -> &Passivation {
        &self.passivation
    }

    /// Sets another limit.
    pub(crate) fn set(&self, limit: usize) {
        self.limit.store(limit, Ordering::Relaxed);
    }

    /// Whether to ask the region's task to divide the limit: not if it was asked already, or if there is no limit.
    pub(crate) fn begin_change(&self) -> bool {
        self.passivation.active_entity_limit().is_some() && !self.is_changing.swap(true, Ordering::AcqRel)
    }

    /// Notes that the task divides the limit now: for later changes it is asked again.
    pub(crate) fn end_change(&self) {
        self.is_changing.store(false, Ordering::Release);
    }

    /// The part of the limit of one of `shards` shards.
    pub(crate) fn part(&self, shards: usize) -> usize {
        Passivation::per_shard_limit(self.limit.load(Ordering::Relaxed), shards)
    }
}
