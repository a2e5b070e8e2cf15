//! The producer of jobs.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use greylag_core::{Codec, Encoded};
use greylag_transport::Remoting;
use tokio::sync::watch;

use super::directory::WorkerDirectory;
use crate::driver::queue::{DurableProducerQueue, now_ms};
use crate::driver::sending::{Base, Links, MessageStorage, ProducerSink, RequestNext, Sending, Sent, now, spawn};
use crate::error::{ProducerError, SendError, StartError, TrySendError, Undelivered};
use crate::ids::{ProducerId, ProducerIdentity, SeqNr, ServiceKey};
use crate::machine::controller::ControllerStats;
use crate::machine::omissions::Omissions;
use crate::machine::storing::StoringState;
use crate::machine::work_pulling::{WorkPulling, WorkPullingSettings, WorkerStats};
use crate::settings::DeliverySettings;

/// Sends each job to a worker with demand. Clones are the same producer.
///
/// Messages are not ordered. If a worker ends with an unconfirmed message, the message is given to another worker and
/// may thus be processed twice: jobs should tolerate that. Messages wait for workers, up to
/// [`buffer_size`](crate::WorkPullingSettings::buffer_size) of them; beyond that senders wait.
///
/// ```
/// use std::sync::Arc;
/// use std::time::Duration;
///
/// use greylag_codec::json;
/// use greylag_core::Registry;
/// use greylag_delivery::{
///     Delivery, LocalWorkerDirectory, ProducerId, ServiceKey, WorkPullingProducer, WorkerHandle,
/// };
/// use greylag_transport::memory::MemoryNetwork;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let node = MemoryNetwork::new().node("localhost:17355#1".parse()?, Arc::new(Registry::new()));
/// let (directory, thumbnails) = (Arc::new(LocalWorkerDirectory::new()), ServiceKey::new("thumbnails")?);
///
/// let id = ProducerId::new("uploads")?;
/// let jobs = WorkPullingProducer::builder(id, json::<String>("path"), thumbnails.clone(), directory.clone()).spawn(&node)?;
/// jobs.send("goose.png".to_owned()).await?;
///
/// async fn render(path: &str) -> Result<(), std::io::Error> {
///     println!("rendering {path}");
///     Ok(())
/// }
/// WorkerHandle::builder(json("path"), thumbnails, directory, async |job: Delivery<String>| {
///     render(&job).await.map(|()| job.confirm()) // an error, and the job comes again
/// })
/// .parallel(4)
/// .spawn(&node)?;
///
/// jobs.drain(Duration::from_secs(10)).await?;
/// # Ok(())
/// # }
/// ```
///
/// Source: delivery §2.
pub struct WorkPullingProducer<T> {
    sending: Sending<T, ()>,
}

/// Makes a [`WorkPullingProducer`].
pub struct WorkPullingBuilder<T> {
    storage: MessageStorage,
    codec: Arc<dyn Codec<T>>,
    key: ServiceKey,
    directory: Arc<dyn WorkerDirectory>,
    settings: DeliverySettings,
}

impl<T: Send + Sync + 'static> WorkPullingProducer<T> {
    /// A producer of work for the workers that `directory` lists under `key`; `codec` encodes its messages.
    pub fn builder(
        producer_id: ProducerId,
        codec: impl Codec<T>,
        key: ServiceKey,
        directory: Arc<dyn WorkerDirectory>,
    ) -> WorkPullingBuilder<T> {
        let (codec, settings) = (Arc::new(codec), DeliverySettings::default());
        WorkPullingBuilder { storage: MessageStorage::fresh(producer_id), codec, key, directory, settings }
    }

    pub(crate) fn sending(&self) -> &Sending<T, ()> {
        &self.sending
    }

    /// Sends a message: waits until there is room for it, and until it is stored if the producer is durable. The
    /// message is accepted even if there is no worker.
    ///
    /// # Errors
    /// [`SendError`]; the message was not sent, except perhaps after [`SendError::StoreUnknown`].
    pub async fn send(&self, message: T) -> Result<Sent, SendError<T>> {
        self.sending.send(self.sending.prepare((), message, false)?).await
    }

    /// Sends a message, and waits until it is stored if the producer is durable, and otherwise until it is confirmed.
    ///
    /// # Errors
    /// [`SendError`]; after [`SendError::Unconfirmed`] the message may have been processed.
    pub async fn ask(&self, message: T) -> Result<SeqNr, SendError<T>> {
        self.sending.ask(self.sending.prepare((), message, true)?).await
    }

    /// Sends a message, and waits until a worker has confirmed it.
    ///
    /// # Errors
    /// [`SendError`]; after [`SendError::Unconfirmed`] the message may have been processed.
    pub async fn send_confirmed(&self, message: T) -> Result<SeqNr, SendError<T>> {
        self.sending.send_confirmed(self.sending.prepare((), message, true)?).await
    }

    /// Sends a message if there is room for it now.
    ///
    /// # Errors
    /// [`TrySendError`] with the message.
    pub fn try_send(&self, message: T) -> Result<Sent, TrySendError<T>> {
        self.sending.try_send((), message)
    }

    /// Waits until there is room for a message, and keeps the room for the caller. Cancel safe.
    ///
    /// # Errors
    /// [`ProducerError`].
    pub async fn request_next(&self) -> Result<RequestNext<'_, T>, ProducerError> {
        Ok(RequestNext::new(&self.sending, self.sending.permit().await?))
    }

    /// Numbers of workers, and of messages with and without a worker.
    pub fn stats(&self) -> WorkerStats {
        self.sending.published(|published| published.workers).unwrap_or_default()
    }

    /// Counters since the start, and the number of messages held now.
    pub fn counters(&self) -> ControllerStats {
        self.sending.published(|published| published.stats)
    }

    /// State of the queue; [`StoringState::Degraded`] if the queue does not answer.
    pub fn storing_state(&self) -> StoringState {
        self.sending.published(|published| published.store)
    }

    /// The highest number up to which all messages are confirmed.
    pub fn confirmed(&self) -> watch::Receiver<SeqNr> {
        self.sending.confirmed()
    }

    /// Why the producer has ended on its own, if it has.
    pub fn failure(&self) -> Option<ProducerError> {
        self.sending.failure()
    }

    /// The producer as a sink: ready while there is room; flushed when all messages are accepted, and stored if the
    /// producer is durable; closed when all messages are confirmed and the producer has ended.
    pub fn into_sink(self) -> ProducerSink<T> {
        ProducerSink::new(self.sending)
    }

    /// Waits until every message sent before the call is confirmed. Other handles may go on sending.
    ///
    /// # Errors
    /// [`Undelivered`] if that takes longer than `patience`; the producer goes on delivering.
    pub async fn drain(&self, patience: Duration) -> Result<(), Undelivered> {
        self.sending.drain(patience).await
    }

    /// Ends the producer now: confirmations are stored, workers are told, and unconfirmed messages are given up; a
    /// durable producer's queue keeps them.
    pub async fn close(&self) {
        self.sending.close().await;
    }
}

