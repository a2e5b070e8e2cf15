//! The producer's side: the producer controller on one node, and its handles.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use greylag_core::{Codec, Encoded};
use greylag_transport::Remoting;
use tokio::sync::watch;

use crate::driver::queue::{DurableProducerQueue, now_ms};
use crate::driver::sending::{Base, Links, MessageStorage, ProducerSink, RequestNext, Sending, Sent, now, spawn};
use crate::error::{ProducerError, SendError, StartError, TrySendError, Undelivered};
use crate::ids::{ControllerRef, ProducerId, ProducerIdentity, SeqNr};
use crate::machine::controller::ControllerStats;
use crate::machine::omissions::Omissions;
use crate::machine::point_to_point::{PointToPoint, PointToPointSettings};
use crate::machine::storing::StoringState;
use crate::settings::DeliverySettings;

/// Sends messages to one consumer controller at a time: in order, with back-pressure, resent until confirmed.
///
/// The controller runs until it is closed, or until this handle and every [`Producer`] are dropped and their messages
/// are confirmed ([`ProducerSettings::drain_on_drop`](crate::ProducerSettings::drain_on_drop)). Messages wait until a
/// consumer is attached, by [`ProducerController::register_consumer`] or by
/// [`ConsumerController::register_to`](crate::ConsumerController::register_to). The controller does not replace a
/// consumer that has ended: watch the members of the cluster, and register another one. Source: delivery §1.2, §1.4.
pub struct ProducerController<T> {
    /// Keeps the task alive, and makes the sending handles.
    sending: Sending<T, ()>,
    reference: ControllerRef,
}

/// Makes a [`ProducerController`].
pub struct ProducerBuilder<T> {
    storage: MessageStorage,
    codec: Arc<dyn Codec<T>>,
    settings: DeliverySettings,
}

impl<T: Send + Sync + 'static> ProducerController<T> {
    /// A controller of the producer `producer_id`, whose messages `codec` encodes; consumers decode them with the same
    /// codec.
    pub fn builder(producer_id: ProducerId, codec: impl Codec<T>) -> ProducerBuilder<T> {
        let (codec, settings) = (Arc::new(codec), DeliverySettings::default());
        ProducerBuilder { storage: MessageStorage::fresh(producer_id), codec, settings }
    }

    /// The reference at which consumers register: a value that may be sent to other nodes.
    pub fn reference(&self) -> &ControllerRef {
        &self.reference
    }

    /// Returns the sending handle. If called again, the new handle takes over: it gets the room of the former one,
    /// whose calls answer [`SendError::Superseded`]. Messages sent before are delivered all the same.
    pub fn start(&self) -> Producer<T> {
        Producer { sending: self.sending.start_again() }
    }

    /// Sends to this consumer controller from now on, first the messages that the former one has not confirmed.
    pub fn register_consumer(&self, consumer: &ControllerRef) {
        self.sending.register(consumer);
    }

    /// Counters since the start, and the number of messages held now.
    pub fn stats(&self) -> ControllerStats {
        self.sending.published(|published| published.stats)
    }

    /// State of the queue; [`StoringState::Degraded`] if the queue does not answer.
    pub fn storing_state(&self) -> StoringState {
        self.sending.published(|published| published.store)
    }

    /// The handle from which the node's report reads.
    pub(crate) fn sending(&self) -> &Sending<T, ()> {
        &self.sending
    }

    /// Why the controller has ended on its own, if it has.
    pub fn failure(&self) -> Option<ProducerError> {
        self.sending.failure()
    }
}

impl<T> fmt::Debug for ProducerController<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProducerController").field("reference", &self.reference).finish_non_exhaustive()
    }
}

