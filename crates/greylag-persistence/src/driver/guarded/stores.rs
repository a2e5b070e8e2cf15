//! Snapshot and offset stores behind a guard.

use std::ops::RangeInclusive;

use async_trait::async_trait;

use super::{Direction, Guard, Guarded, reserved_id};
use crate::breaker::Breakers;
use crate::driver::offset_store::OffsetStore;
use crate::driver::store_returns::StoreReturns;
use crate::driver::stores::SnapshotStore;
use crate::error::{CloseError, OffsetError, SnapshotError, StoreFailure};
use crate::event::{SeqNr, Timestamp};
use crate::journal::Health;
use crate::offset::{OffsetCaps, OwnedSlices, Position, Processed};
use crate::persistence_id::PersistenceId;
use crate::snapshot::{NewSnapshot, Snapshot, SnapshotCaps, SnapshotCriteria};

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
