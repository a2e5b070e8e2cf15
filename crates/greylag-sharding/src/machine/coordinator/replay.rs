//! A coordinator's history as kept in a journal, and the state that it yields.
//!
//! ```text
//! snapshot --> Replay --event--> Replay --event--> … --> StoredState, and how often the history was repaired
//! ```
//! A contradictory history (an allocation to a region that never registered, say) is repaired and not refused: an
//! entity type must not stay down because of one record. Each repair is counted; with `strict` the first contradiction
//! is an error. Reading bytes is left to `wire`, and the journal to the driver.
//!
//! Source: sharding §2.14.

use std::collections::BTreeSet;
use std::fmt;

use greylag_core::Generation;

use super::protocol::{Meta, StateEvent, StoredHome, StoredState};
use crate::fingerprint::Fingerprint;
use crate::ids::{RegionId, ShardId};
use crate::machine::message::{CoordinatorId, Epoch};

/// One event of the history.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HistoryEvent {
    /// An incarnation took over, or confirmed that it runs.
    EpochStarted {
        /// Its epoch.
        epoch: Epoch,
        /// The incarnation.
        coordinator: CoordinatorId,
    },
    /// The fingerprint of the type that regions have to match from this event on.
    FingerprintRecorded(Fingerprint),
    /// The registration gate was passed.
    Initialized,
    /// A hosting region may be given shards from here on.
    RegionRegistered(RegionId),
    /// A region was proven to be gone.
    RegionTerminated(RegionId),
    /// A shard got a home.
    ShardHomeAllocated {
        /// Which shard.
        shard: ShardId,
        /// Its owner.
        region: RegionId,
        /// Its generation.
        generation: Generation,
        /// The generation that ended before this allocation.
        previous: Option<Generation>,
        /// The region that still has unhandled messages for the new home.
        leftovers_from: Option<RegionId>,
    },
    /// A shard has no home any more.
    ShardHomeDeallocated {
        /// Which shard.
        shard: ShardId,
        /// The generation that ended.
        generation: Generation,
        /// The region that has unhandled messages for the home that follows.
        leftovers_from: Option<RegionId>,
    },
    /// The entities of these shards are remembered. Written if homes are not in the journal.
    ShardsRemembered(BTreeSet<ShardId>),
    /// Homes are not in the journal from here on: all shards that had one are remembered.
    Migrated,
}

impl From<StateEvent> for HistoryEvent {
    fn from(event: StateEvent) -> Self {
        match event {
            StateEvent::EpochStarted(Meta { epoch, coordinator, .. }) => Self::EpochStarted { epoch, coordinator },
            StateEvent::FingerprintRecorded(fingerprint) => Self::FingerprintRecorded(fingerprint),
            StateEvent::Initialized => Self::Initialized,
            StateEvent::RegionRegistered(region) => Self::RegionRegistered(region),
            StateEvent::RegionTerminated(region) => Self::RegionTerminated(region),
            StateEvent::Home { shard, home } => {
                let StoredHome { region, generation, deallocated, previous, leftovers_from } = home;
                if deallocated {
                    Self::ShardHomeDeallocated { shard, generation, leftovers_from }
                } else {
                    Self::ShardHomeAllocated { shard, region, generation, previous, leftovers_from }
                }
            }
        }
    }
}

/// A contradiction in a history, and its repair.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Contradiction {
    /// An epoch below an earlier one. The larger epoch stands.
    #[error("epoch {epoch} started after epoch {known}")]
    EpochFell {
        /// The epoch of the event.
        epoch: Epoch,
        /// The earlier epoch.
        known: Epoch,
    },
    /// A history with epochs but without a fingerprint. The reader's own fingerprint is used.
    #[error("no fingerprint was recorded")]
    NoFingerprint,
    /// A region registered twice. Nothing changes.
    #[error("region {0} registered twice")]
    RegisteredTwice(RegionId),
    /// An unregistered region ended. Nothing changes.
    #[error("region {0} ended without having registered")]
    UnknownRegionTerminated(RegionId),
    /// An unregistered region got a shard. The region counts as registered.
    #[error("shard {shard} was allocated to region {region}, which had not registered")]
    UnknownOwner {
        /// Which shard.
        shard: ShardId,
        /// Its owner.
        region: RegionId,
    },
    /// A shard that had a home, or a newer tombstone, got another home. The larger generation stands.
    #[error("shard {shard} was allocated as {generation} over {known}")]
    AllocatedTwice {
        /// Which shard.
        shard: ShardId,
        /// The generation of the event.
        generation: Generation,
        /// The earlier generation.
        known: Generation,
    },
    /// A home ended that did not exist. Nothing changes.
    #[error("generation {generation} of shard {shard} ended, but was not the shard's home")]
    UnknownHomeEnded {
        /// Which shard.
        shard: ShardId,
        /// The generation of the event.
        generation: Generation,
    },
}

/// The fold of a history; see the module's description.
#[derive(Debug, Clone)]
pub struct Replay {
    strict: bool,
    epoch: Option<(Epoch, CoordinatorId)>,
    fingerprint: Option<Fingerprint>,
    state: StoredState,
    repairs: u64,
    first_repair: Option<Contradiction>,
}

impl Replay {
    /// Begins before the first event. `strict`: contradictions are errors instead of being repaired.
    pub fn new(strict: bool) -> Self {
        Self::from_snapshot(StoredState::default(), strict)
    }

    /// Begins behind the last event that the snapshot contains.
    pub fn from_snapshot(state: StoredState, strict: bool) -> Self {
        let (epoch, fingerprint) = match &state.meta {
            Some(meta) => (Some((meta.epoch, meta.coordinator.clone())), Some(meta.fingerprint.clone())),
            None => (None, None),
        };
        Self { strict, epoch, fingerprint, state, repairs: 0, first_repair: None }
    }

