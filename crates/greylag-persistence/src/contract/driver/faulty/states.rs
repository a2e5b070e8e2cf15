//! A state store with scripted faults.

use std::sync::Arc;

use async_trait::async_trait;

use super::{Opaque, Plans, StoreFault};
use crate::contract::driver::state_store::StateStore;
use crate::contract::error::{
    CloseError, Corrupt, CorruptKind, QueryError, ReadError, StateRejectReason, StateWriteError, StoreFailure,
};
use crate::contract::journal::Health;
use crate::contract::offset::Offset;
use crate::contract::records::codec::EncodedValue;
use crate::contract::records::event::SeqNr;
use crate::contract::records::persistence_id::PersistenceId;
use crate::contract::records::state::{ChangesOf, StateCaps, StateChange, StateWrite, StoredState};

/// The operation of a state store that a fault is planned for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StateOp {
    /// [`StateStore::get`].
    Get,
    /// [`StateStore::upsert`].
    Upsert,
    /// [`StateStore::delete`].
    Delete,
}

/// A state store with scripted faults around another.
#[derive(Debug)]
pub struct FaultyStates {
    inner: Opaque<Arc<dyn StateStore>>,
    plans: Plans<StateOp>,
}

impl FaultyStates {
    /// A wrapper of `inner`, without faults until one is planned.
    pub fn new(inner: Arc<dyn StateStore>) -> Self {
        Self { inner: Opaque(inner), plans: Plans::new("faulty state store") }
    }

    /// Plans `fault` for one call of `op` on `id` (on any id, if none), after `passing` calls
    /// that pass.
    pub fn plan(&self, id: Option<PersistenceId>, op: StateOp, passing: u32, fault: StoreFault) {
        self.plans.add(id.map(|id| id.to_string()), op, passing, fault);
    }

    /// Starts or ends an outage: every call meets [`StoreFault::Unavailable`] while `is_away`. Planned faults wait.
    pub fn set_away(&self, is_away: bool) {
        self.plans.set_away(is_away);
    }
}

fn refuse_write(fault: StoreFault, failure: StoreFailure) -> StateWriteError {
    match fault {
        StoreFault::Rejected => StateWriteError::Rejected(StateRejectReason::Other("as planned".to_owned())),
        StoreFault::AnswerLost { .. } => StateWriteError::Unknown(failure),
        _ => StateWriteError::NotStored(failure),
    }
}

#[async_trait]
impl StateStore for FaultyStates {
    fn caps(&self) -> StateCaps {
        self.inner.caps()
    }

    async fn get(&self, id: &PersistenceId) -> Result<StoredState, ReadError> {
        let refuse = |fault, failure| match fault {
            StoreFault::Corrupt => {
                ReadError::Corrupt(Corrupt { id: id.clone(), seq_nr: SeqNr::ZERO, kind: CorruptKind::Checksum })
            }
            _ => ReadError::Unavailable(failure),
        };
        self.plans.meet(id.as_str(), StateOp::Get, self.inner.get(id), refuse).await
    }

    async fn upsert(&self, write: StateWrite, value: EncodedValue, tag: Option<String>) -> Result<(), StateWriteError> {
        let id = write.id.clone();
        self.plans.meet(id.as_str(), StateOp::Upsert, self.inner.upsert(write, value, tag), refuse_write).await
    }

    async fn delete(&self, write: StateWrite) -> Result<(), StateWriteError> {
        let id = write.id.clone();
        self.plans.meet(id.as_str(), StateOp::Delete, self.inner.delete(write), refuse_write).await
    }

    async fn ids(&self, after: Option<&PersistenceId>, limit: usize) -> Result<Vec<PersistenceId>, ReadError> {
        self.inner.ids(after, limit).await
    }

    async fn changes(&self, of: &ChangesOf, offset: &Offset, limit: usize) -> Result<Vec<StateChange>, QueryError> {
        self.inner.changes(of, offset, limit).await
    }

    fn health(&self) -> Health {
        self.inner.health()
    }

    async fn close(&self) -> Result<(), CloseError> {
        self.inner.close().await
    }
}
