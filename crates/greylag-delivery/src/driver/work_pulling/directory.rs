//! Where producers find their workers.

use std::fmt;

use futures::stream::BoxStream;

use crate::ids::{ControllerRef, ServiceKey};
use crate::machine::work_pulling::ListedWorker;

/// Lists the workers of each kind of work.
///
/// Membership of the cluster is not enough for this: one node hosts many workers, and one may stop without its node. A
/// directory that knows the members leaves out workers of nodes that were removed, or never were members, at once, and lists
/// those of nodes that cannot be reached as not selectable. Source: delivery W1.
pub trait WorkerDirectory: Send + Sync + 'static {
    /// All workers of this work now, and again whenever they change. Ends when the directory knows nothing more.
    fn subscribe(&self, key: &ServiceKey) -> BoxStream<'static, Vec<ListedWorker>>;

    /// Lists a worker of this node, until the returned value is dropped.
    fn register(&self, key: &ServiceKey, worker: ControllerRef) -> RegisteredWorker;
}

/// A worker that is listed; dropped, it is listed no more.
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
