//! One lease of one owner: its requests run one after another, with heartbeats while the lease is held.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use greylag_cluster::{Clock, Lease, LeaseError, LeaseSettings, OnLost};
use tokio::task::AbortHandle;

use crate::PostgresLeaseError;
use crate::link::{ConnectionUse, Link, Session};

/// Wait after a failed renewal, unless the heartbeat interval is shorter.
const RENEWAL_RETRY: Duration = Duration::from_secs(1);

/// A lease in PostgreSQL.
pub(crate) struct PostgresLease {
    shared: Arc<LeaseState>,
    /// Makes requests of one lease run one after another, even if the task that asked is gone: a release must never
    /// overtake an acquire whose outcome no task waited for.
    request_order: Arc<tokio::sync::Mutex<()>>,
}

struct LeaseState {
    link: Arc<Link>,
    name: String,
    owner: String,
    /// The value that this handle writes into the row; another handle of the same owner writes another value.
    token: i64,
    settings: LeaseSettings,
    clock: Clock,
    held: Mutex<Option<Held>>,
}

/// State of a lease that is held.
struct Held {
    /// Number of this grant, so that heartbeats of an earlier grant do not end a later one.
    grant: u64,
    /// When the holder must have stopped using the lease, by a clock that, like the server's, runs on while this
    /// machine is suspended.
    until: Instant,
    on_lost: OnLost,
    heartbeats: AbortHandle,
    _connection: ConnectionUse,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.heartbeats.abort();
    }
}

enum Renewal {
    Renewed,
    Gone,
    Unknown,
}

impl PostgresLease {
    pub(crate) fn new(link: Arc<Link>, name: &str, owner: &str, settings: LeaseSettings, clock: Clock) -> Self {
        let token = rand::random();
        let (name, owner) = (name.to_owned(), owner.to_owned());
        let shared = LeaseState { link, name, owner, token, settings, clock, held: Mutex::new(None) };
        Self { shared: Arc::new(shared), request_order: Arc::default() }
    }
}

impl LeaseState {
    fn held(&self) -> MutexGuard<'_, Option<Held>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Until when the lease is certainly held, given that the request that granted or renewed it was sent no earlier
    /// than `sent_at`. The server counts from a later moment, and for longer: the difference is the time to stop
    /// whatever the lease protects.
    fn certain_until(&self, sent_at: Instant) -> Instant {
        sent_at + self.settings.heartbeat_timeout - self.settings.operation_timeout
    }

    fn timeout_ms(&self) -> f64 {
        self.settings.heartbeat_timeout.as_secs_f64() * 1e3
    }

