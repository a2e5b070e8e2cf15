//! Watermarks of entities that keep their state in a database of their own.

use async_trait::async_trait;

use crate::ids::{SeqNr, StreamId};
use crate::machine::dedupe::Dedupe;

/// Stores for each entity how far it has processed each stream, in the transaction that writes the effect.
///
/// For entities that keep their state in a database of their own and are not event-sourced. At its start the entity
/// returns the watermarks that [`load`](Self::load) answers, so that duplicates do not reach its handlers. If a message
/// reaches two owners of one entity at a time, [`record`](Self::record) succeeds for one of them; the other transaction
/// is rolled back.
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
    /// A transaction of the database that holds the entities' state.
    type Transaction<'a>: Send + Sync;
    /// An error of the database.
    type Error: std::error::Error + Send + Sync + 'static;

    /// How far an entity has processed each stream. `entity` identifies the entity among all that use this store: its
    /// type and id.
    ///
    /// # Errors
    /// Any error of the database.
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

/// Why a message could not be recorded as processed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RecordError<E> {
    /// Another transaction has applied this message or a later one of its stream. Roll back, then confirm the delivery.
    #[error("the entity has applied its stream up to {up_to} already")]
    AlreadyApplied {
        /// The recorded total of the stream.
        up_to: SeqNr,
    },
    /// The database failed. Roll back; the delivery is not processed.
    #[error(transparent)]
    Store(E),
}
