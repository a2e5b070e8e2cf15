//! The connection of a store: opened on demand, and opened again after a failure or a timeout.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use greylag_postgres::{Database, DatabaseError, Failure};
use tokio::task::AbortHandle;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Row, Statement};

use crate::error::PostgresDeliveryError;
use crate::settings::PostgresQueueSettings;

const CREATE: &str = include_str!("schema.sql");
/// Advisory lock under which nodes that start at the same time create the tables one after the other. Any constant will
/// do: "delivery" in ASCII.
const LOCK: i64 = 0x64_65_6c_69_76_65_72_79;
/// Whether all tables exist; in a new database at least one is missing.
const TABLES: &str = "select bool_and(to_regclass(name) is not null) from unnest(array['greylag_queue_head', \
    'greylag_queue_message', 'greylag_queue_confirmed', 'greylag_outbox_head', 'greylag_outbox_confirmed', \
    'greylag_outbox_message', 'greylag_outbox_numbered', 'greylag_outbox_waiting', 'greylag_delivery_dedupe']) as name";
/// How much longer than the server this side waits for a statement.
const GRACE: Duration = Duration::from_secs(1);

/// A connection with the statements that were prepared on it.
struct Session {
    client: Client,
    connection: AbortHandle,
    prepared: tokio::sync::Mutex<Vec<(String, Statement)>>,
}

impl Drop for Session {
    fn drop(&mut self) {
        // Otherwise the answer to an abandoned statement might be taken for that of a later one, and its rows would
        // stay locked.
        self.connection.abort();
    }
}

/// A database, and the connection to it.
pub(crate) struct Link {
    database: Database,
    pub(crate) settings: PostgresQueueSettings,
    session: Mutex<Option<Arc<Session>>>,
    /// Lets one task connect while the others wait.
    connecting: tokio::sync::Mutex<()>,
}

impl Link {
    pub(crate) fn new(
        config: &str,
        password_file: Option<&Path>,
        settings: PostgresQueueSettings,
    ) -> Result<Arc<Self>, PostgresDeliveryError> {
        settings.validate()?;
        let mut database = Database::parse(config)?;
        if let Some(file) = password_file {
            database = database.with_password_file(file)?;
        }
        if database.believes_anybody() {
            let place = database.place();
            tracing::warn!(
                place,
                "any server that answers there is taken for the delivery database; use sslmode=verify-full"
            );
        }
        let (session, connecting) = (Mutex::new(None), tokio::sync::Mutex::new(()));
        Ok(Arc::new(Self { database, settings, session, connecting }))
    }

    /// The address of the database, without the password.
    pub(crate) fn place(&self) -> String {
        self.database.place()
    }

    /// Connects and creates the tables, so that errors appear at the start.
    pub(crate) async fn probe(&self) -> Result<(), PostgresDeliveryError> {
        self.session().await.map(drop)
    }

    fn held(&self) -> std::sync::MutexGuard<'_, Option<Arc<Session>>> {
        self.session.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn present(&self) -> Option<Arc<Session>> {
        self.held().clone().filter(|session| !session.client.is_closed())
    }

    /// Drops a connection after a failure.
    fn discard(&self, broken: &Arc<Session>) {
        let dropped = self.held().take_if(|session| Arc::ptr_eq(session, broken));
        drop(dropped);
        broken.connection.abort();
    }

    async fn session(&self) -> Result<Arc<Session>, PostgresDeliveryError> {
        if let Some(session) = self.present() {
            return Ok(session);
        }
        let _first = self.connecting.lock().await;
        if let Some(session) = self.present() {
            return Ok(session);
        }
        let within = self.settings.connect_timeout;
        let silent = |_| {
            let cause = format!("there was no connection within {within:?}");
            PostgresDeliveryError::Unavailable { place: self.place(), cause: cause.into() }
        };
        let session = Arc::new(tokio::time::timeout(within, self.connect()).await.map_err(silent)??);
        *self.held() = Some(session.clone());
        Ok(session)
    }

    async fn connect(&self) -> Result<Session, PostgresDeliveryError> {
        let not_connected = |error| PostgresDeliveryError::not_connected(self.place(), error);
        let (client, connection) = self.database.connect("delivery database").await.map_err(not_connected)?;
        let session = Session { client, connection, prepared: tokio::sync::Mutex::default() };
        let set_up = self.set_up(&session.client).await;
        set_up.map_err(|error| {
            let cause = DatabaseError::advised(error);
            PostgresDeliveryError::Unavailable { place: self.place(), cause }
        })?;
        Ok(session)
    }

    async fn set_up(&self, client: &Client) -> Result<(), tokio_postgres::Error> {
        let has_tables = async || Ok::<bool, tokio_postgres::Error>(client.query_one(TABLES, &[]).await?.get(0));
        if !has_tables().await? {
            let locked = format!("begin; select pg_advisory_xact_lock({LOCK}); {CREATE} commit");
            // Another process may have created the tables meanwhile, or an operator, for a user who may not create
            // them.
            if let Err(error) = client.batch_execute(&locked).await {
                client.batch_execute("rollback").await?;
                if !has_tables().await? {
                    return Err(error);
                }
            }
        }
        let limit = self.settings.call_timeout.as_millis();
        client.batch_execute(&format!("set synchronous_commit = on; set statement_timeout = {limit}")).await
    }

    /// Runs one statement, which is a transaction of its own.
    pub(crate) async fn query(&self, sql: &str, parameters: &[&(dyn ToSql + Sync)]) -> Result<Vec<Row>, Failure> {
        let session =
            self.session().await.map_err(|error| Failure::NotSent(DatabaseError::new(error.to_string(), error)))?;
        let asked = async {
            let statement = session.prepare(sql).await?;
            session.client.query(&statement, parameters).await
        };
        let failure = match tokio::time::timeout(self.settings.call_timeout + GRACE, asked).await {
            Ok(Ok(rows)) => return Ok(rows),
            Ok(Err(error)) => Failure::of(error),
            Err(_) => {
                Failure::Unanswered(format!("there was no answer within {:?}", self.settings.call_timeout).into())
            }
        };
        if failure.ends_connection() {
            self.discard(&session);
        }
        Err(failure)
    }
}

impl Session {
    async fn prepare(&self, sql: &str) -> Result<Statement, tokio_postgres::Error> {
        let mut prepared = self.prepared.lock().await;
        if let Some((_, statement)) = prepared.iter().find(|(known, _)| known == sql) {
            return Ok(statement.clone());
        }
        let statement = self.client.prepare(sql).await?;
        prepared.push((sql.to_owned(), statement.clone()));
        Ok(statement)
    }
}
