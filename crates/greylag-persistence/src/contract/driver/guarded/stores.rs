//! Snapshot, state and offset stores behind a guard.

use std::ops::RangeInclusive;

use async_trait::async_trait;

use super::{Attempt, Direction, Guard, Guarded, NoAnswer, of_read, reserved_id};
use crate::contract::breaker::Breakers;
use crate::contract::driver::journal_store::SnapshotStore;
use crate::contract::driver::offset_store::OffsetStore;
use crate::contract::driver::state_store::StateStore;
use crate::contract::driver::store_returns::StoreReturns;
use crate::contract::error::{
    CloseError, OffsetError, QueryError, ReadError, SnapshotError, StateWriteError, StoreFailure,
};
use crate::contract::journal::Health;
use crate::contract::offset::{Offset, OffsetCaps, OwnedSlices, Position, Processed};
use crate::contract::records::codec::EncodedValue;
use crate::contract::records::event::{SeqNr, Timestamp};
use crate::contract::records::persistence_id::PersistenceId;
use crate::contract::records::snapshot::{NewSnapshot, Snapshot, SnapshotCaps, SnapshotCriteria};
use crate::contract::records::state::{ChangesOf, StateCaps, StateChange, StateWrite, StoredState};

/// Name of the projection whose offset probes load; no projection has it.
const RESERVED_PROJECTION: &str = "gl.probe";

fn of_snapshot(error: &SnapshotError) -> Option<StoreFailure> {
    match error {
        SnapshotError::Unavailable(failure) => Some(failure.clone()),
        SnapshotError::Corrupt(_) | SnapshotError::TooLarge { .. } => None,
    }
}

fn of_offset(error: &OffsetError) -> Option<StoreFailure> {
    match error {
        OffsetError::Unavailable(failure) => Some(failure.clone()),
        _ => None,
    }
}

impl<S: SnapshotStore + ?Sized> Guarded<S> {
    fn of_snapshots(&self) -> &Guard {
        self.probed_by(
            |snapshots| {
                Box::pin(async move {
                    let answer = snapshots.load(&reserved_id(), SnapshotCriteria::LATEST).await;
                    answer.err().as_ref().and_then(of_snapshot)
                })
            },
            S::store_returns,
        )
    }
}

impl<S: OffsetStore + ?Sized> Guarded<S> {
    fn of_offsets(&self) -> &Guard {
        self.probed_by(
            |offsets| {
                Box::pin(
                    async move { offsets.load(RESERVED_PROJECTION, 0..=0).await.err().as_ref().and_then(of_offset) },
                )
            },
            |_| None,
        )
    }
}

#[async_trait]
impl<S: SnapshotStore + ?Sized> SnapshotStore for Guarded<S> {
    fn caps(&self) -> SnapshotCaps {
        self.inner.caps()
    }

    async fn load(&self, id: &PersistenceId, criteria: SnapshotCriteria) -> Result<Option<Snapshot>, SnapshotError> {
        let call = self.inner.load(id, criteria);
        self.of_snapshots().ask(Direction::Read, call, of_snapshot, SnapshotError::Unavailable).await
    }

    async fn save(&self, snapshot: NewSnapshot) -> Result<Timestamp, SnapshotError> {
        let call = self.inner.save(snapshot);
        self.of_snapshots().ask(Direction::Write, call, of_snapshot, SnapshotError::Unavailable).await
    }

    async fn delete(&self, id: &PersistenceId, seq_nr: SeqNr) -> Result<(), SnapshotError> {
        let call = self.inner.delete(id, seq_nr);
        self.of_snapshots().ask(Direction::Write, call, of_snapshot, SnapshotError::Unavailable).await
    }

    async fn delete_matching(&self, id: &PersistenceId, criteria: SnapshotCriteria) -> Result<(), SnapshotError> {
        let call = self.inner.delete_matching(id, criteria);
        self.of_snapshots().ask(Direction::Write, call, of_snapshot, SnapshotError::Unavailable).await
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

#[async_trait]
impl<S: OffsetStore + ?Sized> OffsetStore for Guarded<S> {
    fn caps(&self) -> OffsetCaps {
        self.inner.caps()
    }

    async fn claim(&self, projection: &str, slices: RangeInclusive<u16>) -> Result<OwnedSlices, OffsetError> {
        let call = self.inner.claim(projection, slices);
        self.of_offsets().ask(Direction::Write, call, of_offset, OffsetError::Unavailable).await
    }

    async fn load(&self, projection: &str, slices: RangeInclusive<u16>) -> Result<Vec<Processed>, OffsetError> {
        let call = self.inner.load(projection, slices);
        self.of_offsets().ask(Direction::Read, call, of_offset, OffsetError::Unavailable).await
    }

    async fn save(&self, owned: &OwnedSlices, processed: &[Processed]) -> Result<(), OffsetError> {
        let call = self.inner.save(owned, processed);
        self.of_offsets().ask(Direction::Write, call, of_offset, OffsetError::Unavailable).await
    }

    async fn forget_before(&self, owned: &OwnedSlices, position: Position) -> Result<(), OffsetError> {
        let call = self.inner.forget_before(owned, position);
        self.of_offsets().ask(Direction::Write, call, of_offset, OffsetError::Unavailable).await
    }

    async fn reset(&self, owned: &OwnedSlices) -> Result<(), OffsetError> {
        let call = self.inner.reset(owned);
        self.of_offsets().ask(Direction::Write, call, of_offset, OffsetError::Unavailable).await
    }

    fn health(&self) -> Health {
        self.guard.health(self.inner.health())
    }

    async fn close(&self) -> Result<(), CloseError> {
        self.guard.end_probes();
        self.inner.close().await
    }
}

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
                let text = format!("an earlier try was not answered, this one was refused: {refusal}");
                Err(StateWriteError::Unknown(StoreFailure::new("state store", refusal).with_text(text)))
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
