//! Makes connections: one try at a time while they fail, with growing waits, without end.
//!
//! Lanes and pools share one link, so an unreachable server meets one try at a time, and the store's health is the
//! result of the last try to connect. The first connection that succeeds migrates the schema, so a journal that was
//! opened while its server was unreachable becomes usable by itself.

use std::collections::HashMap;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use greylag_persistence::StoreReturns;
use greylag_postgres::Database;
use tokio::task::AbortHandle;
use tokio_postgres::{Client, Statement};

use crate::driver::reservation::{self, Reservation};
use greylag_postgres::advised;

use crate::error::{not_connected, not_connected_within};
use crate::schema::{self, Migrate};
use crate::settings::PostgresJournalSettings;
use crate::statements::TIDY_CLOCK;

const NO_PRIMARY: &str = "it takes no writes; name the primary in the connection string, and where that names several \
                          hosts, target_session_attrs=read-write";

/// Locks, ignoring poison: no holder runs foreign code, so poison tells nothing.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A connection, with the statements that were prepared on it.
pub(crate) struct Session {
    pub(crate) client: Client,
    /// The connection's row of `lane_clock`. Each connection has its own, so that none waits for another's lock.
    pub(crate) clock_row: String,
    /// `max_clock_lag`, in microseconds.
    pub(crate) max_clock_lag: i64,
    prepared: Mutex<HashMap<&'static str, Statement>>,
    carrier: AbortHandle,
}

impl Drop for Session {
    /// Aborts the connection's task, which would otherwise live on while the server does not answer.
    fn drop(&mut self) {
        self.carrier.abort();
    }
}

impl Session {
    /// Prepares a statement at its first use.
    pub(crate) async fn prepare(&self, sql: &'static str) -> Result<Statement, tokio_postgres::Error> {
        if let Some(statement) = lock(&self.prepared).get(sql) {
            return Ok(statement.clone());
        }
        let statement = self.client.prepare(sql).await?;
        lock(&self.prepared).insert(sql, statement.clone());
        Ok(statement)
    }
}

/// Whether other processes may use the journal at the same time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Use {
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

/// Address and settings of the database, and whether it can be reached.
pub(crate) struct Link {
    /// Name of the journal for the operator.
    pub(crate) name: String,
    database: Database,
    pub(crate) schema: String,
    used: Use,
    reservation: Mutex<Option<Arc<Reservation>>>,
    migrate: Migrate,
    statement_timeout: Duration,
    pub(crate) connect_timeout: Duration,
    migration_timeout: Duration,
    /// `max_clock_lag`, in microseconds.
    max_clock_lag: i64,
    /// A random number for the names of this process's rows in `lane_clock`.
    process: u64,
    /// Connections made so far.
    sessions: AtomicU64,
    backoff: (Duration, Duration),
    reach: Mutex<Reach>,
    /// Counts each time the database is reached again after tries to connect have failed.
    pub(crate) store_returns: StoreReturns,
    /// Count of lanes that have a connection.
    lanes_up: AtomicUsize,
    /// Held while connecting, so that only one try is under way. The value tells whether the schema was migrated.
    gate: tokio::sync::Mutex<bool>,
}

/// Result of the last tries to connect.
#[derive(Default)]
struct Reach {
    failures: u32,
    trouble: Option<String>,
    next_try_at: Option<Instant>,
    closed: bool,
}

impl Link {
    pub(crate) fn new(database: Database, settings: &PostgresJournalSettings, used: Use) -> Arc<Self> {
        Arc::new(Self {
            name: format!("journal {}", database.place()),
            database,
            schema: settings.schema.clone(),
            used,
            reservation: Mutex::default(),
            migrate: settings.migrate,
            statement_timeout: settings.statement_timeout,
            connect_timeout: settings.connect_timeout,
            migration_timeout: settings.migration_timeout,
            max_clock_lag: i64::try_from(settings.max_clock_lag.as_micros()).unwrap_or(i64::MAX),
            process: RandomState::new().hash_one(0_u64),
            sessions: AtomicU64::new(0),
            backoff: (settings.min_backoff, settings.max_backoff),
            reach: Mutex::default(),
            store_returns: StoreReturns::of_one(),
            lanes_up: AtomicUsize::new(0),
            gate: tokio::sync::Mutex::new(false),
        })
    }

    /// Address of the database, without the password.
    pub(crate) fn place(&self) -> String {
        self.database.place()
    }

    /// Error of the last try to connect, if it failed.
    pub(crate) fn trouble(&self) -> Option<String> {
        lock(&self.reach).trouble.clone()
    }

