//! A pool of connections for one kind of work, so that no kind starves another, and calls that are tried until they are
//! answered or their time is over.

use std::sync::Arc;
use std::time::{Duration, Instant};

use deadpool::managed::{self, Manager, Metrics, Object, PoolError, RecycleError, RecycleResult};
use greylag_persistence::StoreFailure;
use greylag_postgres::Failure;
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
    type Error = String;

    async fn create(&self) -> Result<Arc<Session>, String> {
        self.0.connect(self.1).await
    }

    async fn recycle(&self, session: &mut Arc<Session>, _: &Metrics) -> RecycleResult<String> {
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
    /// back, is made again until `within` has passed, so it must be idempotent. The error has the text of the last
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
                Ok(Err(PoolError::Closed)) => return Err(self.failed("the journal is closed", maybe_done)),
                // No pause here: the link waits before its next try.
                Ok(Err(error)) => {
                    last = Some(error_text(error));
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
                Ok(Err(error)) => Failure::of(&error),
                Err(_) => Failure::Unanswered(format!("no answer within {:?}", self.statement_timeout.min(within))),
            };
            maybe_done |= matches!(failure, Failure::Unanswered(_));
            borrowed.is_reusable = !failure.ends_connection();
            drop(borrowed);
            if !failure.may_pass() {
                let storage_low = matches!(failure, Failure::StorageLow(_));
                let mut failed = self.failed(failure.words(), maybe_done);
                (failed.storage_low, failed.cause.is_answer) = (storage_low, storage_low);
                return Err(failed);
            }
            last = Some(failure.words().to_owned());
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

    fn timed_out(&self, within: Duration, last: Option<String>, maybe_done: bool) -> Failed {
        let last = last.unwrap_or_else(|| "all connections of its pool are busy; raise the pool's size".to_owned());
        self.failed(&format!("no answer within {within:?}; last: {last}"), maybe_done)
    }

    fn failed(&self, cause: &str, maybe_done: bool) -> Failed {
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

fn error_text(error: PoolError<String>) -> String {
    match error {
        PoolError::Backend(text) => text,
        other => other.to_string(),
    }
}
