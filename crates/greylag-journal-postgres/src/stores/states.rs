//! Durable states: one row each, compared and overwritten by one statement.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use greylag_persistence::{
    BoxError, ChangesOf, CloseError, EncodedValue, Health, Offset, OffsetKind, PersistenceId, QueryError, ReadError,
    Revision, Scope, StateCaps, StateChange, StateHead, StateRejectReason, StateStore, StateWrite, StateWriteError,
    StoreReturns, StoredState, Timestamp, Verdict,
};

use crate::backend::Backend;
use crate::clock;
use crate::driver::pool::{Called, Failed};
use crate::queries::PostgresChanges;
use crate::sql::rows::{self, Micros, Unreadable, Uuid};
use crate::sql::statements::{
    CLOCK_BEHIND, GET_STATE, INSERT_STATE, STATE_IDS, STATES_BY_SLICES, STATES_BY_TAG, UPDATE_STATE,
};

const CAPS: StateCaps = StateCaps::full(Scope::Shared, OffsetKind::Timestamp);

/// The durable states of a [`PostgresJournal`](crate::PostgresJournal), over the same connections.
///
/// [`StateStore::changes`] gives changes that are at least `behind_current_time` old, in the order of the server's
/// time. A write that took longer than that to commit may be missed. A reader that must miss none follows
/// [`queries`](Self::queries), whose feed reads back; projections do so.
#[derive(Debug, Clone)]
pub struct PostgresStates {
    backend: Arc<Backend>,
}

impl PostgresStates {
    pub(crate) fn new(backend: Arc<Backend>) -> Self {
        Self { backend }
    }

    /// The query side, for following changes.
    pub fn queries(&self) -> PostgresChanges {
        PostgresChanges::new(self.backend.clone())
    }

    async fn write(
        &self,
        write: StateWrite,
        content: Option<(EncodedValue, Option<String>)>,
    ) -> Result<(), StateWriteError> {
        let (value, tag) = content.as_ref().map_or((None, None), |(value, tag)| (Some(value), tag.as_deref()));
        write.check(value, tag, &CAPS).map_err(StateWriteError::Rejected)?;
        if value.is_some_and(|value| value.manifest.contains('\0')) {
            let why = "the manifest has a zero byte, which PostgreSQL does not store in texts";
            return Err(StateWriteError::Rejected(StateRejectReason::Other(why.to_owned())));
        }
        // The checksum does not cover the timestamp and revision that only the store knows.
        let row = write.row(&StoredState::absent(write.id.clone()), content, Timestamp::default());
        let Called { value: stored, maybe_done } = self.store(&write, &row).await.map_err(not_written)?;
        if stored {
            return Ok(());
        }
        // The stored head tells why this try was not stored, or that an earlier try was.
        let found = self.head(&write.id).await;
        let current = found.map_err(|cause| {
            let text = format!("not stored by this try; whether an earlier try stored it cannot be read: {cause}");
            StateWriteError::Unknown(self.backend.failure(cause).with_text(text))
        })?;
        match current.judge(&write, row.crc32c) {
            Verdict::Repeat => Ok(()),
            // A later revision hides whether this write was stored.
            Verdict::Mismatch if maybe_done && current.revision > write.revision => {
                let why = format!("an earlier try was not answered, and revision {} is stored", current.revision);
                Err(StateWriteError::Unknown(self.backend.failure(why)))
            }
            Verdict::Mismatch => Err(StateWriteError::RevisionMismatch { current }),
            Verdict::Store => Err(self.explain_unstored_match(&write.id, maybe_done, current).await),
        }
    }

    /// Explains a write that matches the stored head but was not stored: the clock is too far behind, or the row that
    /// was in the way is gone by now.
    async fn explain_unstored_match(
        &self,
        id: &PersistenceId,
        maybe_done: bool,
        current: StateHead,
    ) -> StateWriteError {
        let (text, limit) = (id.as_str(), self.backend.settings.max_clock_lag);
        let found = self.backend.write.call(self.backend.settings.call_timeout, |session| async move {
            let statement = session.prepare(CLOCK_BEHIND).await?;
            session.client.query_one(&statement, &[&text]).await?.try_get::<_, i64>(0)
        });
        let behind = match found.await {
            Ok(micros) => Duration::from_micros(micros.max(0).unsigned_abs()),
            Err(Failed { cause, .. }) => return StateWriteError::Unknown(cause),
        };
        if behind <= limit {
            return StateWriteError::RevisionMismatch { current };
        }
        self.backend.counters.clock.note(behind);
        let cause = self.backend.failure(clock::too_far_behind(behind, limit));
        if maybe_done { StateWriteError::Unknown(cause) } else { StateWriteError::NotStored(cause) }
    }

    /// Runs the statement; answers whether it stored the row.
    async fn store(&self, write: &StateWrite, row: &StoredState) -> Result<Called<bool>, Failed> {
        let (text, entity_type, slice) = (write.id.as_str(), write.id.entity_type(), rows::slice(write.id.slice()));
        let revision = number(write.revision);
        let (generation, uuid) = (write.generation.map(rows::generation), Uuid(write.writer_uuid));
        let value = row.value.as_ref();
        let codec = value.map(|value| rows::bits(value.codec_id.as_u32()));
        let manifest = value.map(|value| value.manifest.as_str());
        let version = value.map(|value| rows::bits(value.schema_version));
        let payload = value.map(|value| &value.payload[..]);
        let (tag, crc32c) = (row.tag.as_deref(), row.crc32c.map(i64::from));
        let is_first = write.revision == Revision::FIRST;
        let stored = self.backend.write.call_counting(self.backend.settings.call_timeout, |session| async move {
            let client = &session.client;
            let stored = if is_first {
                let statement = session.prepare(INSERT_STATE).await?;
                let values: [&(dyn tokio_postgres::types::ToSql + Sync); 13] = [
                    &text,
                    &entity_type,
                    &slice,
                    &generation,
                    &uuid,
                    &codec,
                    &manifest,
                    &version,
                    &payload,
                    &tag,
                    &crc32c,
                    &session.clock_row,
                    &session.max_clock_lag,
                ];
                client.query_opt(&statement, &values).await?
            } else {
                let statement = session.prepare(UPDATE_STATE).await?;
                let values: [&(dyn tokio_postgres::types::ToSql + Sync); 12] = [
                    &text,
                    &revision,
                    &generation,
                    &uuid,
                    &codec,
                    &manifest,
                    &version,
                    &payload,
                    &tag,
                    &crc32c,
                    &session.clock_row,
                    &session.max_clock_lag,
                ];
                client.query_opt(&statement, &values).await?
            };
            Ok(stored.is_some())
        });
        stored.await
    }

