//! A journal with scripted faults.

use std::sync::Arc;

use async_trait::async_trait;

use super::{Plans, StoreFault};
use crate::contract::driver::journal_store::Journal;
use crate::contract::error::{
    AdvanceError, AppendError, ClaimError, CloseError, Corrupt, CorruptKind, DeleteError, ReadError, RejectReason,
};
use crate::contract::head::{Claim, Head, Under};
use crate::contract::journal::{Append, Appended, Caps, Health, Page, ReadRange};
use crate::contract::records::event::{SeqNr, WriterEpoch, WriterUuid};
use crate::contract::records::persistence_id::PersistenceId;

/// The operation of a journal that a fault is planned for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JournalOp {
    /// [`Journal::claim`].
    Claim,
    /// [`Journal::advance`].
    Advance,
    /// [`Journal::append`].
    Append,
    /// [`Journal::read`].
    Read,
    /// [`Journal::head`].
    Head,
    /// [`Journal::delete_to`].
    Delete,
}

/// A journal with scripted faults around another.
#[derive(Debug)]
pub struct FaultyJournal {
    inner: super::Opaque<Arc<dyn Journal>>,
    plans: Plans<JournalOp>,
}

impl FaultyJournal {
    /// A wrapper of `inner`, without faults until one is planned.
    pub fn new(inner: Arc<dyn Journal>) -> Self {
        Self { inner: super::Opaque(inner), plans: Plans::new("faulty journal") }
    }

    /// Plans `fault` for one call of `op` on `id` (on any id, if none), after `passing` calls
    /// that pass.
    pub fn plan(&self, id: Option<PersistenceId>, op: JournalOp, passing: u32, fault: StoreFault) {
        self.plans.add(id.map(|id| id.to_string()), op, passing, fault);
    }

    /// Starts or ends an outage: every call meets [`StoreFault::Unavailable`] while `is_away`. Planned faults wait.
    pub fn set_away(&self, is_away: bool) {
        self.plans.set_away(is_away);
    }
}

#[async_trait]
impl Journal for FaultyJournal {
    fn caps(&self) -> Caps {
        self.inner.caps()
    }

    async fn claim(&self, id: &PersistenceId, writer_uuid: WriterUuid, under: Under) -> Result<Claim, ClaimError> {
        let call = self.inner.claim(id, writer_uuid, under);
        self.plans.meet(id.as_str(), JournalOp::Claim, call, |_, failure| ClaimError::Unavailable(failure)).await
    }

    async fn advance(&self, id: &PersistenceId, epoch: WriterEpoch, to: SeqNr) -> Result<(), AdvanceError> {
        let call = self.inner.advance(id, epoch, to);
        self.plans.meet(id.as_str(), JournalOp::Advance, call, |_, failure| AdvanceError::Unavailable(failure)).await
    }

    async fn append(&self, append: Append) -> Result<Appended, AppendError> {
        let id = append.id.clone();
        let refuse = |fault, failure| match fault {
            StoreFault::Rejected => AppendError::Rejected(RejectReason::Other("as planned".to_owned())),
            StoreFault::AnswerLost { .. } => AppendError::Unknown(failure),
            _ => AppendError::NotStored(failure),
        };
        self.plans.meet(id.as_str(), JournalOp::Append, self.inner.append(append), refuse).await
    }

    async fn read(&self, id: &PersistenceId, range: ReadRange) -> Result<Page, ReadError> {
        let refuse = |fault, failure| match fault {
            StoreFault::Corrupt => {
                ReadError::Corrupt(Corrupt { id: id.clone(), seq_nr: range.from, kind: CorruptKind::Checksum })
            }
            _ => ReadError::Unavailable(failure),
        };
        self.plans.meet(id.as_str(), JournalOp::Read, self.inner.read(id, range), refuse).await
    }

    async fn head(&self, id: &PersistenceId) -> Result<Head, ReadError> {
        self.plans
            .meet(id.as_str(), JournalOp::Head, self.inner.head(id), |_, failure| ReadError::Unavailable(failure))
            .await
    }

    async fn delete_to(&self, id: &PersistenceId, epoch: WriterEpoch, to: SeqNr) -> Result<SeqNr, DeleteError> {
        let call = self.inner.delete_to(id, epoch, to);
        self.plans.meet(id.as_str(), JournalOp::Delete, call, |_, failure| DeleteError::Unavailable(failure)).await
    }

    fn health(&self) -> Health {
        self.inner.health()
    }

    async fn close(&self) -> Result<(), CloseError> {
        self.inner.close().await
    }
}
