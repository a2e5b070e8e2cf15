//! The handle of a journal: one statement for each call but appends, which go to a lane.

use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use greylag_persistence::{
    AdvanceError, Append, AppendError, Appended, Caps, Claim, ClaimError, CloseError, Corrupt, CorruptKind,
    DeleteError, Head, Health, Journal, Page, PersistenceId, ReadError, ReadRange, SeqNr, StoreReturns, Stores, Under,
    WriterEpoch, WriterUuid,
};
use greylag_postgres::Database;

use crate::backend::{Backend, CAPS, HeadError};
use crate::driver::opener::{Access, Purpose};
use crate::error::OpenError;
use crate::queries::{PostgresQueries, history};
use crate::settings::PostgresJournalSettings;
use crate::sql::rows::{self, Unreadable, Uuid};
use crate::sql::statements::{ADVANCE, CLAIM, DELETE_TO};
use crate::stats::PostgresStats;

use super::offsets::PostgresOffsets;
use super::snapshots::PostgresSnapshots;
use super::states::PostgresStates;

/// A journal in PostgreSQL, for every node that reaches the database. Clones share it.
#[derive(Debug, Clone)]
pub struct PostgresJournal {
    backend: Arc<Backend>,
}

impl PostgresJournal {
    /// Opens the journal, and applies missing migrations, so that a wrong setup shows at start. `config` is a
    /// connection string as for libpq, key words or a URL; its password appears in no log and no error.
    ///
    /// # Errors
    /// [`OpenError`].
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub async fn open(config: &str, settings: PostgresJournalSettings) -> Result<Self, OpenError> {
        let journal = Self::lazy(config, settings)?;
        journal.probe().await?;
        Ok(journal)
    }

    /// Opens the journal for this process alone, as [`copy`](greylag_persistence::copy) needs it: while it is open no
    /// other process's journal of this schema connects, and it does not open while one is connected. Opening waits for
    /// connections that end meanwhile, but not longer than `connect_timeout`.
    ///
    /// The reservation is an advisory lock, which connections of ordinary journals hold shared and this journal holds
    /// alone. Databases without advisory locks (the table below) reserve nothing.
    ///
    /// # Errors
    /// [`OpenError`]; [`OpenError::InUse`] if others are connected.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub async fn open_exclusive(config: &str, settings: PostgresJournalSettings) -> Result<Self, OpenError> {
        let journal = Self::start(Database::parse(config)?, settings, Access::Exclusive)?;
        let link = &journal.backend.link;
        let place = link.place();
        match link.reserve().await {
            Ok(None) => Ok(journal),
            Ok(Some(by)) => Err(OpenError::InUse { place, schema: journal.backend.settings.schema.clone(), by }),
            Err(cause) => Err(OpenError::Unavailable { place, cause }),
        }
    }

    /// Opens the journal without waiting for the database. The journal tries to connect until the database answers;
    /// until then its health is down, and calls answer unavailable when their time is over.
    ///
    /// # Errors
    /// [`OpenError::Settings`], [`OpenError::Config`].
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn lazy(config: &str, settings: PostgresJournalSettings) -> Result<Self, OpenError> {
        Self::start(Database::parse(config)?, settings, Access::Shared)
    }

    /// As [`PostgresJournal::lazy`], with a password from a file instead of `config`.
    ///
    /// # Errors
    /// As [`PostgresJournal::lazy`].
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn lazy_with_password_file(
        config: &str,
        file: &Path,
        settings: PostgresJournalSettings,
    ) -> Result<Self, OpenError> {
        Self::start(Database::parse(config)?.with_password_file(file)?, settings, Access::Shared)
    }

    /// Connects once, to check that the database can be used.
    ///
    /// # Errors
    /// [`OpenError::Unavailable`].
    pub async fn probe(&self) -> Result<(), OpenError> {
        let link = &self.backend.link;
        let place = link.place();
        link.connect(Purpose::Query).await.map(drop).map_err(|cause| OpenError::Unavailable { place, cause })
    }

    fn start(database: Database, settings: PostgresJournalSettings, access: Access) -> Result<Self, OpenError> {
        settings.validate()?;
        if database.believes_anybody() {
            let place = database.place();
            tracing::warn!(
                place,
                "the certificate of the journal database is not verified, so any server that answers there is \
                 trusted; use sslmode=verify-full"
            );
        }
        Ok(Self { backend: Backend::start(database, settings, access) })
    }

    pub(super) fn backend(&self) -> &Arc<Backend> {
        &self.backend
    }

    /// The snapshot store in the same database.
    pub fn snapshots(&self) -> PostgresSnapshots {
        PostgresSnapshots::new(self.backend.clone())
    }

    /// The store of durable states in the same database.
    pub fn states(&self) -> PostgresStates {
        PostgresStates::new(self.backend.clone())
    }

    /// The query side of this journal.
    pub fn queries(&self) -> PostgresQueries {
        PostgresQueries::new(self.backend.clone())
    }

    /// The offset store of projections in the same database.
    pub fn offsets(&self) -> PostgresOffsets {
        PostgresOffsets::new(self.backend.clone())
    }

    /// Counters of this journal, over all its handles.
    pub fn stats(&self) -> PostgresStats {
        self.backend.stats()
    }

    /// Journal and snapshots, as event-sourced entities take them.
    pub fn stores(&self) -> Stores {
        Stores::new(Arc::new(self.clone()), Arc::new(self.snapshots()))
    }
}

