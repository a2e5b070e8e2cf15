//! The directory by which producers find their workers.

use std::fmt;

use futures::stream::BoxStream;

use crate::ids::{ControllerRef, ServiceKey};
use crate::machine::work_pulling::ListedWorker;

/// Lists the workers of each kind of work.
///
/// Membership of the cluster is not enough to find workers: one node hosts many, and a worker may stop without its
/// node. A directory that knows the members leaves out, at once, workers of nodes that were removed or never were
/// members, and lists workers of unreachable nodes as not selectable. Source: delivery W1.
pub trait WorkerDirectory: Send + Sync + 'static {
    /// The present workers of this work, and again after each change. Ends when the directory has no more changes.
    fn subscribe(&self, key: &ServiceKey) -> BoxStream<'static, Vec<ListedWorker>>;

    /// Lists a worker of this node, until the returned value is dropped.
    fn register(&self, key: &ServiceKey, worker: ControllerRef) -> RegisteredWorker;
}

/// The listing of a worker; dropping it takes the worker off the list.
#[must_use = "a worker is listed no more when this is dropped"]
pub struct RegisteredWorker {
    remove: Option<Box<dyn FnOnce() + Send>>,
}

impl RegisteredWorker {
    /// `remove` takes the worker out of its directory.
    pub fn new(remove: impl FnOnce() + Send + 'static) -> Self {
        Self { remove: Some(Box::new(remove)) }
    }
}

impl Drop for RegisteredWorker {
    fn drop(&mut self) {
        if let Some(remove) = self.remove.take() {
            remove();
        }
    }
}

impl fmt::Debug for RegisteredWorker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RegisteredWorker")
    }
}
