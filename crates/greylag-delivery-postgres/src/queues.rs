//! Queues of producers as rows.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use greylag_delivery::QueueStore;
use greylag_delivery::queue::{QueueChange, QueueClaim, QueueHead, QueueRows, QueueStoreError};

use crate::error::PostgresDeliveryError;
use crate::link::Link;
use crate::rows::Statements;
use crate::settings::PostgresQueueSettings;

/// Queues of producers in one database, by name; for [`KvProducerQueue`](greylag_delivery::KvProducerQueue). Clones
/// share one connection.
#[derive(Clone)]
pub struct PostgresQueues {
    link: Arc<Link>,
    statements: Arc<Statements>,
}

impl PostgresQueues {
    /// Connects, and creates the tables if they are missing, so that errors appear at the start. `config` is a libpq
    /// connection string, key words or a URL; its password never appears in logs and errors.
    ///
    /// # Errors
    /// [`PostgresDeliveryError`].
    pub async fn connect(config: &str) -> Result<Self, PostgresDeliveryError> {
        let queues = Self::lazy(config, None, PostgresQueueSettings::default())?;
        queues.link.probe().await?;
        Ok(queues)
    }

    /// Connects when a queue is first loaded. The password may be in a file of its own.
    ///
    /// # Errors
    /// [`PostgresDeliveryError::Settings`], [`PostgresDeliveryError::Config`].
    pub fn lazy(
        config: &str,
        password_file: Option<&Path>,
        settings: PostgresQueueSettings,
    ) -> Result<Self, PostgresDeliveryError> {
        let link = Link::new(config, password_file, settings)?;
        Ok(Self { link, statements: Arc::new(Statements::of("greylag_queue")) })
    }
}

#[async_trait]
impl QueueStore for PostgresQueues {
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

impl fmt::Debug for PostgresQueues {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresQueues").field("database", &self.link.place()).finish()
    }
}
