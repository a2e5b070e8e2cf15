//! A pool of connections for one kind of work, so that no kind starves another, and calls that are tried until they are
//! answered or their time is over.

use std::sync::Arc;
use std::time::{Duration, Instant};

use deadpool::managed::{self, Manager, Metrics, Object, PoolError, RecycleError, RecycleResult};
use greylag_persistence::StoreFailure;
use greylag_postgres::{DatabaseError, Failure};
use tokio::time::timeout_at;

use crate::driver::link::Link;
use crate::driver::opener::Purpose;
use crate::driver::session::Session;

/// Wait before a call that was rolled back is tried again.
const RETRY_WAIT: Duration = Duration::from_millis(10);

/// Makes the connections of a pool.
struct SessionManager(Arc<Link>, Purpose);

impl Manager for SessionManager {
    type Type = Arc<Session>;
    type Error = DatabaseError;

    async fn create(&self) -> Result<Arc<Session>, DatabaseError> {
        self.0.connect(self.1).await
    }

    async fn recycle(&self, session: &mut Arc<Session>, _: &Metrics) -> RecycleResult<DatabaseError> {
        if session.client.is_closed() { Err(RecycleError::message("the connection ended")) } else { Ok(()) }
    }
}

/// Connections for one kind of work.
pub(crate) struct Pool {
    link: Arc<Link>,
    sessions: managed::Pool<SessionManager>,
    statement_timeout: Duration,
}

impl Pool {
    pub(crate) fn new(link: Arc<Link>, purpose: Purpose, size: usize, statement_timeout: Duration) -> Self {
        let sessions = managed::Pool::builder(SessionManager(link.clone(), purpose))
            .max_size(size)
            .build()
            .expect("a pool without timeouts of its own needs no runtime");
        Self { link, sessions, statement_timeout }
    }

    /// Runs a call on one connection, and gives the connection back. A call whose connection broke, or that was rolled
    /// back, is made again until `within` has passed, so it must be idempotent. The error has the last
    /// failure, and advice.
    pub(crate) async fn call<T, F>(&self, within: Duration, call: impl Fn(Arc<Session>) -> F) -> Result<T, Failed>
    where
        F: Future<Output = Result<T, tokio_postgres::Error>>,
    {
        self.call_counting(within, call).await.map(|called| called.value)
    }

    /// As [`Pool::call`], for callers that must know whether an earlier try may have been done.
    pub(crate) async fn call_counting<T, F>(
        &self,
        within: Duration,
        call: impl Fn(Arc<Session>) -> F,
    ) -> Result<Called<T>, Failed>
    where
        F: Future<Output = Result<T, tokio_postgres::Error>>,
    {
        let deadline = Instant::now() + within;
        let (mut last, mut maybe_done) = (None, false);
        loop {
            let mut borrowed = match timeout_at(deadline.into(), self.sessions.get()).await {
                Ok(Ok(session)) => Borrowed { session: Some(session), is_reusable: false },
                Ok(Err(PoolError::Closed)) => return Err(self.failed("the journal is closed".into(), maybe_done)),
                // No pause here: the link waits before its next try.
                Ok(Err(error)) => {
                    last = Some(not_given(error));
                    if Instant::now() < deadline && !self.link.is_closed() {
                        continue;
                    }
                    return Err(self.timed_out(within, last, maybe_done));
                }
                Err(_) => {
                    return Err(self.timed_out(
                        within,
                        last.or_else(|| self.link.availability().last_error()),
                        maybe_done,
                    ));
                }
            };
            let try_until = deadline.min(Instant::now() + self.statement_timeout);
            let answered = timeout_at(try_until.into(), call(borrowed.session())).await;
            let failure = match answered {
                Ok(Ok(value)) => {
                    borrowed.is_reusable = true;
                    return Ok(Called { value, maybe_done });
                }
                Ok(Err(error)) => Failure::of(error),
                Err(_) => {
                    let limit = self.statement_timeout.min(within);
                    Failure::Unanswered(format!("no answer within {limit:?}").into())
                }
            };
            maybe_done |= matches!(failure, Failure::Unanswered(_));
            borrowed.is_reusable = !failure.ends_connection();
            drop(borrowed);
            if !failure.may_pass() {
                let error = failure.error().clone();
                return Err(match failure {
                    Failure::StorageLow(_) => {
                        let cause = StoreFailure::refusal(&self.link.name, error);
                        Failed { cause, maybe_done, storage_low: true }
                    }
                    _ => self.failed(error, maybe_done),
                });
            }
            last = Some(failure.error().clone());
            if Instant::now() + RETRY_WAIT >= deadline {
                return Err(self.timed_out(within, last, maybe_done));
            }
            tokio::time::sleep(RETRY_WAIT).await;
        }
    }

    /// Gives out no more connections; borrowed ones are closed when they come back.
    pub(crate) fn close(&self) {
        self.sessions.close();
    }

    fn timed_out(&self, within: Duration, last: Option<DatabaseError>, maybe_done: bool) -> Failed {
        let last = last.unwrap_or_else(|| "all connections of its pool are busy; raise the pool's size".into());
        self.failed(last.with_text(format!("no answer within {within:?}; last: {last}")), maybe_done)
    }

    fn failed(&self, cause: DatabaseError, maybe_done: bool) -> Failed {
        Failed { cause: StoreFailure::new(&self.link.name, cause), maybe_done, storage_low: false }
    }
}

/// A connection out of the pool. It goes back only if its statement has ended: the next borrower must not wait behind a
/// statement whose caller has stopped waiting.
struct Borrowed {
    session: Option<Object<SessionManager>>,
    is_reusable: bool,
}

impl Borrowed {
    fn session(&self) -> Arc<Session> {
        Arc::clone(self.session.as_ref().expect("only the drop takes the connection out"))
    }
}

impl Drop for Borrowed {
    fn drop(&mut self) {
        if let Some(session) = self.session.take().filter(|_| !self.is_reusable) {
            drop(Object::take(session));
        }
    }
}

/// A call that was answered.
#[derive(Debug)]
pub(crate) struct Called<T> {
    pub(crate) value: T,
    /// Whether an earlier try went unanswered, so that the call may have been done twice.
    pub(crate) maybe_done: bool,
}

/// A call that was not answered, or with an error.
#[derive(Debug)]
pub(crate) struct Failed {
    pub(crate) cause: StoreFailure,
    /// Whether a try went unanswered, so that it may have been done, or may still be.
    pub(crate) maybe_done: bool,
    /// Whether the last try met a full disk.
    pub(crate) storage_low: bool,
}

/// Why the pool gave no connection.
fn not_given(error: PoolError<DatabaseError>) -> DatabaseError {
    match error {
        PoolError::Backend(error) => error,
        other => other.to_string().into(),
    }
}
