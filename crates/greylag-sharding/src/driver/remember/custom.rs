//! A store of the program, as used by shards and coordinators. A panic of the store fails the call only.

use std::collections::BTreeSet;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use async_trait::async_trait;
use futures::FutureExt;

use super::shard_memory::{LoadError, ShardMemory, ShardSet};
use crate::ids::{EntityId, ShardId};
use crate::machine::shard::StoreUpdate;
use crate::remember::{RememberEntitiesStore, RememberError, ShardTerm};

/// The memory of one shard in a custom store.
pub(super) struct Shard {
    pub(super) store: Arc<dyn RememberEntitiesStore>,
    pub(super) term: ShardTerm,
}

/// The remembered shards in a custom store.
pub(super) struct Shards(pub(super) Arc<dyn RememberEntitiesStore>);

async fn guarded<T>(call: impl Future<Output = Result<T, RememberError>>) -> Result<T, RememberError> {
    let done = AssertUnwindSafe(call).catch_unwind().await;
    done.unwrap_or_else(|_| Err(RememberError::Stopped("it panicked".into())))
}

#[async_trait]
impl ShardMemory for Shard {
    async fn load(&self) -> Result<BTreeSet<EntityId>, LoadError> {
        Ok(guarded(async { self.store.load(&self.term).await }).await?)
    }

    async fn update(&self, update: StoreUpdate) -> Result<(), RememberError> {
        guarded(async { self.store.update(&self.term, update.starts, update.stops).await }).await
    }
}

#[async_trait]
impl ShardSet for Shards {
    async fn read(&self) -> Result<BTreeSet<ShardId>, RememberError> {
        guarded(async { self.0.shards().await }).await
    }

    async fn add(&self, shards: Vec<ShardId>) -> Result<(), RememberError> {
        for shard in &shards {
            guarded(async { self.0.add_shard(shard).await }).await?;
        }
        Ok(())
    }
}
