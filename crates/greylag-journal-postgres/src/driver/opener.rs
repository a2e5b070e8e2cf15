//! Opens one connection, set up for its purpose.

use std::hash::{BuildHasher as _, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use greylag_postgres::{Database, DatabaseError};
use tokio_postgres::Client;

use super::reservation;
use super::session::Session;
use crate::error::not_connected;
use crate::schema;
use crate::settings::PostgresJournalSettings;

const NOT_PRIMARY: &str = "it takes no writes; name the primary in the connection string, and where that names several \
                           hosts, target_session_attrs=read-write";

/// Whether other processes may use the journal at the same time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    Shared,
    Exclusive,
}

/// Purpose of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Appends of many ids together. Needs the primary.
    Lane,
    /// Other writes, and reads that must be up to date: recovery, proof of ownership, states. Needs the primary
    /// (persistence §4.4): a standby that lags would answer a stale writer with its own epoch, and a restarted entity
    /// with an old history.
    Primary,
    /// Queries over many histories, which a standby may answer.
    Query,
}

/// The database, and the setup of connections to it.
pub(crate) struct SessionOpener {
    database: Database,
    schema: String,
    access: Access,
    statement_timeout: Duration,
    /// `max_clock_lag`, in microseconds.
    max_clock_lag: i64,
    /// A random number for the names of this process's rows in `lane_clock`.
    process: u64,
    /// Count of the connections opened so far.
    opened: AtomicU64,
}

impl SessionOpener {
    pub(crate) fn new(database: Database, settings: &PostgresJournalSettings, access: Access) -> Self {
        Self {
            database,
            schema: settings.schema.clone(),
            access,
            statement_timeout: settings.statement_timeout,
            max_clock_lag: i64::try_from(settings.max_clock_lag.as_micros()).unwrap_or(i64::MAX),
            process: RandomState::new().hash_one(0_u64),
            opened: AtomicU64::new(0),
        }
    }

    /// Address of the database, without the password.
    pub(crate) fn place(&self) -> String {
        self.database.place()
    }

    /// Name of the schema with the tables.
    pub(crate) fn schema(&self) -> &str {
        &self.schema
    }

    /// Connects, and sets the connection up. The error has advice. A server that does not fit the purpose is an error.
    pub(crate) async fn open(&self, purpose: Purpose) -> Result<Session, DatabaseError> {
        let (client, connection_task) = self.database.connect("journal database").await.map_err(not_connected)?;
        let no = self.opened.fetch_add(1, Ordering::Relaxed);
        let clock_row = format!("{:016x}/{no}", self.process);
        let session = Session::new(client, connection_task, clock_row, self.max_clock_lag);
        let limit = self.statement_timeout.as_millis().max(1);
        let path = schema::quoted(&self.schema);
        let setup = format!(
            "SET synchronous_commit = on; SET search_path TO {path}; SET statement_timeout = {limit}; \
             SET client_min_messages = warning"
        );
        session.client.batch_execute(&setup).await.map_err(DatabaseError::advised)?;
        if self.access == Access::Shared {
            reservation::lock_shared(&session.client, &self.schema).await?;
        }
        if purpose == Purpose::Lane {
            plan_for_large_tables(&session.client).await?;
        }
        if purpose != Purpose::Query {
            refuse_standby(&session.client).await?;
        }
        Ok(session)
    }
}

/// Makes the statements of a lane use indexes: they are planned once, perhaps while tables are small, and a plan that
/// reads a whole small table must not stay when the table is large.
async fn plan_for_large_tables(client: &Client) -> Result<(), DatabaseError> {
    for setting in ["SET enable_seqscan = off", "SET plan_cache_mode = force_generic_plan"] {
        if_supported(client.batch_execute(setting).await)?;
    }
    Ok(())
}

/// Refuses a standby. A standby takes connections and answers reads, perhaps stale ones; if only a failed write told
/// that it is one, lanes would try it again without a pause.
async fn refuse_standby(client: &Client) -> Result<(), DatabaseError> {
    let answer = client.query_one("SELECT current_setting('transaction_read_only') = 'on'", &[]).await;
    match if_supported(answer)?.and_then(|row| row.try_get(0).ok()) {
        Some(true) => Err(NOT_PRIMARY.into()),
        _ => Ok(()),
    }
}

/// `None` if the server refuses the statement: a PostgreSQL-compatible database may not know it.
pub(super) fn if_supported<T>(answer: Result<T, tokio_postgres::Error>) -> Result<Option<T>, DatabaseError> {
    match answer {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.code().is_some() => Ok(None),
        Err(error) => Err(DatabaseError::advised(error)),
    }
}
