//! Where producers find their workers.

use std::fmt;
use std::sync::Arc;

use futures::stream::BoxStream;

use crate::ids::ControllerRef;
use crate::machine::work_pulling::ListedWorker;

/// Names one kind of work: 1 to 200 bytes of UTF-8.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServiceKey(Arc<str>);

impl ServiceKey {
    /// The longest key in bytes.
    pub const MAX_BYTES: usize = 200;

    /// Checks a key.
    ///
    /// # Errors
    /// [`InvalidServiceKey`] if it is empty or too long.
    pub fn new(key: impl Into<Arc<str>>) -> Result<Self, InvalidServiceKey> {
        let key = key.into();
        match key.len() {
            1..=Self::MAX_BYTES => Ok(Self(key)),
            length => Err(InvalidServiceKey { length }),
        }
    }

    /// The key itself.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ServiceKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A service key that is empty or longer than [`ServiceKey::MAX_BYTES`].
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a service key has 1 to 200 bytes, this one has {length}")]
pub struct InvalidServiceKey {
    /// Its length in bytes.
    pub length: usize,
}

greylag_core::debug_is_sentence!(InvalidServiceKey);

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
