//! The directory of workers of a cluster, in replicated data.
//!
//! Each kind of work is a set under `delivery/workers/{key}` in a replicator; a worker adds itself on its own node, and
//! gossip carries the entry to the others. Entries of a node that was removed are ignored at once, by membership, and
//! deleted from the set by the oldest member. Source: delivery W1.

use std::collections::BTreeSet;
use std::sync::Arc;

use futures::StreamExt;
use futures::stream::{self, BoxStream};
use greylag_core::UniqueAddress;
use greylag_crdt::OrSet;
use greylag_ddata::{Changed, Replicas, Replicated, Replicator, RequestError, Subscription};
use tokio::sync::watch;

use super::directory::{RegisteredWorker, WorkerDirectory};
use crate::ids::{ControllerRef, ServiceKey};
use crate::machine::work_pulling::ListedWorker;

/// See the module's documentation. Clones are the same directory.
#[derive(Debug, Clone)]
pub struct DdataWorkerDirectory {
    replicator: Replicator,
    own: UniqueAddress,
}

type Workers = Replicated<OrSet<String>>;

impl DdataWorkerDirectory {
    /// The directory of the node `own`, in its replicator.
    pub fn new(replicator: Replicator, own: UniqueAddress) -> Self {
        Self { replicator, own }
    }

    fn workers(&self, key: &ServiceKey) -> Result<Workers, RequestError> {
        self.replicator.replicated(format!("delivery/workers/{key}"))
    }
}

impl WorkerDirectory for DdataWorkerDirectory {
    fn subscribe(&self, key: &ServiceKey) -> BoxStream<'static, Vec<ListedWorker>> {
        let workers = match self.workers(key) {
            Ok(workers) => workers,
            Err(error) => {
                tracing::error!(%key, %error, "cannot subscribe to the worker directory");
                return stream::pending().boxed();
            }
        };
        let subscription = WorkerSubscription {
            changes: workers.subscribe(),
            replicas: self.replicator.replicas(),
            listed: BTreeSet::new(),
            own: self.own.clone(),
            workers,
        };
        stream::unfold(subscription, |mut subscription| async move {
            let listing = subscription.next().await?;
            Some((listing, subscription))
        })
        .boxed()
    }

    fn register(&self, key: &ServiceKey, worker: ControllerRef) -> RegisteredWorker {
        let workers = match self.workers(key) {
            Ok(workers) => workers,
            Err(error) => {
                tracing::error!(%key, %error, "cannot register worker in the directory");
                return RegisteredWorker::new(|| {});
            }
        };
        let listed = write(&worker);
        let (adding, added) = (workers.clone(), listed.clone());
        let add = tokio::spawn(async move {
            let outcome = adding.update(move |workers: &mut OrSet<String>, cx| workers.add(cx, added)).await;
            if let Err(error) = outcome {
                tracing::error!(%error, "cannot register worker in the directory");
            }
        });
        let runtime = tokio::runtime::Handle::current();
        RegisteredWorker::new(move || {
            runtime.spawn(async move {
                // Remove only after the add has completed.
                add.await.ok();
                remove(&workers, [listed]).await;
            });
        })
    }
}

async fn remove(workers: &Workers, gone: impl IntoIterator<Item = String> + Send + 'static) {
    let outcome = workers.update(move |workers: &mut OrSet<String>, cx| {
        for worker in gone {
            workers.remove(cx, &worker);
        }
    });
    if let Err(error) = outcome.await {
        tracing::warn!(%error, "cannot remove ended worker from the directory");
    }
}

/// Subscriptions to the set and to the members.
struct WorkerSubscription {
    workers: Workers,
    changes: Subscription<OrSet<String>>,
    replicas: watch::Receiver<Arc<Replicas>>,
    listed: BTreeSet<String>,
    own: UniqueAddress,
}

impl WorkerSubscription {
    /// The workers after the next change of the set or of the members.
    async fn next(&mut self) -> Option<Vec<ListedWorker>> {
        tokio::select! {
            change = self.changes.next() => match change? {
                Changed::Value { value, .. } => self.listed = value.iter().cloned().collect(),
                Changed::Deleted { .. } | Changed::Expired { .. } => self.listed.clear(),
            },
            changed = self.replicas.changed() => changed.ok()?,
        }
        let replicas = self.replicas.borrow_and_update().clone();
        self.prune(&replicas);
        Some(self.listed.iter().filter_map(|text| listed(&self.own, &replicas, read(text)?)).collect())
    }

    /// On the oldest member: deletes the entries of removed nodes.
    fn prune(&self, replicas: &Replicas) {
        let is_oldest =
            replicas.own_status.is_some() && replicas.others.iter().all(|other| other.age > replicas.own_age);
        let is_gone = |text: &&String| read(text).is_some_and(|worker| replicas.removed.contains(&worker.node));
        let gone: Vec<String> = self.listed.iter().filter(is_gone).cloned().collect();
        if is_oldest && !gone.is_empty() {
            let workers = self.workers.clone();
            tokio::spawn(async move { remove(&workers, gone).await });
        }
    }
}

/// A worker with its reachability; `None` if its process is no member.
fn listed(own: &UniqueAddress, replicas: &Replicas, worker: ControllerRef) -> Option<ListedWorker> {
    if worker.node == *own {
        return Some(ListedWorker { worker, selectable: true });
    }
    let member = replicas.others.iter().find(|other| other.address == worker.node)?;
    Some(ListedWorker { worker, selectable: member.reachable })
}

/// The entry of a worker in the set.
fn write(worker: &ControllerRef) -> String {
    worker.to_string()
}

/// Reads an entry made by [`write`]; `None` for any other text.
fn read(text: &str) -> Option<ControllerRef> {
    text.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_reads_back_as_it_was_written() {
        let worker = ControllerRef { node: "[::1]:17355#7".parse().unwrap(), path: "delivery/a@b".into(), instance: 3 };
        assert_eq!(read(&write(&worker)), Some(worker));
        for nonsense in ["", "a", "a:1#1/x", "a:1/x@1", "a:1#1/x@y", "/@"] {
            assert_eq!(read(nonsense), None, "{nonsense}");
        }
    }
}
