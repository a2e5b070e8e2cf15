//! Tells whether a journal is in use: every connection shares an advisory lock of its schema, and a process that
//! wants the journal alone takes the same lock alone.
//!
//! The lock ends with its connection, so a process that was killed holds nothing for long. Databases that do
//! not know such locks let every process pass.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, SimpleQueryMessage};

use crate::driver::link::Session;
use greylag_postgres::advised;

/// The first half of the lock's number, for all journals: "grey" in ASCII.
const CLASS: i32 = 0x67_72_65_79;

/// Between two tries to be alone.
const PAUSE: Duration = Duration::from_millis(50);

/// The second half, by schema (FNV-1a); two that share it take each other for one, and no more.
fn object(schema: &str) -> i32 {
    let hash = schema.bytes().fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    i32::from_ne_bytes(hash.to_ne_bytes())
}

/// One value of an answer as text.
async fn ask(client: &Client, sql: &str) -> Result<Option<String>, tokio_postgres::Error> {
    let answer = client.simple_query(sql).await?;
    Ok(answer.iter().find_map(|message| match message {
        SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
        _ => None,
    }))
}

/// Whether the lock was given; a database that does not know it gives it.
async fn lock(client: &Client, function: &str, schema: &str) -> Result<bool, String> {
    let given = ask(client, &format!("SELECT {function}({CLASS}, {})", object(schema))).await;
    let unknown = [SqlState::FEATURE_NOT_SUPPORTED, SqlState::UNDEFINED_FUNCTION];
    match given {
        Ok(given) => Ok(given.as_deref() == Some("t")),
        Err(error) if error.code().is_some_and(|code| unknown.contains(code)) => Ok(true),
        Err(error) => Err(advised(&error)),
    }
}

/// For the connections of a journal that others may use too.
pub(crate) async fn share(client: &Client, schema: &str) -> Result<(), String> {
    if lock(client, "pg_try_advisory_lock_shared", schema).await? {
        return Ok(());
    }
    Err(format!(
        "schema {schema:?} is being copied or verified, and no other process may use it meanwhile; wait until that \
         ends, or look in pg_locks for the connection that holds an advisory lock"
    ))
}

/// The journal is this process's alone as long as this lives, and its connection.
pub(crate) struct Reservation(Arc<Session>);

impl Reservation {
    /// Tries to take the lock for so long; answers which connections are in the way otherwise.
    pub(crate) async fn take(
        session: Arc<Session>,
        schema: &str,
        within: Duration,
    ) -> Result<Result<Self, String>, String> {
        let deadline = Instant::now() + within;
        while !lock(&session.client, "pg_try_advisory_lock", schema).await? {
            if Instant::now() + PAUSE >= deadline {
                return Ok(Err(others(&session.client, schema).await));
            }
            tokio::time::sleep(PAUSE).await;
        }
        Ok(Ok(Self(session)))
    }

    /// Ok while its connection lives, and the lock with it.
    pub(crate) async fn holds(&self) -> Result<(), String> {
        let answer = ask(&self.0.client, "SELECT 1").await;
        answer.map(drop).map_err(|error| format!("the connection that reserved it broke: {}", advised(&error)))
    }

    /// Gives the lock back before the connection ends by itself, so that the next process need not wait.
    pub(crate) async fn release(&self) {
        // If it is gone, so is the lock.
        let _gone = ask(&self.0.client, "SELECT pg_advisory_unlock_all()").await;
    }
}

/// The other connections, as far as the server tells.
async fn others(client: &Client, schema: &str) -> String {
    let sql = format!(
        "SELECT count(*) || ' connections, one from ' || min(coalesce(host(a.client_addr), 'this host') \
         || coalesce(' (' || nullif(a.application_name, '') || ')', '')) \
         FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid \
         WHERE l.locktype = 'advisory' AND l.classid = {CLASS} AND l.objid = {}::bigint::oid AND l.granted",
        u32::from_ne_bytes(object(schema).to_ne_bytes())
    );
    ask(client, &sql).await.ok().flatten().unwrap_or_else(|| "others are connected".to_owned())
}