    async fn head(&self, id: &PersistenceId) -> Result<StateHead, BoxError> {
        let text = id.as_str();
        let found = self.backend.write.call(self.backend.settings.call_timeout, |session| async move {
            let statement = session.prepare(GET_STATE).await?;
            session.client.query_opt(&statement, &[&text]).await
        });
        let found = found.await.map_err(|failed| failed.cause)?;
        let unreadable = |Unreadable| format!("the row of {id} cannot be read; verify the journal").into();
        found.map_or(Ok(StateHead::default()), |row| rows::state_head(&row).map_err(unreadable))
    }
}

/// The error of a write whose statement failed.
fn not_written(Failed { cause, maybe_done, storage_low }: Failed) -> StateWriteError {
    match (maybe_done, storage_low) {
        (true, _) => StateWriteError::Unknown(cause),
        (false, true) => StateWriteError::Rejected(StateRejectReason::StorageLow(cause.text())),
        (false, false) => StateWriteError::NotStored(cause),
    }
}

fn number(revision: Revision) -> i64 {
    i64::try_from(revision.as_u64()).unwrap_or(i64::MAX)
}

#[async_trait]
impl StateStore for PostgresStates {
    fn caps(&self) -> StateCaps {
        CAPS
    }

    async fn get(&self, id: &PersistenceId) -> Result<StoredState, ReadError> {
        self.backend.state(id).await
    }

    async fn upsert(&self, write: StateWrite, value: EncodedValue, tag: Option<String>) -> Result<(), StateWriteError> {
        self.write(write, Some((value, tag))).await
    }

    async fn delete(&self, write: StateWrite) -> Result<(), StateWriteError> {
        self.write(write, None).await
    }

    async fn ids(&self, after: Option<&PersistenceId>, limit: usize) -> Result<Vec<PersistenceId>, ReadError> {
        let (after, limit) = (after.map_or("", PersistenceId::as_str), i64::try_from(limit).unwrap_or(i64::MAX));
        let found = self.backend.query.call(self.backend.settings.call_timeout, |session| async move {
            let statement = session.prepare(STATE_IDS).await?;
            session.client.query(&statement, &[&after, &limit]).await
        });
        let found = found.await.map_err(|failed| ReadError::Unavailable(failed.cause))?;
        let unreadable = |Unreadable| ReadError::Unavailable(self.backend.unreadable());
        found.iter().map(|row| rows::id(row).map_err(unreadable)).collect()
    }

    async fn changes(&self, of: &ChangesOf, offset: &Offset, limit: usize) -> Result<Vec<StateChange>, QueryError> {
        let unavailable = |cause| QueryError::Read(ReadError::Unavailable(cause));
        let (since, mut seen) = match offset {
            Offset::None => (Timestamp::default(), Vec::new()),
            Offset::Timestamp { timestamp, seen } => (*timestamp, seen.clone()),
            Offset::Ordinal(_) => {
                let (expected, found) = (OffsetKind::Timestamp, OffsetKind::Ordinal);
                return Err(QueryError::ForeignOffset { expected, found });
            }
        };
        // Changes at exactly this time that were seen already are read again, and dropped; the limit makes room for
        // them.
        let rows = i64::try_from(limit.saturating_add(seen.len())).unwrap_or(i64::MAX);
        let behind = i64::try_from(self.backend.settings.behind_current_time.as_micros()).unwrap_or(i64::MAX);
        let from = Micros::from(since);
        let found = self.backend.query.call(self.backend.settings.call_timeout, |session| async move {
            match of {
                ChangesOf::Tag(tag) => {
                    let statement = session.prepare(STATES_BY_TAG).await?;
                    session.client.query(&statement, &[tag, &from, &behind, &rows]).await
                }
                ChangesOf::Slices { entity_type, slices } => {
                    let statement = session.prepare(STATES_BY_SLICES).await?;
                    let (first, last) = (rows::slice(*slices.start()), rows::slice(*slices.end()));
                    session.client.query(&statement, &[entity_type, &from, &behind, &rows, &first, &last]).await
                }
            }
        });
        let found = found.await.map_err(|failed| unavailable(failed.cause))?;
        let (mut changes, mut at) = (Vec::new(), since);
        for row in &found {
            let id = rows::id(row).map_err(|Unreadable| unavailable(self.backend.unreadable()))?;
            let state = rows::intact_state(&id, row).map_err(QueryError::Read)?;
            let place = (id, state.revision.as_u64());
            if state.timestamp == since && seen.contains(&place) {
                continue;
            }
            if changes.len() == limit {
                break;
            }
            if state.timestamp != at {
                at = state.timestamp;
                seen.clear();
            }
            seen.push(place);
            changes.push(StateChange { offset: Offset::Timestamp { timestamp: at, seen: seen.clone() }, state });
        }
        Ok(changes)
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
