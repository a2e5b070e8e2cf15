//! The journal as the source or the target of a copy.

use async_trait::async_trait;
use greylag_persistence::{
    Corrupt, CorruptKind, Export, Head, HistoryPart, Import, ImportError, Journal, PersistenceId, ReadError, Snapshot,
    StateHead, StoredEvent, StoredState, Stores, Timestamp,
};
use tokio_postgres::types::ToSql;

use crate::driver::pool::Failed;
use crate::sql::rows::{self, Micros, Unreadable, Uuid};
use crate::sql::statements::{ALL_IDS, GET_STATE, IMPORT_EVENTS, IMPORT_SNAPSHOT, IMPORT_STATE, LAST_APPEND};

use super::journal::PostgresJournal;

type Value<'a> = &'a (dyn ToSql + Sync);

#[async_trait]
impl Export for PostgresJournal {
    fn stores(&self) -> Stores {
        Self::stores(self).with_states(std::sync::Arc::new(self.states()))
    }

    async fn ids(&self, after: Option<&PersistenceId>, limit: usize) -> Result<Vec<PersistenceId>, ReadError> {
        let backend = self.backend();
        let (after, limit) = (after.map_or("", PersistenceId::as_str), i64::try_from(limit).unwrap_or(i64::MAX));
        let found = backend.query.call(backend.settings.call_timeout, |session| async move {
            let statement = session.prepare(ALL_IDS).await?;
            session.client.query(&statement, &[&after, &limit]).await
        });
        let found = found.await.map_err(|failed| ReadError::Unavailable(failed.cause))?;
        let ids = found.iter().map(rows::id).collect::<Result<_, _>>();
        ids.map_err(|Unreadable| ReadError::Unavailable(backend.unreadable()))
    }

    async fn last_append(&self, id: &PersistenceId) -> Result<Timestamp, ReadError> {
        let (backend, text) = (self.backend(), id.as_str());
        let found = backend.query.call(backend.settings.call_timeout, |session| async move {
            let statement = session.prepare(LAST_APPEND).await?;
            session.client.query_opt(&statement, &[&text]).await
        });
        let found = found.await.map_err(|failed| ReadError::Unavailable(failed.cause))?;
        let Some(row) = found else { return Ok(Timestamp::default()) };
        let at = rows::column::<Micros>(&row, "last_event_at").map(Timestamp::from);
        at.map_err(|Unreadable| ReadError::Unavailable(backend.unreadable()))
    }

    /// Ok for a journal of [`PostgresJournal::open_exclusive`], while its connection with the lock lives.
    async fn reserved(&self) -> Result<(), greylag_persistence::StoreFailure> {
        let backend = self.backend();
        backend.link.reserved().await.map_err(|cause| backend.failure(cause))
    }
}

#[async_trait]
impl Import for PostgresJournal {
    async fn import_events(&self, part: HistoryPart) -> Result<(), ImportError> {
        let backend = self.backend();
        let stored = self.head(&part.id).await.map_err(read_failed)?;
        part.check(&stored)?;
        let (id, head) = (&part.id, &part.head);
        let stored_now = self.store_part(&part, &stored).await.map_err(call_failed)?;
        let deleted_to = head.deleted_to.min(stored.highest);
        if deleted_to > stored.deleted_to {
            backend.sweep_later(id, deleted_to);
        }
        if stored_now {
            return Ok(());
        }
        // An earlier try of this call may have stored the part.
        let found = self.head(id).await.map_err(read_failed)?;
        if found == *head { Ok(()) } else { Err(ImportError::NotAContinuation { stored: found }) }
    }

    async fn import_snapshot(&self, snapshot: Snapshot) -> Result<(), ImportError> {
        let (backend, snapshot) = (self.backend(), &snapshot);
        if !snapshot.is_intact() {
            let (id, seq_nr) = (snapshot.id.clone(), snapshot.seq_nr);
            return Err(ImportError::Corrupt(Corrupt { id, seq_nr, kind: CorruptKind::Checksum }));
        }
        let metadata = &rows::write_metadata(&snapshot.metadata);
        let saved = backend.write.call(backend.settings.snapshot_timeout, |session| async move {
            let statement = session.prepare(IMPORT_SNAPSHOT).await?;
            let values: [Value<'_>; 9] = [
                &snapshot.id.as_str(),
                &rows::number(snapshot.seq_nr),
                &rows::bits(snapshot.codec_id.as_u32()),
                &snapshot.manifest,
                &rows::bits(snapshot.schema_version),
                &&snapshot.payload[..],
                metadata,
                &i64::from(snapshot.crc32c),
                &Micros::from(snapshot.timestamp),
            ];
            session.client.execute(&statement, &values).await
        });
        saved.await.map(drop).map_err(call_failed)
    }

