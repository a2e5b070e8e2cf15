//! A connection, with the statements that were prepared on it.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::task::AbortHandle;
use tokio_postgres::{Client, Statement};

/// A connection, with the statements that were prepared on it.
pub(crate) struct Session {
    pub(crate) client: Client,
    /// The connection's row of `lane_clock`. Each connection has its own, so that none waits for another's lock.
    pub(crate) clock_row: String,
    /// `max_clock_lag`, in microseconds.
    pub(crate) max_clock_lag: i64,
    prepared: Mutex<HashMap<&'static str, Statement>>,
    connection_task: AbortHandle,
}

impl Drop for Session {
    /// Aborts the connection's task, which would otherwise live on while the server does not answer.
    fn drop(&mut self) {
        self.connection_task.abort();
    }
}

impl Session {
    /// A session on a new connection, whose task `connection_task` aborts.
    pub(crate) fn new(client: Client, connection_task: AbortHandle, clock_row: String, max_clock_lag: i64) -> Self {
        Self { client, clock_row, max_clock_lag, prepared: Mutex::default(), connection_task }
    }

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

/// Locks, ignoring poison: no holder runs foreign code, so poison tells nothing.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
