//! The snapshot store, in the same database.

use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use greylag_persistence::{
    CloseError, Corrupt, CorruptKind, Health, NewSnapshot, PersistenceId, Scope, SeqNr, Snapshot, SnapshotCaps,
    SnapshotCriteria, SnapshotError, SnapshotStore, StoreReturns, Timestamp,
};

use crate::backend::Backend;
use crate::driver::pool::Failed;
use crate::sql::rows::{self, Micros};
use crate::sql::statements::{DELETE_SNAPSHOTS, LOAD_SNAPSHOT, SAVE_SNAPSHOT};

const CAPS: SnapshotCaps = SnapshotCaps::full(Scope::Shared);

/// The snapshots of a [`PostgresJournal`](crate::PostgresJournal), over the same connections.
#[derive(Debug, Clone)]
pub struct PostgresSnapshots {
    backend: Arc<Backend>,
}

fn unavailable(failed: Failed) -> SnapshotError {
    SnapshotError::Unavailable(failed.cause)
}

/// Bounds of the criteria as columns: numbers, then times.
fn bounds(criteria: SnapshotCriteria) -> (i64, i64, Micros, Micros) {
    let SnapshotCriteria { min_seq_nr, max_seq_nr, min_timestamp, max_timestamp } = criteria;
    (rows::number(min_seq_nr), rows::number(max_seq_nr), min_timestamp.into(), max_timestamp.into())
}

impl PostgresSnapshots {
    pub(crate) fn new(backend: Arc<Backend>) -> Self {
        Self { backend }
    }
}

#[async_trait]
impl SnapshotStore for PostgresSnapshots {
    fn caps(&self) -> SnapshotCaps {
        CAPS
    }

    async fn load(&self, id: &PersistenceId, criteria: SnapshotCriteria) -> Result<Option<Snapshot>, SnapshotError> {
        let (text, (from, to, since, until)) = (id.as_str(), bounds(criteria));
        let found = self.backend.replay.call(self.backend.settings.snapshot_timeout, |session| async move {
            let statement = session.prepare(LOAD_SNAPSHOT).await?;
            session.client.query_opt(&statement, &[&text, &from, &to, &since, &until]).await
        });
        let Some(row) = found.await.map_err(unavailable)? else { return Ok(None) };
        let seq_nr = rows::column::<i64>(&row, "seq_nr").ok().and_then(|number| u64::try_from(number).ok());
        let seq_nr = seq_nr.map_or(SeqNr::ZERO, SeqNr::saturating);
        let corrupt = |kind| SnapshotError::Corrupt(Corrupt { id: id.clone(), seq_nr, kind });
        let snapshot = rows::snapshot(id, &row).map_err(|_| corrupt(CorruptKind::Unreadable))?;
        if snapshot.is_intact() { Ok(Some(snapshot)) } else { Err(corrupt(CorruptKind::Checksum)) }
    }

    async fn save(&self, snapshot: NewSnapshot) -> Result<Timestamp, SnapshotError> {
        let (bytes, max) = (snapshot.payload.len(), CAPS.max_bytes);
        if bytes > max {
            self.backend.counters.saved(bytes, Duration::ZERO, false);
            return Err(SnapshotError::TooLarge { bytes, max });
        }
        let began_at = Instant::now();
        let stored = &snapshot.stored(Timestamp::default());
        let metadata = &rows::write_metadata(&stored.metadata);
        let saved = self.backend.write.call(self.backend.settings.snapshot_timeout, |session| async move {
            let statement = session.prepare(SAVE_SNAPSHOT).await?;
            session
                .client
                .query_one(
                    &statement,
                    &[
                        &stored.id.as_str(),
                        &rows::number(stored.seq_nr),
                        &rows::bits(stored.codec_id.as_u32()),
                        &stored.manifest,
                        &rows::bits(stored.schema_version),
                        &&stored.payload[..],
                        metadata,
                        &i64::from(stored.crc32c),
                    ],
                )
                .await
        });
        let saved = saved.await;
        self.backend.counters.saved(bytes, began_at.elapsed(), saved.is_ok());
        let row = saved.map_err(unavailable)?;
        let taken_at = rows::column::<Micros>(&row, "taken_at");
        taken_at.map(Timestamp::from).map_err(|_| SnapshotError::Unavailable(self.backend.unreadable()))
    }

    async fn delete(&self, id: &PersistenceId, seq_nr: SeqNr) -> Result<(), SnapshotError> {
        let criteria = SnapshotCriteria { min_seq_nr: seq_nr, max_seq_nr: seq_nr, ..SnapshotCriteria::LATEST };
        self.delete_matching(id, criteria).await
    }

    async fn delete_matching(&self, id: &PersistenceId, criteria: SnapshotCriteria) -> Result<(), SnapshotError> {
        let (text, (from, to, since, until)) = (id.as_str(), bounds(criteria));
        let deleted = self.backend.write.call(self.backend.settings.snapshot_timeout, |session| async move {
            let statement = session.prepare(DELETE_SNAPSHOTS).await?;
            session.client.execute(&statement, &[&text, &from, &to, &since, &until]).await
        });
        deleted.await.map(drop).map_err(unavailable)
    }

    fn health(&self) -> Health {
        self.backend.health()
    }

    fn store_returns(&self) -> Option<&StoreReturns> {
        Some(self.backend.link.availability().store_returns())
    }

    async fn close(&self) -> Result<(), CloseError> {
        self.backend.close().await
    }
}