    async fn import_state(&self, state: StoredState) -> Result<(), ImportError> {
        let (backend, state) = (self.backend(), &state);
        // Checks the given state alone; the statement compares it with the stored one.
        state.replaces(&StateHead::default())?;
        let generation = state.generation.map_or(0, rows::generation);
        let value = state.value.as_ref();
        let stored = backend.write.call(backend.settings.call_timeout, |session| async move {
            let statement = session.prepare(IMPORT_STATE).await?;
            let values: [Value<'_>; 13] = [
                &state.id.as_str(),
                &state.id.entity_type(),
                &rows::slice(state.id.slice()),
                &i64::try_from(state.revision.as_u64()).unwrap_or(i64::MAX),
                &generation,
                &Uuid(state.writer_uuid),
                &Micros::from(state.timestamp),
                &value.map(|value| rows::bits(value.codec_id.as_u32())),
                &value.map(|value| value.manifest.as_str()),
                &value.map(|value| rows::bits(value.schema_version)),
                &value.map(|value| &value.payload[..]),
                &state.tag,
                &state.crc32c.map(i64::from),
            ];
            session.client.query_opt(&statement, &values).await
        });
        if stored.await.map_err(call_failed)?.is_some() {
            return Ok(());
        }
        let text = state.id.as_str();
        let found = backend.write.call(backend.settings.call_timeout, |session| async move {
            let statement = session.prepare(GET_STATE).await?;
            session.client.query_opt(&statement, &[&text]).await
        });
        let found = found.await.map_err(call_failed)?;
        let stored = found.map_or(Ok(StateHead::default()), |row| rows::state_head(&row));
        let stored = stored.map_err(|Unreadable| ImportError::Unavailable(backend.unreadable()))?;
        state.replaces(&stored).map(drop)
    }
}

impl PostgresJournal {
    /// Stores a part; answers whether the stored head was still the one that the part was checked against.
    async fn store_part(&self, part: &HistoryPart, stored: &Head) -> Result<bool, Failed> {
        let backend = self.backend();
        let HistoryPart { id, head, last_append, events } = part;
        let each = || events.iter();
        let seq_nrs: &Vec<i64> = &each().map(|event| rows::number(event.seq_nr)).collect();
        let times: &Vec<Micros> = &each().map(|event| event.timestamp.into()).collect();
        let writers: &Vec<Uuid> = &each().map(|event| Uuid(event.writer_uuid)).collect();
        let epochs: &Vec<i64> = &each().map(|event| rows::epoch(event.writer_epoch)).collect();
        let codecs: &Vec<i32> = &each().map(|event| rows::bits(event.codec_id.as_u32())).collect();
        let manifests: &Vec<&str> = &each().map(|event| event.manifest.as_str()).collect();
        let versions: &Vec<i32> = &each().map(|event| rows::bits(event.schema_version)).collect();
        let filtered: &Vec<bool> = &each().map(is_filtered).collect();
        let payloads: &Vec<&[u8]> = &each().map(|event| &event.payload[..]).collect();
        let metadata: &Vec<Option<Vec<u8>>> = &each().map(|event| rows::write_metadata(&event.metadata)).collect();
        let tags: &Vec<Option<String>> = &each().map(|event| rows::join_tags(&event.tags)).collect();
        let crcs: &Vec<i64> = &each().map(|event| i64::from(event.crc32c)).collect();
        // A history without appends gets the column's value for "never".
        let last = if *last_append == Timestamp::default() { Micros(i64::MIN) } else { (*last_append).into() };
        let generation = head.generation.map_or(0, rows::generation);
        let done = backend.write.call(backend.settings.call_timeout, |session| async move {
            let statement = session.prepare(IMPORT_EVENTS).await?;
            let values: [Value<'_>; 24] = [
                &id.as_str(),
                &id.entity_type(),
                &rows::slice(id.slice()),
                &rows::epoch(head.epoch),
                &Uuid(head.writer_uuid),
                &generation,
                &rows::number(head.highest),
                &rows::number(head.deleted_to),
                &last,
                &rows::number(stored.highest),
                &rows::epoch(stored.epoch),
                &rows::number(stored.deleted_to),
                seq_nrs,
                times,
                writers,
                epochs,
                codecs,
                manifests,
                versions,
                filtered,
                payloads,
                metadata,
                tags,
                crcs,
            ];
            session.client.query_opt(&statement, &values).await
        });
        Ok(done.await?.is_some())
    }
}

fn is_filtered(event: &StoredEvent) -> bool {
    event.kind == greylag_persistence::EventKind::Filtered
}

fn read_failed(error: ReadError) -> ImportError {
    match error {
        ReadError::Corrupt(corrupt) => ImportError::Corrupt(corrupt),
        ReadError::Unavailable(cause) => ImportError::Unavailable(cause),
    }
}

fn call_failed(failed: Failed) -> ImportError {
    ImportError::Unavailable(failed.cause)
}
