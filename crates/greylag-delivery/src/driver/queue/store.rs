//! The store of rows below a queue.

use async_trait::async_trait;
use greylag_core::Encoded;

use crate::ids::Epoch;
use crate::queue::{MessageSent, QueueChange, QueueClaim, QueueHead, QueueRows, QueueStoreError};

/// Stores the rows of queues, any number of queues by name.
///
/// A [`KvProducerQueue`](crate::KvProducerQueue) calls the store from one task at a time, and completes every call;
/// other processes may call for the same queue meanwhile. A successful answer means that the change is durable.
#[async_trait]
pub trait QueueStore: Send + Sync + 'static {
    /// The head row of a queue, if there is one.
    ///
    /// # Errors
    /// [`QueueStoreError::Unavailable`], [`QueueStoreError::Damaged`].
    async fn head(&self, queue: &str) -> Result<Option<QueueHead>, QueueStoreError>;

    /// All rows of a queue at one moment; `None` if the queue has no head row.
    ///
    /// # Errors
    /// [`QueueStoreError::Unavailable`], [`QueueStoreError::Damaged`].
    async fn read(&self, queue: &str) -> Result<Option<QueueRows>, QueueStoreError>;

    /// Makes a claim if the head row equals [`QueueClaim::expected`]: writes the claim's epoch and controller into the
    /// head row and keeps its numbers, or inserts the row with next number 1. Comparison and claim must be atomic.
    /// [`QueueHead::claimed`] is the rule.
    ///
    /// # Errors
    /// [`QueueStoreError`] says for each variant what is stored.
    async fn claim(&self, queue: &str, claim: &QueueClaim) -> Result<(), QueueStoreError>;

    /// Makes a change, whole or not at all, if the head row has the epoch of the change. Comparison and change must be
    /// atomic. [`QueueHead::changed`] is the rule of the head row.
    ///
    /// # Errors
    /// [`QueueStoreError`] says for each variant what is stored.
    async fn write(&self, queue: &str, change: &QueueChange) -> Result<(), QueueStoreError>;

    /// The largest message that the store accepts, in encoded bytes.
    fn max_message_bytes(&self) -> usize;
}

#[async_trait]
impl<S: QueueStore + ?Sized> QueueStore for std::sync::Arc<S> {
    async fn head(&self, queue: &str) -> Result<Option<QueueHead>, QueueStoreError> {
        (**self).head(queue).await
    }

    async fn read(&self, queue: &str) -> Result<Option<QueueRows>, QueueStoreError> {
        (**self).read(queue).await
    }

    async fn claim(&self, queue: &str, claim: &QueueClaim) -> Result<(), QueueStoreError> {
        (**self).claim(queue, claim).await
    }

    async fn write(&self, queue: &str, change: &QueueChange) -> Result<(), QueueStoreError> {
        (**self).write(queue, change).await
    }

    fn max_message_bytes(&self) -> usize {
        (**self).max_message_bytes()
    }
}

/// A [`QueueStore`] whose messages are written by applications, in transactions of their own, and without numbers.
///
/// An [`OutboxProducerQueue`](crate::OutboxProducerQueue) calls the store like a `QueueStore`, but never adds messages
/// by [`write`](QueueStore::write). [`read`](QueueStore::read) returns the numbered messages.
#[async_trait]
pub trait OutboxStore: QueueStore {
    /// Numbers messages that have no number, in the order in which this call finds them, if the head row has this
    /// epoch: from the head row's next number on, which is moved. Comparison and numbering must be one transaction.
    /// Returns the messages by rising numbers.
    ///
    /// A number must not be assigned in the transaction that wrote the message: of two such transactions the second may
    /// commit first, and its message would be sent before the smaller number is visible.
    ///
    /// # Errors
    /// [`QueueStoreError`] says for each variant what is stored.
    async fn number(
        &self,
        queue: &str,
        epoch: Epoch,
        max_messages: usize,
    ) -> Result<Vec<MessageSent<Encoded>>, QueueStoreError>;
}

#[async_trait]
impl<S: OutboxStore + ?Sized> OutboxStore for std::sync::Arc<S> {
    async fn number(
        &self,
        queue: &str,
        epoch: Epoch,
        max_messages: usize,
    ) -> Result<Vec<MessageSent<Encoded>>, QueueStoreError> {
        (**self).number(queue, epoch, max_messages).await
    }
}
