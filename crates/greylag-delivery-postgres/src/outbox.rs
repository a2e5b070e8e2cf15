//! Outboxes: tables into which applications insert their messages.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::BytesMut;
use greylag_core::{Codec, EncodeError, Encoded};
use greylag_delivery::queue::{MessageSent, QueueChange, QueueClaim, QueueHead, QueueRows, QueueStoreError};
use greylag_delivery::{Epoch, OutboxStore, QueueStore};
use tokio_postgres::Transaction;

use crate::error::PostgresDeliveryError;
use crate::link::Link;
use crate::rows::{Statements, message, not_read, not_written, stored};
use crate::settings::PostgresQueueSettings;

/// Inserts a message into an outbox, for clients other than `tokio-postgres`: $1 the outbox, $2 the qualifier (under
/// sharding the receiving entity, otherwise empty), $3 the codec's number, $4 the manifest, $5 the encoded message.
pub const INSERT_INTO_OUTBOX: &str = "insert into greylag_outbox_message (queue, qualifier, codec, manifest, payload) \
                                      values ($1, $2, $3, $4, $5)";

/// Reads the outbox's epoch, and whether a message has no number yet.
const WAITING: &str = "select h.epoch, exists (select 1 from greylag_outbox_message m where m.queue = $1 and \
                       m.seq_nr is null) from greylag_outbox_head h where h.queue = $1";

// Moves the head row's next number by the number of messages that this statement sees, if the head row has the given
// epoch: the other parts depend on that row.
const NUMBER: &str = "with new as (
    select w.id, row_number() over (order by w.id) as nth, count(*) over () as of_all from (
        select id from greylag_outbox_message where queue = $1 and seq_nr is null order by id limit $3
    ) as w
), moved as (
    update greylag_outbox_head set current = current + (select count(*) from new) where queue = $1 and epoch = $2
    returning current
), numbered as (
    update greylag_outbox_message m set seq_nr = moved.current - new.of_all + new.nth - 1 from new, moved
    where m.id = new.id returning m.seq_nr, m.qualifier, m.ack, m.timestamp_ms, m.codec, m.manifest, m.payload
) select n.* from moved left join numbered n on true order by n.seq_nr";

/// Outboxes in one database, by name; for [`OutboxProducerQueue`](greylag_delivery::OutboxProducerQueue). Clones share
/// one connection.
#[derive(Clone)]
pub struct PostgresOutboxes {
    link: Arc<Link>,
    statements: Arc<Statements>,
}

impl PostgresOutboxes {
    /// Connects, and creates the tables if they are missing, so that errors appear at the start. `config` is a libpq
    /// connection string, key words or a URL; its password never appears in logs and errors.
    ///
    /// # Errors
    /// [`PostgresDeliveryError`].
    pub async fn connect(config: &str) -> Result<Self, PostgresDeliveryError> {
        let outboxes = Self::lazy(config, None, PostgresQueueSettings::default())?;
        outboxes.link.probe().await?;
        Ok(outboxes)
    }

    /// Connects when an outbox is first loaded. The password may be in a file of its own.
    ///
    /// # Errors
    /// [`PostgresDeliveryError::Settings`], [`PostgresDeliveryError::Config`].
    pub fn lazy(
        config: &str,
        password_file: Option<&Path>,
        settings: PostgresQueueSettings,
    ) -> Result<Self, PostgresDeliveryError> {
        let link = Link::new(config, password_file, settings)?;
        Ok(Self { link, statements: Arc::new(Statements::of("greylag_outbox")) })
    }
}

#[async_trait]
impl QueueStore for PostgresOutboxes {
    async fn head(&self, queue: &str) -> Result<Option<QueueHead>, QueueStoreError> {
        self.statements.head(&self.link, queue).await
    }

    async fn read(&self, queue: &str) -> Result<Option<QueueRows>, QueueStoreError> {
        self.statements.read(&self.link, queue).await
    }

    async fn claim(&self, queue: &str, claim: &QueueClaim) -> Result<(), QueueStoreError> {
        self.statements.claim(&self.link, queue, claim).await
    }

    async fn write(&self, queue: &str, change: &QueueChange) -> Result<(), QueueStoreError> {
        self.statements.write(&self.link, queue, change).await
    }

    fn max_message_bytes(&self) -> usize {
        self.link.settings.max_message_bytes
    }
}

#[async_trait]
impl OutboxStore for PostgresOutboxes {
    async fn number(
        &self,
        queue: &str,
        epoch: Epoch,
        max_messages: usize,
    ) -> Result<Vec<MessageSent<Encoded>>, QueueStoreError> {
        let epoch = stored(epoch.0)?;
        let found = self.link.query(WAITING, &[&queue]).await.map_err(not_read)?;
        let found = found.first().filter(|row| row.get::<_, i64>(0) == epoch).ok_or(QueueStoreError::Changed)?;
        // Without new messages, polling writes nothing.
        if !found.get::<_, bool>(1) {
            return Ok(Vec::new());
        }
        let limit = i64::try_from(max_messages).unwrap_or(i64::MAX);
        let numbered = self.link.query(NUMBER, &[&queue, &epoch, &limit]).await.map_err(not_written)?;
        if numbered.is_empty() {
            return Err(QueueStoreError::Changed);
        }
        let is_there = |row: &&tokio_postgres::Row| row.get::<_, Option<i64>>(0).is_some();
        numbered.iter().filter(is_there).map(message).collect()
    }
}

impl fmt::Debug for PostgresOutboxes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresOutboxes").field("database", &self.link.place()).finish()
    }
}

/// Why a message was not inserted. The transaction must be rolled back.
#[derive(thiserror::Error)]
pub enum InsertError {
    /// The codec refused the message.
    #[error("the message cannot be encoded: {0}")]
    Encode(#[from] EncodeError),
    /// The database refused the statement, or the connection is broken.
    #[error("the message was not inserted into the outbox")]
    Failed(#[from] tokio_postgres::Error),
}

greylag_core::debug_is_sentence!(InsertError);

/// Inserts a message into an outbox, in the application's own transaction: the message is sent once the transaction
/// commits, and never otherwise. `qualifier` is the receiving entity under sharding, and empty otherwise. The tables
/// must exist in the search path of the transaction.
///
/// # Errors
/// [`InsertError`].
pub async fn insert_into_outbox<T>(
    transaction: &Transaction<'_>,
    outbox: &str,
    qualifier: &str,
    codec: &impl Codec<T>,
    value: &T,
) -> Result<(), InsertError> {
    let mut payload = BytesMut::new();
    codec.encode(value, &mut payload)?;
    let (manifest, payload) = (codec.manifest(value), payload.freeze());
    insert_encoded_into_outbox(transaction, outbox, qualifier, &Encoded { codec: codec.id(), manifest, payload }).await
}

/// Like [`insert_into_outbox`], for an encoded message.
///
/// # Errors
/// [`InsertError::Failed`].
pub async fn insert_encoded_into_outbox(
    transaction: &Transaction<'_>,
    outbox: &str,
    qualifier: &str,
    message: &Encoded,
) -> Result<(), InsertError> {
    let (codec, manifest, payload) = (i64::from(message.codec.as_u32()), &*message.manifest, &message.payload[..]);
    transaction.execute(INSERT_INTO_OUTBOX, &[&outbox, &qualifier, &codec, &manifest, &payload]).await?;
    Ok(())
}
