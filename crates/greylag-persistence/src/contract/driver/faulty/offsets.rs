//! An offset store with scripted faults.

use std::ops::RangeInclusive;
use std::sync::Arc;

use async_trait::async_trait;

use super::{Opaque, Plans, StoreFault};
use crate::contract::driver::offset_store::OffsetStore;
use crate::contract::error::{CloseError, CorruptKind, OffsetError};
use crate::contract::journal::Health;
use crate::contract::offset::{OffsetCaps, OwnedSlices, Position, Processed};

/// The operation of an offset store that a fault is planned for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OffsetOp {
    /// [`OffsetStore::claim`].
    Claim,
    /// [`OffsetStore::load`].
    Load,
    /// [`OffsetStore::save`].
    Save,
    /// [`OffsetStore::forget_before`] and [`OffsetStore::reset`].
    Forget,
}

/// An offset store with scripted faults around another.
#[derive(Debug)]
pub struct FaultyOffsets {
    inner: Opaque<Arc<dyn OffsetStore>>,
    plans: Plans<OffsetOp>,
}

impl FaultyOffsets {
    /// A wrapper of `inner`, without faults until one is planned.
    pub fn new(inner: Arc<dyn OffsetStore>) -> Self {
        Self { inner: Opaque(inner), plans: Plans::new("faulty offset store") }
    }

    /// Plans `fault` for one call of `op` for `projection` (for any, if none), after `passing` calls
    /// that pass.
    pub fn plan(&self, projection: Option<&str>, op: OffsetOp, passing: u32, fault: StoreFault) {
        self.plans.add(projection.map(str::to_owned), op, passing, fault);
    }

    /// Starts or ends an outage: every call meets [`StoreFault::Unavailable`] while `is_away`. Planned faults wait.
    pub fn set_away(&self, is_away: bool) {
        self.plans.set_away(is_away);
    }
}

#[async_trait]
impl OffsetStore for FaultyOffsets {
    fn caps(&self) -> OffsetCaps {
        self.inner.caps()
    }

    async fn claim(&self, projection: &str, slices: RangeInclusive<u16>) -> Result<OwnedSlices, OffsetError> {
        let call = self.inner.claim(projection, slices);
        self.plans.meet(projection, OffsetOp::Claim, call, |_, failure| OffsetError::Unavailable(failure)).await
    }

    async fn load(&self, projection: &str, slices: RangeInclusive<u16>) -> Result<Vec<Processed>, OffsetError> {
        let refuse = |fault, failure| match fault {
            StoreFault::Corrupt => {
                OffsetError::Corrupt { projection: projection.to_owned(), kind: CorruptKind::Checksum }
            }
            _ => OffsetError::Unavailable(failure),
        };
        self.plans.meet(projection, OffsetOp::Load, self.inner.load(projection, slices), refuse).await
    }

    async fn save(&self, owned: &OwnedSlices, processed: &[Processed]) -> Result<(), OffsetError> {
        let call = self.inner.save(owned, processed);
        let refuse = |_, failure| OffsetError::Unavailable(failure);
        self.plans.meet(&owned.projection, OffsetOp::Save, call, refuse).await
    }

    async fn forget_before(&self, owned: &OwnedSlices, position: Position) -> Result<(), OffsetError> {
        let call = self.inner.forget_before(owned, position);
        let refuse = |_, failure| OffsetError::Unavailable(failure);
        self.plans.meet(&owned.projection, OffsetOp::Forget, call, refuse).await
    }

    async fn reset(&self, owned: &OwnedSlices) -> Result<(), OffsetError> {
        let refuse = |_, failure| OffsetError::Unavailable(failure);
        self.plans.meet(&owned.projection, OffsetOp::Forget, self.inner.reset(owned), refuse).await
    }

    fn health(&self) -> Health {
        self.inner.health()
    }

    async fn close(&self) -> Result<(), CloseError> {
        self.inner.close().await
    }
}
