//! Events across histories. A page is transferred only when the caller asks for it.

use std::sync::Arc;

use async_trait::async_trait;
use greylag_persistence::{
    EventPage, EventQueries, Page, PageQuery, PersistenceId, Position, QueryCaps, QueryError, ReadError, ReadRange,
};

use super::connection::Connection;
use crate::generated::{self as proto, answer, call};
use crate::wire;

/// The query side of the served journal, or of its durable states, call for call, with scope `Shared`.
///
/// Pages of large events are shorter than asked for, and say that more follows.
#[derive(Debug, Clone)]
pub struct ServiceQueries {
    pub(super) connection: Arc<Connection>,
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
        self.connection.ids(after, limit, list).await
    }

    async fn newest(&self) -> Result<Option<Position>, ReadError> {
        let connection = &self.connection;
        let malformed = |error: wire::Malformed| ReadError::Unavailable(connection.failure(error));
        let find = call::Call::FindNewest(proto::FindNewest { changes: self.of_changes });
        match connection.ask(find).await.map_err(ReadError::Unavailable)? {
            answer::Answer::Newest(newest) => {
                newest.position.map(|position| wire::position(Some(position)).map_err(malformed)).transpose()
            }
            answer::Answer::Failure(failure) => Err(wire::read_error(failure, &connection.name)),
            _ => Err(ReadError::Unavailable(connection.unexpected_answer())),
        }
    }

    async fn events(&self, query: &PageQuery) -> Result<EventPage, QueryError> {
        let connection = &self.connection;
        let unavailable = |failure| QueryError::Read(ReadError::Unavailable(failure));
        let find = proto::FindEvents { changes: self.of_changes, ..wire::from_page_query(query) };
        match connection.ask(call::Call::FindEvents(find)).await.map_err(unavailable)? {
            answer::Answer::Found(page) => {
                wire::event_page(page).map_err(|error| unavailable(connection.failure(error)))
            }
            answer::Answer::Failure(failure) => Err(wire::query_error(failure, &connection.name)),
            _ => Err(unavailable(connection.unexpected_answer())),
        }
    }

    async fn read(&self, id: &PersistenceId, range: ReadRange) -> Result<Page, ReadError> {
        let read = proto::Read { query: true, changes: self.of_changes, ..wire::from_read(id, range) };
        self.connection.read(id, read).await
    }
}
