//! The handle of the query side.

use std::sync::Arc;

use async_trait::async_trait;
use greylag_persistence::{
    EventPage, EventQueries, OffsetKind, Page, PageQuery, PersistenceId, Position, QueryCaps, QueryError, ReadError,
    ReadRange, Scope, Shows,
};

use super::inner::Inner;

/// Queries over the events of a [`SledJournal`](crate::SledJournal): in the order of commits, gap-free
/// up to what is durable.
#[derive(Debug, Clone)]
pub struct SledQueries {
    inner: Arc<Inner>,
}

impl SledQueries {
    pub(crate) fn new(inner: Arc<Inner>) -> Self {
        Self { inner }
    }
}

#[async_trait]
impl EventQueries for SledQueries {
    fn caps(&self) -> QueryCaps {
        QueryCaps { scope: Scope::Node, kind: OffsetKind::Ordinal, shows: Shows::Every }
    }

    async fn persistence_ids(
        &self,
        entity_type: Option<&str>,
        after: Option<&PersistenceId>,
        limit: usize,
    ) -> Result<Vec<PersistenceId>, ReadError> {
        let (entity_type, after) = (entity_type.map(str::to_owned), after.cloned());
        let reading =
            self.inner.read(move |reads| reads.persistence_ids(entity_type.as_deref(), after.as_ref(), limit));
        reading.await.map_err(ReadError::Unavailable)?
    }

    async fn newest(&self) -> Result<Option<Position>, ReadError> {
        self.inner.read(|reads| reads.newest().map(Position::Ordinal)).await.map_err(ReadError::Unavailable)
    }

    async fn events(&self, query: &PageQuery) -> Result<EventPage, QueryError> {
        let query = query.clone();
        let reading = self.inner.read(move |reads| reads.events(&query));
        reading.await.map_err(|failure| QueryError::Read(ReadError::Unavailable(failure)))?
    }

    async fn read(&self, id: &PersistenceId, range: ReadRange) -> Result<Page, ReadError> {
        let id = id.clone();
        self.inner.read(move |reads| reads.read(&id, range)).await.map_err(ReadError::Unavailable)?
    }
}
