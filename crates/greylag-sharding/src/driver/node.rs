//! What all entity types of a node share.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use greylag_cluster::RunningHere;
use greylag_persistence::Stores;
use greylag_transport::Remoting;
use tokio::sync::Semaphore;

/// Recoveries that run at a time on one node. Source: persistence §2.5.
const MAX_CONCURRENT_RECOVERIES: usize = 50;

/// See the module's description.
pub(crate) struct Node {
    pub(crate) remoting: Arc<dyn Remoting>,
    pub(crate) stores: Option<Stores>,
    pub(crate) runtime: tokio::runtime::Handle,
    /// Of the entity indices, so that ids aimed at one place of one table cost nothing elsewhere.
    pub(crate) hash_seed: u64,
    pub(crate) recoveries: Arc<Semaphore>,
    /// What runs here keeps the node's port bound (cluster T33).
    pub(crate) running: RunningHere,
    shards_started: AtomicU32,
}

impl Node {
    pub(crate) fn new(
        remoting: Arc<dyn Remoting>,
        stores: Option<Stores>,
        runtime: tokio::runtime::Handle,
        running: RunningHere,
    ) -> Self {
        Self {
            remoting,
            stores,
            runtime,
            hash_seed: rand::random(),
            recoveries: Arc::new(Semaphore::new(MAX_CONCURRENT_RECOVERIES)),
            running,
            shards_started: AtomicU32::new(0),
        }
    }

    /// A number for a shard that starts; never given twice.
    pub(crate) fn next_shard_serial(&self) -> u32 {
        self.shards_started.fetch_add(1, Ordering::Relaxed) + 1
    }
}