    /// Notes that a lane has a connection, or has lost it.
    pub(crate) fn lane_is_up(&self, is_up: bool) {
        if is_up {
            self.lanes_up.fetch_add(1, Ordering::Relaxed);
        } else {
            self.lanes_up.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Whether any lane can write: then the store is only degraded by a connection that cannot be made.
    pub(crate) fn is_any_lane_up(&self) -> bool {
        self.lanes_up.load(Ordering::Relaxed) > 0
    }

    /// Makes no more connections, and releases the reservation.
    pub(crate) async fn close(&self) {
        lock(&self.reach).closed = true;
        let reservation = lock(&self.reservation).take();
        if let Some(reservation) = reservation {
            // A server that does not answer releases the lock when it finds the connection gone.
            let _silent = tokio::time::timeout(self.connect_timeout, reservation.release()).await;
        }
    }

    /// Reserves the journal for this process; otherwise answers which connections use it.
    pub(crate) async fn reserve(&self) -> Result<Option<String>, String> {
        let session = self.connect(Purpose::Primary).await?;
        Ok(match Reservation::take(session, &self.schema, self.connect_timeout).await? {
            Ok(reservation) => {
                *lock(&self.reservation) = Some(Arc::new(reservation));
                None
            }
            Err(others) => Some(others),
        })
    }

    /// Ok while no other process can use the journal.
    pub(crate) async fn reserved(&self) -> Result<(), String> {
        let reservation = lock(&self.reservation).clone();
        match reservation {
            Some(reservation) => {
                let held = tokio::time::timeout(self.connect_timeout, reservation.holds()).await;
                held.unwrap_or_else(|_| Err("the connection that reserved it says nothing".to_owned()))
            }
            None => Err("it was not opened for this process alone".to_owned()),
        }
    }

    pub(crate) fn is_closed(&self) -> bool {
        lock(&self.reach).closed
    }

    /// Tries once to connect, after the wait of the back-off. The error has advice. A server that does not fit the
    /// purpose counts as unreachable.
    pub(crate) async fn connect(&self, purpose: Purpose) -> Result<Arc<Session>, String> {
        let mut migrated = self.gate.lock().await;
        let next_try_at = lock(&self.reach).next_try_at;
        if let Some(at) = next_try_at {
            tokio::time::sleep_until(at.into()).await;
        }
        if self.is_closed() {
            return Err("the journal is closed".to_owned());
        }
        let connecting = tokio::time::timeout(self.connect_timeout, self.open(purpose));
        let session = connecting.await.unwrap_or_else(|_| Err(not_connected_within(self.connect_timeout)));
        let ready = match session {
            Ok(session) if *migrated => Ok(session),
            Ok(session) => match self.look_after_schema(&session.client).await {
                // A failure to remove rows of other processes does no harm; the next start tries again.
                Ok(()) => known(session.client.execute(TIDY_CLOCK, &[]).await).map(|_| session),
                Err(error) => Err(error),
            },
            Err(error) => Err(error),
        };
        *migrated |= ready.is_ok();
        self.take_note(ready.as_ref().err());
        ready.map(Arc::new)
    }

    async fn open(&self, purpose: Purpose) -> Result<Session, String> {
        let (client, carrier) =
            self.database.connect("journal database").await.map_err(|error| not_connected(&error))?;
        let no = self.sessions.fetch_add(1, Ordering::Relaxed);
        let clock_row = format!("{:016x}/{no}", self.process);
        let session =
            Session { client, clock_row, max_clock_lag: self.max_clock_lag, prepared: Mutex::default(), carrier };
        let limit = self.statement_timeout.as_millis().max(1);
        let path = schema::quoted(&self.schema);
        let setup = format!(
            "SET synchronous_commit = on; SET search_path TO {path}; SET statement_timeout = {limit}; \
             SET client_min_messages = warning"
        );
        session.client.batch_execute(&setup).await.map_err(|error| advised(&error))?;
        if self.used == Use::Shared {
            reservation::share(&session.client, &self.schema).await?;
        }
        if purpose == Purpose::Lane {
            prepare_lane(&session.client).await?;
        }
        if purpose != Purpose::Query {
            is_primary(&session.client).await?;
        }
        Ok(session)
    }

    /// Migrates the schema, within `migration_timeout`.
    async fn look_after_schema(&self, client: &Client) -> Result<(), String> {
        let limit = self.migration_timeout;
        let migrating = schema::migrate(client, &self.schema, self.migrate);
        match tokio::time::timeout(limit, migrating).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(error.advice()),
            Err(_) => Err(format!("its schema was not looked at within {limit:?}")),
        }
    }

    fn take_note(&self, trouble: Option<&String>) {
        let mut reach = lock(&self.reach);
        let Some(trouble) = trouble else {
            let failures = reach.failures;
            *reach = Reach { closed: reach.closed, ..Reach::default() };
            drop(reach);
            if failures > 0 {
                tracing::info!(journal = self.name, failures, "the journal database is back");
                self.store_returns.note();
            }
            return;
        };
        if reach.failures == 0 {
            tracing::warn!(journal = self.name, trouble, "the journal database is away; it is tried until it answers");
        }
        let (min, max) = self.backoff;
        let wait = min.saturating_mul(1 << reach.failures.min(20)).min(max);
        reach.failures = reach.failures.saturating_add(1);
        reach.trouble = Some(trouble.clone());
        reach.next_try_at = Some(Instant::now() + wait);
    }
}

/// Makes the statements of a lane use indexes: they are planned once, perhaps while tables are small, and a plan that
/// reads a whole small table must not stay when the table is large.
async fn prepare_lane(client: &Client) -> Result<(), String> {
    for setting in ["SET enable_seqscan = off", "SET plan_cache_mode = force_generic_plan"] {
        known(client.batch_execute(setting).await)?;
    }
    Ok(())
}

/// Refuses a standby. A standby takes connections and answers reads, perhaps stale ones; if only a failed write told
/// that it is one, lanes would try it again without a pause.
async fn is_primary(client: &Client) -> Result<(), String> {
    let is_read_only = known(client.query_one("SELECT current_setting('transaction_read_only') = 'on'", &[]).await)?;
    match is_read_only.and_then(|row| row.try_get(0).ok()) {
        Some(true) => Err(NO_PRIMARY.to_owned()),
        _ => Ok(()),
    }
}

/// `None` if the server refuses the statement: a PostgreSQL-compatible database may not know it.
fn known<T>(answer: Result<T, tokio_postgres::Error>) -> Result<Option<T>, String> {
    match answer {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.code().is_some() => Ok(None),
        Err(error) => Err(advised(&error)),
    }
}
