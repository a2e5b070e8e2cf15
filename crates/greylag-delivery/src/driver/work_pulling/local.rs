//! Directories without a cluster: within one process, and by a fixed list.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::StreamExt;
use futures::stream::{self, BoxStream};
use tokio::sync::watch;

use super::directory::{RegisteredWorker, WorkerDirectory};
use crate::ids::{ControllerRef, ServiceKey};
use crate::machine::work_pulling::ListedWorker;

type Listings = BTreeMap<ServiceKey, watch::Sender<BTreeSet<ControllerRef>>>;

/// The workers of one process; clones are the same directory. For tests, and for programs of a single process.
#[derive(Debug, Clone, Default)]
pub struct LocalWorkerDirectory {
    listings: Arc<Mutex<Listings>>,
}

impl LocalWorkerDirectory {
    /// A directory without workers.
    pub fn new() -> Self {
        Self::default()
    }

    fn lock(&self) -> MutexGuard<'_, Listings> {
        self.listings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, key: &ServiceKey, change: impl FnOnce(&mut BTreeSet<ControllerRef>)) {
        let mut listings = self.lock();
        listings.entry(key.clone()).or_default().send_modify(change);
    }
}

impl WorkerDirectory for LocalWorkerDirectory {
    fn subscribe(&self, key: &ServiceKey) -> BoxStream<'static, Vec<ListedWorker>> {
        let listing = self.lock().entry(key.clone()).or_default().subscribe();
        listings_of(listing)
    }

    fn register(&self, key: &ServiceKey, worker: ControllerRef) -> RegisteredWorker {
        self.change(key, |listed| {
            listed.insert(worker.clone());
        });
        let (directory, key) = (self.clone(), key.clone());
        RegisteredWorker::new(move || {
            directory.change(&key, |listed| {
                listed.remove(&worker);
            });
        })
    }
}

/// The present value of a channel, and each later value.
fn listings_of(mut listing: watch::Receiver<BTreeSet<ControllerRef>>) -> BoxStream<'static, Vec<ListedWorker>> {
    listing.mark_changed();
    let next = async |mut listing: watch::Receiver<BTreeSet<ControllerRef>>| {
        listing.changed().await.ok()?;
        let workers = listing.borrow_and_update().iter().map(selectable).collect();
        Some((workers, listing))
    };
    stream::unfold(listing, next).boxed()
}

fn selectable(worker: &ControllerRef) -> ListedWorker {
    ListedWorker { worker: worker.clone(), selectable: true }
}

/// A fixed list of workers for each kind of work, on any nodes, also of other programs: references may be sent like any
/// value.
#[derive(Debug, Clone, Default)]
pub struct StaticWorkerDirectory {
    workers: BTreeMap<ServiceKey, Vec<ControllerRef>>,
}

impl StaticWorkerDirectory {
    /// A directory without workers.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a worker.
    #[must_use]
    pub fn with(mut self, key: ServiceKey, worker: ControllerRef) -> Self {
        self.workers.entry(key).or_default().push(worker);
        self
    }
}

impl WorkerDirectory for StaticWorkerDirectory {
    /// Yields the fixed list once.
    fn subscribe(&self, key: &ServiceKey) -> BoxStream<'static, Vec<ListedWorker>> {
        let workers = self.workers.get(key).into_iter().flatten().map(selectable).collect();
        stream::once(std::future::ready(workers)).boxed()
    }

    /// Does nothing, since the list is fixed.
    fn register(&self, _: &ServiceKey, _: ControllerRef) -> RegisteredWorker {
        RegisteredWorker::new(|| {})
    }
}
