//! The queue in which a durable producer stores its messages: the trait with its guarantees, and typed queues over
//! queues of bytes.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::BytesMut;
use greylag_core::{Codec, DecodeError, EncodeError, Encoded};

use crate::ids::{ControllerRef, SeqNr};
use crate::queue::{Confirmation, MessageSent, QueueError, QueueState};

/// Keeps the messages of one producer until they are confirmed, so that they survive the producer.
///
/// One controller writes a queue at a time: it loads the queue first, and again after each error that requires it
/// ([`QueueError::NotLoaded`], [`QueueError::OutcomeUnknown`], [`QueueError::NotStored`], [`QueueError::Rejected`]).
/// Every load raises the epoch, and every write is made under the epoch of the last load: a writer whose queue was
/// loaded by another one meanwhile is [`QueueError::Fenced`].
///
/// Every call may be repeated, however old it is, and every future may be dropped: its call may be stored all the same,
/// and the repeat then writes nothing. A call without an answer must be repeated *unchanged*; regrouped messages would
/// be another write. Source: delivery §4.1, D7.
#[async_trait]
pub trait DurableProducerQueue<T: Send + 'static>: Send {
    /// Makes `controller` the writer, under a raised epoch that is stored before the call returns, and returns every
    /// unconfirmed message. A controller passes the same reference at each of its loads.
    ///
    /// # Errors
    /// [`QueueError::Fenced`] if another controller took over since this one loaded. After any other error: try again
    /// later.
    async fn load(&mut self, controller: &ControllerRef) -> Result<QueueState<T>, QueueError>;

    /// Stores messages, all or none, and returns the highest number stored. Messages that are stored already are not
    /// written again. Source: delivery D1, D4.
    ///
    /// # Errors
    /// [`QueueError`] says for each variant what is stored.
    async fn store_message_sent(&mut self, batch: Vec<MessageSent<T>>) -> Result<SeqNr, QueueError>;

    /// Stores confirmations: later loads do not return their messages. Known confirmations are not written again; all
    /// new ones are one write. Source: delivery D2, D5.
    ///
    /// # Errors
    /// [`QueueError`] says for each variant what is stored.
    async fn store_message_confirmed(&mut self, confirmations: Vec<Confirmation>) -> Result<(), QueueError>;

    /// The largest message that the queue accepts, in encoded bytes.
    fn max_message_bytes(&self) -> usize;

    /// How often a producer must call [`poll_new`](Self::poll_new), for a queue that is written by others (an outbox).
    /// Default `None`: messages come by [`store_message_sent`](Self::store_message_sent) alone, and the queue is not
    /// polled.
    fn poll_interval(&self) -> Option<Duration> {
        None
    }

    /// Messages that others wrote into the queue's store and that no load and no earlier call has returned: at most
    /// `max_messages`, by rising numbers above all that were returned, with gaps perhaps. They are stored under these
    /// numbers when the call returns, so a producer sends them without storing them. Default: none.
    ///
    /// # Errors
    /// [`QueueError`] says for each variant what to do. [`QueueError::OutOfOrder`]: the store gave out a number twice,
    /// so none of the messages can be sent.
    async fn poll_new(&mut self, max_messages: usize) -> Result<Vec<MessageSent<T>>, QueueError> {
        let _none_are_written_by_others = max_messages;
        Ok(Vec::new())
    }
}

#[async_trait]
impl<T: Send + 'static, Q: DurableProducerQueue<T> + ?Sized> DurableProducerQueue<T> for Box<Q> {
    async fn load(&mut self, controller: &ControllerRef) -> Result<QueueState<T>, QueueError> {
        (**self).load(controller).await
    }

    async fn store_message_sent(&mut self, batch: Vec<MessageSent<T>>) -> Result<SeqNr, QueueError> {
        (**self).store_message_sent(batch).await
    }

    async fn store_message_confirmed(&mut self, confirmations: Vec<Confirmation>) -> Result<(), QueueError> {
        (**self).store_message_confirmed(confirmations).await
    }

    fn max_message_bytes(&self) -> usize {
        (**self).max_message_bytes()
    }

    fn poll_interval(&self) -> Option<Duration> {
        (**self).poll_interval()
    }

    async fn poll_new(&mut self, max_messages: usize) -> Result<Vec<MessageSent<T>>, QueueError> {
        (**self).poll_new(max_messages).await
    }
}