impl<T: Send + Sync + 'static> ProducerBuilder<T> {
    /// Sets the settings; only their section `producer` matters here.
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

    /// Stores every message in `queue` before it is sent. The queue's unconfirmed messages are sent first; senders wait
    /// while the queue is loaded, and whenever it does not answer. Stream and epoch are those of the queue.
    #[must_use]
    pub fn durable(self, queue: impl DurableProducerQueue<Encoded> + 'static) -> Self {
        let storage = self.storage.in_queue(queue);
        Self { storage, ..self }
    }

    /// Sets where messages are kept; overrides [`identity`](Self::identity) and [`durable`](Self::durable).
    pub(crate) fn storage(self, storage: MessageStorage) -> Self {
        Self { storage, ..self }
    }

    /// Starts the controller, on the tokio runtime of the caller.
    ///
    /// # Errors
    /// [`StartError`]; nothing was started.
    pub fn spawn(self, remoting: &Arc<dyn Remoting>) -> Result<ProducerController<T>, StartError> {
        self.storage.refuse_outbox()?;
        let base = Base::open(remoting, self.storage, self.codec, &self.settings)?;
        let (now, mut effects) = (now(), Vec::new());
        let settings = machine_settings(&self.settings, &base, now);
        let machine = PointToPoint::new(settings, base.storing(&self.settings), now, &mut effects);
        let (engine, reference) = (Links::new(&base, machine, effects), base.reference().clone());
        Ok(ProducerController { sending: spawn(base, engine), reference })
    }
}

fn machine_settings<T>(settings: &DeliverySettings, base: &Base<T>, now: Instant) -> PointToPointSettings {
    let producer = &settings.producer;
    PointToPointSettings {
        producer_id: base.producer_id.clone(),
        controller: base.reference().clone(),
        stream: base.stream,
        resend_first_interval: producer.resend_first_interval,
        resend_first_unconfirmed_idle_timeout: producer.resend_first_unconfirmed_idle_timeout,
        clock: (now_ms(), now),
        omissions: Omissions::default(),
    }
}

impl<T> fmt::Debug for ProducerBuilder<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProducerBuilder").field("producer_id", self.storage.producer_id()).finish_non_exhaustive()
    }
}

/// Sends messages through its [`ProducerController`]. Clones are the same producer.
///
/// Calls are served in the order in which their futures are first polled. A future dropped before the message was
/// accepted sends nothing; if dropped later, the message is delivered.
pub struct Producer<T> {
    sending: Sending<T, ()>,
}

impl<T: Send + Sync + 'static> Producer<T> {
    /// Sends a message: waits until the consumer has room for it, and until it is stored if the producer is durable.
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

    /// Sends a message, and waits until its consumer has confirmed it.
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

    /// Waits until the consumer has room for a message, and keeps the room for the caller. Cancel safe.
    ///
    /// # Errors
    /// [`ProducerError`].
    pub async fn request_next(&self) -> Result<RequestNext<'_, T>, ProducerError> {
        Ok(RequestNext::new(&self.sending, self.sending.permit().await?))
    }

    /// The highest number up to which all messages are confirmed.
    pub fn confirmed(&self) -> watch::Receiver<SeqNr> {
        self.sending.confirmed()
    }

    /// Counters since the start, and the number of messages held now.
    pub fn stats(&self) -> ControllerStats {
        self.sending.published(|published| published.stats)
    }

    /// The producer as a sink: ready while the consumer has room for a message; flushed when all messages are accepted,
    /// and stored if the producer is durable; closed when all messages are confirmed and the controller has ended.
    pub fn into_sink(self) -> ProducerSink<T> {
        ProducerSink::new(self.sending)
    }

    /// Waits until every message accepted before the call is confirmed. Other handles may go on sending.
    ///
    /// # Errors
    /// [`Undelivered`] if that takes longer than `patience`; the producer goes on delivering.
    pub async fn drain(&self, patience: Duration) -> Result<(), Undelivered> {
        self.sending.drain(patience).await
    }

    /// Ends the controller now: confirmations are stored, the consumer is told, and unconfirmed messages are given up;
    /// a durable producer's queue keeps them.
    pub async fn close(&self) {
        self.sending.close().await;
    }
}

impl<T> Clone for Producer<T> {
    fn clone(&self) -> Self {
        Self { sending: self.sending.clone() }
    }
}

impl<T> fmt::Debug for Producer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Producer")
            .field("stats", &self.sending.published(|published| published.stats))
            .finish_non_exhaustive()
    }
}
