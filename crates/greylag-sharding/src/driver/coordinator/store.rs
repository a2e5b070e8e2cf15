//! Stores of the coordinators' state behind one trait: replicated data, or a journal that every node reaches.
//!
//! A store belongs to one incarnation of the coordinator, so that unfinished work of an earlier incarnation cannot be
//! mistaken for the work of its successor. Source: sharding §2.14, §2.15.

mod ddata;
pub(crate) mod failures;
pub(crate) mod format;
pub(crate) mod log;
mod persistence;
mod snapshots;
mod state_store;

use std::sync::Arc;

use greylag_ddata::Replicator;
use greylag_persistence::Stores;

use self::ddata::DdataStore;
pub(crate) use self::persistence::{PersistenceStore, persistence_id};
pub(crate) use self::state_store::{NotCommitted, StateStore};
use crate::driver::coordinator::coordinated::Coordinated;
use crate::fingerprint::Fingerprint;
use crate::ids::EntityTypeName;
use crate::settings::ShardingSettings;

/// The kind of store of a node's coordinators.
pub(crate) enum Backend {
    /// Replicated among the nodes that may run the coordinator.
    Ddata(Replicator),
    /// In this journal, with these snapshots.
    Persistence(Stores),
}

impl Backend {
    /// Opens the store of a new incarnation.
    pub(crate) fn open(
        &self,
        name: &EntityTypeName,
        fingerprint: &Fingerprint,
        settings: &ShardingSettings,
        coordinated: &Arc<Coordinated>,
    ) -> Arc<dyn StateStore> {
        match self {
            Self::Ddata(replicator) => Arc::new(DdataStore::new(name, replicator.clone(), settings)),
            Self::Persistence(stores) => {
                Arc::new(PersistenceStore::new(name, stores, fingerprint, settings).counting(coordinated.clone()))
            }
        }
    }
}
