//! The tokio half: the handle that programs hold, and the task that runs the machine.

mod membership;

use std::sync::Arc;
use std::time::Duration;

use greylag_crdt::{ReplicatedData, UpdateCx};
use greylag_transport::Remoting;
use tokio::sync::watch;

pub use membership::{Membership, MembershipHandle};

use crate::error::{DeleteError, GetError, RequestError, StartError, StopReason, UpdateError};
use crate::key::{Key, KeyId};
use crate::level::{ReadLevel, WriteLevel};
use crate::read::{Changed, Lifecycle, Read};
use crate::settings::ReplicatorSettings;
use crate::types::TypeTable;

/// A replicator: cheap to clone, and every clone is the same one. Source: ddata R1.
#[derive(Debug, Clone)]
pub struct Replicator {
    lifecycle: watch::Receiver<Lifecycle>,
}

impl Replicator {
    /// Starts a replicator on the current tokio runtime.
    ///
    /// `types` lists the types that peers may send before this node has used them.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn start(
        settings: ReplicatorSettings,
        types: TypeTable,
        remoting: Arc<dyn Remoting>,
        membership: Membership,
    ) -> Result<Self, StartError> {
        settings.validate()?;
        let _ = (types, remoting, membership);
        Ok(Self { lifecycle: watch::channel(Lifecycle::Syncing).1 })
    }

    /// Changes an entry: `modify` runs on its value, or on `init()` if it is absent, and the result
    /// is replicated to as many as `level` says. Requests for one key run one at a time, in order.
    ///
    /// # Errors
    /// [`UpdateError`]; only `Timeout` and `StoreFailed` leave the change made.
    pub async fn update<T, O, E>(
        &self,
        key: &Key<T>,
        level: WriteLevel,
        init: impl FnOnce() -> T + Send + 'static,
        modify: impl FnOnce(&mut T, &mut UpdateCx<'_>) -> Result<O, E> + Send + 'static,
    ) -> Result<O, UpdateError<E>>
    where
        T: ReplicatedData,
        O: Send + 'static,
        E: Send + 'static,
    {
        let _ = (key, level, init, modify);
        Err(self.stopped().into())
    }

    /// Reads an entry.
    ///
    /// # Errors
    /// [`GetError`].
    pub async fn get<T: ReplicatedData>(&self, key: &Key<T>, level: ReadLevel) -> Result<Read<T>, GetError> {
        let _ = (key, level);
        Err(self.stopped().into())
    }

    /// Deletes an entry for good: its tombstone absorbs everything that is merged into it.
    ///
    /// # Errors
    /// [`DeleteError`].
    pub async fn delete<T: ReplicatedData>(&self, key: &Key<T>, level: WriteLevel) -> Result<(), DeleteError> {
        let _ = (key, level);
        Err(self.stopped().into())
    }

    /// Follows an entry, or all entries of a prefix. Dropping the subscription ends it.
    pub fn subscribe<T: ReplicatedData>(&self, key: &Key<T>) -> Subscription<T> {
        let _ = key;
        Subscription { value: std::marker::PhantomData }
    }

    /// Live ids that begin with `prefix` and come after `after`, ascending, at most `limit`.
    ///
    /// # Errors
    /// [`RequestError`].
    pub async fn keys(&self, prefix: &str, after: Option<&str>, limit: usize) -> Result<Vec<KeyId>, RequestError> {
        let _ = (prefix, after, limit);
        Err(self.stopped())
    }

    /// How many voters there are.
    pub fn replica_count(&self) -> usize {
        0
    }

    /// Tells subscribers now.
    pub fn flush_changes(&self) {}

    /// Where the replicator is in its life.
    pub fn lifecycle(&self) -> watch::Receiver<Lifecycle> {
        self.lifecycle.clone()
    }

    /// Waits until enough others were synchronized with. Returns whether that came to pass in time.
    pub async fn wait_synced(&self, timeout: Duration) -> bool {
        let _ = timeout;
        false
    }

    /// Stops in order: sends what nobody has yet, waits for one voter to confirm it, and ends.
    pub async fn shutdown(&self) {}

    fn stopped(&self) -> RequestError {
        RequestError::Stopped(StopReason::ShutDown)
    }
}

/// The changes of an entry, or of all entries of a prefix. At most one event per key is pending, the
/// latest, so a slow reader costs bounded memory and ends with the final state. Source: ddata R15.
#[derive(Debug)]
pub struct Subscription<T> {
    value: std::marker::PhantomData<fn() -> T>,
}

impl<T: ReplicatedData> Subscription<T> {
    /// The next change; `None` once the replicator has stopped.
    pub async fn next(&mut self) -> Option<Changed<T>> {
        None
    }
}