/// A queue of `T` over a queue that stores bytes. Made by the `typed` of a queue of this crate, or
/// over a queue of your own by [`TypedQueue::new`].
pub struct TypedQueue<T, Q> {
    queue: Q,
    codec: Arc<dyn Codec<T>>,
}

impl<T, Q> TypedQueue<T, Q> {
    /// A typed view of `queue`, whose messages `codec` encodes and decodes.
    pub fn new(queue: Q, codec: impl Codec<T>) -> Self {
        Self { queue, codec: Arc::new(codec) }
    }

    /// The queue of bytes.
    pub fn into_inner(self) -> Q {
        self.queue
    }
}

/// Encodes a value.
pub(in crate::driver) fn encoded<T: 'static>(codec: &dyn Codec<T>, value: &T) -> Result<Encoded, EncodeError> {
    let mut buffer = BytesMut::new();
    codec.encode(value, &mut buffer)?;
    Ok(Encoded { codec: codec.id(), manifest: codec.manifest(value), payload: buffer.freeze() })
}

impl<T: 'static, Q> TypedQueue<T, Q> {
    fn encode(&self, seq_nr: SeqNr, message: &T) -> Result<Encoded, QueueError> {
        encoded(&*self.codec, message).map_err(|cause| QueueError::Unencodable { seq_nr, cause })
    }

    fn decode(&self, seq_nr: SeqNr, encoded: Encoded) -> Result<T, QueueError> {
        let Encoded { codec, manifest, payload } = encoded;
        let decoded = if codec == self.codec.id() {
            self.codec.decode(&manifest, payload)
        } else {
            Err(DecodeError::UnknownCodec { codec, manifest: manifest.to_string() })
        };
        decoded.map_err(|cause| QueueError::Unreadable { seq_nr, cause })
    }
}

#[async_trait]
impl<T, Q> DurableProducerQueue<T> for TypedQueue<T, Q>
where
    T: Send + 'static,
    Q: DurableProducerQueue<Encoded>,
{
    async fn load(&mut self, controller: &ControllerRef) -> Result<QueueState<T>, QueueError> {
        let state = self.queue.load(controller).await?;
        let QueueState { stream_id, epoch, current_seq_nr, highest_confirmed_seq_nr, confirmed_seq_nr, .. } = state;
        let unconfirmed = state.unconfirmed.into_iter();
        let unconfirmed = unconfirmed.map(|sent| sent.try_map(|seq_nr, encoded| self.decode(seq_nr, encoded)));
        let unconfirmed = unconfirmed.collect::<Result<_, _>>()?;
        Ok(QueueState { stream_id, epoch, current_seq_nr, highest_confirmed_seq_nr, confirmed_seq_nr, unconfirmed })
    }

    async fn store_message_sent(&mut self, batch: Vec<MessageSent<T>>) -> Result<SeqNr, QueueError> {
        let batch = batch.into_iter().map(|sent| sent.try_map(|seq_nr, message| self.encode(seq_nr, &message)));
        let batch = batch.collect::<Result<_, _>>()?;
        self.queue.store_message_sent(batch).await
    }

    async fn store_message_confirmed(&mut self, confirmations: Vec<Confirmation>) -> Result<(), QueueError> {
        self.queue.store_message_confirmed(confirmations).await
    }

    fn max_message_bytes(&self) -> usize {
        self.queue.max_message_bytes()
    }

    fn poll_interval(&self) -> Option<Duration> {
        self.queue.poll_interval()
    }

    async fn poll_new(&mut self, max_messages: usize) -> Result<Vec<MessageSent<T>>, QueueError> {
        let new = self.queue.poll_new(max_messages).await?.into_iter();
        new.map(|sent| sent.try_map(|seq_nr, encoded| self.decode(seq_nr, encoded))).collect()
    }
}

impl<T, Q: fmt::Debug> fmt::Debug for TypedQueue<T, Q> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("TypedQueue").field(&self.queue).finish()
    }
}
