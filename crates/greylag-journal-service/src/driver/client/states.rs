//! Durable states: writes whose answers may be lost, reads, and changes in pages.

use std::sync::Arc;

use async_trait::async_trait;
use greylag_persistence::{
    ChangesOf, CloseError, EncodedValue, Health, Offset, PersistenceId, QueryError, ReadError, Revision, StateCaps,
    StateChange, StateRejectReason, StateStore, StateWrite, StateWriteError, StoreFailure, StoreReturns, StoredState,
};

use super::connection::{CallOutcome, Connection};
use crate::generated::{self as proto, answer, call};
use crate::wire;

/// The served durable states, call for call, with scope `Shared`.
#[derive(Debug, Clone)]
pub struct ServiceStates {
    pub(super) connection: Arc<Connection>,
    pub(super) caps: StateCaps,
}

/// The error of a write that had an unanswered try: a mismatch if it proves that the write is not stored, and Unknown
/// otherwise. A later revision hides whether this write was stored. Source: persistence §3, J10.
fn resolve_error(error: StateWriteError, tried_before: bool, revision: Revision, store: &str) -> StateWriteError {
    match error {
        error if !tried_before => error,
        StateWriteError::RevisionMismatch { current } if current.revision <= revision => error,
        StateWriteError::Unknown(_) => error,
        StateWriteError::RevisionMismatch { .. } | StateWriteError::Rejected(_) | StateWriteError::NotStored(_) => {
            let text = format!("an earlier try was not answered, the last one was refused: {error}");
            StateWriteError::Unknown(StoreFailure::new(store, error).with_text(text))
        }
    }
}

impl ServiceStates {
    async fn write(
        &self,
        write: StateWrite,
        content: Option<(EncodedValue, Option<String>)>,
    ) -> Result<(), StateWriteError> {
        let connection = &self.connection;
        let (value, tag) = content.as_ref().map_or((None, None), |(value, tag)| (Some(value), tag.as_deref()));
        // Checked here as well, so that a write that is sure to be refused is not sent.
        write.check(value, tag, &self.caps).map_err(StateWriteError::Rejected)?;
        let revision = write.revision;
        let call = call::Call::WriteState(wire::from_write(write, content));
        match connection.call(call, connection.settings.append_timeout).await {
            CallOutcome::Answer { answer: answer::Answer::Done(proto::Done {}), .. } => Ok(()),
            CallOutcome::Answer { answer: answer::Answer::Failure(failure), tried_before } => Err(resolve_error(
                wire::write_error(failure, &connection.name),
                tried_before,
                revision,
                &connection.name,
            )),
            CallOutcome::Answer { .. } => Err(StateWriteError::Unknown(connection.unexpected_answer())),
            CallOutcome::TooLarge(why) => Err(StateWriteError::Rejected(StateRejectReason::Other(why))),
            CallOutcome::NeverSent(failure) => Err(StateWriteError::NotStored(failure)),
            CallOutcome::Unanswered(failure) => Err(StateWriteError::Unknown(failure)),
        }
    }

    /// One page of changes, and whether more are visible.
    async fn page(&self, call: call::Call) -> Result<(Vec<StateChange>, bool), QueryError> {
        let connection = &self.connection;
        let unavailable = |failure| QueryError::Read(ReadError::Unavailable(failure));
        match connection.ask(call).await.map_err(unavailable)? {
            answer::Answer::Changes(page) => {
                let changes = page.changes.into_iter().map(wire::change).collect::<wire::Decoded<Vec<_>>>();
                Ok((changes.map_err(|error| unavailable(connection.failure(error)))?, page.more))
            }
            answer::Answer::Failure(failure) => Err(wire::query_error(failure, &connection.name)),
            _ => Err(unavailable(connection.unexpected_answer())),
        }
    }
}

#[async_trait]
impl StateStore for ServiceStates {
    fn caps(&self) -> StateCaps {
        self.caps
    }

    async fn get(&self, id: &PersistenceId) -> Result<StoredState, ReadError> {
        let connection = &self.connection;
        let get = proto::GetState { persistence_id: id.as_str().to_owned() };
        match connection.ask(call::Call::GetState(get)).await.map_err(ReadError::Unavailable)? {
            answer::Answer::State(state) => {
                wire::state(state).map_err(|error| ReadError::Unavailable(connection.failure(error)))
            }
            answer::Answer::Failure(failure) => Err(wire::read_error(failure, &connection.name)),
            _ => Err(ReadError::Unavailable(connection.unexpected_answer())),
        }
    }

    async fn upsert(&self, write: StateWrite, value: EncodedValue, tag: Option<String>) -> Result<(), StateWriteError> {
        self.write(write, Some((value, tag))).await
    }

    async fn delete(&self, write: StateWrite) -> Result<(), StateWriteError> {
        self.write(write, None).await
    }

    async fn ids(&self, after: Option<&PersistenceId>, limit: usize) -> Result<Vec<PersistenceId>, ReadError> {
        self.connection
            .ids(after, limit, |after, limit| call::Call::ListStates(proto::ListStates { after, limit }))
            .await
    }

    async fn changes(&self, of: &ChangesOf, offset: &Offset, limit: usize) -> Result<Vec<StateChange>, QueryError> {
        let (mut all, mut offset, mut more) = (Vec::new(), offset.clone(), true);
        while more && all.len() < limit {
            let (of, left) = (wire::from_changes_of(of), limit - all.len());
            let read = proto::ReadChanges { of: Some(of), offset: wire::from_offset(&offset), limit: left as u64 };
            let page = match self.page(call::Call::ReadChanges(read)).await {
                Ok(page) => page,
                Err(error) => return Err(error),
            };
            // An empty page that promises more would be asked for without end.
            more = page.1 && !page.0.is_empty();
            all.extend(page.0);
            if let Some(last) = all.last() {
                offset = last.offset.clone();
            }
        }
        Ok(all)
    }

    fn health(&self) -> Health {
        self.connection.state.health()
    }

    fn store_returns(&self) -> Option<&StoreReturns> {
        Some(&self.connection.state.store_returns)
    }

    /// Ends this client, for all its stores; the served store goes on.
    async fn close(&self) -> Result<(), CloseError> {
        self.connection.close().await
    }
}

#[cfg(test)]
mod tests {
    use greylag_persistence::StateHead;

    use super::*;

    /// Scenario persistence 64: a lost answer must not look like another writer, nor like "not stored".
    #[test]
    fn after_an_unanswered_write_only_a_proving_mismatch_is_passed_on() {
        let revision = Revision::from(5);
        let failure = StoreFailure::new("states", "cause");
        let mismatch = |revision: u32| StateWriteError::RevisionMismatch {
            current: StateHead { revision: revision.into(), ..StateHead::default() },
        };
        for error in [
            StateWriteError::Rejected(StateRejectReason::StorageLow("full".into())),
            StateWriteError::NotStored(failure.clone()),
            mismatch(6),
        ] {
            assert_eq!(resolve_error(error.clone(), false, revision, "states"), error);
            assert!(matches!(resolve_error(error, true, revision, "states"), StateWriteError::Unknown(_)));
        }
        for error in [StateWriteError::Unknown(failure), mismatch(4), mismatch(5)] {
            assert_eq!(resolve_error(error.clone(), true, revision, "states"), error);
        }
    }
}
