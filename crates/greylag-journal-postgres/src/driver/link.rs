//! Makes connections: one try at a time while they fail, with growing waits, without end.
//!
//! Lanes and pools share one link, so an unreachable server meets one try at a time, and the store's health is the
//! result of the last try to connect. The first connection that succeeds migrates the schema, so a journal that was
//! opened while its server was unreachable becomes usable by itself.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use greylag_postgres::{Database, DatabaseError};
use tokio_postgres::Client;

use super::availability::Availability;
use super::opener::{Access, Purpose, SessionOpener, if_supported};
use super::reservation::Reservation;
use super::session::{Session, lock};
use crate::error::not_connected_within;
use crate::schema;
use crate::settings::{Migrate, PostgresJournalSettings};
use crate::sql::statements::TIDY_CLOCK;

/// Makes the connections of one journal, and knows whether its database can be reached.
pub(crate) struct Link {
    /// Name of the journal for the operator.
    pub(crate) name: String,
    opener: SessionOpener,
    availability: Availability,
    reservation: Mutex<Option<Arc<Reservation>>>,
    migrate: Migrate,
    migration_timeout: Duration,
    connect_timeout: Duration,
    /// Held while connecting, so that only one try is under way. The value tells whether the schema was migrated.
    migrated: tokio::sync::Mutex<bool>,
}

impl Link {
    pub(crate) fn new(database: Database, settings: &PostgresJournalSettings, access: Access) -> Arc<Self> {
        let name = format!("journal {}", database.place());
        Arc::new(Self {
            availability: Availability::new(name.clone(), settings.min_backoff, settings.max_backoff),
            name,
            opener: SessionOpener::new(database, settings, access),
            reservation: Mutex::default(),
            migrate: settings.migrate,
            migration_timeout: settings.migration_timeout,
            connect_timeout: settings.connect_timeout,
            migrated: tokio::sync::Mutex::new(false),
        })
    }

    /// Address of the database, without the password.
    pub(crate) fn place(&self) -> String {
        self.opener.place()
    }

    /// Whether the database can be reached, as far as the tries to connect tell.
    pub(crate) fn availability(&self) -> &Availability {
        &self.availability
    }

    /// Makes no more connections, and releases the reservation.
    pub(crate) async fn close(&self) {
        self.availability.on_closed();
        let reservation = lock(&self.reservation).take();
        if let Some(reservation) = reservation {
            // A server that does not answer releases the lock when it finds the connection gone.
            let _silent = tokio::time::timeout(self.connect_timeout, reservation.release()).await;
        }
    }

    /// Reserves the journal for this process; otherwise answers which connections use it.
    pub(crate) async fn reserve(&self) -> Result<Option<String>, DatabaseError> {
        let session = self.connect(Purpose::Primary).await?;
        Ok(match Reservation::take(session, self.opener.schema(), self.connect_timeout).await? {
            Ok(reservation) => {
                *lock(&self.reservation) = Some(Arc::new(reservation));
                None
            }
            Err(holders) => Some(holders),
        })
    }

    /// Ok while no other process can use the journal.
    pub(crate) async fn reserved(&self) -> Result<(), DatabaseError> {
        let reservation = lock(&self.reservation).clone();
        match reservation {
            Some(reservation) => {
                let held = tokio::time::timeout(self.connect_timeout, reservation.check()).await;
                held.unwrap_or_else(|_| Err("the connection that reserved it does not answer".into()))
            }
            None => Err("it was not opened for this process alone".into()),
        }
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.availability.is_closed()
    }

    /// Tries once to connect, after the wait of the back-off. The error has advice. A server that does not fit the
    /// purpose counts as unreachable.
    pub(crate) async fn connect(&self, purpose: Purpose) -> Result<Arc<Session>, DatabaseError> {
        let mut migrated = self.migrated.lock().await;
        if let Some(at) = self.availability.next_try_at() {
            tokio::time::sleep_until(at.into()).await;
        }
        if self.is_closed() {
            return Err("the journal is closed".into());
        }
        let connecting = tokio::time::timeout(self.connect_timeout, self.opener.open(purpose));
        let session = connecting.await.unwrap_or_else(|_| Err(not_connected_within(self.connect_timeout)));
        let ready = match session {
            Ok(session) if *migrated => Ok(session),
            Ok(session) => match self.migrate_schema(&session.client).await {
                // A failure to remove rows of other processes does no harm; the next start tries again.
                Ok(()) => if_supported(session.client.execute(TIDY_CLOCK, &[]).await).map(|_| session),
                Err(error) => Err(error),
            },
            Err(error) => Err(error),
        };
        *migrated |= ready.is_ok();
        match &ready {
            Ok(_) => self.availability.on_connected(),
            Err(error) => self.availability.on_failed(Instant::now(), error),
        }
        ready.map(Arc::new)
    }

    /// Migrates the schema, within `migration_timeout`.
    async fn migrate_schema(&self, client: &Client) -> Result<(), DatabaseError> {
        let limit = self.migration_timeout;
        let migrating = schema::migrate(client, self.opener.schema(), self.migrate);
        match tokio::time::timeout(limit, migrating).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(error.advised()),
            Err(_) => Err(format!("its schema was not checked and migrated within {limit:?}").into()),
        }
    }
}
