//! The stores of remembered entities, and the trait for a store of your own.

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use greylag_core::Generation;
use greylag_persistence::PersistenceId;

use crate::ids::{EntityId, EntityTypeName, ShardId, percent_encode};

/// Where the entities of a type are remembered. All nodes must agree. Source: sharding §4.8.
#[derive(Clone, Default)]
pub enum RememberStore {
    /// Replicated data. Entities are remembered for as long as one node runs, and over a stop of all nodes only if the
    /// data are durable. The default.
    #[default]
    Ddata,
    /// A journal that every node reaches.
    EventSourced,
    /// A store of your own.
    Custom(Arc<dyn RememberEntitiesStore>),
}

impl RememberStore {
    /// A store of your own.
    pub fn custom(store: impl RememberEntitiesStore) -> Self {
        Self::Custom(Arc::new(store))
    }

    /// Whether the store can keep the entities of a shard with this name: persistence ids have a bound. Source:
    /// sharding §4.8.
    pub(crate) fn has_room_for(&self, name: &EntityTypeName, shard: &ShardId) -> bool {
        !matches!(self, Self::EventSourced) || shard_persistence_id(name, shard).is_some()
    }

    /// The name by which nodes compare their stores, and configuration files name them.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Ddata => "ddata",
            Self::EventSourced => "eventsourced",
            Self::Custom(_) => "custom",
        }
    }
}

/// Two stores of your own are equal if they are the same value.
impl PartialEq for RememberStore {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Custom(one), Self::Custom(other)) => Arc::ptr_eq(one, other),
            (one, other) => one.name() == other.name(),
        }
    }
}

impl fmt::Debug for RememberStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A shard, and the allocation under which it runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShardTerm {
    /// The entity type.
    pub entity_type: EntityTypeName,
    /// The shard.
    pub shard: ShardId,
    /// Larger for each later owner of the shard: a store that refuses updates with a smaller generation than it has
    /// seen is protected from owners that were replaced and do not know it yet.
    pub generation: Generation,
}

/// Why a request to a store failed.
#[derive(Debug, thiserror::Error)]
pub enum RememberError {
    /// The store does not answer, or refuses for now. The shard fails and starts again; a coordinator repeats its
    /// request.
    #[error("the store of remembered entities is unavailable: {0}")]
    Unavailable(#[source] Box<dyn Error + Send + Sync>),
    /// The store cannot go on: the shard or the coordinator fails and starts again, and opens the store anew.
    #[error("the store of remembered entities has stopped: {0}")]
    Stopped(#[source] Box<dyn Error + Send + Sync>),
}

/// Remembers the entities of the shards of one type, and the shards that have had entities.
///
/// At most one call of [`load`](Self::load) or [`update`](Self::update) is under way for one allocation of a shard,
/// except for a load that took too long, which is given up and repeated. A stored update must be in every later load,
/// on any node; an update that returns an error may be stored or not.
///
/// ```
/// use std::collections::BTreeSet;
///
/// use greylag_sharding::ids::{EntityId, ShardId};
/// use greylag_sharding::{RememberEntitiesStore, RememberError, ShardTerm};
///
/// /// Jobs that always run, written down in the program.
/// struct Fixed(BTreeSet<EntityId>);
///
/// #[async_trait::async_trait]
/// impl RememberEntitiesStore for Fixed {
///     async fn load(&self, _: &ShardTerm) -> Result<BTreeSet<EntityId>, RememberError> {
///         Ok(self.0.clone())
///     }
///     async fn update(&self, _: &ShardTerm, _: Vec<EntityId>, _: Vec<EntityId>) -> Result<(), RememberError> {
///         Ok(())
///     }
///     async fn add_shard(&self, _: &ShardId) -> Result<(), RememberError> {
///         Ok(())
///     }
///     async fn shards(&self) -> Result<BTreeSet<ShardId>, RememberError> {
///         Ok((0..10).map(ShardId::from_index).collect())
///     }
/// }
/// ```
/// Source: sharding §4.8.
#[async_trait]
pub trait RememberEntitiesStore: Send + Sync + 'static {
    /// The remembered entities of a shard; none for an unknown shard.
    ///
    /// # Errors
    /// [`RememberError`].
    async fn load(&self, of: &ShardTerm) -> Result<BTreeSet<EntityId>, RememberError>;

    /// Remembers `starts` and forgets `stops`, all or nothing. No id is in both, and ids may be remembered already, or
    /// not.
    ///
    /// # Errors
    /// [`RememberError`].
    async fn update(&self, of: &ShardTerm, starts: Vec<EntityId>, stops: Vec<EntityId>) -> Result<(), RememberError>;

    /// Remembers that a shard has had entities: a coordinator adds each shard before any region hosts it, and gives all
    /// added shards a home again after a stop of all nodes.
    ///
    /// # Errors
    /// [`RememberError`].
    async fn add_shard(&self, shard: &ShardId) -> Result<(), RememberError>;

    /// The added shards.
    ///
    /// # Errors
    /// [`RememberError`].
    async fn shards(&self) -> Result<BTreeSet<ShardId>, RememberError>;
}

/// Keeps its data in this process, for tests, and for a node without a cluster. Clones are the same store.
#[derive(Clone, Default)]
pub struct InMemoryRememberStore(Arc<Mutex<Memory>>);

#[derive(Default)]
struct Memory {
    shards: BTreeSet<ShardId>,
    entities: BTreeMap<ShardId, BTreeSet<EntityId>>,
}

impl InMemoryRememberStore {
    /// An empty store.
    pub fn new() -> Self {
        Self::default()
    }

    /// The remembered entities of a shard.
    pub fn entities(&self, shard: &ShardId) -> BTreeSet<EntityId> {
        self.lock().entities.get(shard).cloned().unwrap_or_default()
    }

    fn lock(&self) -> MutexGuard<'_, Memory> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for InMemoryRememberStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "InMemoryRememberStore({} shards)", self.lock().shards.len())
    }
}

#[async_trait]
impl RememberEntitiesStore for InMemoryRememberStore {
    async fn load(&self, of: &ShardTerm) -> Result<BTreeSet<EntityId>, RememberError> {
        Ok(self.entities(&of.shard))
    }

    async fn update(&self, of: &ShardTerm, starts: Vec<EntityId>, stops: Vec<EntityId>) -> Result<(), RememberError> {
        let mut memory = self.lock();
        let known = memory.entities.entry(of.shard.clone()).or_default();
        known.extend(starts);
        for id in &stops {
            known.remove(id);
        }
        Ok(())
    }

    async fn add_shard(&self, shard: &ShardId) -> Result<(), RememberError> {
        self.lock().shards.insert(shard.clone());
        Ok(())
    }

    async fn shards(&self) -> Result<BTreeSet<ShardId>, RememberError> {
        Ok(self.lock().shards.clone())
    }
}

/// The persistence id of a shard's history; `None` if its names are too long for one.
pub(crate) fn shard_persistence_id(name: &EntityTypeName, shard: &ShardId) -> Option<PersistenceId> {
    PersistenceId::unique(&format!("/sharding/{}Shard/{}", name.encoded(), percent_encode(shard.as_str()))).ok()
}