    /// Runs one request on the connection, within the operation timeout.
    async fn request<T, F>(self: &Arc<Self>, request: impl FnOnce(Arc<Session>) -> F) -> Result<T, PostgresLeaseError>
    where
        F: Future<Output = Result<T, tokio_postgres::Error>>,
    {
        let link = self.link.acquire_use();
        let limit = self.settings.operation_timeout;
        let end = tokio::time::Instant::now() + limit;
        let silent = |_| PostgresLeaseError::Silent { place: link.place(), after: limit };
        let session = tokio::time::timeout_at(end, link.session(limit)).await.map_err(silent)??;
        match tokio::time::timeout_at(end, request(session.clone())).await {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(error)) => {
                if error.code().is_none() || session.client.is_closed() {
                    link.discard(&session);
                }
                Err(PostgresLeaseError::new(&link.place(), error))
            }
            Err(late) => {
                link.discard(&session);
                Err(silent(late))
            }
        }
    }

    async fn acquire_row(self: &Arc<Self>) -> Result<bool, PostgresLeaseError> {
        let row = self
            .request(|session| async move {
                let (name, owner) = (&self.name, &self.owner);
                session.client.query_opt(&session.acquire, &[name, owner, &self.token, &self.timeout_ms()]).await
            })
            .await?;
        Ok(row.is_some())
    }

    async fn release_row(self: &Arc<Self>) -> Result<bool, PostgresLeaseError> {
        let row = self
            .request(
                |session| async move { session.client.query_one(&session.release, &[&self.name, &self.token]).await },
            )
            .await?;
        Ok(row.get(0))
    }

    async fn renew(self: &Arc<Self>) -> Renewal {
        let renewed = self
            .request(|session| async move {
                session.client.query_opt(&session.renew, &[&self.name, &self.token, &self.timeout_ms()]).await
            })
            .await;
        match renewed {
            Ok(Some(_)) => Renewal::Renewed,
            Ok(None) => Renewal::Gone,
            Err(error) => {
                let cause: &dyn std::error::Error = &error;
                tracing::warn!(lease = self.name, error = %error, source = ?cause.source(), "renewing a lease failed; retrying until it ends");
                Renewal::Unknown
            }
        }
    }

    /// Renews until the lease is lost. The task is aborted when the lease is released.
    async fn heartbeats(self: Arc<Self>, grant: u64) {
        let mut pause = self.settings.heartbeat_interval;
        loop {
            let until = self.held().as_ref().filter(|held| held.grant == grant).map(|held| held.until);
            let Some(until) = until else { return };
            let renewed = async {
                self.clock.sleep_until(self.clock.now() + pause).await;
                let sent_at = self.clock.now();
                (sent_at, self.renew().await)
            };
            // The lease may end while the answer is awaited.
            let (sent_at, renewal) = tokio::select! {
                biased;
                () = self.clock.sleep_until(until) => return self.lose(grant, self.not_renewed()),
                renewed = renewed => renewed,
            };
            match renewal {
                Renewal::Renewed => {
                    pause = self.settings.heartbeat_interval;
                    if let Some(held) = self.held().as_mut() {
                        held.until = held.until.max(self.certain_until(sent_at));
                    }
                }
                Renewal::Gone => {
                    let error = LeaseError::TakenAway { name: self.name.clone(), owner: self.owner.clone() };
                    return self.lose(grant, error);
                }
                Renewal::Unknown => pause = RENEWAL_RETRY.min(self.settings.heartbeat_interval),
            }
        }
    }

    fn not_renewed(&self) -> LeaseError {
        let silent = self.settings.heartbeat_timeout - self.settings.operation_timeout;
        LeaseError::NotRenewed { name: self.name.clone(), silent }
    }

    /// Ends the lease and calls `on_lost`. Runs in the heartbeats' task, which must not abort itself before the call.
    fn lose(&self, grant: u64, error: LeaseError) {
        let Some(mut held) = self.held().take_if(|held| held.grant == grant) else { return };
        let on_lost = std::mem::replace(&mut held.on_lost, Box::new(|_| {}));
        on_lost(error);
    }
}

fn store_error(name: &str, operation: &'static str, error: PostgresLeaseError) -> LeaseError {
    LeaseError::Store { name: name.to_owned(), operation, cause: Arc::new(error) }
}

fn task_panicked(name: &str, operation: &'static str) -> LeaseError {
    LeaseError::Panicked { name: name.to_owned(), operation }
}

#[async_trait]
impl Lease for PostgresLease {
    fn name(&self) -> &str {
        &self.shared.name
    }

    fn owner(&self) -> &str {
        &self.shared.owner
    }

    async fn acquire(&self, on_lost: OnLost) -> Result<bool, LeaseError> {
        let name = &self.shared.name;
        let order = self.request_order.clone().lock_owned().await;
        let connection = self.shared.link.acquire_use();
        let shared = self.shared.clone();
        let sent_at = self.shared.clock.now();
        let asked = tokio::spawn(async move {
            let _order = order;
            shared.acquire_row().await
        });
        let granted = asked
            .await
            .map_err(|_| task_panicked(name, "acquire"))?
            .map_err(|error| store_error(name, "acquire", error))?;
        // No await follows, so a future dropped before this point has changed nothing.
        let mut held = self.shared.held();
        if !granted {
            return Ok(false);
        }
        let until = self.shared.certain_until(sent_at);
        match held.as_mut() {
            Some(held) => {
                held.until = held.until.max(until);
                held.on_lost = on_lost;
            }
            None => {
                let grant = rand::random();
                let heartbeats = tokio::spawn(self.shared.clone().heartbeats(grant)).abort_handle();
                *held = Some(Held { grant, until, on_lost, heartbeats, _connection: connection });
            }
        }
        Ok(true)
    }

    async fn release(&self) -> Result<bool, LeaseError> {
        let name = &self.shared.name;
        let order = self.request_order.clone().lock_owned().await;
        // First of all the lease is given up here, so that `check` does not call it held, whatever happens to the
        // request.
        let connection = self.shared.link.acquire_use();
        drop(self.shared.held().take());
        let shared = self.shared.clone();
        let asked = tokio::spawn(async move {
            let _order = order;
            let _connection = connection;
            shared.release_row().await
        });
        asked.await.map_err(|_| task_panicked(name, "release"))?.map_err(|error| store_error(name, "release", error))
    }

    fn check(&self) -> bool {
        self.shared.held().as_ref().is_some_and(|held| self.shared.clock.now() < held.until)
    }
}
