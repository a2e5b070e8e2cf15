//! A journal that fails as told, around any other: for tests of what users build on journals.
//!
//! Faults are scripted for one operation of one id, or of all, and for its n-th call from now on.
//! Source: persistence §8.

use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;

use crate::driver::stores::Journal;
use crate::error::{
    AdvanceError, AppendError, ClaimError, CloseError, Corrupt, CorruptKind, DeleteError, ReadError, RejectReason,
    StoreFailure,
};
use crate::event::{SeqNr, WriterEpoch, WriterUuid};
use crate::journal::{Append, Appended, Caps, Claim, Head, Health, Page, ReadRange, Under};
use crate::persistence_id::PersistenceId;

const NAME: &str = "faulty journal";

/// Which calls a fault meets.
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

/// What goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JournalFault {
    /// Nothing is done, and the caller hears that: not stored, or unavailable.
    Unavailable,
    /// An append is refused as such; for other operations the same as `Unavailable`.
    Rejected,
    /// The answer is lost: an append is unknown, everything else unavailable.
    AnswerLost {
        /// Whether it is done all the same.
        done: bool,
    },
    /// It is done or not, and never answers.
    Hang {
        /// Whether it is done.
        done: bool,
    },
    /// A read meets a damaged record; for other operations the same as `Unavailable`.
    Corrupt,
}

#[derive(Debug)]
struct Planned {
    id: Option<PersistenceId>,
    op: JournalOp,
    /// Calls that pass before.
    passing: u32,
    fault: JournalFault,
}

/// A journal with scripted faults around `inner`.
pub struct FaultyJournal {
    inner: Arc<dyn Journal>,
    planned: Mutex<Vec<Planned>>,
}

impl std::fmt::Debug for FaultyJournal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FaultyJournal").field("planned", &self.planned).finish_non_exhaustive()
    }
}

impl FaultyJournal {
    /// `inner`, as it is until something is planned.
    pub fn new(inner: Arc<dyn Journal>) -> Self {
        Self { inner, planned: Mutex::default() }
    }

    /// Lets `passing` calls of `op` on `id` (on all ids, if none) pass, and the one after meet
    /// `fault`, once.
    pub fn plan(&self, id: Option<PersistenceId>, op: JournalOp, passing: u32, fault: JournalFault) {
        self.planned.lock().unwrap_or_else(PoisonError::into_inner).push(Planned { id, op, passing, fault });
    }

    /// The fault that this call meets, if any.
    fn next(&self, id: &PersistenceId, op: JournalOp) -> Option<JournalFault> {
        let mut planned = self.planned.lock().unwrap_or_else(PoisonError::into_inner);
        let meant = |plan: &Planned| plan.op == op && plan.id.as_ref().is_none_or(|meant| meant == id);
        let due = planned.iter().position(|plan| meant(plan) && plan.passing == 0);
        planned.iter_mut().filter(|plan| meant(plan)).for_each(|plan| plan.passing = plan.passing.saturating_sub(1));
        due.map(|due| planned.remove(due).fault)
    }

    /// Runs `call` with the fault that it meets; `refuse` puts the fault in the words of the operation.
    async fn with_fault<T, E>(
        &self,
        id: &PersistenceId,
        op: JournalOp,
        call: impl Future<Output = Result<T, E>> + Send,
        refuse: impl FnOnce(JournalFault, StoreFailure) -> E + Send,
    ) -> Result<T, E> {
        let Some(fault) = self.next(id, op) else { return call.await };
        let (JournalFault::AnswerLost { done } | JournalFault::Hang { done }) = fault else {
            return Err(refuse(fault, StoreFailure::new(NAME, "out of service")));
        };
        if done {
            // Its answer is what gets lost.
            let _ = call.await;
        }
        match fault {
            JournalFault::Hang { .. } => std::future::pending().await,
            _ => Err(refuse(fault, StoreFailure::new(NAME, "the answer is lost"))),
        }
    }
}

#[async_trait]
impl Journal for FaultyJournal {
    fn caps(&self) -> Caps {
        self.inner.caps()
    }

    async fn claim(&self, id: &PersistenceId, writer_uuid: WriterUuid, under: Under) -> Result<Claim, ClaimError> {
        let call = self.inner.claim(id, writer_uuid, under);
        self.with_fault(id, JournalOp::Claim, call, |_, failure| ClaimError::Unavailable(failure)).await
    }

    async fn advance(&self, id: &PersistenceId, epoch: WriterEpoch, to: SeqNr) -> Result<(), AdvanceError> {
        let call = self.inner.advance(id, epoch, to);
        self.with_fault(id, JournalOp::Advance, call, |_, failure| AdvanceError::Unavailable(failure)).await
    }

    async fn append(&self, append: Append) -> Result<Appended, AppendError> {
        let id = append.id.clone();
        let refuse = |fault, failure| match fault {
            JournalFault::Rejected => AppendError::Rejected(RejectReason::Other("as planned".to_owned())),
            JournalFault::AnswerLost { .. } => AppendError::Unknown(failure),
            _ => AppendError::NotStored(failure),
        };
        self.with_fault(&id, JournalOp::Append, self.inner.append(append), refuse).await
    }

    async fn read(&self, id: &PersistenceId, range: ReadRange) -> Result<Page, ReadError> {
        let refuse = |fault, failure| match fault {
            JournalFault::Corrupt => {
                ReadError::Corrupt(Corrupt { id: id.clone(), seq_nr: range.from, kind: CorruptKind::Checksum })
            }
            _ => ReadError::Unavailable(failure),
        };
        self.with_fault(id, JournalOp::Read, self.inner.read(id, range), refuse).await
    }

    async fn head(&self, id: &PersistenceId) -> Result<Head, ReadError> {
        self.with_fault(id, JournalOp::Head, self.inner.head(id), |_, failure| ReadError::Unavailable(failure)).await
    }

    async fn delete_to(&self, id: &PersistenceId, epoch: WriterEpoch, to: SeqNr) -> Result<SeqNr, DeleteError> {
        let call = self.inner.delete_to(id, epoch, to);
        self.with_fault(id, JournalOp::Delete, call, |_, failure| DeleteError::Unavailable(failure)).await
    }

    fn health(&self) -> Health {
        self.inner.health()
    }

    async fn close(&self) -> Result<(), CloseError> {
        self.inner.close().await
    }
}
