//! The queue whose messages applications write in their own transactions.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use greylag_core::{Codec, Encoded};

use super::kv::{Core, failed};
use super::{DurableProducerQueue, KvProducerQueue, OutboxStore, TypedQueue};
use crate::ids::{ControllerRef, SeqNr};
use crate::queue::{
    Confirmation, KvQueueSettings, MessageSent, OutboxSettings, QueueError, QueueState, QueueStoreError,
};
use crate::settings::SettingsError;

/// A producer queue over a table into which an application writes its messages itself, in the transaction that changes
/// its other data: both are committed, or neither is.
///
/// The queue numbers messages in the order in which it first sees them, in transactions of its own, under the epoch of
/// its load; so the numbers of a stream rise strictly, in whatever order the application's transactions commit. A
/// producer does not [`store`](DurableProducerQueue::store_message_sent) messages in it but
/// [`polls`](DurableProducerQueue::poll_new) it: a [`ShardingProducer`](crate::ShardingProducer) that is started with
/// it sends each message to the entity that the message names as its qualifier. Confirmed messages are removed from the
/// table.
///
/// ```
/// use greylag_core::{CodecId, Encoded};
/// use greylag_delivery::{ControllerRef, DurableProducerQueue, InMemoryQueues, SeqNr};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let database = InMemoryQueues::new(); // a real one: the crate greylag-delivery-postgres
/// let mut outbox = database.open_outbox("mails");
/// let relay = ControllerRef { node: "localhost:17355#1".parse()?, path: "outbox".into(), instance: 1 };
/// outbox.load(&relay).await?;
///
/// // The application's transaction commits an order and its mail.
/// let mail = Encoded { codec: CodecId::JSON, manifest: "mail".into(), payload: r#""to Ada""#.into() };
/// database.write_to_outbox("mails", "ada", mail.clone());
///
/// let new = outbox.poll_new(100).await?;
/// assert_eq!((new[0].seq_nr, &*new[0].qualifier, &new[0].message), (SeqNr(1), "ada", &mail));
/// # Ok(())
/// # }
/// ```
///
/// Source: delivery §4.4.
pub struct OutboxProducerQueue<S> {
    queue: KvProducerQueue<S>,
    poll_interval: Duration,
    /// The highest number returned by a load or a poll.
    handed_out: SeqNr,
}

impl<S: OutboxStore> OutboxProducerQueue<S> {
    /// The outbox `name` of `store`. Nothing is read or written before the first load.
    ///
    /// # Errors
    /// [`SettingsError`] names the invalid setting.
    pub fn open(store: S, name: impl Into<Arc<str>>, settings: OutboxSettings) -> Result<Self, SettingsError> {
        settings.validate()?;
        let OutboxSettings { cleanup_unused_after, poll_interval } = settings;
        let queue = KvProducerQueue::open(store, name, KvQueueSettings { cleanup_unused_after })?;
        Ok(Self { queue, poll_interval, handed_out: SeqNr::NONE })
    }

    /// The outbox with messages of type `T`, which `codec` decodes.
    pub fn typed<T>(self, codec: impl Codec<T>) -> TypedQueue<T, Self> {
        TypedQueue::new(self, codec)
    }

    /// The name of the outbox in its store.
    pub fn name(&self) -> &str {
        self.queue.name()
    }
}

impl<S: OutboxStore> Core<S> {
    /// Messages after `handed_out` whose numbers are stored: first those of a poll whose answer was lost, then new
    /// ones.
    async fn poll(&mut self, handed_out: SeqNr, max_messages: usize) -> Result<Vec<MessageSent<Encoded>>, QueueError> {
        let epoch = self.rules.epoch().ok_or(QueueError::NotLoaded)?;
        self.numbered.retain(|message| message.seq_nr > handed_out);
        let room = max_messages.saturating_sub(self.numbered.len());
        if room > 0 {
            let new = match self.store.number(&self.name, epoch, room).await {
                Ok(new) => self.rules.numbered(&new).map(|()| new),
                Err(QueueStoreError::Changed) => Err(self.change_error().await),
                Err(error) => Err(failed(error)),
            };
            match new {
                Ok(new) => self.numbered.extend(new),
                Err(error) => {
                    self.rules.unload();
                    return Err(error);
                }
            }
        }
        Ok(self.numbered.iter().take(max_messages).cloned().collect())
    }
}

#[async_trait]
impl<S: OutboxStore> DurableProducerQueue<Encoded> for OutboxProducerQueue<S> {
    async fn load(&mut self, controller: &ControllerRef) -> Result<QueueState<Encoded>, QueueError> {
        let state = self.queue.load(controller).await?;
        self.handed_out = SeqNr(state.current_seq_nr.get().saturating_sub(1));
        Ok(state)
    }

    /// Acknowledges messages that a poll has returned, and refuses all others, since applications write them.
    async fn store_message_sent(&mut self, batch: Vec<MessageSent<Encoded>>) -> Result<SeqNr, QueueError> {
        self.queue.check_loaded()?;
        match batch.iter().find(|message| message.seq_nr > self.handed_out || message.seq_nr == SeqNr::NONE) {
            Some(message) => {
                let why =
                    format!("message {} was not handed out: an outbox is written by applications", message.seq_nr);
                Err(QueueError::Rejected(why))
            }
            None => Ok(self.handed_out),
        }
    }

    async fn store_message_confirmed(&mut self, confirmations: Vec<Confirmation>) -> Result<(), QueueError> {
        self.queue.store_message_confirmed(confirmations).await
    }

    fn max_message_bytes(&self) -> usize {
        self.queue.max_message_bytes()
    }

    fn poll_interval(&self) -> Option<Duration> {
        Some(self.poll_interval)
    }

    async fn poll_new(&mut self, max_messages: usize) -> Result<Vec<MessageSent<Encoded>>, QueueError> {
        self.queue.check_loaded()?;
        let handed_out = self.handed_out;
        let new = self.queue.call(move |core| Box::pin(core.poll(handed_out, max_messages))).await;
        // With wrong numbers in the store, no message of this load can be sent any more.
        if matches!(new, Err(QueueError::OutOfOrder { .. })) {
            self.queue.unload();
        }
        let new = new?;
        self.handed_out = new.last().map_or(handed_out, |last| last.seq_nr);
        Ok(new)
    }
}

impl<S> fmt::Debug for OutboxProducerQueue<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OutboxProducerQueue").field("queue", &self.queue).field("handed_out", &self.handed_out).finish()
    }
}
