//! A worker made of a function: called for each job, for several jobs at a time with [`WorkerBuilder::parallel`].

use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::sync::Arc;

use greylag_core::Codec;
use greylag_transport::Remoting;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;

use super::directory::WorkerDirectory;
use crate::delivery::Delivery;
use crate::driver::consumer::counters::DeliveryCounters;
use crate::driver::consumer::{DeliveryEvents, DeliveryHealth, OperatorState, Undecodable};
use crate::driver::point_to_point::{ConsumerBuilder, ConsumerController, Deliveries};
use crate::error::StartError;
use crate::ids::ServiceKey;
use crate::machine::dedupe::Dedupe;
use crate::settings::DeliverySettings;

/// A worker that runs on this node until it is stopped; dropping the handle does not stop it.
pub struct WorkerHandle {
    shutdown: WorkerShutdown,
    counters: DeliveryCounters,
    operator_state: Arc<OperatorState>,
}

/// Makes a worker of a function. See [`WorkerHandle::builder`].
pub struct WorkerBuilder<T, F> {
    builder: ConsumerBuilder<T>,
    settings: DeliverySettings,
    parallel: u32,
    handler: F,
    message: PhantomData<fn(T)>,
}

impl WorkerHandle {
    /// A worker for the work `key` of `directory`, whose jobs `codec` decodes: `handler` is called for each job. The
    /// handler confirms the delivery when the job is done; if it fails, panics or drops the delivery, the worker gets
    /// the job again after a pause.
    pub fn builder<T, F, Fut, E>(
        codec: impl Codec<T>,
        key: ServiceKey,
        directory: Arc<dyn WorkerDirectory>,
        handler: F,
    ) -> WorkerBuilder<T, F>
    where
        T: Send + Sync + 'static,
        F: Fn(Delivery<T>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<(), E>> + Send + 'static,
        E: fmt::Display + Send + 'static,
    {
        let builder = ConsumerController::builder(codec).service_key(key, directory);
        WorkerBuilder { builder, settings: DeliverySettings::default(), parallel: 1, handler, message: PhantomData }
    }

    /// Counters of the worker's jobs since its start.
    pub fn counters(&self) -> &DeliveryCounters {
        &self.counters
    }

    /// Subscribes to events of jobs, for operators: messages that failed or cannot be decoded, and producers that were
    /// replaced.
    pub fn events(&self) -> DeliveryEvents {
        self.operator_state.events()
    }

    /// Degraded while links are blocked by undecodable messages, until an operator acts.
    pub fn health(&self) -> DeliveryHealth {
        self.operator_state.health()
    }

    /// Undecodable jobs that are not confirmed yet; confirming a job skips it.
    pub fn undecodable(&self) -> Vec<Undecodable> {
        self.operator_state.undecodable()
    }

    /// Stops the worker in order: it gets no more jobs, and the call returns when the jobs in hand are done. Other
    /// workers get the rest.
    pub async fn stop(self) {
        self.shutdown.stop().await;
    }

    /// A handle that stops the worker, but does not keep it alive.
    pub(crate) fn shutdown_handle(&self) -> WorkerShutdown {
        self.shutdown.clone()
    }
}

/// Stops a worker in order.
#[derive(Debug, Clone)]
pub(crate) struct WorkerShutdown(mpsc::UnboundedSender<oneshot::Sender<()>>);

impl WorkerShutdown {
    /// Whether the worker has stopped.
    pub(crate) fn has_stopped(&self) -> bool {
        self.0.is_closed()
    }

    pub(crate) async fn stop(&self) {
        let (done, stopped) = oneshot::channel();
        if self.0.send(done).is_ok() {
            stopped.await.ok();
        }
    }
}

impl fmt::Debug for WorkerHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkerHandle").field("counters", &self.counters.snapshot()).finish_non_exhaustive()
    }
}

impl<T, F, Fut, E> WorkerBuilder<T, F>
where
    T: Send + Sync + 'static,
    F: Fn(Delivery<T>) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<(), E>> + Send + 'static,
    E: fmt::Display + Send + 'static,
{
    /// Maximum number of concurrent jobs; at least 1. Default 1. Each producer may send as many, so a smaller
    /// [`worker_window`](crate::WorkPullingSettings::worker_window) is raised to this number.
    #[must_use]
    pub fn parallel(self, jobs: u32) -> Self {
        Self { parallel: jobs.max(1), ..self }
    }

    /// Sets the settings; only their sections `consumer` and `work_pulling` matter here.
    #[must_use]
    pub fn settings(self, settings: DeliverySettings) -> Self {
        Self { settings, ..self }
    }

    /// Starts the worker, on the tokio runtime of the caller.
    ///
    /// # Errors
    /// [`StartError`]; nothing was started.
    pub fn spawn(self, remoting: &Arc<dyn Remoting>) -> Result<WorkerHandle, StartError> {
        let mut settings = self.settings;
        let consumer = &mut settings.consumer;
        consumer.max_outstanding_deliveries = self.parallel;
        consumer.flow_control_window = consumer.flow_control_window.max(self.parallel);
        settings.work_pulling.worker_window = settings.work_pulling.worker_window.max(self.parallel);
        let controller = self.builder.settings(settings).spawn(remoting)?;
        let (stop, stopping) = mpsc::unbounded_channel();
        let (counters, operator_state) = (controller.counters().clone(), controller.operator_state().clone());
        let deliveries = controller.start(Dedupe::none());
        tokio::spawn(run(controller, deliveries, self.parallel as usize, Arc::new(self.handler), stopping));
        Ok(WorkerHandle { shutdown: WorkerShutdown(stop), counters, operator_state })
    }
}

impl<T, F> fmt::Debug for WorkerBuilder<T, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkerBuilder").field("parallel", &self.parallel).finish_non_exhaustive()
    }
}

/// Runs each job in a task of its own, so that a panic ends only that job.
async fn run<T, F, Fut, E>(
    controller: ConsumerController<T>,
    mut deliveries: Deliveries<T>,
    parallel: usize,
    handler: Arc<F>,
    mut stopping: mpsc::UnboundedReceiver<oneshot::Sender<()>>,
) where
    T: Send + Sync + 'static,
    F: Fn(Delivery<T>) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<(), E>> + Send + 'static,
    E: fmt::Display + Send + 'static,
{
    let mut jobs = JoinSet::new();
    let mut stopped = Vec::new();
    loop {
        tokio::select! {
            delivery = deliveries.next(), if jobs.len() < parallel => match delivery {
                Some(delivery) => drop(jobs.spawn(work(handler.clone(), delivery))),
                None => break,
            },
            Some(done) = jobs.join_next() => {
                if let Err(error) = done {
                    tracing::error!(worker = %controller.reference(), %error, "job failed; it will be redelivered");
                }
            }
            Some(done) = stopping.recv() => {
                stopped.push(done);
                controller.deliver_then_stop();
            }
        }
    }
    while jobs.join_next().await.is_some() {}
    drop(stopped);
}

async fn work<T, F, Fut, E>(handler: Arc<F>, delivery: Delivery<T>)
where
    F: Fn(Delivery<T>) -> Fut,
    Fut: Future<Output = Result<(), E>>,
    E: fmt::Display + Send + 'static,
{
    let id = delivery.id().clone();
    if let Err(error) = handler(delivery).await {
        tracing::warn!(message = ?id, %error, "job failed; it will be redelivered");
    }
}