    /// Takes the next event.
    ///
    /// # Errors
    /// A [`Contradiction`], if the replay is strict; the state is unchanged then.
    pub fn apply(&mut self, event: HistoryEvent) -> Result<(), Contradiction> {
        match event {
            HistoryEvent::EpochStarted { epoch, coordinator } => self.on_epoch(epoch, coordinator),
            HistoryEvent::FingerprintRecorded(fingerprint) => {
                self.fingerprint = Some(fingerprint);
                Ok(())
            }
            HistoryEvent::Initialized => {
                self.state.initialized = true;
                Ok(())
            }
            HistoryEvent::RegionRegistered(region) if self.state.regions.contains(&region) => {
                self.repair(Contradiction::RegisteredTwice(region))
            }
            HistoryEvent::RegionRegistered(region) => {
                self.state.regions.insert(region);
                Ok(())
            }
            HistoryEvent::RegionTerminated(region) => self.on_terminated(region),
            HistoryEvent::ShardHomeAllocated { shard, region, generation, previous, leftovers_from } => {
                let home = StoredHome { region, generation, deallocated: false, previous, leftovers_from };
                self.on_allocated(shard, home)
            }
            HistoryEvent::ShardHomeDeallocated { shard, generation, leftovers_from } => {
                self.on_deallocated(shard, generation, leftovers_from)
            }
            HistoryEvent::ShardsRemembered(shards) => {
                self.state.remembered.extend(shards);
                Ok(())
            }
            HistoryEvent::Migrated => {
                let homes = std::mem::take(&mut self.state.homes);
                self.state.remembered.extend(homes.into_keys());
                self.state.regions.clear();
                self.state.migrated = true;
                Ok(())
            }
        }
    }

    /// The state so far. `own`: the reader's fingerprint of the type, for a history without one.
    ///
    /// # Errors
    /// [`Contradiction::NoFingerprint`], if the replay is strict.
    pub fn state(&mut self, own: &Fingerprint) -> Result<StoredState, Contradiction> {
        if self.epoch.is_some() && self.fingerprint.is_none() {
            self.repair(Contradiction::NoFingerprint)?;
            self.fingerprint = Some(own.clone());
        }
        Ok(self.recorded())
    }

    /// The recorded state so far: without a last incarnation, if the history has no fingerprint.
    pub fn recorded(&self) -> StoredState {
        let meta = self.epoch.clone().zip(self.fingerprint.clone());
        let meta = meta.map(|((epoch, coordinator), fingerprint)| Meta { epoch, coordinator, fingerprint });
        StoredState { meta, ..self.state.clone() }
    }

    /// How often the history was repaired.
    pub fn repairs(&self) -> u64 {
        self.repairs
    }

    /// The first contradiction that was repaired.
    pub fn first_repair(&self) -> Option<&Contradiction> {
        self.first_repair.as_ref()
    }

    fn repair(&mut self, contradiction: Contradiction) -> Result<(), Contradiction> {
        if self.strict {
            return Err(contradiction);
        }
        self.repairs += 1;
        self.first_repair.get_or_insert(contradiction);
        Ok(())
    }

    fn on_epoch(&mut self, epoch: Epoch, coordinator: CoordinatorId) -> Result<(), Contradiction> {
        if let Some(known) = self.epoch.as_ref().map(|(known, _)| *known).filter(|known| *known > epoch) {
            return self.repair(Contradiction::EpochFell { epoch, known });
        }
        self.epoch = Some((epoch, coordinator));
        Ok(())
    }

    fn on_terminated(&mut self, region: RegionId) -> Result<(), Contradiction> {
        if !self.state.regions.contains(&region) {
            return self.repair(Contradiction::UnknownRegionTerminated(region));
        }
        self.state.regions.remove(&region);
        // The event proves that nothing of the region lives.
        for home in self.state.homes.values_mut().filter(|home| home.region == region && !home.deallocated) {
            (home.deallocated, home.leftovers_from, home.previous) = (true, None, None);
        }
        Ok(())
    }

    fn on_allocated(&mut self, shard: ShardId, home: StoredHome) -> Result<(), Contradiction> {
        let known = self.state.homes.get(&shard).map(|known| (known.generation, known.deallocated));
        if !self.state.regions.contains(&home.region) {
            self.repair(Contradiction::UnknownOwner { shard: shard.clone(), region: home.region.clone() })?;
            self.state.regions.insert(home.region.clone());
        }
        if let Some((known, deallocated)) = known
            && (!deallocated || known >= home.generation)
        {
            let generation = home.generation;
            self.repair(Contradiction::AllocatedTwice { shard: shard.clone(), generation, known })?;
            if known >= generation {
                return Ok(());
            }
        }
        self.state.homes.insert(shard, home);
        Ok(())
    }

    fn on_deallocated(
        &mut self,
        shard: ShardId,
        generation: Generation,
        leftovers_from: Option<RegionId>,
    ) -> Result<(), Contradiction> {
        match self.state.homes.get_mut(&shard) {
            Some(home) if !home.deallocated && home.generation == generation => {
                (home.deallocated, home.leftovers_from, home.previous) = (true, leftovers_from, None);
                Ok(())
            }
            _ => self.repair(Contradiction::UnknownHomeEnded { shard, generation }),
        }
    }
}

impl fmt::Display for Replay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let homes = self.state.homes.values().filter(|home| !home.deallocated).count();
        let regions: BTreeSet<_> = self.state.regions.iter().map(|region| &region.node).collect();
        write!(f, "{homes} homes on {} nodes", regions.len())
    }
}

#[cfg(test)]
mod tests;
