//! The base of every producer's task: the node's remoting, a path of the producer's own there, and the place where its
//! messages are kept.

use std::sync::Arc;
use std::time::Duration;

use greylag_core::{Codec, Encoded};
use greylag_transport::{LaneKind, Remoting};
use tokio::sync::mpsc;

use crate::driver::queue::{DurableProducerQueue, fresh_stream};
use crate::driver::sending::encoding::Encoding;
use crate::driver::sending::lanes::{self, LocalRegistration};
use crate::driver::storing::Store;
use crate::error::StartError;
use crate::ids::{ControllerRef, Epoch, ProducerId, ProducerIdentity, StreamId};
use crate::machine::storing::Storing;
use crate::message::UpstreamMessage;
use crate::settings::DeliverySettings;

/// Where a producer keeps its messages.
pub(crate) enum MessageStorage {
    /// In memory alone, under this identity.
    InMemory(ProducerIdentity),
    /// In a queue, which has stream and epoch.
    Durable(ProducerId, Box<dyn DurableProducerQueue<Encoded>>),
}

impl ProducerIdentity {
    /// A fresh stream, for a producer that keeps nothing across restarts.
    pub fn in_memory(producer_id: ProducerId) -> Self {
        Self { producer_id, stream_id: fresh_stream(), epoch: Epoch::FIRST }
    }
}

impl MessageStorage {
    /// In memory, as a fresh stream.
    pub(crate) fn fresh(producer_id: ProducerId) -> Self {
        Self::InMemory(ProducerIdentity::in_memory(producer_id))
    }

    /// Sets the identity of an in-memory producer; a queue keeps its own stream and epoch.
    pub(crate) fn identified_by(self, identity: ProducerIdentity) -> Self {
        match self {
            Self::InMemory(_) => Self::InMemory(identity),
            Self::Durable(_, queue) => Self::Durable(identity.producer_id, queue),
        }
    }

    /// Keeps the producer's messages in `queue`.
    pub(crate) fn in_queue(self, queue: impl DurableProducerQueue<Encoded> + 'static) -> Self {
        let (Self::InMemory(ProducerIdentity { producer_id, .. }) | Self::Durable(producer_id, _)) = self;
        Self::Durable(producer_id, Box::new(queue))
    }

    /// The producer's id.
    pub(crate) fn producer_id(&self) -> &ProducerId {
        let (Self::InMemory(ProducerIdentity { producer_id, .. }) | Self::Durable(producer_id, _)) = self;
        producer_id
    }

    /// How often the queue must be polled for messages that others wrote into it.
    pub(crate) fn poll_interval(&self) -> Option<Duration> {
        match self {
            Self::InMemory(_) => None,
            Self::Durable(_, queue) => queue.poll_interval(),
        }
    }

    /// Refuses a polled queue for producers that do not poll: its messages would wait for ever.
    pub(crate) fn refuse_outbox(&self) -> Result<(), StartError> {
        self.poll_interval().map_or(Ok(()), |_| Err(StartError::Outbox))
    }
}

/// See the module's documentation.
pub(crate) struct Base<T> {
    pub(crate) remoting: Arc<dyn Remoting>,
    registration: LocalRegistration,
    pub(crate) producer_id: ProducerId,
    /// Stream and epoch of a producer that stores nothing.
    pub(crate) stream: Option<(StreamId, Epoch)>,
    pub(crate) encoding: Arc<Encoding<T>>,
    pub(super) store: Option<Store>,
    pub(super) upstream: mpsc::Receiver<UpstreamMessage>,
    pub(super) drain_on_drop: Duration,
}

impl<T> Base<T> {
    /// The reference to which consumers send their answers.
    pub(crate) fn reference(&self) -> &ControllerRef {
        self.registration.reference()
    }
}

impl<T: Send + Sync + 'static> Base<T> {
    /// Checks the settings, and registers the producer, on the tokio runtime of the caller.
    ///
    /// # Errors
    /// [`StartError::Settings`]; nothing was opened.
    pub(crate) fn open(
        remoting: &Arc<dyn Remoting>,
        storage: MessageStorage,
        codec: Arc<dyn Codec<T>>,
        settings: &DeliverySettings,
    ) -> Result<Self, StartError> {
        settings.validate()?;
        settings.validate_for_lane(remoting.maximum_message_size(LaneKind::Ordinary))?;
        let (producer_id, stream, queue) = match storage {
            MessageStorage::InMemory(ProducerIdentity { producer_id, stream_id, epoch }) => {
                (producer_id, Some((stream_id, epoch)), None)
            }
            MessageStorage::Durable(producer_id, queue) => (producer_id, None, Some(queue)),
        };
        let encoding = Arc::new(Encoding::new(codec, settings, remoting, queue.as_deref()));
        let (registration, upstream) = lanes::open(remoting);
        let store = queue.map(|queue| Store::open(queue, registration.reference().clone()));
        let (remoting, drain_on_drop) = (remoting.clone(), settings.producer.drain_on_drop);
        Ok(Self { remoting, registration, producer_id, stream, encoding, store, upstream, drain_on_drop })
    }

    /// The storing machine for a producer with these settings.
    pub(crate) fn storing<M: Clone>(&self, settings: &DeliverySettings) -> Storing<M> {
        match self.store {
            Some(_) => Storing::durable(settings.storing()),
            None => Storing::in_memory(),
        }
    }
}
