//! The epoch of an incarnation, and what it knows of those of others.
//!
//! An epoch is chosen above all that any node is known to have seen. The wall clock is only a floor, for state that was
//! lost while journals kept larger generations. Source: sharding §2.13.

use greylag_core::Generation;

use super::protocol::{Meta, StoredState};
use crate::fingerprint::Fingerprint;
use crate::machine::message::{CoordinatorId, Epoch};

/// See the module's description.
#[derive(Debug)]
pub(super) struct Term {
    /// 0 before one is chosen.
    pub(super) epoch: Epoch,
    /// The largest one that any node said it has seen.
    pub(super) seen_epoch: Epoch,
    /// What the nodes of the cluster understand the type to be.
    pub(super) fingerprint: Fingerprint,
}

impl Term {
    /// No epoch yet. The type is what this node understands it to be, unless the state names something else.
    pub(super) fn new(fingerprint: Fingerprint) -> Self {
        Self { epoch: 0, seen_epoch: 0, fingerprint }
    }

    /// Learns of an epoch.
    pub(super) fn see(&mut self, epoch: Epoch) {
        self.seen_epoch = self.seen_epoch.max(epoch);
    }

    /// Chooses the epoch, by what was read and the wall clock in seconds.
    pub(super) fn choose(&mut self, state: &StoredState, wall_secs: u64) {
        let stored = state.meta.as_ref().map_or(0, |meta| meta.epoch);
        let generations = state.homes.values().map(|home| home.generation.epoch()).max().unwrap_or(0);
        let known = stored.max(generations).max(self.seen_epoch);
        self.epoch = (known + 1).max(wall_secs).min(Generation::MAX_EPOCH);
        if let Some(meta) = &state.meta {
            // Codecs change over node by node, so the names that count are those of this node and not the first one's.
            let codec = self.fingerprint.codec.clone();
            self.fingerprint = Fingerprint { codec, ..meta.fingerprint.clone() };
        }
    }

    /// The record of this incarnation.
    pub(super) fn meta(&self, coordinator: &CoordinatorId) -> Meta {
        Meta { epoch: self.epoch, coordinator: coordinator.clone(), fingerprint: self.fingerprint.clone() }
    }

    /// The epoch of another incarnation that has chosen the same one or a larger one, by what was read after the own
    /// was made durable.
    pub(super) fn rival(&self, state: &StoredState, coordinator: &CoordinatorId) -> Option<Epoch> {
        let own = self.meta(coordinator);
        let rival = state.meta.as_ref().filter(|meta| **meta != own).map(|meta| meta.epoch);
        let foreign = state.homes.values().map(|home| home.generation.epoch()).filter(|e| *e >= self.epoch).max();
        rival.max(foreign).max(self.seen_rival())
    }

    /// The same, by what nodes have said.
    pub(super) fn seen_rival(&self) -> Option<Epoch> {
        Some(self.seen_epoch).filter(|seen| *seen >= self.epoch)
    }
}