#[async_trait]
impl Journal for PostgresJournal {
    fn caps(&self) -> Caps {
        CAPS
    }

    async fn claim(&self, id: &PersistenceId, writer_uuid: WriterUuid, under: Under) -> Result<Claim, ClaimError> {
        let backend = &self.backend;
        backend.await_turn(id).await.map_err(ClaimError::Unavailable)?;
        let (generation, seen) = match under {
            Under::Generation(generation) => (Some(rows::generation(generation)), None),
            Under::Seen(epoch) => (None, Some(rows::epoch(epoch))),
        };
        let (text, slice) = (id.as_str(), rows::slice(id.slice()));
        let claimed = backend.write.call(backend.settings.call_timeout, |session| async move {
            let statement = session.prepare(CLAIM).await?;
            let uuid = Uuid(writer_uuid);
            session.client.query_opt(&statement, &[&text, &id.entity_type(), &slice, &uuid, &generation, &seen]).await
        });
        let Some(row) = claimed.await.map_err(|failed| ClaimError::Unavailable(failed.cause))? else {
            return Err(match backend.current(id).await {
                Ok(current) => ClaimError::Fenced { current },
                Err(HeadError::Unavailable(cause)) => ClaimError::Unavailable(cause),
                Err(HeadError::Corrupt(corrupt)) => ClaimError::Corrupt(corrupt),
            });
        };
        let corrupt = || Corrupt { id: id.clone(), seq_nr: SeqNr::ZERO, kind: CorruptKind::Unreadable };
        rows::claim(&row).map_err(|Unreadable| ClaimError::Corrupt(corrupt()))
    }

    async fn advance(&self, id: &PersistenceId, epoch: WriterEpoch, to: SeqNr) -> Result<(), AdvanceError> {
        let backend = &self.backend;
        let (text, stored_epoch, number) = (id.as_str(), rows::epoch(epoch), rows::number(to));
        let advanced = backend.write.call(backend.settings.call_timeout, |session| async move {
            let statement = session.prepare(ADVANCE).await?;
            session.client.query_opt(&statement, &[&text, &stored_epoch, &number]).await
        });
        if advanced.await.map_err(|failed| AdvanceError::Unavailable(failed.cause))?.is_some() {
            return Ok(());
        }
        let current = backend.current(id).await.map_err(|error| AdvanceError::Unavailable(error.cause(backend)))?;
        Err(if current.epoch == epoch {
            AdvanceError::NotEmpty { highest: current.highest }
        } else {
            AdvanceError::Fenced { current }
        })
    }

    async fn append(&self, append: Append) -> Result<Appended, AppendError> {
        let backend = &self.backend;
        // A lane counts the appends that it gets; an append that reaches no lane is counted here.
        let answer = backend.submit(append).await.inspect_err(|error| {
            backend.counters.answered(&Err(error.clone()), 0, 0);
        })?;
        let ended = || AppendError::Unknown(backend.failure("the lane ended without an answer"));
        answer.await.unwrap_or_else(|_| Err(ended()))
    }

    async fn read(&self, id: &PersistenceId, range: ReadRange) -> Result<Page, ReadError> {
        history::read_page(&self.backend, &self.backend.replay, id, range).await
    }

    async fn head(&self, id: &PersistenceId) -> Result<Head, ReadError> {
        let backend = &self.backend;
        let head = backend.head(&backend.replay, backend.settings.call_timeout, id).await;
        head.map_err(|error| match error {
            HeadError::Unavailable(cause) => ReadError::Unavailable(cause),
            HeadError::Corrupt(corrupt) => ReadError::Corrupt(corrupt),
        })
    }

    async fn delete_to(&self, id: &PersistenceId, epoch: WriterEpoch, to: SeqNr) -> Result<SeqNr, DeleteError> {
        let backend = &self.backend;
        let (text, stored_epoch, number) = (id.as_str(), rows::epoch(epoch), rows::number(to));
        let deleted = backend.write.call(backend.settings.call_timeout, |session| async move {
            let statement = session.prepare(DELETE_TO).await?;
            session.client.query_opt(&statement, &[&text, &stored_epoch, &number]).await
        });
        let Some(row) = deleted.await.map_err(|failed| DeleteError::Unavailable(failed.cause))? else {
            let current = backend.current(id).await.map_err(|error| DeleteError::Unavailable(error.cause(backend)))?;
            // The id was never claimed: there is nothing to delete, and no writer to fence.
            let is_absent = current.epoch == epoch && epoch == WriterEpoch::NONE;
            return if is_absent { Ok(current.deleted_to) } else { Err(DeleteError::Fenced { current }) };
        };
        let deleted_to = rows::column::<i64>(&row, "deleted_to").ok().and_then(|number| u64::try_from(number).ok());
        let deleted_to =
            deleted_to.and_then(SeqNr::new).ok_or_else(|| DeleteError::Unavailable(backend.unreadable()))?;
        backend.sweep_later(id, deleted_to);
        Ok(deleted_to)
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