impl<T> Clone for WorkPullingProducer<T> {
    fn clone(&self) -> Self {
        Self { sending: self.sending.clone() }
    }
}

impl<T> fmt::Debug for WorkPullingProducer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkPullingProducer")
            .field("stats", &self.sending.published(|published| published.workers))
            .finish_non_exhaustive()
    }
}

impl<T: Send + Sync + 'static> WorkPullingBuilder<T> {
    /// Sets the settings; only their sections `producer` and `work_pulling` matter here.
    #[must_use]
    pub fn settings(self, settings: DeliverySettings) -> Self {
        Self { settings, ..self }
    }

    /// Sets stream and epoch, for a producer that gives its messages the same numbers in every run. Without an
    /// identity, each start begins a new stream.
    #[must_use]
    pub fn identity(self, identity: ProducerIdentity) -> Self {
        let storage = self.storage.identified_by(identity);
        Self { storage, ..self }
    }

    /// Stores every message in `queue` before a worker is chosen for it. The queue's unconfirmed messages get workers
    /// first.
    #[must_use]
    pub fn durable(self, queue: impl DurableProducerQueue<Encoded> + 'static) -> Self {
        let storage = self.storage.in_queue(queue);
        Self { storage, ..self }
    }

    /// Sets where messages are kept; overrides [`identity`](Self::identity) and [`durable`](Self::durable).
    pub(crate) fn storage(self, storage: MessageStorage) -> Self {
        Self { storage, ..self }
    }

    /// Starts the producer, on the tokio runtime of the caller.
    ///
    /// # Errors
    /// [`StartError`]; nothing was started.
    pub fn spawn(self, remoting: &Arc<dyn Remoting>) -> Result<WorkPullingProducer<T>, StartError> {
        self.storage.refuse_outbox()?;
        let base = Base::open(remoting, self.storage, self.codec, &self.settings)?;
        let (now, mut effects) = (now(), Vec::new());
        let settings = machine_settings(&self.settings, &base, now);
        let machine = WorkPulling::new(settings, base.storing(&self.settings), now, &mut effects);
        let engine = Links::new(&base, machine, effects).with_workers(self.directory.subscribe(&self.key));
        Ok(WorkPullingProducer { sending: spawn(base, engine).start_again() })
    }
}

fn machine_settings<T>(settings: &DeliverySettings, base: &Base<T>, now: Instant) -> WorkPullingSettings {
    let (producer, work) = (&settings.producer, &settings.work_pulling);
    WorkPullingSettings {
        producer_id: base.producer_id.clone(),
        node: base.reference().node.clone(),
        path: base.reference().path.clone(),
        stream: base.stream,
        resend_first_interval: producer.resend_first_interval,
        resend_first_unconfirmed_idle_timeout: producer.resend_first_unconfirmed_idle_timeout,
        buffer_size: work.buffer_size,
        selection: work.selection,
        worker_first_timeout: work.worker_first_timeout,
        work_timeout: work.work_timeout,
        seed: uuid::Uuid::new_v4().as_u64_pair().0,
        clock: (now_ms(), now),
        omissions: Omissions::default(),
    }
}

impl<T> fmt::Debug for WorkPullingBuilder<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkPullingBuilder").field("producer_id", self.storage.producer_id()).finish_non_exhaustive()
    }
}
