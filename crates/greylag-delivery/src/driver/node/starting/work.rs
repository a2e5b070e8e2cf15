//! Work pulling on a node: producers of jobs and workers, from their key to their handle.

use std::fmt;
use std::future::Future;
use std::sync::Arc;

use greylag_core::{Codec, Encoded};

use super::producer::{Durability, ProducerName};
use crate::delivery::Delivery;
use crate::driver::DurableProducerQueue;
use crate::driver::node::node_delivery::NodeDelivery;
use crate::driver::node::registry::ProducerReporter;
use crate::driver::work_pulling::{WorkPullingProducer, WorkerHandle};
use crate::error::StartError;
use crate::ids::ServiceKey;
use crate::settings::DeliverySettings;

/// The name of one kind of work, with the codec of its jobs. Clones are the same key.
///
/// ```no_run
/// use greylag_codec::json;
/// use greylag_delivery::{Delivery, NodeDelivery, ProducerId, WorkKey};
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Serialize, Deserialize)]
/// struct Thumbnail { path: String }
///
/// async fn render(thumbnail: &Thumbnail) -> std::io::Result<()> {
///     println!("rendering {}", thumbnail.path);
///     Ok(())
/// }
///
/// # async fn work(delivery: &NodeDelivery) -> Result<(), Box<dyn std::error::Error>> {
/// let thumbnails = WorkKey::new("thumbnails", json("thumbnail"));
///
/// let jobs = delivery.work_producer(&thumbnails, ProducerId::per_node("uploads")).durable().start().await?;
/// jobs.send(Thumbnail { path: "goose.png".into() }).await?;
///
/// let render = async |job: Delivery<Thumbnail>| render(&job).await.map(|()| job.confirm());
/// delivery.worker(&thumbnails, render).parallel(4).start().await?;
/// # Ok(())
/// # }
/// ```
pub struct WorkKey<T> {
    name: Arc<str>,
    codec: Arc<dyn Codec<T>>,
}

impl<T: 'static> WorkKey<T> {
    /// A kind of work with a name of 1 to 200 bytes; `codec` encodes and decodes its jobs.
    pub fn new(name: impl Into<Arc<str>>, codec: impl Codec<T>) -> Self {
        Self { name: name.into(), codec: Arc::new(codec) }
    }

    /// The name of the kind of work.
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl<T> Clone for WorkKey<T> {
    fn clone(&self) -> Self {
        Self { name: self.name.clone(), codec: self.codec.clone() }
    }
}

impl<T> fmt::Debug for WorkKey<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("WorkKey").field(&self.name).finish()
    }
}

/// A producer of work that is not started yet. See [`NodeDelivery::work_producer`].
#[must_use = "a producer does nothing until it is started"]
pub struct StartWorkProducer<T> {
    node: NodeDelivery,
    key: WorkKey<T>,
    name: ProducerName,
    settings: DeliverySettings,
    durability: Durability,
}

impl<T: Send + Sync + 'static> StartWorkProducer<T> {
    pub(super) fn new(node: NodeDelivery, key: WorkKey<T>, name: ProducerName) -> Self {
        let settings = node.settings().clone();
        Self { node, key, name, settings, durability: Durability::None }
    }

    /// Changes settings for this producer alone; `change` starts from the settings of the node.
    pub fn settings(mut self, change: impl FnOnce(&mut DeliverySettings)) -> Self {
        change(&mut self.settings);
        self
    }

    /// Stores every message in the node's journal before a worker is chosen for it.
    #[cfg(feature = "persistence")]
    pub fn durable(self) -> Self {
        Self { durability: Durability::Journal, ..self }
    }

    /// Stores every message in `queue` before a worker is chosen for it.
    pub fn durable_in(self, queue: impl DurableProducerQueue<Encoded> + 'static) -> Self {
        Self { durability: Durability::In(Box::new(queue)), ..self }
    }

    /// Starts the producer.
    ///
    /// # Errors
    /// [`StartError`]; nothing was started.
    pub async fn start(self) -> Result<WorkPullingProducer<T>, StartError> {
        let Self { node, key, name, settings, durability } = self;
        let remoting = node.sharding.remoting().clone();
        let id = name.on(remoting.self_address())?;
        let (service, directory) = (ServiceKey::new(key.name)?, node.state.workers()?);
        let storage = durability.storage(&node.sharding, id.clone(), &settings)?;
        let drain_on_drop = settings.producer.drain_on_drop;
        let builder =
            WorkPullingProducer::builder(id.clone(), key.codec, service.clone(), directory).settings(settings);
        let producer = builder.storage(storage).spawn(&remoting)?;
        node.state.watch(Box::new(ProducerReporter::new(producer.sending(), id, service.to_string(), drain_on_drop)));
        Ok(producer)
    }
}

impl<T> fmt::Debug for StartWorkProducer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StartWorkProducer").field("key", &self.key).field("name", &self.name).finish_non_exhaustive()
    }
}

/// A worker that is not started yet. See [`NodeDelivery::worker`].
#[must_use = "a worker does nothing until it is started"]
pub struct StartWorker<T, F> {
    node: NodeDelivery,
    key: WorkKey<T>,
    settings: DeliverySettings,
    parallel: u32,
    handler: F,
}

impl<T, F, Fut, E> StartWorker<T, F>
where
    T: Send + Sync + 'static,
    F: Fn(Delivery<T>) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<(), E>> + Send + 'static,
    E: fmt::Display + Send + 'static,
{
    pub(super) fn new(node: NodeDelivery, key: WorkKey<T>, handler: F) -> Self {
        let settings = node.settings().clone();
        Self { node, key, settings, parallel: 1, handler }
    }

    /// Maximum number of concurrent jobs; at least 1. Default 1.
    pub fn parallel(self, jobs: u32) -> Self {
        Self { parallel: jobs, ..self }
    }

    /// Changes settings for this worker alone; `change` starts from the settings of the node.
    pub fn settings(mut self, change: impl FnOnce(&mut DeliverySettings)) -> Self {
        change(&mut self.settings);
        self
    }

    /// Starts the worker. The worker goes on when the handle is dropped, and stops in order when its node leaves.
    ///
    /// # Errors
    /// [`StartError`]; nothing was started.
    pub async fn start(self) -> Result<WorkerHandle, StartError> {
        let Self { node, key, settings, parallel, handler } = self;
        let (service, directory) = (ServiceKey::new(key.name)?, node.state.workers()?);
        let builder = WorkerHandle::builder(key.codec, service.clone(), directory, handler);
        let worker = builder.settings(settings).parallel(parallel).spawn(node.sharding.remoting())?;
        node.state.consumer_registry().add(service.to_string(), worker.counters().clone(), worker.shutdown_handle());
        Ok(worker)
    }
}

impl<T, F> fmt::Debug for StartWorker<T, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StartWorker").field("key", &self.key).finish_non_exhaustive()
    }
}
