//! Projections into the same database: the rows of the handler and the offsets are one transaction.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use greylag_persistence::{BoxError, Envelope, HandleError, OffsetError, OwnedSlices, Processed, TransactionalHandler};
use greylag_postgres::{DatabaseError, Failure};
use tokio_postgres::{Client, Transaction};

use crate::driver::session::Session;

use super::offsets::PostgresOffsets;

/// Writes rows for events, within a transaction that also saves the projection's offsets.
#[async_trait]
pub trait PostgresHandler: Send + 'static {
    /// Writes the rows for a group of events. The search path is the journal's schema; name tables elsewhere with their
    /// schema.
    ///
    /// # Errors
    /// Any error rolls the transaction back, and the group is handed over again.
    async fn handle(&mut self, transaction: &Transaction<'_>, envelopes: &[Envelope]) -> Result<(), BoxError>;
}

/// Makes a [`PostgresHandler`] count each event exactly once, over a connection of its own; for
/// [`run_transactional`](greylag_persistence::run_transactional).
///
/// ```no_run
/// use std::sync::Arc;
/// use async_trait::async_trait;
/// use greylag_journal_postgres::{PostgresHandler, PostgresJournal, Transactional, tokio_postgres::Transaction};
/// use greylag_persistence::{BoxError, Envelope, ProjectionId, ProjectionSettings, QuerySettings, ReadJournal, run_transactional};
///
/// /// Counts the events of each cart.
/// struct Counts;
///
/// #[async_trait]
/// impl PostgresHandler for Counts {
///     async fn handle(&mut self, transaction: &Transaction<'_>, envelopes: &[Envelope]) -> Result<(), BoxError> {
///         let sql = "insert into cart_events (cart, events) values ($1, 1)
///                    on conflict (cart) do update set events = cart_events.events + 1";
///         for envelope in envelopes {
///             transaction.execute(sql, &[&envelope.id.entity_id()]).await?;
///         }
///         Ok(()) // committed together with how far it is
///     }
/// }
///
/// # async fn run(journal: PostgresJournal) -> Result<(), Box<dyn std::error::Error>> {
/// let id = ProjectionId { name: "cart-counts".into(), entity_type: "Cart".into(), slices: 0..=1023 };
/// // One for the program: its projections share a reader.
/// let read = ReadJournal::new(Arc::new(journal.queries()), QuerySettings::default());
/// let offsets = Arc::new(journal.offsets());
/// let handler = Transactional::new(journal.offsets(), Counts);
/// let counting = run_transactional(id, &read, offsets, handler, ProjectionSettings::default())?;
/// println!("behind by {:?}", counting.status().lag);
/// # Ok(())
/// # }
/// ```
/// A commit whose answer is lost is not repeated: the projection claims its slices again, which waits until that
/// transaction is over, and reads the saved offsets.
pub struct Transactional<H> {
    offsets: PostgresOffsets,
    handler: H,
    /// The only reference to the connection, so that a transaction can borrow it.
    session: Option<Arc<Session>>,
}

impl<H> fmt::Debug for Transactional<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transactional").field("offsets", &self.offsets).finish_non_exhaustive()
    }
}

impl<H: PostgresHandler> Transactional<H> {
    /// Saves offsets to `offsets` in the transactions of `handler`.
    pub fn new(offsets: PostgresOffsets, handler: H) -> Self {
        Self { offsets, handler, session: None }
    }

    fn unavailable(&self, cause: impl Into<BoxError>) -> HandleError {
        HandleError::Offsets(OffsetError::Unavailable(self.offsets.backend().failure(cause)))
    }

    /// The connection of the last group if it is usable, otherwise a new one.
    async fn session(&mut self) -> Result<Arc<Session>, HandleError> {
        if let Some(session) = self.session.take().filter(|session| !session.client.is_closed()) {
            return Ok(session);
        }
        self.offsets.backend().connect().await.map_err(|cause| self.unavailable(cause))
    }
}

#[async_trait]
impl<H: PostgresHandler> TransactionalHandler for Transactional<H> {
    async fn handle_and_save(
        &mut self,
        envelopes: &[Envelope],
        owned: &OwnedSlices,
        processed: &[Processed],
    ) -> Result<(), HandleError> {
        let mut session = self.session().await?;
        let within = self.offsets.backend().settings.call_timeout;
        let client = &mut Arc::get_mut(&mut session).expect("no other reference to this connection exists").client;
        let transaction = begin(client, within).await.map_err(|cause| self.unavailable(cause))?;
        if let Err(error) = self.handler.handle(&transaction, envelopes).await {
            // A lost connection or a conflict is not an error of the handler.
            let is_unavailable = transaction.client().is_closed() || is_transient(&error);
            let rolled_back = tokio::time::timeout(within, transaction.rollback()).await;
            self.session = Some(session).filter(|_| matches!(rolled_back, Ok(Ok(()))));
            let cause = with_causes(&*error);
            return Err(if is_unavailable {
                let failure = self.offsets.backend().failure(error).with_text(cause);
                HandleError::Offsets(OffsetError::Unavailable(failure))
            } else {
                HandleError::Handler(cause)
            });
        }
        let saving = self.offsets.save_within(&transaction, owned, processed);
        match tokio::time::timeout(within, saving).await {
            Ok(Ok(())) => {}
            // The transaction is rolled back when the connection is dropped.
            Ok(Err(error)) => return Err(HandleError::Offsets(error)),
            Err(_) => return Err(self.unavailable(format!("offsets were not saved within {within:?}"))),
        }
        match tokio::time::timeout(within, transaction.commit()).await {
            Ok(Ok(())) => {
                self.session = Some(session);
                Ok(())
            }
            Ok(Err(error)) => Err(HandleError::Unknown(with_causes(&error))),
            Err(_) => Err(HandleError::Unknown(format!("no answer to the commit within {within:?}"))),
        }
    }
}

/// Begins a transaction within a limit: the connection may have been idle for long, and its server be gone silently.
async fn begin(client: &mut Client, within: Duration) -> Result<Transaction<'_>, DatabaseError> {
    let begun = tokio::time::timeout(within, client.transaction()).await;
    let begun = begun.map_err(|_| format!("no transaction was begun within {within:?}"))?;
    begun.map_err(|error| DatabaseError::new(with_causes(&error), error))
}

/// Whether the handler failed by an error of the database that the next try may not meet.
fn is_transient(error: &BoxError) -> bool {
    let mut source: Option<&(dyn std::error::Error + 'static)> = Some(&**error);
    while let Some(error) = source {
        if let Some(error) = error.downcast_ref::<tokio_postgres::Error>() {
            // An error without a code comes from the client library, most likely a value that does not fit its column.
            return error.code().is_some_and(Failure::may_pass_after);
        }
        source = error.source();
    }
    false
}

/// An error's text with all its causes, each of them once.
fn with_causes(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let cause = error.to_string();
        if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
        source = error.source();
    }
    text
}
