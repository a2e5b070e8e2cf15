//! How the tasks of a type's shards run: on which threads, and under which leases.

use std::future::Future;
use std::sync::Arc;

use tokio::sync::broadcast;

use crate::driver::node::dispatchers::Threads;
use crate::driver::region::event::Event;
use crate::driver::shard::lease::{LeaseInUse, ShardLeases};
use crate::ids::ShardId;

/// See the module's description.
pub(in crate::driver) struct ShardTasks {
    threads: Threads,
    /// `None` if shards of the type hold no leases.
    leases: Option<Arc<ShardLeases>>,
}

impl ShardTasks {
    pub(in crate::driver) fn new(threads: Threads, leases: Option<Arc<ShardLeases>>) -> Self {
        Self { threads, leases }
    }

    /// Runs the task of a shard.
    pub(in crate::driver) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.threads.handle().spawn(task);
    }

    /// The lease of a shard, not requested yet; `None` if the shard needs none.
    pub(in crate::driver) fn lease(&self, shard: &ShardId, events: &broadcast::Sender<Event>) -> Option<LeaseInUse> {
        self.leases.as_ref().map(|leases| leases.of(shard, events))
    }
}
