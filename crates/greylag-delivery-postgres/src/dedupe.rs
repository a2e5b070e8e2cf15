//! Watermarks of entities, in the database that holds the entities' state.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use greylag_delivery::{Dedupe, DedupeStore, RecordError, SeqNr, StreamId};
use greylag_postgres::Failure;
use tokio_postgres::Transaction;

use crate::error::PostgresDeliveryError;
use crate::link::Link;
use crate::settings::PostgresQueueSettings;

const LOAD: &str = "select stream_id, seq_nr from greylag_delivery_dedupe where entity = $1";

// The statement locks the row until the transaction ends: a second transaction waits here, and then sees the new
// number.
const RECORD: &str = "insert into greylag_delivery_dedupe as d (entity, stream_id, seq_nr, recorded_at) \
    values ($1, $2, $3, clock_timestamp()) on conflict (entity, stream_id) do update set \
    seq_nr = excluded.seq_nr, recorded_at = excluded.recorded_at where d.seq_nr < excluded.seq_nr";

const STORED: &str = "select seq_nr from greylag_delivery_dedupe where entity = $1 and stream_id = $2";

const FORGET: &str = "with gone as (delete from greylag_delivery_dedupe where recorded_at < clock_timestamp() - \
    $1 * interval '1 millisecond' returning 1) select count(*) from gone";

/// Records how far entities have processed their streams, in one table for all entities.
///
/// ```no_run
/// use greylag_delivery::{Delivery, DedupeStore, RecordError};
/// use greylag_delivery_postgres::PostgresDedupe;
/// use tokio_postgres::Client;
///
/// # async fn example(dedupe: PostgresDedupe, client: &mut Client, deposit: Delivery<i64>) -> Result<(), Box<dyn std::error::Error>> {
/// let transaction = client.transaction().await?;
/// transaction.execute("update account set cents = cents + $1 where id = 'ada'", &[&*deposit]).await?;
/// let id = deposit.id();
/// match dedupe.record(&transaction, "Account/ada", id.stream_id, id.seq_nr).await {
///     Ok(()) => transaction.commit().await?,
///     Err(RecordError::AlreadyApplied { .. }) => transaction.rollback().await?,
///     Err(RecordError::Store(error)) => return Err(error.into()), // comes again
/// }
/// deposit.confirm();
/// # Ok(())
/// # }
/// ```
///
/// Source: delivery §7, scenario 78.
#[derive(Clone)]
pub struct PostgresDedupe {
    link: Arc<Link>,
}

impl PostgresDedupe {
    /// Connects, and creates the table if it is missing. `config` is a libpq connection string, key words or a URL; its
    /// password never appears in logs and errors.
    ///
    /// # Errors
    /// [`PostgresDeliveryError`].
    pub async fn connect(config: &str) -> Result<Self, PostgresDeliveryError> {
        let dedupe = Self::lazy(config, None, PostgresQueueSettings::default())?;
        dedupe.link.probe().await?;
        Ok(dedupe)
    }

    /// Connects when an entity is first loaded. The password may be in a file of its own.
    ///
    /// # Errors
    /// [`PostgresDeliveryError::Settings`], [`PostgresDeliveryError::Config`].
    pub fn lazy(
        config: &str,
        password_file: Option<&Path>,
        settings: PostgresQueueSettings,
    ) -> Result<Self, PostgresDeliveryError> {
        Ok(Self { link: Link::new(config, password_file, settings)? })
    }

    /// Forgets streams without a record for `unused_for`, and returns their number. A producer that was away for longer
    /// may repeat effects; keep records at least as long as `dedupe_retention`.
    ///
    /// # Errors
    /// [`PostgresDeliveryError`].
    pub async fn forget(&self, unused_for: Duration) -> Result<u64, PostgresDeliveryError> {
        // Cut to about three thousand years, since the server's calendar has a beginning.
        let unused_ms = unused_for.as_secs_f64() * 1000.0;
        let rows = self.link.query(FORGET, &[&unused_ms.min(1e14)]).await.map_err(|failure| self.failed(&failure))?;
        Ok(rows.first().map_or(0, |row| row.get::<_, i64>(0)).cast_unsigned())
    }

    fn failed(&self, failure: &Failure) -> PostgresDeliveryError {
        PostgresDeliveryError::of(self.link.place(), failure)
    }

    fn refused(&self, cause: String) -> PostgresDeliveryError {
        PostgresDeliveryError::Refused { place: self.link.place(), cause: cause.into() }
    }
}

#[async_trait]
impl DedupeStore for PostgresDedupe {
    type Transaction<'a> = Transaction<'a>;
    type Error = PostgresDeliveryError;

    async fn load(&self, entity: &str) -> Result<Dedupe, PostgresDeliveryError> {
        let rows = self.link.query(LOAD, &[&entity]).await.map_err(|failure| self.failed(&failure))?;
        let mark = |row: &tokio_postgres::Row| {
            let stream = <[u8; 16]>::try_from(row.get::<_, &[u8]>(0)).ok()?;
            let total = u64::try_from(row.get::<_, i64>(1)).ok()?;
            Some((StreamId(u128::from_be_bytes(stream)), SeqNr(total)))
        };
        let marks = rows.iter().map(mark).collect::<Option<Dedupe>>();
        marks.ok_or_else(|| self.refused(format!("a row of greylag_delivery_dedupe for {entity:?} makes no sense")))
    }

    async fn record(
        &self,
        transaction: &Transaction<'_>,
        entity: &str,
        stream: StreamId,
        total: SeqNr,
    ) -> Result<(), RecordError<PostgresDeliveryError>> {
        let failed = |error: tokio_postgres::Error| RecordError::Store(self.failed(&Failure::of(error)));
        let too_large = |_| RecordError::Store(self.refused(format!("PostgreSQL stores no number {total}")));
        let number = i64::try_from(total.get()).map_err(too_large)?;
        if total == SeqNr::NONE {
            return Err(RecordError::AlreadyApplied { up_to: SeqNr::NONE });
        }
        let stream = stream.0.to_be_bytes();
        let recorded = transaction.execute(RECORD, &[&entity, &&stream[..], &number]).await.map_err(failed)?;
        if recorded > 0 {
            return Ok(());
        }
        let stored = transaction.query_one(STORED, &[&entity, &&stream[..]]).await.map_err(failed)?;
        Err(RecordError::AlreadyApplied { up_to: SeqNr(stored.get::<_, i64>(0).cast_unsigned()) })
    }
}

impl fmt::Debug for PostgresDedupe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresDedupe").field("database", &self.link.place()).finish()
    }
}
