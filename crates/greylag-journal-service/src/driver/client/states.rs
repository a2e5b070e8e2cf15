//! Durable states: writes whose answers may be lost, reads, and changes in pages.

use std::sync::Arc;

use async_trait::async_trait;
use greylag_persistence::{
    ChangesOf, CloseError, EncodedValue, Health, Offset, PersistenceId, QueryError, ReadError, Revision, StateCaps,
    StateChange, StateRejectReason, StateStore, StateWrite, StateWriteError, StoreFailure, StoreReturns, StoredState,
};

use super::{Answered, Inner};
use crate::generated::{self as proto, answer, call};
use crate::settings::MAX_IDS;
use crate::wire;

/// The served durable states, call for call, with scope `Shared`.
#[derive(Debug, Clone)]
pub struct ServiceStates {
    pub(super) inner: Arc<Inner>,
    pub(super) caps: StateCaps,
}

/// The error of a write that had an unanswered try: a mismatch if it proves that the write is not stored, and Unknown
/// otherwise. A later revision hides whether this write was stored. Source: persistence §3, J10.
fn settle(error: StateWriteError, tried_before: bool, revision: Revision, store: &str) -> StateWriteError {
    match error {
        error if !tried_before => error,
        StateWriteError::RevisionMismatch { current } if current.revision <= revision => error,
        StateWriteError::Unknown(_) => error,
        StateWriteError::RevisionMismatch { .. } | StateWriteError::Rejected(_) | StateWriteError::NotStored(_) => {
            let cause = format!("an earlier try went unanswered, the last one said: {error}");
            StateWriteError::Unknown(StoreFailure::new(store, cause))
        }
    }
}

impl ServiceStates {
    async fn write(
        &self,
        write: StateWrite,
        content: Option<(EncodedValue, Option<String>)>,
    ) -> Result<(), StateWriteError> {
        let inner = &self.inner;
        let (value, tag) = content.as_ref().map_or((None, None), |(value, tag)| (Some(value), tag.as_deref()));
        // Checked here as well, so that a write that is sure to be refused is not sent.
        write.check(value, tag, &self.caps).map_err(StateWriteError::Rejected)?;
        let revision = write.revision;
        let call = call::Call::WriteState(wire::from_write(write, content));
        match inner.call(call, inner.settings.append_timeout).await {
            Answered::Answer { answer: answer::Answer::Done(proto::Done {}), .. } => Ok(()),
            Answered::Answer { answer: answer::Answer::Failure(failure), tried_before } => {
                Err(settle(wire::write_error(failure, &inner.name), tried_before, revision, &inner.name))
            }
            Answered::Answer { .. } => Err(StateWriteError::Unknown(inner.other())),
            Answered::TooLarge(why) => Err(StateWriteError::Rejected(StateRejectReason::Other(why))),
            Answered::NeverSent(failure) => Err(StateWriteError::NotStored(failure)),
            Answered::Unanswered(failure) => Err(StateWriteError::Unknown(failure)),
        }
    }

    /// One page of changes, and whether more are visible.
    async fn page(&self, call: call::Call) -> Result<(Vec<StateChange>, bool), QueryError> {
        let inner = &self.inner;
        let unavailable = |failure| QueryError::Read(ReadError::Unavailable(failure));
        match inner.ask(call).await.map_err(unavailable)? {
            answer::Answer::Changes(page) => {
                let changes = page.changes.into_iter().map(wire::change).collect::<wire::Decoded<Vec<_>>>();
                Ok((changes.map_err(|error| unavailable(inner.failure(error)))?, page.more))
            }
            answer::Answer::Failure(failure) => Err(wire::query_error(failure, &inner.name)),
            _ => Err(unavailable(inner.other())),
        }
    }
}

#[async_trait]
impl StateStore for ServiceStates {
    fn caps(&self) -> StateCaps {
        self.caps
    }

    async fn get(&self, id: &PersistenceId) -> Result<StoredState, ReadError> {
        let inner = &self.inner;
        let get = proto::GetState { persistence_id: id.as_str().to_owned() };
        match inner.ask(call::Call::GetState(get)).await.map_err(ReadError::Unavailable)? {
            answer::Answer::State(state) => {
                wire::state(state).map_err(|error| ReadError::Unavailable(inner.failure(error)))
            }
            answer::Answer::Failure(failure) => Err(wire::read_error(failure, &inner.name)),
            _ => Err(ReadError::Unavailable(inner.other())),
        }
    }

    async fn upsert(&self, write: StateWrite, value: EncodedValue, tag: Option<String>) -> Result<(), StateWriteError> {
        self.write(write, Some((value, tag))).await
    }

    async fn delete(&self, write: StateWrite) -> Result<(), StateWriteError> {
        self.write(write, None).await
    }

    async fn ids(&self, after: Option<&PersistenceId>, limit: usize) -> Result<Vec<PersistenceId>, ReadError> {
        self.inner.ids(after, limit, |after, limit| call::Call::ListStates(proto::ListStates { after, limit })).await
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
        self.inner.state.health()
    }

    fn store_returns(&self) -> Option<&StoreReturns> {
        Some(&self.inner.state.store_returns)
    }

    /// Ends this client, for all its stores; the served store goes on.
    async fn close(&self) -> Result<(), CloseError> {
        self.inner.close().await
    }
}

impl Inner {
    /// Lists ids in parts, each of as many as an answer may have.
    pub(super) async fn ids(
        &self,
        after: Option<&PersistenceId>,
        limit: usize,
        call: impl Fn(Option<String>, u64) -> call::Call,
    ) -> Result<Vec<PersistenceId>, ReadError> {
        let mut all: Vec<PersistenceId> = Vec::new();
        while all.len() < limit {
            let asked = MAX_IDS.min(limit - all.len());
            let after = all.last().or(after).map(|id| id.as_str().to_owned());
            let ids = match self.ask(call(after, asked as u64)).await.map_err(ReadError::Unavailable)? {
                answer::Answer::Ids(found) => found.ids,
                answer::Answer::Failure(failure) => return Err(wire::read_error(failure, &self.name)),
                _ => return Err(ReadError::Unavailable(self.other())),
            };
            let is_last = ids.len() < asked;
            for id in ids {
                all.push(wire::id(&id).map_err(|error| ReadError::Unavailable(self.failure(error)))?);
            }
            if is_last {
                break;
            }
        }
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use greylag_persistence::StateHead;

    use super::*;

    /// Scenario persistence 64: a lost answer must not look like another writer, nor like "not stored".
    #[test]
    fn after_an_unanswered_try_of_a_write_only_proof_is_passed_on() {
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
            assert_eq!(settle(error.clone(), false, revision, "states"), error);
            assert!(matches!(settle(error, true, revision, "states"), StateWriteError::Unknown(_)));
        }
        for error in [StateWriteError::Unknown(failure), mismatch(4), mismatch(5)] {
            assert_eq!(settle(error.clone(), true, revision, "states"), error);
        }
    }
}
