//! Reserves a journal for one process: every connection of an ordinary journal holds an advisory lock of its schema
//! shared, and a process that needs the journal alone takes the same lock exclusively.
//!
//! The lock ends with its connection, so a killed process holds it only until the server notices. Databases without
//! advisory locks let every process pass.

use std::sync::Arc;
use std::time::{Duration, Instant};

use greylag_postgres::DatabaseError;
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, SimpleQueryMessage};

use super::session::Session;

/// The first half of the lock's number, for all journals: "grey" in ASCII.
const LOCK_CLASS: i32 = 0x67_72_65_79;

/// Wait between two tries to take the lock.
const RETRY_WAIT: Duration = Duration::from_millis(50);

/// The second half, a hash of the schema (FNV-1a). A hash collision only makes two schemas share a lock.
fn lock_object(schema: &str) -> i32 {
    let hash = schema.bytes().fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    i32::from_ne_bytes(hash.to_ne_bytes())
}

/// Runs a query; answers its first value as text.
async fn query_text(client: &Client, sql: &str) -> Result<Option<String>, tokio_postgres::Error> {
    let answer = client.simple_query(sql).await?;
    Ok(answer.iter().find_map(|message| match message {
        SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
        _ => None,
    }))
}

/// Whether the lock was taken; always true on a database without advisory locks.
async fn lock(client: &Client, function: &str, schema: &str) -> Result<bool, DatabaseError> {
    let given = query_text(client, &format!("SELECT {function}({LOCK_CLASS}, {})", lock_object(schema))).await;
    let unknown = [SqlState::FEATURE_NOT_SUPPORTED, SqlState::UNDEFINED_FUNCTION];
    match given {
        Ok(given) => Ok(given.as_deref() == Some("t")),
        Err(error) if error.code().is_some_and(|code| unknown.contains(code)) => Ok(true),
        Err(error) => Err(DatabaseError::advised(error)),
    }
}

/// Takes the lock shared, for a connection of an ordinary journal.
pub(crate) async fn lock_shared(client: &Client, schema: &str) -> Result<(), DatabaseError> {
    if lock(client, "pg_try_advisory_lock_shared", schema).await? {
        return Ok(());
    }
    Err(format!(
        "schema {schema:?} is being copied or verified, and no other process may use it meanwhile; wait until that \
         ends, or look in pg_locks for the connection that holds an advisory lock"
    )
    .into())
}

/// The exclusive lock, held as long as its connection lives.
pub(crate) struct Reservation(Arc<Session>);

impl Reservation {
    /// Tries to take the lock for `within`; otherwise answers which connections hold it.
    pub(crate) async fn take(
        session: Arc<Session>,
        schema: &str,
        within: Duration,
    ) -> Result<Result<Self, String>, DatabaseError> {
        let deadline = Instant::now() + within;
        while !lock(&session.client, "pg_try_advisory_lock", schema).await? {
            if Instant::now() + RETRY_WAIT >= deadline {
                return Ok(Err(describe_holders(&session.client, schema).await));
            }
            tokio::time::sleep(RETRY_WAIT).await;
        }
        Ok(Ok(Self(session)))
    }

    /// Ok while the connection lives, and with it the lock.
    pub(crate) async fn check(&self) -> Result<(), DatabaseError> {
        let answer = query_text(&self.0.client, "SELECT 1").await;
        answer.map(drop).map_err(|error| {
            let error = DatabaseError::advised(error);
            error.with_text(format!("the connection that reserved it broke: {error}"))
        })
    }

    /// Releases the lock before the connection ends, so that the next process need not wait.
    pub(crate) async fn release(&self) {
        // If the connection is gone, so is the lock.
        let _gone = query_text(&self.0.client, "SELECT pg_advisory_unlock_all()").await;
    }
}

/// A description of the other connections, as far as the server tells.
async fn describe_holders(client: &Client, schema: &str) -> String {
    let sql = format!(
        "SELECT count(*) || ' connections, one from ' || min(coalesce(host(a.client_addr), 'this host') \
         || coalesce(' (' || nullif(a.application_name, '') || ')', '')) \
         FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid \
         WHERE l.locktype = 'advisory' AND l.classid = {LOCK_CLASS} AND l.objid = {}::bigint::oid AND l.granted",
        u32::from_ne_bytes(lock_object(schema).to_ne_bytes())
    );
    query_text(client, &sql).await.ok().flatten().unwrap_or_else(|| "other connections use it".to_owned())
}
