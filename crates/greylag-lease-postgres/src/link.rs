//! The one connection of a node to the lease database: made when needed, dropped when no lease is held, and replaced when
//! it broke or did not answer in time.

use std::ops::Deref;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use greylag_postgres::Database;
use tokio_postgres::{Client, Statement};

use crate::PostgresLeaseError;

const PROBE_TIMEOUT: Duration = Duration::from_secs(10);

const CREATE: &str = include_str!("schema.sql");

// `clock_timestamp()` is read after the row's lock is obtained; `now()` would be the time before the wait for the lock.
// A released lease keeps its row, so that no version is used twice.
const ACQUIRE: &str = "\
insert into greylag_lease as l (name, owner, token, version, expires_at)
values ($1, $2, $3, 1, clock_timestamp() + $4 * interval '1 millisecond')
on conflict (name) do update set
    owner = excluded.owner,
    token = excluded.token,
    version = l.version + case when l.token = excluded.token then 0 else 1 end,
    expires_at = clock_timestamp() + $4 * interval '1 millisecond'
where l.owner = excluded.owner or l.expires_at <= clock_timestamp()
returning version";

// Renews only a lease that has not expired: a renewal that arrives after the lease was released or has expired must not
// bring it back.
const RENEW: &str = "\
update greylag_lease set expires_at = clock_timestamp() + $3 * interval '1 millisecond'
where name = $1 and token = $2 and expires_at > clock_timestamp()
returning version";

const RELEASE: &str = "\
with given_up as (
    update greylag_lease set expires_at = '-infinity' where name = $1 and token = $2 returning 1
)
select exists (select 1 from given_up)
    or not exists (select 1 from greylag_lease where name = $1 and expires_at > clock_timestamp())";

/// A connection with its statements.
pub(crate) struct Session {
    pub(crate) client: Client,
    pub(crate) acquire: Statement,
    pub(crate) renew: Statement,
    pub(crate) release: Statement,
}

/// Address of the lease database, and the connection to it.
pub(crate) struct Link {
    database: Database,
    session: Mutex<Option<Arc<Session>>>,
    /// Count of leases held and requests under way.
    uses: AtomicUsize,
    /// Held while connecting; other tasks wait for the same connection.
    connecting: tokio::sync::Mutex<()>,
}

/// Keeps the connection open while this lives.
pub(crate) struct ConnectionUse(Arc<Link>);

impl Deref for ConnectionUse {
    type Target = Link;

    fn deref(&self) -> &Link {
        &self.0
    }
}

impl Drop for ConnectionUse {
    fn drop(&mut self) {
        if self.0.uses.fetch_sub(1, Ordering::AcqRel) == 1 {
            drop(self.0.take_session());
        }
    }
}

impl Link {
    pub(crate) fn new(database: Database) -> Self {
        let session = Mutex::new(None);
        Self { database, session, uses: AtomicUsize::new(0), connecting: tokio::sync::Mutex::new(()) }
    }

    /// Address of the database, without the password.
    pub(crate) fn place(&self) -> String {
        self.database.place()
    }

    pub(crate) fn acquire_use(self: &Arc<Self>) -> ConnectionUse {
        self.uses.fetch_add(1, Ordering::AcqRel);
        ConnectionUse(self.clone())
    }

    /// Connects, to check that the database can be used.
    pub(crate) async fn probe(self: &Arc<Self>) -> Result<(), PostgresLeaseError> {
        let link = self.acquire_use();
        let silent = || PostgresLeaseError::Silent { place: self.place(), after: PROBE_TIMEOUT };
        tokio::time::timeout(PROBE_TIMEOUT, link.session(PROBE_TIMEOUT)).await.map_err(|_| silent())??;
        Ok(())
    }

    fn open_session(&self) -> Option<Arc<Session>> {
        let session = self.session.lock().unwrap_or_else(PoisonError::into_inner).clone();
        session.filter(|session| !session.client.is_closed())
    }

    fn take_session(&self) -> Option<Arc<Session>> {
        self.session.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Drops a connection that has failed.
    pub(crate) fn discard(&self, broken: &Arc<Session>) {
        let mut session = self.session.lock().unwrap_or_else(PoisonError::into_inner);
        drop(session.take_if(|session| Arc::ptr_eq(session, broken)));
    }

    /// The connection; a new one if there is none. No statement runs longer than `limit` on the server, so that a
    /// statement given up by the client is not done much later.
    pub(crate) async fn session(&self, limit: Duration) -> Result<Arc<Session>, PostgresLeaseError> {
        if let Some(session) = self.open_session() {
            return Ok(session);
        }
        let _connecting = self.connecting.lock().await;
        if let Some(session) = self.open_session() {
            return Ok(session);
        }
        let not_connected = |error| PostgresLeaseError::not_connected(&self.place(), error);
        let (client, _) = self.database.connect("lease database").await.map_err(not_connected)?;
        let failed = |cause| PostgresLeaseError::new(&self.place(), cause);
        let session = Arc::new(prepare(client, limit).await.map_err(failed)?);
        *self.session.lock().unwrap_or_else(PoisonError::into_inner) = Some(session.clone());
        Ok(session)
    }
}

async fn prepare(client: Client, limit: Duration) -> Result<Session, tokio_postgres::Error> {
    let limit = limit.as_millis();
    client.batch_execute(&format!("set synchronous_commit = on; set statement_timeout = {limit}")).await?;
    if !has_table(&client).await? {
        create(&client).await?;
    }
    let (acquire, renew, release) =
        tokio::try_join!(client.prepare(ACQUIRE), client.prepare(RENEW), client.prepare(RELEASE))?;
    Ok(Session { client, acquire, renew, release })
}

async fn has_table(client: &Client) -> Result<bool, tokio_postgres::Error> {
    Ok(client.query_one("select to_regclass('greylag_lease') is not null", &[]).await?.get(0))
}

/// Creates the table. Several nodes may do so at once: the server refuses the later ones with various errors, and they
/// then find the table.
async fn create(client: &Client) -> Result<(), tokio_postgres::Error> {
    match client.batch_execute(CREATE).await {
        Err(error) if !has_table(client).await? => Err(error),
        _ => Ok(()),
    }
}
