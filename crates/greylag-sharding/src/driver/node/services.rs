//! State that all entity types of a node share.

use std::any::Any;
use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::SystemTime;

use greylag_cluster::{Pulse, RunningHere};
use greylag_persistence::{RecoveryPermits, Stores};
use greylag_transport::Remoting;

use crate::driver::metrics::watchdog::Watchdog;
use crate::driver::node::blocking::BlockingPool;
use crate::driver::node::dispatchers::Dispatchers;
use crate::driver::node::watchable::NodeWatchables;
use crate::driver::shard::lease::NodeLeases;
use crate::extensions::Extensions;
use crate::horizon::Horizon;
use crate::settings::ShardingSettings;

/// The bound of numbers that other nodes may send, by this node's clock.
pub(crate) fn horizon() -> Horizon {
    Horizon::after(SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs())
}

/// The numbers that shards are made with.
#[derive(Debug)]
pub(crate) struct ShardNumbers {
    /// Seed of the entity indices, so that ids aimed at one slot of one table do no harm elsewhere.
    hash_seed: u64,
    started: AtomicU32,
}

impl ShardNumbers {
    fn new() -> Self {
        Self { hash_seed: rand::random(), started: AtomicU32::new(0) }
    }

    /// The seed of the entity indices, the same for all shards of the process.
    pub(crate) fn hash_seed(&self) -> u64 {
        self.hash_seed
    }

    /// A serial number for a shard that starts; never reused.
    pub(crate) fn next_serial(&self) -> u32 {
        self.started.fetch_add(1, Ordering::Relaxed) + 1
    }
}

/// See the module's description.
pub(crate) struct Node {
    pub(crate) remoting: Arc<dyn Remoting>,
    pub(crate) stores: Option<Stores>,
    pub(crate) runtime: tokio::runtime::Handle,
    pub(crate) dispatchers: Dispatchers,
    pub(crate) blocking: BlockingPool,
    pub(crate) watchdog: Watchdog,
    pub(crate) watchables: NodeWatchables,
    pub(crate) recoveries: RecoveryPermits,
    /// `None` if the cluster has no provider of leases.
    pub(crate) leases: Option<NodeLeases>,
    /// Running work that keeps the node's port bound (cluster T33).
    pub(crate) running: RunningHere,
    /// The cluster's tick; `None` without a cluster, and so without another node that could take anything over.
    pulse: Option<Pulse>,
    /// Bound of the numbers in frames. Computed once, since reading the clock costs as much as reading a frame: a node
    /// that runs for a year accepts numbers up to 99 years ahead.
    pub(crate) horizon: Horizon,
    pub(crate) shard_numbers: ShardNumbers,
    /// Values of the layers above.
    pub(crate) extensions: Extensions,
    /// The node's `SharedSharding`, set right after the node was made. Its type is erased, since this module must not name
    /// a module above it; a field of its own and no extension, since handlers ask for it without a lock.
    sharding: OnceLock<Arc<dyn Any + Send + Sync>>,
}

impl Node {
    pub(crate) fn new(
        remoting: Arc<dyn Remoting>,
        stores: Option<Stores>,
        runtime: tokio::runtime::Handle,
        running: RunningHere,
        pulse: Option<Pulse>,
        leases: Option<NodeLeases>,
        settings: &ShardingSettings,
    ) -> Self {
        Self {
            remoting,
            stores,
            dispatchers: Dispatchers::new(runtime.clone(), settings.runtime.guardian_name.clone()),
            blocking: BlockingPool::new(settings.runtime.blocking_pool, runtime.clone()),
            watchdog: Watchdog::default(),
            watchables: NodeWatchables::default(),
            runtime,
            recoveries: RecoveryPermits::new(settings.max_concurrent_recoveries).warn_after(settings.permit_wait_warn),
            leases,
            running,
            pulse,
            horizon: horizon(),
            shard_numbers: ShardNumbers::new(),
            extensions: Extensions::default(),
            sharding: OnceLock::new(),
        }
    }

    /// Sets the access to the node's entities.
    pub(crate) fn lend(&self, sharding: Arc<dyn Any + Send + Sync>) {
        self.sharding.set(sharding).ok();
    }

    /// The access to the node's entities, as it was set.
    pub(crate) fn lent(&self) -> Option<&(dyn Any + Send + Sync)> {
        self.sharding.get().map(|sharding| &**sharding)
    }

    /// Whether handlers may run messages that were taken before this call. Source: cluster F9.
    pub(crate) fn is_awake(&self) -> bool {
        self.pulse.as_ref().is_none_or(Pulse::is_fresh)
    }

    /// Waits until [`Node::is_awake`]; for ever, if the node has ended, since its shards are killed then.
    pub(crate) async fn awake(&self) {
        if let Some(pulse) = &self.pulse
            && !pulse.fresh().await
        {
            std::future::pending::<()>().await;
        }
    }
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Node({})", self.remoting.self_address())
    }
}
