//! Snapshot and offset stores behind a guard.

use std::ops::RangeInclusive;

use async_trait::async_trait;

use super::{Direction, Guarded};
use crate::breaker::Breakers;
use crate::driver::offset_store::OffsetStore;
use crate::driver::stores::SnapshotStore;
use crate::error::{CloseError, OffsetError, SnapshotError, StoreFailure};
use crate::event::{SeqNr, Timestamp};
use crate::journal::Health;
use crate::offset::{OffsetCaps, OwnedSlices, Position, Processed};
use crate::persistence_id::PersistenceId;
use crate::snapshot::{NewSnapshot, Snapshot, SnapshotCaps, SnapshotCriteria};

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

#[async_trait]
impl<S: SnapshotStore + ?Sized> SnapshotStore for Guarded<S> {
    fn caps(&self) -> SnapshotCaps {
        self.inner.caps()
    }

    async fn load(&self, id: &PersistenceId, criteria: SnapshotCriteria) -> Result<Option<Snapshot>, SnapshotError> {
        let call = self.inner.load(id, criteria);
        self.guard.ask(Direction::Read, call, of_snapshot, SnapshotError::Unavailable).await
    }

    async fn save(&self, snapshot: NewSnapshot) -> Result<Timestamp, SnapshotError> {
        let call = self.inner.save(snapshot);
        self.guard.ask(Direction::Write, call, of_snapshot, SnapshotError::Unavailable).await
    }

    async fn delete(&self, id: &PersistenceId, seq_nr: SeqNr) -> Result<(), SnapshotError> {
        let call = self.inner.delete(id, seq_nr);
        self.guard.ask(Direction::Write, call, of_snapshot, SnapshotError::Unavailable).await
    }

    async fn delete_matching(&self, id: &PersistenceId, criteria: SnapshotCriteria) -> Result<(), SnapshotError> {
        let call = self.inner.delete_matching(id, criteria);
        self.guard.ask(Direction::Write, call, of_snapshot, SnapshotError::Unavailable).await
    }

    fn health(&self) -> Health {
        self.guard.health(self.inner.health())
    }

    fn breakers(&self) -> Option<Breakers> {
        Some(self.breakers())
    }

    async fn close(&self) -> Result<(), CloseError> {
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
        self.guard.ask(Direction::Write, call, of_offset, OffsetError::Unavailable).await
    }

    async fn load(&self, projection: &str, slices: RangeInclusive<u16>) -> Result<Vec<Processed>, OffsetError> {
        let call = self.inner.load(projection, slices);
        self.guard.ask(Direction::Read, call, of_offset, OffsetError::Unavailable).await
    }

    async fn save(&self, owned: &OwnedSlices, processed: &[Processed]) -> Result<(), OffsetError> {
        let call = self.inner.save(owned, processed);
        self.guard.ask(Direction::Write, call, of_offset, OffsetError::Unavailable).await
    }

    async fn forget_before(&self, owned: &OwnedSlices, position: Position) -> Result<(), OffsetError> {
        let call = self.inner.forget_before(owned, position);
        self.guard.ask(Direction::Write, call, of_offset, OffsetError::Unavailable).await
    }

    async fn reset(&self, owned: &OwnedSlices) -> Result<(), OffsetError> {
        let call = self.inner.reset(owned);
        self.guard.ask(Direction::Write, call, of_offset, OffsetError::Unavailable).await
    }

    fn health(&self) -> Health {
        self.guard.health(self.inner.health())
    }

    async fn close(&self) -> Result<(), CloseError> {
        self.inner.close().await
    }
}
