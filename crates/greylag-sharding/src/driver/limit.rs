//! The limit of active entities of a region, and the part of it that each shard has.
//!
//! Source: sharding §4.10.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::passivation::Passivation;

/// See the module's description.
pub(crate) struct EntityLimit {
    passivation: Passivation,
    /// The limit that holds now; means nothing for a type that has none.
    limit: AtomicUsize,
    /// The region's task was asked to divide it anew.
    is_changing: AtomicBool,
}

impl EntityLimit {
    pub(crate) fn new(passivation: Passivation) -> Self {
        let limit = AtomicUsize::new(passivation.active_entity_limit().unwrap_or(usize::MAX));
        Self { passivation, limit, is_changing: AtomicBool::new(false) }
    }

    /// When shards end entities by themselves.
    pub(crate) fn passivation(&self) -> &Passivation {
        &self.passivation
    }

    /// Another limit holds from now on.
    pub(crate) fn set(&self, limit: usize) {
        self.limit.store(limit, Ordering::Relaxed);
    }

    /// Whether the region's task is to be asked to divide the limit: it is not when it was, or when there is none.
    pub(crate) fn begin_change(&self) -> bool {
        self.passivation.active_entity_limit().is_some() && !self.is_changing.swap(true, Ordering::AcqRel)
    }

    /// The task divides it now: what changes from here on has it asked again.
    pub(crate) fn end_change(&self) {
        self.is_changing.store(false, Ordering::Release);
    }

    /// What one of so many shards has of it.
    pub(crate) fn part(&self, shards: usize) -> usize {
        Passivation::per_shard_limit(self.limit.load(Ordering::Relaxed), shards)
    }
}
