//! How far an entity is, kept by its own database.

use async_trait::async_trait;

use crate::dedupe::Dedupe;
use crate::ids::{SeqNr, StreamId};

/// Remembers for each entity how far it has processed each stream, in the transaction that writes the effect.
///
/// For entities that keep their state in a database of their own and are not event-sourced. The entity returns what
/// [`load`](Self::load) answers from its start, so that duplicates never reach it; whatever reaches two owners of it at a
/// time, [`record`](Self::record) lets through once: the transaction of the other one is rolled back.
///
/// ```text
/// start            load(entity) ──▶ Dedupe, for the consumer
/// delivery 7       begin ─ write the effect ─ record(transaction, entity, stream, 7) ─ commit ─ confirm
///                                              └▶ AlreadyApplied: roll back, and confirm: the effect is there
/// ```
///
/// Source: delivery §7, scenario 78.
#[async_trait]
pub trait DedupeStore: Send + Sync {
    /// A transaction of the database in which entities keep their state.
    type Transaction<'a>: Send + Sync;
    /// Why the database did not do what it was asked.
    type Error: std::error::Error + Send + Sync + 'static;

    /// How far an entity has processed each stream. `entity` names it among all that use this store: its type and id.
    ///
    /// # Errors
    /// What the database says.
    async fn load(&self, entity: &str) -> Result<Dedupe, Self::Error>;

    /// Notes, within a transaction, that an entity has processed a stream up to `total`. Until that transaction ends, a
    /// second one for the same entity and stream waits.
    ///
    /// Deliveries are to be recorded in their order: the note for 9 also covers a 7 that was never processed.
    ///
    /// # Errors
    /// [`RecordError::AlreadyApplied`] unless `total` is greater than what is noted; [`RecordError::Store`] if the
    /// database fails. Either way the transaction is to be rolled back.
    async fn record(
        &self,
        transaction: &Self::Transaction<'_>,
        entity: &str,
        stream: StreamId,
        total: SeqNr,
    ) -> Result<(), RecordError<Self::Error>>;
}

/// Why it was not noted that a message is processed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RecordError<E> {
    /// Another transaction has applied this message or a later one of its stream. Roll back, then confirm the delivery.
    #[error("the entity has applied its stream up to {up_to} already")]
    AlreadyApplied {
        /// How far it is.
        up_to: SeqNr,
    },
    /// The database failed. Roll back; the delivery is not processed.
    #[error(transparent)]
    Store(E),
}
