//! The memory of one shard's remembered entities, and of a type's remembered shards, whatever stores them.

use std::collections::BTreeSet;

use async_trait::async_trait;
use greylag_core::Generation;

use crate::ids::{EntityId, ShardId};
use crate::machine::shard::StoreUpdate;
use crate::remember::RememberError;

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
