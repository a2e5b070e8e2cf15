//! A state store behind a guard.

use async_trait::async_trait;

use super::{Attempt, Direction, Guard, Guarded, NoAnswer, of_read, reserved_id};
use crate::breaker::Breakers;
use crate::codec::EncodedValue;
use crate::driver::state_store::StateStore;
use crate::driver::store_returns::StoreReturns;
use crate::error::{CloseError, QueryError, ReadError, StateWriteError, StoreFailure};
use crate::journal::Health;
use crate::offset::Offset;
use crate::persistence_id::PersistenceId;
use crate::state::{ChangesOf, StateCaps, StateChange, StateWrite, StoredState};

impl<S: StateStore + ?Sized> Guarded<S> {
    fn of_states(&self) -> &Guard {
        self.probed_by(
            |states| Box::pin(async move { states.get(&reserved_id()).await.err().as_ref().and_then(of_read) }),
            S::store_returns,
        )
    }

    async fn write(
        &self,
        write: &StateWrite,
        call: impl Future<Output = Result<(), StateWriteError>> + Send,
    ) -> Result<(), StateWriteError> {
        let id = &write.id;
        let attempt = Attempt { id, writer_uuid: write.writer_uuid, number: write.revision.as_u64() };
        let failure_of = |error: &StateWriteError| match error {
            StateWriteError::NotStored(failure) | StateWriteError::Unknown(failure) => Some(failure.clone()),
            StateWriteError::Rejected(_) | StateWriteError::RevisionMismatch { .. } => None,
        };
        let answer = self.of_states().run(Direction::Write, Some(attempt), call, failure_of).await;
        let in_doubt = self.guard.is_in_doubt(attempt);
        match answer {
            Ok(Err(StateWriteError::Unknown(failure))) | Err(NoAnswer::TimedOut(failure)) => {
                self.guard.note(attempt);
                Err(StateWriteError::Unknown(failure))
            }
            Err(NoAnswer::NotSent(failure)) if in_doubt => Err(StateWriteError::Unknown(failure)),
            Err(NoAnswer::NotSent(failure)) => Err(StateWriteError::NotStored(failure)),
            Ok(Ok(())) => {
                self.guard.settle(id);
                Ok(())
            }
            // The stored revision proves that another write made this revision, or none did: ours is not stored.
            Ok(Err(StateWriteError::RevisionMismatch { current }))
                if !in_doubt || current.revision <= write.revision =>
            {
                self.guard.settle(id);
                Err(StateWriteError::RevisionMismatch { current })
            }
            Ok(Err(refusal)) if in_doubt => {
                let cause = format!("an earlier try was not answered, this one was refused: {refusal}");
                Err(StateWriteError::Unknown(StoreFailure::new("state store", cause)))
            }
            Ok(refusal) => refusal,
        }
    }
}

#[async_trait]
impl<S: StateStore + ?Sized> StateStore for Guarded<S> {
    fn caps(&self) -> StateCaps {
        self.inner.caps()
    }

    async fn get(&self, id: &PersistenceId) -> Result<StoredState, ReadError> {
        self.of_states().ask(Direction::Read, self.inner.get(id), of_read, ReadError::Unavailable).await
    }

    async fn upsert(&self, write: StateWrite, value: EncodedValue, tag: Option<String>) -> Result<(), StateWriteError> {
        self.write(&write.clone(), self.inner.upsert(write, value, tag)).await
    }

    async fn delete(&self, write: StateWrite) -> Result<(), StateWriteError> {
        self.write(&write.clone(), self.inner.delete(write)).await
    }

    async fn ids(&self, after: Option<&PersistenceId>, limit: usize) -> Result<Vec<PersistenceId>, ReadError> {
        self.of_states().ask(Direction::Read, self.inner.ids(after, limit), of_read, ReadError::Unavailable).await
    }

    async fn changes(&self, of: &ChangesOf, offset: &Offset, limit: usize) -> Result<Vec<StateChange>, QueryError> {
        let failure_of = |error: &QueryError| match error {
            QueryError::Read(error) => of_read(error),
            QueryError::ForeignOffset { .. } | QueryError::Unsupported(_) => None,
        };
        let unavailable = |failure| QueryError::Read(ReadError::Unavailable(failure));
        self.of_states().ask(Direction::Read, self.inner.changes(of, offset, limit), failure_of, unavailable).await
    }

    fn health(&self) -> Health {
        self.guard.health(self.inner.health())
    }

    fn breakers(&self) -> Option<Breakers> {
        Some(self.breakers())
    }

    fn store_returns(&self) -> Option<&StoreReturns> {
        Some(&self.guard.store_returns)
    }

    async fn close(&self) -> Result<(), CloseError> {
        self.guard.end_probes();
        self.inner.close().await
    }
}
