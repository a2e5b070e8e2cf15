//! Events across histories. A page is transferred only when the caller asks for it.

use std::sync::Arc;

use async_trait::async_trait;
use greylag_persistence::{
    EventPage, EventQueries, Page, PageQuery, PersistenceId, Position, QueryCaps, QueryError, ReadError, ReadRange,
};

use super::Inner;
use crate::generated::{self as proto, answer, call};
use crate::wire;

/// The query side of the served journal, or of its durable states, call for call, with scope `Shared`.
///
/// Pages of large events are shorter than asked for, and say that more follows.
#[derive(Debug, Clone)]
pub struct ServiceQueries {
    pub(super) inner: Arc<Inner>,
    pub(super) caps: QueryCaps,
    pub(super) of_changes: bool,
}

#[async_trait]
impl EventQueries for ServiceQueries {
    fn caps(&self) -> QueryCaps {
        self.caps
    }

    async fn persistence_ids(
        &self,
        entity_type: Option<&str>,
        after: Option<&PersistenceId>,
        limit: usize,
    ) -> Result<Vec<PersistenceId>, ReadError> {
        let list = |after, limit| {
            let entity_type = entity_type.map(str::to_owned);
            call::Call::ListIds(proto::ListIds { entity_type, after, limit, changes: self.of_changes })
        };
        self.inner.ids(after, limit, list).await
    }

    async fn newest(&self) -> Result<Option<Position>, ReadError> {
        let inner = &self.inner;
        let malformed = |error: wire::Malformed| ReadError::Unavailable(inner.failure(error));
        let find = call::Call::FindNewest(proto::FindNewest { changes: self.of_changes });
        match inner.ask(find).await.map_err(ReadError::Unavailable)? {
            answer::Answer::Newest(newest) => {
                newest.position.map(|position| wire::position(Some(position)).map_err(malformed)).transpose()
            }
            answer::Answer::Failure(failure) => Err(wire::read_error(failure, &inner.name)),
            _ => Err(ReadError::Unavailable(inner.other())),
        }
    }

    async fn events(&self, query: &PageQuery) -> Result<EventPage, QueryError> {
        let inner = &self.inner;
        let unavailable = |failure| QueryError::Read(ReadError::Unavailable(failure));
        let find = proto::FindEvents { changes: self.of_changes, ..wire::from_page_query(query) };
        match inner.ask(call::Call::FindEvents(find)).await.map_err(unavailable)? {
            answer::Answer::Found(page) => wire::event_page(page).map_err(|error| unavailable(inner.failure(error))),
            answer::Answer::Failure(failure) => Err(wire::query_error(failure, &inner.name)),
            _ => Err(unavailable(inner.other())),
        }
    }

    async fn read(&self, id: &PersistenceId, range: ReadRange) -> Result<Page, ReadError> {
        let read = proto::Read { query: true, changes: self.of_changes, ..wire::from_read(id, range) };
        self.inner.read(id, read).await
    }
}
