//! Stores of remembered entities, as used by the shards and the coordinator of one type.
//!
//! A shard opens its part anew with each allocation, and a coordinator its part with each incarnation, so that an
//! earlier one's unfinished work cannot be mistaken for the work of its successor. Source: sharding §4.8.

mod calls;
mod custom;
mod ddata;
mod journal;
mod starter;
mod store;

use std::collections::BTreeSet;
use std::sync::Arc;

use async_trait::async_trait;
use greylag_core::Generation;
use greylag_crdt::OrSet;
use greylag_ddata::{
    DurableSettings, DurableStore, Membership, Replicator, ReplicatorSettings, StaleStore, StartError, TypeTable,
};
use greylag_persistence::Stores;
use greylag_transport::Remoting;

pub(crate) use self::calls::StoreCalls;
pub(crate) use self::starter::StarterTask;
pub use self::store::{InMemoryRememberStore, RememberEntitiesStore, RememberError, RememberStore, ShardTerm};
use crate::fingerprint::Fingerprint;
use crate::ids::{EntityId, EntityTypeName, ShardId};
use crate::machine::shard::StoreUpdate;
use crate::settings::ShardingSettings;

/// Why a shard could not read its remembered entities.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LoadError {
    /// The store failed.
    #[error(transparent)]
    Failed(#[from] RememberError),
    /// A newer owner has read the entities: this owner has been replaced, or the generations were lost and have fallen
    /// behind.
    #[error("its journal knows a newer owner of the shard")]
    Fenced {
        /// The newest owner that the journal knows.
        stored: Option<Generation>,
    },
}

/// The memory of one shard, under one allocation.
#[async_trait]
pub(crate) trait ShardMemory: Send + Sync + 'static {
    /// All remembered entities.
    async fn load(&self) -> Result<BTreeSet<EntityId>, LoadError>;

    /// Makes a change durable; one change at a time.
    async fn update(&self, update: StoreUpdate) -> Result<(), RememberError>;

    /// The number of entities in one shard above which another kind of store is better.
    fn many(&self) -> usize {
        usize::MAX
    }
}

/// The remembered shards of a type, for one incarnation of its coordinator.
#[async_trait]
pub(crate) trait ShardSet: Send + Sync + 'static {
    /// All remembered shards.
    async fn read(&self) -> Result<BTreeSet<ShardId>, RememberError>;

    /// Adds shards durably. Must be called after the first read.
    async fn add(&self, shards: Vec<ShardId>) -> Result<(), RememberError>;
}

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
                let id = journal::shard_persistence_id(&self.name, shard).expect("checked before a shard is known");
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

/// Opens the place in which a node keeps the durable entries of the named replicator.
pub(crate) type OpenDurable = Box<dyn Fn(&str) -> Arc<dyn DurableStore> + Send + Sync>;

/// The replicator of remembered entities among the nodes that may host types of one role. Separate from that of the
/// coordinators' homes, which must not wait until the data on disk have been loaded and compared.
///
/// # Errors
/// [`StartError`].
pub(crate) fn start_replicator(
    remoting: &Arc<dyn Remoting>,
    membership: Membership,
    role: &str,
    settings: &ShardingSettings,
    open: Option<&OpenDurable>,
) -> Result<Replicator, StartError> {
    let name = if role.is_empty() { "remembered-entities".to_owned() } else { format!("remembered-entities-{role}") };
    let store = open.filter(|_| !settings.remember.durable_keys.is_empty()).map(|open| open(&name));
    let mut durable = DurableSettings { stale_store: StaleStore::Discard, ..DurableSettings::default() };
    if store.is_some() {
        durable.keys.clone_from(&settings.remember.durable_keys);
    }
    let replicator_settings = ReplicatorSettings {
        name,
        roles: Some(role.to_owned()).filter(|role| !role.is_empty()).into_iter().collect(),
        majority_min_cap: settings.majority_min_cap,
        max_delta_elements: 5,
        prefer_oldest: true,
        durable,
        ..ReplicatorSettings::default()
    };
    let types = TypeTable::new().with::<OrSet<String>>();
    match store {
        Some(store) => Replicator::start_durable(replicator_settings, types, remoting.clone(), membership, store),
        None => Replicator::start(replicator_settings, types, remoting.clone(), membership),
    }
}
