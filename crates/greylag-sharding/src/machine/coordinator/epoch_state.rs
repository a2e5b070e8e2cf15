//! The epoch of an incarnation, and the known epochs of others.
//!
//! An epoch is chosen above all that any node is known to have seen. The wall clock is only a floor, in case the state
//! was lost while journals kept larger generations. Source: sharding §2.13.

use greylag_core::Generation;

use super::protocol::{Meta, StoredState};
use crate::fingerprint::Fingerprint;
use crate::machine::message::{CoordinatorId, Epoch};

/// See the module's description.
#[derive(Debug)]
pub(super) struct EpochState {
    /// 0 before an epoch is chosen.
    pub(super) epoch: Epoch,
    /// The largest epoch that any node reported.
    pub(super) seen_epoch: Epoch,
    /// The cluster's fingerprint of the type.
    pub(super) fingerprint: Fingerprint,
}

impl EpochState {
    /// No epoch yet. `fingerprint` is this node's, used unless the state has one.
    pub(super) fn new(fingerprint: Fingerprint) -> Self {
        Self { epoch: 0, seen_epoch: 0, fingerprint }
    }

    /// Learns of another epoch.
    pub(super) fn see(&mut self, epoch: Epoch) {
        self.seen_epoch = self.seen_epoch.max(epoch);
    }

    /// Chooses the epoch from the state read and the wall clock in seconds.
    pub(super) fn choose(&mut self, state: &StoredState, wall_secs: u64) {
        let stored = state.meta.as_ref().map_or(0, |meta| meta.epoch);
        let generations = state.homes.values().map(|home| home.generation.epoch()).max().unwrap_or(0);
        let known = stored.max(generations).max(self.seen_epoch);
        self.epoch = (known + 1).max(wall_secs).min(Generation::MAX_EPOCH);
        if let Some(meta) = &state.meta {
            // Take codec names from this node instead of the first one, as codecs change over node by node.
            let codec = self.fingerprint.codec.clone();
            self.fingerprint = Fingerprint { codec, ..meta.fingerprint.clone() };
        }
    }

    /// The record of this incarnation.
    pub(super) fn meta(&self, coordinator: &CoordinatorId) -> Meta {
        Meta { epoch: self.epoch, coordinator: coordinator.clone(), fingerprint: self.fingerprint.clone() }
    }

    /// The epoch of another incarnation that has chosen the same epoch or a larger one, by the state read after the own
    /// epoch was made durable.
    pub(super) fn rival(&self, state: &StoredState, coordinator: &CoordinatorId) -> Option<Epoch> {
        let own = self.meta(coordinator);
        let rival = state.meta.as_ref().filter(|meta| **meta != own).map(|meta| meta.epoch);
        let foreign = state.homes.values().map(|home| home.generation.epoch()).filter(|e| *e >= self.epoch).max();
        rival.max(foreign).max(self.seen_rival())
    }

    /// The epoch of a rival as in [`EpochState::rival`], by the reports of nodes.
    pub(super) fn seen_rival(&self) -> Option<Epoch> {
        Some(self.seen_epoch).filter(|seen| *seen >= self.epoch)
    }
}
