//! What a queue asks of a store of rows.

use async_trait::async_trait;
use greylag_core::Encoded;

use crate::ids::Epoch;
use crate::queue::{MessageSent, QueueChange, QueueClaim, QueueHead, QueueRows, QueueStoreError};

/// Keeps the rows of queues. One store holds any number of queues, each under its name.
///
/// A [`KvProducerQueue`](crate::KvProducerQueue) calls it from one task at a time, and lets every call end; other
/// processes may call for the same queue meanwhile. What a call answered is durable.
#[async_trait]
pub trait QueueStore: Send + Sync + 'static {
    /// The head row of a queue, if there is one.
    ///
    /// # Errors
    /// [`QueueStoreError::Unavailable`], [`QueueStoreError::Damaged`].
    async fn head(&self, queue: &str) -> Result<Option<QueueHead>, QueueStoreError>;

    /// All rows of a queue, as they are at one moment; `None` if it has no head row.
    ///
    /// # Errors
    /// [`QueueStoreError::Unavailable`], [`QueueStoreError::Damaged`].
    async fn read(&self, queue: &str) -> Result<Option<QueueRows>, QueueStoreError>;

    /// Makes a claim if the head row is as [`QueueClaim::expected`] says: gives it the claim's epoch and controller
    /// and leaves its numbers as they are, or makes it with the next number 1. Nothing may come between that
    /// comparison and the claim. [`QueueHead::claimed`] is the rule.
    ///
    /// # Errors
    /// [`QueueStoreError`] says for each variant what is stored.
    async fn claim(&self, queue: &str, claim: &QueueClaim) -> Result<(), QueueStoreError>;

    /// Makes a change, whole or not at all, if the head row has the epoch of the change. Nothing may come between that
    /// comparison and the change. [`QueueHead::changed`] is the rule of the head row.
    ///
    /// # Errors
    /// [`QueueStoreError`] says for each variant what is stored.
    async fn write(&self, queue: &str, change: &QueueChange) -> Result<(), QueueStoreError>;

    /// The largest message that it takes, in encoded bytes.
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

/// A [`QueueStore`] whose messages are written by applications, each in a transaction of its own, and without numbers.
///
/// An [`OutboxProducerQueue`](crate::OutboxProducerQueue) calls it as it calls a `QueueStore`, and never adds messages by
/// [`write`](QueueStore::write). [`read`](QueueStore::read) answers those that have numbers.
#[async_trait]
pub trait OutboxStore: QueueStore {
    /// Gives numbers to messages that have none, in the order in which this call finds them, if the head row has
    /// this epoch: from the head row's next number on, and moves that. All in one transaction of its own; nothing may
    /// come between the comparison and the numbers. Answers them by rising numbers.
    ///
    /// A number is never taken from the transaction that wrote the message: of two such transactions the second may
    /// commit first, and its message would be sent before the smaller number is seen at all.
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
