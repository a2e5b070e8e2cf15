//! The store of one entity type's remembered entities on this node.

use std::sync::Arc;

use greylag_core::Generation;
use greylag_ddata::Replicator;
use greylag_persistence::Stores;

use super::shard_memory::{ShardMemory, ShardSet};
use super::store::shard_persistence_id;
use super::{custom, ddata, journal};
use crate::fingerprint::Fingerprint;
use crate::ids::{EntityTypeName, ShardId};
use crate::remember::{RememberEntitiesStore, ShardTerm};
use crate::settings::ShardingSettings;

/// The store of one entity type on this node.
pub(crate) struct Memory {
    name: EntityTypeName,
    fingerprint: Fingerprint,
    settings: ShardingSettings,
    kind: StoreKind,
}

/// The kind of a store.
pub(crate) enum StoreKind {
    /// Replicated among the nodes that may host the type, or coordinate it.
    Ddata {
        /// The replicator of the entities, if this node hosts the type.
        entities: Option<Replicator>,
        /// The replicator of the shards, if this node may run the coordinator.
        shards: Option<Replicator>,
    },
    /// In this journal, with these snapshots.
    Journal(Stores),
    /// In a store of the program.
    Custom(Arc<dyn RememberEntitiesStore>),
}

impl Memory {
    pub(crate) fn new(
        name: &EntityTypeName,
        fingerprint: &Fingerprint,
        settings: &ShardingSettings,
        kind: StoreKind,
    ) -> Self {
        Self { name: name.clone(), fingerprint: fingerprint.clone(), settings: settings.clone(), kind }
    }

    /// The memory of a shard under one allocation.
    pub(crate) fn shard(&self, shard: &ShardId, generation: Generation) -> Arc<dyn ShardMemory> {
        let term = ShardTerm { entity_type: self.name.clone(), shard: shard.clone(), generation };
        match &self.kind {
            StoreKind::Ddata { entities, .. } => {
                let replicator = entities.clone().expect("shards run where the type is hosted");
                let shard = ddata::DdataShard::new(&term, replicator, &self.settings);
                Arc::new(shard.expect("checked before a shard is known"))
            }
            StoreKind::Journal(stores) => {
                let id = shard_persistence_id(&self.name, shard).expect("checked before a shard is known");
                Arc::new(journal::JournalShard::new(&term, id, stores, &self.settings))
            }
            StoreKind::Custom(store) => Arc::new(custom::Shard { store: store.clone(), term }),
        }
    }

    /// The remembered shards, for a new incarnation of the coordinator.
    pub(crate) fn shards(&self) -> Arc<dyn ShardSet> {
        match &self.kind {
            StoreKind::Ddata { shards, .. } => {
                let replicator = shards.clone().expect("asked for by coordinators, which run where their role is");
                Arc::new(ddata::DdataShards::new(&self.name, replicator, &self.settings))
            }
            StoreKind::Journal(stores) => {
                Arc::new(journal::JournalShards::new(&self.name, stores, &self.fingerprint, &self.settings))
            }
            StoreKind::Custom(store) => Arc::new(custom::Shards(store.clone())),
        }
    }
}
