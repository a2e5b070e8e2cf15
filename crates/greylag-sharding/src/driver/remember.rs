//! Stores of remembered entities, as the shards and the coordinator of one type use them.
//!
//! A shard opens its part anew with each allocation, and a coordinator its own with each incarnation, so that nothing an
//! earlier one still has under way can be taken for the work of its successor. Source: sharding §4.8.

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

/// Why a shard could not read what it remembers.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LoadError {
    /// The store did not do it.
    #[error(transparent)]
    Failed(#[from] RememberError),
    /// A newer owner has read it: this one has been replaced, or the numbers of owners were lost and have fallen behind.
    #[error("its journal knows a newer owner of the shard")]
    Fenced {
        /// The newest owner that the journal knows.
        stored: Option<Generation>,
    },
}

/// What one shard remembers, under one allocation.
#[async_trait]
pub(crate) trait ShardMemory: Send + Sync + 'static {
    /// All entities that are remembered.
    async fn load(&self) -> Result<BTreeSet<EntityId>, LoadError>;

    /// Makes a change durable; one at a time.
    async fn update(&self, update: StoreUpdate) -> Result<(), RememberError>;

    /// Entities of one shard beyond which another kind of store is the better one.
    fn many(&self) -> usize {
        usize::MAX
    }
}

/// The shards of a type that have had entities, for one incarnation of its coordinator.
#[async_trait]
pub(crate) trait ShardSet: Send + Sync + 'static {
    /// All of them.
    async fn read(&self) -> Result<BTreeSet<ShardId>, RememberError>;

    /// Makes it durable that these are among them. After the first read.
    async fn add(&self, shards: Vec<ShardId>) -> Result<(), RememberError>;
}

/// The store of one entity type on this node.
pub(crate) struct Memory {
    name: EntityTypeName,
    fingerprint: Fingerprint,
    settings: ShardingSettings,
    kept: Kept,
}

/// Which kind of store that is.
pub(crate) enum Kept {
    /// Replicated among the nodes that may host the type, or coordinate it.
    Ddata {
        /// Of the entities, if this node hosts the type.
        entities: Option<Replicator>,
        /// Of the shards, if it may run the coordinator.
        shards: Option<Replicator>,
    },
    /// In this journal, with these snapshots.
    Journal(Stores),
    /// In one of the program's own.
    Custom(Arc<dyn RememberEntitiesStore>),
}

impl Memory {
    pub(crate) fn new(
        name: &EntityTypeName,
        fingerprint: &Fingerprint,
        settings: &ShardingSettings,
        kept: Kept,
    ) -> Self {
        Self { name: name.clone(), fingerprint: fingerprint.clone(), settings: settings.clone(), kept }
    }

    /// What a shard remembers.
    pub(crate) fn shard(&self, shard: &ShardId, generation: Generation) -> Arc<dyn ShardMemory> {
        let term = ShardTerm { entity_type: self.name.clone(), shard: shard.clone(), generation };
        match &self.kept {
            Kept::Ddata { entities, .. } => {
                let replicator = entities.clone().expect("shards run where the type is hosted");
                let shard = ddata::DdataShard::new(&term, replicator, &self.settings);
                Arc::new(shard.expect("checked before a shard is known"))
            }
            Kept::Journal(stores) => {
                let id = journal::shard_persistence_id(&self.name, shard).expect("checked before a shard is known");
                Arc::new(journal::JournalShard::new(&term, id, stores, &self.settings))
            }
            Kept::Custom(store) => Arc::new(custom::Shard { store: store.clone(), term }),
        }
    }

    /// The shards, for a new incarnation of the coordinator.
    pub(crate) fn shards(&self) -> Arc<dyn ShardSet> {
        match &self.kept {
            Kept::Ddata { shards, .. } => {
                let replicator = shards.clone().expect("asked for by coordinators, which run where their role is");
                Arc::new(ddata::DdataShards::new(&self.name, replicator, &self.settings))
            }
            Kept::Journal(stores) => {
                Arc::new(journal::JournalShards::new(&self.name, stores, &self.fingerprint, &self.settings))
            }
            Kept::Custom(store) => Arc::new(custom::Shards(store.clone())),
        }
    }
}

/// Opens the place in which a node keeps the durable entries of the replicator of this name.
pub(crate) type OpenDurable = Box<dyn Fn(&str) -> Arc<dyn DurableStore> + Send + Sync>;

/// The replicator of remembered entities among the nodes that may host types of one role. It is not that of the
/// coordinators' homes: those must not wait until what is on disk has been loaded and compared.
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
