//! The query side of a journal without a stored highest number, and counts of its queries.

use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use greylag_persistence::{
    EventPage, EventQueries, InMemoryQueries, Page, PageQuery, PersistenceId, Position, QueryCaps, QueryError,
    ReadError, ReadRange,
};

pub(crate) struct Counted {
    queries: InMemoryQueries,
    lists: AtomicUsize,
    reads: AtomicUsize,
}

impl Counted {
    pub(crate) fn new(queries: InMemoryQueries) -> Self {
        Self { queries, lists: AtomicUsize::new(0), reads: AtomicUsize::new(0) }
    }

    /// Number of pages of ids asked for.
    pub(crate) fn lists(&self) -> usize {
        self.lists.load(Ordering::Relaxed)
    }

    /// Number of pages of one history asked for.
    pub(crate) fn reads(&self) -> usize {
        self.reads.load(Ordering::Relaxed)
    }
}

#[async_trait]
impl EventQueries for Counted {
    fn caps(&self) -> QueryCaps {
        self.queries.caps()
    }

    async fn persistence_ids(
        &self,
        entity_type: Option<&str>,
        after: Option<&PersistenceId>,
        limit: usize,
    ) -> Result<Vec<PersistenceId>, ReadError> {
        self.lists.fetch_add(1, Ordering::Relaxed);
        self.queries.persistence_ids(entity_type, after, limit).await
    }

    async fn newest(&self) -> Result<Option<Position>, ReadError> {
        self.queries.newest().await
    }

    async fn events(&self, query: &PageQuery) -> Result<EventPage, QueryError> {
        self.queries.events(query).await
    }

    async fn read(&self, id: &PersistenceId, range: ReadRange) -> Result<Page, ReadError> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.queries.read(id, range).await
    }
}
